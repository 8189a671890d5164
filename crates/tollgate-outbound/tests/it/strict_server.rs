//! A server that counts exactly and refuses what is over its limit, and a client whose policy knows nothing of it. What
//! is refused is counted: the client must learn from the first response, and use nearly all that the server admits.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use tollgate::{Ticks, Timestamp};
use tollgate_outbound::{Failure, Settings};

use crate::fixture::{Client, call, header_map, run_tasks};

const PERIOD: u64 = 60;
const PERIODS: u64 = 5;
const STEP: Duration = Duration::from_millis(10);

/// The calls that the server admitted in each period, and those that it refused.
#[derive(Default)]
struct Counts {
    admitted: BTreeMap<u64, u64>,
    refused: u64,
    lost: u64,
}

/// A fixed window of a minute, and how it answers.
#[derive(Clone)]
struct StrictServer {
    limit: u64,
    counts: Arc<Mutex<Counts>>,
}

impl StrictServer {
    /// Counts a call. Returns the status, what is left, and the seconds until the window ends.
    fn count(&self, now: Timestamp) -> (u16, u64, u64) {
        let second = now.unix_micros() / 1_000_000;
        let mut counts = self.counts.lock().unwrap();
        let admitted = counts.admitted.entry(second / PERIOD).or_default();
        let resets_in = PERIOD - second % PERIOD;
        if *admitted >= self.limit {
            counts.refused += 1;
            return (429, 0, resets_in);
        }
        *admitted += 1;
        (200, self.limit - *admitted, resets_in)
    }
}

/// A generator of latencies that repeats itself.
#[derive(Clone, Copy)]
struct Dice(u64);

impl Dice {
    fn roll(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// Calls in a loop: each takes up to 150 ms to the server and as long back, and some responses are lost.
async fn work(client: Arc<Client>, server: StrictServer, mut dice: Dice, lost_percent: u64) {
    loop {
        let guard = client.outbound.acquire(&call()).await.unwrap();
        let clock = client.outbound.clock();
        clock.sleep_until(client.time.now() + Ticks::from_millis(1 + dice.roll(150))).await;
        let (status, left, resets_in) = server.count(client.time.now());
        clock.sleep_until(client.time.now() + Ticks::from_millis(1 + dice.roll(150))).await;
        if dice.roll(100) < lost_percent {
            server.counts.lock().unwrap().lost += 1;
            guard.fail(Failure::Unanswered).await;
            continue;
        }
        let policy = format!("\"default\";q={};w={PERIOD}", server.limit);
        let state = format!("\"default\";r={left};t={resets_in}");
        let retry = resets_in.to_string();
        let mut headers = vec![("ratelimit-policy", policy.as_str()), ("ratelimit", state.as_str())];
        if status == 429 {
            headers.push(("retry-after", retry.as_str()));
        }
        let _ = guard.settle(&client.response(status, &header_map(&headers)), None).await;
    }
}

async fn simulate(limit: u64, workers: usize, seed: u64, lost_percent: u64) -> Counts {
    let mut settings = Settings::default();
    settings.seed = Some(seed);
    settings.max_wait = Duration::from_secs(600);
    let client = Arc::new(Client::new("limits: [{name: open, by: [host], rate: 100_000/s}]", settings));
    let server = StrictServer { limit, counts: Arc::default() };
    let tasks: Vec<_> = (0..workers)
        .map(|worker| {
            let dice = Dice(seed ^ (worker as u64) << 32);
            tokio::spawn(work(Arc::clone(&client), server.clone(), dice, lost_percent))
        })
        .collect();
    for _ in 0..PERIOD * PERIODS * 100 {
        // Calls leave in chains of wake-ups, each a few polls long.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        client.time.advance(STEP);
    }
    run_tasks().await;
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    std::mem::take(&mut server.counts.lock().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// The policy is too generous by orders of magnitude. The calls that leave before the first response fit into the
    /// limit, and after it none is refused, whatever order calls and responses arrive in. Each whole period is used
    /// nearly up: responses that are lost are made up for.
    #[test]
    fn nothing_is_refused_after_the_first_response(
        limit in 20_u64..200, workers in 2_usize..20, seed: u64, lost in 0_u64..5,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let counts = runtime.block_on(simulate(limit, workers, seed, lost));
        prop_assert_eq!(counts.refused, 0, "limit {} workers {}: {:?}", limit, workers, counts.admitted);
        let whole: Vec<u64> = counts.admitted.values().skip(1).rev().skip(1).copied().collect();
        let allowed = limit * whole.len() as u64;
        let used = whole.iter().sum::<u64>();
        // One call goes first in each period, and a worker is busy for 150 ms on average.
        let possible = (workers as u64 * (PERIOD - 2) * 1_000 / 152).min(limit) * whole.len() as u64;
        prop_assert!(used * 100 >= possible * 98, "{used} of {allowed}: {:?}, {} lost", counts.admitted, counts.lost);
    }
}
