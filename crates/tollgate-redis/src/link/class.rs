//! What a reply that is not an answer means: whether the call may have been executed, whether it may be sent again, and what it says about
//! the shard. All of it follows from the class alone.

use redis::{ErrorKind, RedisError, ServerError};

use crate::breaker::Severity;

/// Why a call was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
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

impl Class {
    /// Every class, in the order of their numbers.
    pub const ALL: [Class; 20] = [
        Class::Moved,
        Class::Ask,
        Class::TryAgain,
        Class::NoScript,
        Class::ReadOnly,
        Class::NotReady,
        Class::Busy,
        Class::OutOfMemory,
        Class::NotWritable,
        Class::Refused,
        Class::WrongType,
        Class::CrossSlot,
        Class::NoConnection,
        Class::Timeout,
        Class::Disconnected,
        Class::Malformed,
        Class::Other,
        Class::Shed,
        Class::Late,
        Class::Open,
    ];

    /// Its name, for a label.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Class::Moved => "moved",
            Class::Ask => "ask",
            Class::TryAgain => "try_again",
            Class::NoScript => "no_script",
            Class::ReadOnly => "read_only",
            Class::NotReady => "not_ready",
            Class::Busy => "busy",
            Class::OutOfMemory => "out_of_memory",
            Class::NotWritable => "not_writable",
            Class::Refused => "refused",
            Class::WrongType => "wrong_type",
            Class::CrossSlot => "cross_slot",
            Class::NoConnection => "no_connection",
            Class::Timeout => "timeout",
            Class::Disconnected => "disconnected",
            Class::Malformed => "malformed",
            Class::Other => "other",
            Class::Shed => "shed",
            Class::Late => "late",
            Class::Open => "open",
        }
    }

    /// Whether the call may have been executed. Only what provably was not may be sent again.
    #[must_use]
    pub const fn may_have_run(self) -> bool {
        matches!(self, Class::Timeout | Class::Disconnected | Class::Malformed | Class::Other)
    }

    /// What it says about the shard.
    pub(crate) const fn severity(self) -> Severity {
        match self {
            Class::Moved
            | Class::Ask
            | Class::TryAgain
            | Class::NoScript
            | Class::WrongType
            | Class::CrossSlot
            | Class::Shed
            | Class::Late
            | Class::Open => Severity::None,
            Class::ReadOnly
            | Class::NotReady
            | Class::Busy
            | Class::OutOfMemory
            | Class::NotWritable
            | Class::Timeout
            | Class::Disconnected
            | Class::Malformed
            | Class::Other => Severity::Counts,
            Class::NoConnection => Severity::Trips,
            Class::Refused => Severity::Fatal,
        }
    }

    /// The class of an error that the server sent.
    pub(crate) fn of_reply(error: &ServerError) -> Self {
        Self::of_code(error.code(), error.details().unwrap_or_default())
    }

    fn of_code(code: &str, details: &str) -> Self {
        match code {
            "MOVED" => Class::Moved,
            "ASK" => Class::Ask,
            "TRYAGAIN" => Class::TryAgain,
            "NOSCRIPT" => Class::NoScript,
            "READONLY" => Class::ReadOnly,
            "LOADING" | "MASTERDOWN" | "CLUSTERDOWN" => Class::NotReady,
            "BUSY" => Class::Busy,
            "OOM" => Class::OutOfMemory,
            "MISCONF" | "NOREPLICAS" => Class::NotWritable,
            "NOAUTH" | "WRONGPASS" | "NOPERM" => Class::Refused,
            "WRONGTYPE" => Class::WrongType,
            "CROSSSLOT" => Class::CrossSlot,
            // Before version 7 an error inside of a script is wrapped into another.
            "ERR" => Self::of_wrapped(details),
            _ => Class::Other,
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
        found.map_or(Class::Other, |code| Self::of_code(&code[1..], ""))
    }

    /// The class of an error on the way to the server or back.
    pub(crate) fn of_error(error: &RedisError) -> Self {
        match error.kind() {
            ErrorKind::AuthenticationFailed => Class::Refused,
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => Class::Malformed,
            ErrorKind::Server(_) | ErrorKind::Extension => error
                .code()
                .map_or(Class::Other, |code| Self::of_code(code, error.detail().unwrap_or_default())),
            _ if error.is_timeout() => Class::Timeout,
            _ => Class::Disconnected,
        }
    }
}

/// Why a request was not answered, and whether it may have been executed nevertheless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) class: Class,
    pub(crate) may_have_run: bool,
}

impl From<Class> for Failure {
    fn from(class: Class) -> Self {
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
            ("MOVED", Class::Moved, Severity::None, false),
            ("NOSCRIPT", Class::NoScript, Severity::None, false),
            ("LOADING", Class::NotReady, Severity::Counts, false),
            ("CLUSTERDOWN", Class::NotReady, Severity::Counts, false),
            ("BUSY", Class::Busy, Severity::Counts, false),
            ("OOM", Class::OutOfMemory, Severity::Counts, false),
            ("MISCONF", Class::NotWritable, Severity::Counts, false),
            ("NOREPLICAS", Class::NotWritable, Severity::Counts, false),
            ("NOPERM", Class::Refused, Severity::Fatal, false),
            ("WRONGTYPE", Class::WrongType, Severity::None, false),
            ("CROSSSLOT", Class::CrossSlot, Severity::None, false),
            ("ERR", Class::Other, Severity::Counts, true),
        ];
        for (code, class, severity, may_have_run) in classes {
            let found = Class::of_code(code, "");
            assert_eq!(
                (found, found.severity(), found.may_have_run()),
                (class, severity, may_have_run),
                "{code}"
            );
        }
        let old = "Error running script (call to f_1): @user_script:1: -OOM command not allowed";
        assert_eq!(Class::of_code("ERR", old), Class::OutOfMemory);
    }

    /// A class's place in the list is its number.
    #[test]
    fn classes_are_listed_in_order() {
        for (number, class) in Class::ALL.iter().enumerate() {
            assert_eq!(*class as usize, number);
        }
    }
}
