//! What clients say first: `HELLO` and `AUTH`. Nobody has to prove who they are, so both answer as a redis without a password.

use super::frame::Arguments;
use super::reply::{Protocol, Reply, quoted};
use super::session::{Session, number};
use super::{client, session};

/// The user who needs no password.
const DEFAULT_USER: &[u8] = b"default";
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?";

/// `HELLO [2|3] [AUTH user password] [SETNAME name]`. A wrong one changes nothing.
pub(super) fn hello(session: &mut Session, arguments: Arguments<'_>, reply: &mut Reply<'_>) {
    let (protocol, name) = match understood(arguments) {
        Ok((protocol, name)) => (protocol.unwrap_or(session.protocol), name),
        Err(problem) => return reply.error(&problem),
    };
    session.protocol = protocol;
    if let Some(name) = name {
        session.name = name.to_vec();
    }
    reply.speak(protocol);
    reply.map(7);
    let mut text = |name: &'static str, value: &str| {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    };
    text("server", "tollgate");
    text("version", env!("CARGO_PKG_VERSION"));
    text("mode", "standalone");
    text("role", "master");
    reply.bulk(b"proto");
    reply.integer(if protocol == Protocol::Resp3 { 3 } else { 2 });
    reply.bulk(b"id");
    reply.integer(client::shown_id(session.id));
    reply.bulk(b"modules");
    reply.array(0);
}

/// What a `HELLO` asks for: a protocol, and a name.
type Greeting<'b> = (Option<Protocol>, Option<&'b [u8]>);

fn understood(arguments: Arguments<'_>) -> Result<Greeting<'_>, String> {
    let protocol = match arguments.get(1).map(number) {
        None => None,
        Some(Some(2)) => Some(Protocol::Resp2),
        Some(Some(3)) => Some(Protocol::Resp3),
        Some(Some(_)) => return Err("NOPROTO unsupported protocol version".to_owned()),
        Some(None) => return Err("ERR Protocol version is not an integer or out of range".to_owned()),
    };
    let (mut at, mut name) = (2, None);
    while let Some(option) = arguments.get(at) {
        match (option.to_ascii_lowercase().as_slice(), arguments.get(at + 1), arguments.get(at + 2)) {
            (b"auth", Some(user), Some(_)) => {
                if user != DEFAULT_USER {
                    return Err(WRONG_PASSWORD.to_owned());
                }
                at += 3;
            }
            (b"setname", Some(given), _) => {
                name = Some(client::checked_name(given)?);
                at += 2;
            }
            _ => return Err(format!("ERR Syntax error in HELLO option '{}'", quoted(option))),
        }
    }
    Ok((protocol, name))
}

/// `AUTH [user] password`.
pub(super) fn auth(arguments: Arguments<'_>, reply: &mut Reply<'_>) {
    match (arguments.len(), arguments.get(1)) {
        (3, Some(DEFAULT_USER)) => reply.simple("OK"),
        (3, _) => reply.error(WRONG_PASSWORD),
        (2, _) => reply.error(NO_PASSWORD),
        _ => reply.error(&session::wrong_number("auth")),
    }
}
