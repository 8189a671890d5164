//! Redis memory per key, compared with common alternatives.

use std::fmt::Write;
use std::sync::Arc;

use redis::Pipeline;
use tollgate::{Ticks, Timestamp};

use super::direct::{ClockSource, engine, quotas, take};
use super::server::Server;
use crate::key::Key;
use crate::script::Operation;

/// Keys of each kind: a power of two, so that Redis's hash table is full.
const KEYS: u64 = 1 << 14;
const LIFE_MILLISECONDS: u64 = 3_600_000;

async fn used(server: &Server) -> u64 {
    let memory: String = server.command(&["INFO", "memory"]).await;
    let line = memory.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
    line.trim().parse().unwrap()
}

/// Bytes per key that these commands create.
async fn cost(server: &Server, make: impl Fn(&mut Pipeline, &[u8])) -> u64 {
    server.command::<()>(&["FLUSHALL"]).await;
    let before = used(server).await;
    for chunk in 0..KEYS / 256 {
        let mut pipeline = redis::pipe();
        for number in chunk * 256..(chunk + 1) * 256 {
            make(&mut pipeline, Key::new(u128::from(number) << 64, None).as_bytes());
        }
        let _: Vec<redis::Value> = pipeline.query_async(&mut server.connection.clone()).await.unwrap();
    }
    (used(server).await - before + KEYS / 2) / KEYS
}

/// Bytes per key with this state.
async fn cost_of(server: &Server, state: &[u8]) -> u64 {
    cost(server, |pipeline, key| {
        pipeline.cmd("SET").arg(key).arg(state).arg("PX").arg(LIFE_MILLISECONDS);
    })
    .await
}

/// A GCRA key costs no more than a timestamp as a string, a token bucket at most two thirds of a hash with two fields.
/// Redis needs 128 bytes for any number above 9,999 under such a key with an expiry, so that is the minimum.
#[tokio::test]
async fn keys_are_small() {
    let server = Arc::new(Server::start().await);
    let timestamp = cost_of(&server, b"1700000000123456.5").await;
    let hash = cost(&server, |pipeline, key| {
        pipeline.cmd("HSET").arg(key).arg("tokens").arg("9.87654321").arg("ts").arg("1700000000.123456");
        pipeline.cmd("PEXPIRE").arg(key).arg(LIFE_MILLISECONDS);
    })
    .await;
    let least = cost_of(&server, b"12345").await;
    let mut table =
        format!("{timestamp} string TAT\n{hash} hash of two fields\n{least} nothing but a number\n");
    for (name, quota) in quotas() {
        let engine = engine(&server, &quota, ClockSource::Injected, Operation::Charge);
        let mut bytes = [0; 2];
        for (bytes, units) in bytes.iter_mut().zip([1, 9]) {
            for unit in 0..units {
                let now =
                    Timestamp::from_unix_seconds(1_700_000_000) + Ticks::from_micros(1_234_567 * (unit + 1));
                assert!(take(&engine, &units.to_string(), 1, now).await.is_allowed(), "{name}");
            }
            let key = engine.store().key.lock().unwrap().unwrap();
            let mut get = redis::cmd("GET");
            let state: Vec<u8> =
                get.arg(key.as_bytes()).query_async(&mut server.connection.clone()).await.unwrap();
            *bytes = cost_of(&server, &state).await;
        }
        writeln!(table, "{} {name} ({} with nine units)", bytes[0], bytes[1]).unwrap();
        if name == "gcra" {
            assert!(bytes[0] <= timestamp, "{table}");
        }
        if name == "token-bucket" {
            assert!(bytes[0] * 3 <= hash * 2 + 3, "{table}");
        }
    }
    #[allow(clippy::print_stdout, reason = "a table for people who ask for it with --nocapture")]
    {
        println!("bytes a key:\n{table}");
    }
}
