//! Closed loop for throughput and processor time, open loop for latency, and the bytes of a key.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::task::LocalSet;
use tokio::time::Instant;

use crate::asker::Asker;
use tollgate_bench_store::Failure;
use tollgate_bench_store::server::{Servers, processor_seconds};

/// Questions under way at once in a closed loop.
const UNDER_WAY: usize = 256;
/// Keys that are asked about.
const KEYS: u64 = 1_000_000;

/// The result of a closed loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speed {
    pub(crate) per_second: f64,
    /// Processor time of one question, at the store and at the asker.
    pub(crate) store_micros: f64,
    pub(crate) asker_micros: f64,
    /// Questions that one call to the store answers.
    pub(crate) in_a_call: f64,
}

/// Latencies of an open loop, in microseconds, and how many answers did not come from the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delay {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) elsewhere: f64,
}

/// Keys in an order without pattern (SplitMix64).
fn key(seed: u64) -> u64 {
    let mut word = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (word ^ (word >> 31)) % KEYS
}

/// Asks as fast as it is answered.
pub(crate) async fn closed(asker: Rc<Asker>, server: &Servers, duration: Duration) -> Result<Speed, Failure> {
    let (counted, end) = (Rc::new(Cell::new(0u64)), Instant::now() + duration);
    let failed: Rc<RefCell<Option<Failure>>> = Rc::default();
    let (begin, calls) = (Instant::now(), asker.calls());
    let (store, own) = (server.processor_seconds()?, processor_seconds("self")?);
    let tasks = LocalSet::new();
    for task in 0..UNDER_WAY {
        let (asker, counted, failed) = (Rc::clone(&asker), Rc::clone(&counted), Rc::clone(&failed));
        tasks.spawn_local(async move {
            let mut seed = (task as u64) << 40;
            while Instant::now() < end {
                seed += 1;
                match asker.ask(key(seed)).await {
                    // What was answered without the store is not its doing.
                    Ok(by_store) => counted.set(counted.get() + u64::from(by_store)),
                    Err(error) => {
                        *failed.borrow_mut() = Some(error);
                        return;
                    }
                }
            }
        });
    }
    tasks.await;
    if let Some(error) = failed.take() {
        return Err(error);
    }
    let count = counted.get() as f64;
    let micros = |seconds: f64| seconds * 1_000_000.0 / count.max(1.0);
    let calls = asker.calls().zip(calls).map(|(after, before)| after - before);
    Ok(Speed {
        per_second: count / begin.elapsed().as_secs_f64(),
        store_micros: micros(server.processor_seconds()? - store),
        asker_micros: micros(processor_seconds("self")? - own),
        in_a_call: calls.map_or(1.0, |calls| count / (calls as f64).max(1.0)),
    })
}

/// Asks at fixed instants, whatever became of the questions before; latency counts from the instant a question was due.
pub(crate) async fn open(asker: Rc<Asker>, rate: u64, duration: Duration) -> Result<Delay, Failure> {
    let seen = Rc::new(RefCell::new(Histogram::<u64>::new_with_bounds(1, 60_000_000, 3)?));
    let elsewhere = Rc::new(Cell::new(0u64));
    let tasks = LocalSet::new();
    let (count, gap) =
        (rate * duration.as_millis() as u64 / 1_000, Duration::from_nanos(1_000_000_000 / rate));
    let (asked, seen_by, missed) = (Rc::clone(&asker), Rc::clone(&seen), Rc::clone(&elsewhere));
    tasks.spawn_local(async move {
        let start = Instant::now();
        for number in 0..count {
            let due = start + gap * u32::try_from(number).unwrap_or(u32::MAX);
            // A timer of whole milliseconds would make bundles of ten: it is watched instead, and answers are read meanwhile.
            while Instant::now() < due {
                tokio::task::yield_now().await;
            }
            let (asker, seen, missed) = (Rc::clone(&asked), Rc::clone(&seen_by), Rc::clone(&missed));
            tokio::task::spawn_local(async move {
                if !matches!(asker.ask(key(number | 1 << 50)).await, Ok(true)) {
                    missed.set(missed.get() + 1);
                }
                let micros = u64::try_from(due.elapsed().as_micros()).unwrap_or(u64::MAX);
                seen.borrow_mut().saturating_record(micros.max(1));
            });
        }
    });
    tasks.await;
    let seen = seen.borrow();
    Ok(Delay {
        p50: seen.value_at_quantile(0.5) as f64,
        p99: seen.value_at_quantile(0.99) as f64,
        elsewhere: elsewhere.get() as f64 / count.max(1) as f64,
    })
}

/// Leaves nothing of a contender for the next, which would have to expire it.
pub(crate) async fn clear(clients: &[redis::Client]) -> Result<(), Failure> {
    for client in clients {
        let mut connection = client.get_multiplexed_async_connection().await?;
        let _: () = redis::cmd("FLUSHALL").query_async(&mut connection).await?;
    }
    Ok(())
}

/// Bytes that one key takes, from so many of them asked once.
pub(crate) async fn bytes_a_key(asker: Rc<Asker>, client: &redis::Client, keys: u64) -> Result<f64, Failure> {
    let mut connection = client.get_multiplexed_async_connection().await?;
    clear(std::slice::from_ref(client)).await?;
    let before = used(&mut connection).await?;
    let next = Rc::new(Cell::new(0u64));
    let tasks = LocalSet::new();
    for _ in 0..UNDER_WAY {
        let (asker, next) = (Rc::clone(&asker), Rc::clone(&next));
        tasks.spawn_local(async move {
            while next.get() < keys {
                next.set(next.get() + 1);
                // Twice, so that a value is of the size that it has in use.
                let number = 10_000_000 + next.get();
                let _ = asker.ask(number).await;
                let _ = asker.ask(number).await;
            }
        });
    }
    tasks.await;
    let after = used(&mut connection).await?;
    let there: u64 = redis::cmd("DBSIZE").query_async(&mut connection).await?;
    if there < keys {
        return Err(format!("{keys} keys were asked for, and {there} are there").into());
    }
    Ok((after - before) / there as f64)
}

async fn used(connection: &mut redis::aio::MultiplexedConnection) -> Result<f64, Failure> {
    let text: String = redis::cmd("INFO").arg("memory").query_async(connection).await?;
    let line = text.lines().find_map(|line| line.strip_prefix("used_memory:"));
    line.and_then(|number| number.trim().parse().ok()).ok_or_else(|| "INFO has no used_memory".into())
}
