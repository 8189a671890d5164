//! `INFO`: the fields that clients check before they trust a server, and a few for people.

use std::fmt::Write as _;

use tollgate::Timestamp;

use super::Resp;
use super::frame::Arguments;
use super::reply::Reply;
use crate::protocol::Protocol;

/// The Redis version whose connection commands are supported. Some clients refuse a server without a version that they
/// know.
const REDIS_VERSION: &str = "7.2.0";

/// `INFO [section …]`.
pub(super) fn info<S>(resp: &Resp<S>, arguments: Arguments<'_>, reply: &mut Reply<'_>, now: Timestamp) {
    let is_asked = |section: &str| {
        let mut asked = arguments.from(1);
        let names = [section, "default", "all", "everything"];
        arguments.len() == 1
            || asked.any(|asked| names.iter().any(|name| name.as_bytes().eq_ignore_ascii_case(asked)))
    };
    let uptime = now.since(resp.service.started_at).as_micros() / tollgate::time::TICKS_PER_SECOND;
    let is_full = resp.service.meter.overflow.status(now).is_some();
    let sections = [
        (
            "Server",
            format!(
                "redis_version:{REDIS_VERSION}\r\nserver_name:tollgate\r\ntollgate_version:{version}\r\n\
                 redis_mode:standalone\r\nprocess_id:{process}\r\nuptime_in_seconds:{uptime}\r\n",
                version = env!("CARGO_PKG_VERSION"),
                process = std::process::id(),
            ),
        ),
        ("Clients", format!("connected_clients:{}\r\n", resp.service.meter.open(Protocol::Resp))),
        ("Memory", format!("tollgate_memory_full:{}\r\n", u8::from(is_full))),
        ("Persistence", "loading:0\r\n".to_owned()),
        ("Replication", "role:master\r\nconnected_slaves:0\r\n".to_owned()),
    ];
    let mut text = String::new();
    for (name, lines) in sections.iter().filter(|(name, _)| is_asked(name)) {
        let gap = if text.is_empty() { "" } else { "\r\n" };
        // Writing to a String cannot fail.
        let _ = write!(text, "{gap}# {name}\r\n{lines}");
    }
    reply.bulk(text.as_bytes());
}
