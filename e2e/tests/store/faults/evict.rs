//! A store that evicts keys: what each policy costs. Only `noeviction` has promises.

use std::time::Duration;

use redis::Value;
use tokio::time::Instant;

use super::Rig;
use super::assessment::FaultSpans;
use super::report::{DEFAULT_DEADLINE_AWAY, Promise};
use super::standalone::immortal;
use crate::fleet::Running;
use crate::server::Server;
use tollgate_testkit::rest;

/// How long other clients fill the store.
const FLOOD: Duration = Duration::from_secs(2);
const FLOOD_EVERY: Duration = Duration::from_millis(5);
/// Memory that counters and the flood share, beside what the server needs.
const ROOM: u64 = 1 << 20;
/// Long-lived keys of other clients.
const FILL: &str = "for i = 1, 50 do \
    redis.call('SET', 'foreign:' .. ARGV[1] .. ':' .. i, string.rep('x', 1000), 'PX', 3600000) end";

const FORGETS: Promise = Promise { forgets: true, ..DEFAULT_DEADLINE_AWAY.numbered("F8") };

pub(super) fn long(rig: &mut Rig) {
    let server = Server::redis();
    let fleet = rig.fleet([&server.url(); 3]);
    for (name, policy) in [
        ("full, allkeys-lru", "allkeys-lru"),
        ("full, allkeys-lfu", "allkeys-lfu"),
        ("full, allkeys-random", "allkeys-random"),
        ("full, volatile-lru", "volatile-lru"),
        ("full, volatile-lfu", "volatile-lfu"),
        ("full, volatile-random", "volatile-random"),
        ("full, volatile-ttl", "volatile-ttl"),
    ] {
        rig.run(name, FORGETS, &fleet, |running| flood(&server, running, policy));
        rig.found(immortal(&server));
    }
}

/// Other clients fill the store, and it evicts keys.
fn flood(server: &Server, running: &Running, policy: &str) -> FaultSpans {
    let number = |field: &str| server.info(field).and_then(|text| text.parse::<u64>().ok()).unwrap();
    let before = number("evicted_keys");
    server.tell(&["CONFIG", "SET", "maxmemory-policy", policy]);
    server.tell(&["CONFIG", "SET", "maxmemory", &(number("used_memory") + ROOM).to_string()]);
    let began = running.recorder.now();
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let end = Instant::now() + FLOOD;
    for turn in 0.. {
        if Instant::now() >= end {
            break;
        }
        redis::cmd("EVAL").arg(FILL).arg(0).arg(turn).query::<Value>(&mut connection).unwrap();
        rest(FLOOD_EVERY);
    }
    let evicted = number("evicted_keys") - before;
    server.tell(&["CONFIG", "SET", "maxmemory", "0"]);
    let healthy = running.recorder.now();
    redis::cmd("EVAL")
        .arg("for _, k in ipairs(redis.call('KEYS', 'foreign:*')) do redis.call('UNLINK', k) end")
        .arg(0)
        .query::<Value>(&mut connection)
        .unwrap();
    let evidence = vec![("key evicted".to_owned(), evicted)];
    FaultSpans { evidence, losses: vec![(began, healthy)], healthy, ..FaultSpans::default() }
}
