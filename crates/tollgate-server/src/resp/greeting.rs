//! The first commands of a client: `HELLO` and `AUTH`. If no token is required, both answer like a redis without a
//! password.

use super::frame::Arguments;
use super::reply::{Reply, RespVersion, quoted};
use super::session::{Session, number};
use super::{client, session};
use crate::auth::Auth;

/// The user that needs no password.
const DEFAULT_USER: &[u8] = b"default";
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const NO_GREETING: &str = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time";
const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?";

/// `HELLO [2|3] [AUTH user password] [SETNAME name]`. An invalid one changes nothing.
pub(super) fn hello(session: &mut Session, auth: &Auth, arguments: Arguments<'_>, reply: &mut Reply<'_>) {
    let Greeting { protocol, name, password } = match understood(arguments) {
        Ok(greeting) => greeting,
        Err(problem) => return reply.error(&problem),
    };
    let is_admitted = match password {
        Some(password) => auth.admits_token(password),
        None => session.is_admitted || !auth.is_required(),
    };
    if !is_admitted {
        return reply.error(if password.is_some() { WRONG_PASSWORD } else { NO_GREETING });
    }
    session.is_admitted = true;
    let protocol = protocol.unwrap_or(session.protocol);
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
    reply.integer(if protocol == RespVersion::Resp3 { 3 } else { 2 });
    reply.bulk(b"id");
    reply.integer(client::shown_id(session.id));
    reply.bulk(b"modules");
    reply.array(0);
}

/// The options of a `HELLO`.
struct Greeting<'b> {
    protocol: Option<RespVersion>,
    name: Option<&'b [u8]>,
    password: Option<&'b [u8]>,
}

fn understood(arguments: Arguments<'_>) -> Result<Greeting<'_>, String> {
    let protocol = match arguments.get(1).map(number) {
        None => None,
        Some(Some(2)) => Some(RespVersion::Resp2),
        Some(Some(3)) => Some(RespVersion::Resp3),
        Some(Some(_)) => return Err("NOPROTO unsupported protocol version".to_owned()),
        Some(None) => return Err("ERR Protocol version is not an integer or out of range".to_owned()),
    };
    let (mut at, mut name, mut password) = (2, None, None);
    while let Some(option) = arguments.get(at) {
        match (option.to_ascii_lowercase().as_slice(), arguments.get(at + 1), arguments.get(at + 2)) {
            (b"auth", Some(user), Some(given)) => {
                if user != DEFAULT_USER {
                    return Err(WRONG_PASSWORD.to_owned());
                }
                password = Some(given);
                at += 3;
            }
            (b"setname", Some(given), _) => {
                name = Some(client::checked_name(given)?);
                at += 2;
            }
            _ => return Err(format!("ERR Syntax error in HELLO option '{}'", quoted(option))),
        }
    }
    Ok(Greeting { protocol, name, password })
}

/// `AUTH [user] password`. The password is the server's token.
pub(super) fn auth(session: &mut Session, auth: &Auth, arguments: Arguments<'_>, reply: &mut Reply<'_>) {
    let password = match (arguments.len(), arguments.get(1), arguments.get(2)) {
        (2, ..) if !auth.is_required() => return reply.error(NO_PASSWORD),
        (2, password, _) => password,
        (3, Some(DEFAULT_USER), password) => password,
        (3, ..) => None,
        _ => return reply.error(&session::wrong_number("auth")),
    };
    if password.is_some_and(|password| auth.admits_token(password)) {
        session.is_admitted = true;
        reply.simple("OK");
    } else {
        reply.error(WRONG_PASSWORD);
    }
}
