//! The RESP protocol without sockets and clocks, for fuzz targets.

use std::sync::Arc;

use bytes::{Buf, BytesMut};
use tollgate::fuzzing::poll_once;
use tollgate::{Engine, ManualClock, MemoryStore, Policy, Secret};

use super::Resp;
use super::frame::Frame;
use super::session::{Flow, Session};
use crate::service::Service;
use crate::service::throttle_counters::CounterTable;

/// A policy with limits that deny soon, never, and for holders of permits.
const POLICY: &[u8] = b"limits:
  - {name: per-key, by: [key], rate: 3/h}
  - {name: tokens, by: [tenant], rate: 100/h, cost: tokens}
  - {name: in-flight, by: [worker], concurrency: 1}
";
/// Memory for counters, small so that a target starts fast.
const BYTES: u64 = 256 << 10;

/// The arguments of a command.
pub type CommandArguments = Vec<Vec<u8>>;

/// The commands at the front of some bytes, how many bytes they took, and whether the rest can never be a command.
pub fn commands(bytes: &[u8]) -> (Vec<CommandArguments>, usize, bool) {
    let (mut frame, mut commands, mut used) = (Frame::default(), Vec::new(), 0);
    loop {
        let rest = &bytes[used..];
        match frame.read(rest) {
            Ok(Some(taken)) => {
                commands.push(frame.arguments(rest).from(0).map(<[u8]>::to_vec).collect());
                used += taken;
            }
            Ok(None) => return (commands, used, false),
            Err(_) => return (commands, used, true),
        }
    }
}

/// The replies to a client that sends these pieces one after the other, at one instant. The server is the same every
/// time except for the ids of permits.
pub fn replies(pieces: &[&[u8]]) -> Vec<u8> {
    let time = ManualClock::new();
    let Ok(policy) = Policy::compile("fuzz", POLICY) else { return Vec::new() };
    let engine = Engine::builder()
        .policy(policy)
        .store(MemoryStore::new(BYTES, time.now()))
        .secret(Secret::repeatable(1))
        .build();
    let service = Arc::new(Service::new(engine, time.clock()).throttling(CounterTable::new(BYTES)));
    let resp = Resp::new(service);
    let mut session = Session::new(1);
    let (mut input, mut output) = (BytesMut::new(), BytesMut::new());
    poll_once(async {
        let mut sent = Vec::new();
        for piece in pieces {
            input.extend_from_slice(piece);
            loop {
                let (used, flow) = session.run(&resp, &input, &mut output, time.now()).await;
                input.advance(used);
                sent.extend_from_slice(&output);
                output.clear();
                match flow {
                    Flow::Read => break,
                    Flow::Write => {}
                    Flow::Close => return sent,
                }
            }
        }
        sent
    })
}
