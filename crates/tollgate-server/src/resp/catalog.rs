//! The supported commands: their names, their arity, and their description for `COMMAND`.

use super::frame::Arguments;
use super::reply::Reply;

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RespCommand {
    Check,
    Throttle,
    CrabThrottle,
    Release,
    Ping,
    Echo,
    Hello,
    Auth,
    Client,
    Catalog,
    Select,
    Info,
    Quit,
    Reset,
}

impl RespCommand {
    /// Whether a client may send it before it is authenticated.
    pub(super) const fn is_greeting(self) -> bool {
        matches!(self, RespCommand::Hello | RespCommand::Auth | RespCommand::Quit | RespCommand::Reset)
    }
}

/// The description of a command.
pub(super) struct CommandEntry {
    pub(super) command: RespCommand,
    /// Its name, in lower case as in the reply of `COMMAND`.
    pub(super) name: &'static str,
    /// Its number of arguments, including its name. A negative number is a minimum.
    arity: i64,
    flags: &'static [&'static str],
    /// The index of its key, or zero if it has none.
    key: i64,
    group: &'static str,
    summary: &'static str,
}

/// All commands, the most frequent first, because they are searched in this order.
const ENTRIES: [CommandEntry; 14] = [
    CommandEntry {
        command: RespCommand::Check,
        name: "tg.check",
        arity: -1,
        flags: &["write", "fast"],
        key: 0,
        group: "module",
        summary: "Decides by the policy: TG.CHECK attribute value ... [COST n]",
    },
    CommandEntry {
        command: RespCommand::Throttle,
        name: "cl.throttle",
        arity: -1,
        flags: &["write"],
        key: 1,
        group: "module",
        summary: "Decides as redis-cell: CL.THROTTLE key max_burst count period [quantity]",
    },
    CommandEntry {
        command: RespCommand::CrabThrottle,
        name: "throttle",
        arity: -5,
        flags: &["write"],
        key: 1,
        group: "module",
        summary: "Decides as throttlecrab: THROTTLE key max_burst count period [quantity]",
    },
    CommandEntry {
        command: RespCommand::Release,
        name: "tg.release",
        arity: 2,
        flags: &["write", "fast"],
        key: 0,
        group: "module",
        summary: "Gives back the permit that a check on a concurrency limit took: TG.RELEASE id",
    },
    CommandEntry {
        command: RespCommand::Ping,
        name: "ping",
        arity: -1,
        flags: &["fast"],
        key: 0,
        group: "connection",
        summary: "Answers PONG, or the message",
    },
    CommandEntry {
        command: RespCommand::Echo,
        name: "echo",
        arity: 2,
        flags: &["fast"],
        key: 0,
        group: "connection",
        summary: "Answers the message",
    },
    CommandEntry {
        command: RespCommand::Hello,
        name: "hello",
        arity: -1,
        flags: &["noscript", "loading", "stale", "fast", "no_auth"],
        key: 0,
        group: "connection",
        summary: "Chooses the protocol, and tells about the server",
    },
    CommandEntry {
        command: RespCommand::Auth,
        name: "auth",
        arity: -2,
        flags: &["noscript", "loading", "stale", "fast", "no_auth"],
        key: 0,
        group: "connection",
        summary: "Accepts the default user, who needs no password",
    },
    CommandEntry {
        command: RespCommand::Client,
        name: "client",
        arity: -2,
        flags: &["noscript", "loading", "stale"],
        key: 0,
        group: "connection",
        summary: "Names the connection, and tells about it",
    },
    CommandEntry {
        command: RespCommand::Catalog,
        name: "command",
        arity: -1,
        flags: &["loading", "stale"],
        key: 0,
        group: "server",
        summary: "Tells about commands",
    },
    CommandEntry {
        command: RespCommand::Select,
        name: "select",
        arity: 2,
        flags: &["loading", "stale", "fast"],
        key: 0,
        group: "connection",
        summary: "Accepts database 0, the only one",
    },
    CommandEntry {
        command: RespCommand::Info,
        name: "info",
        arity: -1,
        flags: &["loading", "stale"],
        key: 0,
        group: "server",
        summary: "Tells about the server",
    },
    CommandEntry {
        command: RespCommand::Quit,
        name: "quit",
        arity: -1,
        flags: &["fast", "no_auth"],
        key: 0,
        group: "connection",
        summary: "Ends the connection",
    },
    CommandEntry {
        command: RespCommand::Reset,
        name: "reset",
        arity: 1,
        flags: &["fast", "no_auth"],
        key: 0,
        group: "connection",
        summary: "Makes the connection as if new",
    },
];

impl CommandEntry {
    /// The command of this name, in any case.
    #[inline]
    pub(super) fn of(name: &[u8]) -> Option<&'static Self> {
        const { &ENTRIES }.iter().find(|entry| entry.name.as_bytes().eq_ignore_ascii_case(name))
    }

    /// Whether it accepts this number of arguments, including its name.
    #[inline]
    pub(super) fn takes(&self, arguments: usize) -> bool {
        let arguments = i64::try_from(arguments).unwrap_or(i64::MAX);
        if self.arity < 0 { arguments >= -self.arity } else { arguments == self.arity }
    }

    /// Writes the reply of `COMMAND`: ten fields, of which the last three are for tips, key specifications and
    /// subcommands.
    fn write(&self, reply: &mut Reply<'_>) {
        reply.array(10);
        reply.bulk(self.name.as_bytes());
        reply.integer(self.arity);
        reply.set(self.flags.len());
        self.flags.iter().for_each(|flag| reply.simple(flag));
        reply.integer(self.key);
        reply.integer(self.key);
        reply.integer(self.key);
        reply.set(1);
        reply.simple(if self.group == "connection" { "@connection" } else { "@all" });
        (0..3).for_each(|_| reply.array(0));
    }

    fn document(&self, reply: &mut Reply<'_>) {
        reply.bulk(self.name.as_bytes());
        reply.map(2);
        reply.bulk(b"summary");
        reply.bulk(self.summary.as_bytes());
        reply.bulk(b"group");
        reply.bulk(self.group.as_bytes());
    }
}

/// `COMMAND`, alone or with `COUNT`, `LIST`, `INFO` or `DOCS`.
pub(super) fn answer(arguments: Arguments<'_>, reply: &mut Reply<'_>) {
    let Some(what) = arguments.get(1) else {
        reply.array(ENTRIES.len());
        return ENTRIES.iter().for_each(|entry| entry.write(reply));
    };
    let is_named = arguments.len() > 2;
    match what.to_ascii_lowercase().as_slice() {
        b"count" => reply.integer(i64::try_from(ENTRIES.len()).unwrap_or(i64::MAX)),
        b"list" => {
            reply.array(ENTRIES.len());
            ENTRIES.iter().for_each(|entry| reply.bulk(entry.name.as_bytes()));
        }
        b"info" if is_named => {
            reply.array(arguments.len() - 2);
            arguments.from(2).for_each(|name| match CommandEntry::of(name) {
                Some(entry) => entry.write(reply),
                None => reply.null(),
            });
        }
        b"info" => {
            reply.array(ENTRIES.len());
            ENTRIES.iter().for_each(|entry| entry.write(reply));
        }
        b"docs" => {
            let entries: Vec<&CommandEntry> = match is_named {
                true => arguments.from(2).filter_map(CommandEntry::of).collect(),
                false => ENTRIES.iter().collect(),
            };
            reply.map(entries.len());
            entries.into_iter().for_each(|entry| entry.document(reply));
        }
        _ => reply.error("ERR unknown subcommand; accepted: COUNT, LIST, INFO and DOCS"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names are found in any case, and stored in the case of `COMMAND`'s reply.
    #[test]
    fn names() {
        for entry in &ENTRIES {
            assert_eq!(
                CommandEntry::of(entry.name.to_uppercase().as_bytes()).unwrap().command,
                entry.command
            );
            assert_eq!(entry.name, entry.name.to_lowercase());
        }
        assert!(CommandEntry::of(b"get").is_none());
    }
}
