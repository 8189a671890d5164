//! Classes of replies that are not answers. The class alone decides whether the call may have been executed, whether it
//! may be resent, and what it says about the shard.

pub(crate) mod redirect;

use redis::{ErrorKind, RedisError, ServerError};

use crate::breaker::Severity;

/// Why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReplyClass {
    /// Another node owns the slot.
    Moved,
    /// The slot is migrating, and this key has already moved.
    Ask,
    /// The slot is migrating, and the keys are on both nodes.
    TryAgain,
    /// The node lacks the script, even after it was sent with its source.
    NoScript,
    /// The node is a replica.
    ReadOnly,
    /// The node is not ready: it is loading, its primary is unreachable, or the cluster is down.
    NotReady,
    /// A slow script blocks the node.
    Busy,
    /// The store has no memory left.
    OutOfMemory,
    /// The store refuses writes: it cannot persist them, or lacks replicas.
    NotWritable,
    /// The user, password, permissions or certificates are wrong.
    Refused,
    /// A key holds a value of another type.
    WrongType,
    /// One call had keys of several slots, which is a bug in Tollgate.
    CrossSlot,
    /// There is no connection.
    NoConnection,
    /// No answer in time.
    Timeout,
    /// The connection ended before the answer came.
    Disconnected,
    /// The reply is not what the script returns.
    Malformed,
    /// An error without a class of its own.
    Other,
    /// Too many requests are in flight.
    Shed,
    /// The deadline was too near to send the request.
    Late,
    /// The breaker is open.
    Open,
}

impl ReplyClass {
    /// Every class, in the order of its discriminant.
    pub const ALL: [ReplyClass; 20] = [
        ReplyClass::Moved,
        ReplyClass::Ask,
        ReplyClass::TryAgain,
        ReplyClass::NoScript,
        ReplyClass::ReadOnly,
        ReplyClass::NotReady,
        ReplyClass::Busy,
        ReplyClass::OutOfMemory,
        ReplyClass::NotWritable,
        ReplyClass::Refused,
        ReplyClass::WrongType,
        ReplyClass::CrossSlot,
        ReplyClass::NoConnection,
        ReplyClass::Timeout,
        ReplyClass::Disconnected,
        ReplyClass::Malformed,
        ReplyClass::Other,
        ReplyClass::Shed,
        ReplyClass::Late,
        ReplyClass::Open,
    ];

    /// The name used in metric labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ReplyClass::Moved => "moved",
            ReplyClass::Ask => "ask",
            ReplyClass::TryAgain => "try_again",
            ReplyClass::NoScript => "no_script",
            ReplyClass::ReadOnly => "read_only",
            ReplyClass::NotReady => "not_ready",
            ReplyClass::Busy => "busy",
            ReplyClass::OutOfMemory => "out_of_memory",
            ReplyClass::NotWritable => "not_writable",
            ReplyClass::Refused => "refused",
            ReplyClass::WrongType => "wrong_type",
            ReplyClass::CrossSlot => "cross_slot",
            ReplyClass::NoConnection => "no_connection",
            ReplyClass::Timeout => "timeout",
            ReplyClass::Disconnected => "disconnected",
            ReplyClass::Malformed => "malformed",
            ReplyClass::Other => "other",
            ReplyClass::Shed => "shed",
            ReplyClass::Late => "late",
            ReplyClass::Open => "open",
        }
    }

    /// Whether the call may have been executed. Only a call that provably was not executed may be resent.
    #[must_use]
    pub const fn may_have_run(self) -> bool {
        matches!(
            self,
            ReplyClass::Timeout | ReplyClass::Disconnected | ReplyClass::Malformed | ReplyClass::Other
        )
    }

    /// The health of the shard according to the class.
    pub(crate) const fn severity(self) -> Severity {
        match self {
            ReplyClass::Moved
            | ReplyClass::Ask
            | ReplyClass::TryAgain
            | ReplyClass::NoScript
            | ReplyClass::WrongType
            | ReplyClass::CrossSlot
            | ReplyClass::Shed
            | ReplyClass::Late
            | ReplyClass::Open => Severity::None,
            ReplyClass::ReadOnly
            | ReplyClass::NotReady
            | ReplyClass::Busy
            | ReplyClass::OutOfMemory
            | ReplyClass::NotWritable
            | ReplyClass::Timeout
            | ReplyClass::Disconnected
            | ReplyClass::Malformed
            | ReplyClass::Other => Severity::Counts,
            ReplyClass::NoConnection => Severity::Trips,
            ReplyClass::Refused => Severity::Fatal,
        }
    }

    /// The class of an error that the server sent.
    pub(crate) fn of_reply(error: &ServerError) -> Self {
        Self::of_code(error.code(), error.details().unwrap_or_default())
    }

    fn of_code(code: &str, details: &str) -> Self {
        match code {
            "MOVED" => ReplyClass::Moved,
            "ASK" => ReplyClass::Ask,
            "TRYAGAIN" => ReplyClass::TryAgain,
            "NOSCRIPT" => ReplyClass::NoScript,
            "READONLY" => ReplyClass::ReadOnly,
            "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" => ReplyClass::NotReady,
            "BUSY" => ReplyClass::Busy,
            "OOM" => ReplyClass::OutOfMemory,
            "MISCONF" | "NOREPLICAS" => ReplyClass::NotWritable,
            "NOAUTH" | "WRONGPASS" | "NOPERM" => ReplyClass::Refused,
            "WRONGTYPE" => ReplyClass::WrongType,
            "CROSSSLOT" => ReplyClass::CrossSlot,
            // Before version 7, Redis wraps an error raised inside a script.
            "ERR" => Self::of_wrapped(details),
            _ => ReplyClass::Other,
        }
    }

    fn of_wrapped(details: &str) -> Self {
        let known = [
            "-READONLY",
            "-OOM",
            "-MISCONF",
            "-NOREPLICAS",
            "-WRONGTYPE",
            "-NOPERM",
            "-LOADING",
            "-MASTERDOWN",
        ];
        let found = known.iter().find(|code| details.contains(**code));
        found.map_or(ReplyClass::Other, |code| Self::of_code(&code[1..], ""))
    }

    /// The class of a transport error.
    pub(crate) fn of_error(error: &RedisError) -> Self {
        match error.kind() {
            ErrorKind::AuthenticationFailed => ReplyClass::Refused,
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => ReplyClass::Malformed,
            ErrorKind::Server(_) | ErrorKind::Extension => error
                .code()
                .map_or(ReplyClass::Other, |code| Self::of_code(code, error.detail().unwrap_or_default())),
            _ if error.is_timeout() => ReplyClass::Timeout,
            _ => ReplyClass::Disconnected,
        }
    }
}

/// Why a request has no answer, and whether it may have been executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) class: ReplyClass,
    pub(crate) may_have_run: bool,
}

impl From<ReplyClass> for Failure {
    fn from(class: ReplyClass) -> Self {
        Self { class, may_have_run: class.may_have_run() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every Redis error code has the right class, severity and resend rule.
    #[test]
    fn codes_have_classes() {
        let classes = [
            ("MOVED", ReplyClass::Moved, Severity::None, false),
            ("NOSCRIPT", ReplyClass::NoScript, Severity::None, false),
            ("LOADING", ReplyClass::NotReady, Severity::Counts, false),
            ("CLUSTERDOWN", ReplyClass::NotReady, Severity::Counts, false),
            ("BUSY", ReplyClass::Busy, Severity::Counts, false),
            ("OOM", ReplyClass::OutOfMemory, Severity::Counts, false),
            ("MISCONF", ReplyClass::NotWritable, Severity::Counts, false),
            ("NOREPLICAS", ReplyClass::NotWritable, Severity::Counts, false),
            ("NOPERM", ReplyClass::Refused, Severity::Fatal, false),
            ("WRONGTYPE", ReplyClass::WrongType, Severity::None, false),
            ("CROSSSLOT", ReplyClass::CrossSlot, Severity::None, false),
            ("ERR", ReplyClass::Other, Severity::Counts, true),
        ];
        for (code, class, severity, may_have_run) in classes {
            let found = ReplyClass::of_code(code, "");
            assert_eq!(
                (found, found.severity(), found.may_have_run()),
                (class, severity, may_have_run),
                "{code}"
            );
        }
        let old = "Error running script (call to f_1): @user_script:1: -OOM command not allowed";
        assert_eq!(ReplyClass::of_code("ERR", old), ReplyClass::OutOfMemory);
    }

    /// A class's position in the list is its discriminant.
    #[test]
    fn classes_are_listed_in_order() {
        for (number, class) in ReplyClass::ALL.iter().enumerate() {
            assert_eq!(*class as usize, number);
        }
    }
}
