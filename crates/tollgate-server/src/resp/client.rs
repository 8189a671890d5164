//! `CLIENT`: what clients report about themselves when they connect, and what they may query about it.

use super::frame::Arguments;
use super::reply::{Reply, RespVersion, quoted};
use super::session::{Session, wrong_number};

/// Maximum length of a connection's name, in bytes.
const NAME_BYTES_MAX: usize = 128;
const ACCEPTED: &str = "accepted: ID, GETNAME, SETNAME, SETINFO, INFO, LIST, NO-EVICT, NO-TOUCH and REPLY ON";

/// `CLIENT` with a subcommand.
pub(super) fn answer(session: &mut Session, arguments: Arguments<'_>, reply: &mut Reply<'_>) {
    let what = arguments.get(1).unwrap_or_default();
    let lower = what.to_ascii_lowercase();
    match (lower.as_slice(), arguments.len()) {
        (b"id", 2) => reply.integer(shown_id(session.id)),
        (b"getname", 2) if session.name.is_empty() => reply.null(),
        (b"getname", 2) => reply.bulk(&session.name),
        (b"setname", 3) => match checked_name(arguments.get(2).unwrap_or_default()) {
            Ok(name) => {
                session.name = name.to_vec();
                reply.simple("OK");
            }
            Err(problem) => reply.error(&problem),
        },
        (b"setinfo", 4) => set_information(arguments.get(2).unwrap_or_default(), reply),
        (b"info", 2) | (b"list", _) => reply.bulk(line(session).as_bytes()),
        (b"no-evict" | b"no-touch", 3) => switch(arguments.get(2).unwrap_or_default(), reply),
        (b"reply", 3) if arguments.get(2).is_some_and(|mode| mode.eq_ignore_ascii_case(b"on")) => {
            reply.simple("OK");
        }
        (b"id" | b"getname" | b"setname" | b"setinfo" | b"info" | b"no-evict" | b"no-touch", _) => {
            reply.error(&wrong_number(&format!("client|{}", quoted(&lower))));
        }
        _ => reply.error(&format!("ERR unknown subcommand '{}'; {ACCEPTED}", quoted(what))),
    }
}

/// A name that can appear in a list: no spaces, and only printable characters.
pub(super) fn checked_name(name: &[u8]) -> Result<&[u8], String> {
    if name.len() > NAME_BYTES_MAX {
        return Err(format!("ERR Client names cannot be longer than {NAME_BYTES_MAX} bytes."));
    }
    if !name.iter().all(u8::is_ascii_graphic) {
        return Err("ERR Client names cannot contain spaces, newlines or special characters.".to_owned());
    }
    Ok(name)
}

/// The name or version of the client library. It is not used, but clients expect OK.
fn set_information(what: &[u8], reply: &mut Reply<'_>) {
    if what.eq_ignore_ascii_case(b"lib-name") || what.eq_ignore_ascii_case(b"lib-ver") {
        reply.simple("OK");
    } else {
        reply.error(&format!("ERR Unrecognized option '{}'", quoted(what)));
    }
}

fn switch(state: &[u8], reply: &mut Reply<'_>) {
    if state.eq_ignore_ascii_case(b"on") || state.eq_ignore_ascii_case(b"off") {
        reply.simple("OK");
    } else {
        reply.error("ERR syntax error");
    }
}

/// This connection as a line of `CLIENT LIST`. Other connections are not shown.
fn line(session: &Session) -> String {
    let protocol = if session.protocol == RespVersion::Resp3 { 3 } else { 2 };
    format!("id={} name={} db=0 resp={protocol}\n", session.id, quoted(&session.name))
}

/// The number of a connection, as an integer reply.
pub(super) fn shown_id(id: u64) -> i64 {
    i64::try_from(id).unwrap_or(i64::MAX)
}
