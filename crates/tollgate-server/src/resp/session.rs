//! Executes the commands of one client in order. A session has neither sockets nor clocks: it turns bytes into bytes,
//! at an instant that the caller passes.

use bytes::BytesMut;
use tollgate::Timestamp;
use tollgate::store::Store;

use super::catalog::{CommandEntry, RespCommand};
use super::frame::{Arguments, Frame};
use super::pipeline::Pipeline;
use super::reply::{Reply, RespVersion, quoted};
use super::{Resp, about, catalog, check, client, greeting, throttle};

/// Maximum size of pending replies before they are sent, in bytes.
const OUTPUT_BYTES_MAX: usize = 64 << 10;
/// Maximum size of the arguments that the answer to an unknown command echoes, in bytes.
const REPEATED_BYTES_MAX: usize = 128;

/// The next step of the connection after some commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// Read: all complete commands are answered.
    Read,
    /// Write: there is much to send, and there may be more commands.
    Write,
    /// Close, once the output is sent.
    Close,
}

/// The state of a client.
#[derive(Debug, Default)]
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) protocol: RespVersion,
    /// The name that the client set.
    pub(super) name: Vec<u8>,
    /// Whether the client is authenticated, if a token is required.
    pub(super) is_admitted: bool,
    frame: Frame,
}

impl Session {
    pub(super) fn new(id: u64) -> Self {
        Self { id, ..Self::default() }
    }

    /// Executes the commands at the front of `input`, and returns how many bytes they took. Replies go to `output`.
    pub(super) async fn run<S: Store>(
        &mut self,
        resp: &Resp<S>,
        input: &[u8],
        output: &mut BytesMut,
        now: Timestamp,
    ) -> (usize, Flow) {
        let mut used = 0;
        // Taken out temporarily, because the arguments borrow it while the session changes.
        let mut frame = std::mem::take(&mut self.frame);
        let mut line = Pipeline::new(resp, now);
        let flow = loop {
            let rest = input.get(used..).unwrap_or_default();
            let read = frame.read(rest);
            let joins = line.is_open() && read.is_ok_and(|read| read.is_some()) && {
                let arguments = frame.arguments(rest);
                self.may_ask(resp, arguments)
            };
            if line.is_full() || !(joins || line.is_empty()) {
                line.answer(output).await; // What came before is answered before.
                if output.len() >= OUTPUT_BYTES_MAX {
                    break Flow::Write;
                }
            }
            match read {
                Ok(Some(bytes)) if joins => {
                    used += bytes;
                    line.push(std::mem::take(&mut frame), rest, self.protocol);
                }
                Ok(Some(bytes)) => {
                    used += bytes;
                    let arguments = frame.arguments(rest);
                    if self.answer(resp, arguments, output, now).await == Flow::Close {
                        break Flow::Close;
                    }
                    if output.len() >= OUTPUT_BYTES_MAX {
                        break Flow::Write;
                    }
                }
                Ok(None) => break Flow::Read,
                Err(error) => {
                    Reply::new(output, self.protocol).error(&format!("ERR Protocol error: {error}"));
                    break Flow::Close;
                }
            }
        };
        self.frame = frame;
        (used, flow)
    }

    /// Whether this is a check that is valid so far.
    fn may_ask<S: Store>(&self, resp: &Resp<S>, arguments: Arguments<'_>) -> bool {
        let entry = arguments.get(0).and_then(CommandEntry::of);
        let is_check =
            entry.is_some_and(|entry| entry.command == RespCommand::Check && entry.takes(arguments.len()));
        is_check && (self.is_admitted || !resp.service.auth.is_required())
    }

    /// Executes one command.
    #[inline]
    async fn answer<S: Store>(
        &mut self,
        resp: &Resp<S>,
        arguments: Arguments<'_>,
        output: &mut BytesMut,
        now: Timestamp,
    ) -> Flow {
        let reply = &mut Reply::new(output, self.protocol);
        let Some(name) = arguments.get(0) else { return Flow::Read };
        let Some(entry) = CommandEntry::of(name) else {
            reply.error(&unknown(name, arguments));
            return Flow::Read;
        };
        if !entry.takes(arguments.len()) {
            reply.error(&wrong_number(entry.name));
            return Flow::Read;
        }
        let auth = &resp.service.auth;
        if auth.is_required() && !self.is_admitted && !entry.command.is_greeting() {
            reply.error("NOAUTH Authentication required.");
            return Flow::Read;
        }
        match entry.command {
            RespCommand::Check => check::answer(resp, arguments, reply, now).await,
            RespCommand::Throttle => throttle::answer_cell(resp, arguments, reply, now),
            RespCommand::CrabThrottle => throttle::answer_crab(resp, arguments, reply, now),
            RespCommand::Release => check::release(resp, arguments, reply, now).await,
            RespCommand::Ping => ping(arguments, reply),
            RespCommand::Echo => reply.bulk(arguments.get(1).unwrap_or_default()),
            RespCommand::Hello => greeting::hello(self, auth, arguments, reply),
            RespCommand::Auth => greeting::auth(self, auth, arguments, reply),
            RespCommand::Client => client::answer(self, arguments, reply),
            RespCommand::Catalog => catalog::answer(arguments, reply),
            RespCommand::Select => select(arguments, reply),
            RespCommand::Info => about::info(resp, arguments, reply, now),
            RespCommand::Reset => {
                let Self { id, frame, .. } = std::mem::take(self);
                *self = Self { id, frame, ..Self::default() };
                reply.simple("RESET");
            }
            RespCommand::Quit => {
                reply.simple("OK");
                return Flow::Close;
            }
        }
        Flow::Read
    }
}

fn ping(arguments: Arguments<'_>, reply: &mut Reply<'_>) {
    match (arguments.len(), arguments.get(1)) {
        (1, _) => reply.simple("PONG"),
        (2, Some(message)) => reply.bulk(message),
        _ => reply.error(&wrong_number("ping")),
    }
}

fn select(arguments: Arguments<'_>, reply: &mut Reply<'_>) {
    match arguments.get(1).and_then(number) {
        Some(0) => reply.simple("OK"),
        Some(_) => reply.error("ERR DB index is out of range"),
        None => reply.error("ERR value is not an integer or out of range"),
    }
}

/// A whole number, as it is written.
#[inline]
pub(super) fn number(bytes: &[u8]) -> Option<i64> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

pub(super) fn wrong_number(name: &str) -> String {
    format!("ERR wrong number of arguments for '{name}' command")
}

/// Redis's error for an unknown command.
fn unknown(name: &[u8], arguments: Arguments<'_>) -> String {
    let mut text = format!("ERR unknown command '{}', with args beginning with: ", quoted(name));
    let most = text.len() + REPEATED_BYTES_MAX;
    for argument in arguments.from(1) {
        if text.len() >= most {
            break;
        }
        text.push('\'');
        text.push_str(&quoted(argument));
        text.push_str("' ");
    }
    text
}
