//! What a reply that is not an answer means: whether the call may have been executed, whether it may be sent again, and what it says about
//! the shard. All of it follows from the class alone.

pub(crate) mod redirect;

use redis::{ErrorKind, RedisError, ServerError};

use crate::breaker::Severity;

/// Why a call was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReplyClass {
    /// The slot lives elsewhere.
    Moved,
    /// The slot is on its way elsewhere, and this key is already there.
    Ask,
    /// The slot is on its way, and the keys are on both sides.
    TryAgain,
    /// The node does not know the script, even when sent with it.
    NoScript,
    /// The node is a replica.
    ReadOnly,
    /// The node is not ready to answer: it loads its data, its primary is away, or the cluster is.
    NotReady,
    /// Somebody's script keeps the node from answering.
    Busy,
    /// The store has no memory left.
    OutOfMemory,
    /// The store refuses writes: it cannot persist them, or lacks replicas.
    NotWritable,
    /// User, password, rights or certificates are wrong.
    Refused,
    /// A key holds what it should not.
    WrongType,
    /// Keys of several slots in one call: a fault of ours.
    CrossSlot,
    /// There is no connection, and none could be made.
    NoConnection,
    /// No answer in time.
    Timeout,
    /// The connection ended before the answer came.
    Disconnected,
    /// An answer that makes no sense.
    Malformed,
    /// An error that has no class of its own.
    Other,
    /// Too many requests are under way already.
    Shed,
    /// The deadline was too near to send anything.
    Late,
    /// The breaker keeps requests from the shard.
    Open,
}

impl ReplyClass {
    /// Every class, in the order of their numbers.
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

    /// Its name, for a label.
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

    /// Whether the call may have been executed. Only what provably was not may be sent again.
    #[must_use]
    pub const fn may_have_run(self) -> bool {
        matches!(
            self,
            ReplyClass::Timeout | ReplyClass::Disconnected | ReplyClass::Malformed | ReplyClass::Other
        )
    }

    /// What it says about the shard.
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
            // Before version 7 an error inside of a script is wrapped into another.
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

    /// The class of an error on the way to the server or back.
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

/// Why a request was not answered, and whether it may have been executed nevertheless.
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

    /// Every error that Redis sends has the class that says what to do about it.
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

    /// A class's place in the list is its number.
    #[test]
    fn classes_are_listed_in_order() {
        for (number, class) in ReplyClass::ALL.iter().enumerate() {
            assert_eq!(*class as usize, number);
        }
    }
}
