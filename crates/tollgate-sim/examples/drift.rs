//! Checks a thousand million requests of a greedy caller at awkward rates, each at the exact tick of the rate:
//! `cargo run --release -p tollgate-sim --example drift [requests]`.

use std::error::Error;
use std::io::Write;

use tollgate::algorithm::gcra::Gcra;
use tollgate::algorithm::token_bucket::TokenBucket;
use tollgate::{Quota, Rate, Timestamp};
use tollgate_sim::limiter::Limiter;

use drift::Pace;

#[path = "../tests/it/drift.rs"]
mod drift;

/// Early enough that a thousand million requests at the slowest rate end before the last representable instant.
const START: Timestamp = Timestamp::from_unix_seconds(1);

fn main() -> Result<(), Box<dyn Error>> {
    let requests: u64 = match std::env::args().nth(1) {
        Some(text) => text.parse()?,
        None => 1_000_000_000,
    };
    let mut out = std::io::stdout();
    for rate in
        [Rate::per_second(7), Rate::per_day(999_983).burst(11), Rate::per_second(3_000_001).burst(10_000)]
    {
        let (bucket, gcra) = (TokenBucket::new(rate)?, Gcra::new(rate)?);
        for (quota, reservoir) in
            [(Quota::TokenBucket(bucket), *bucket.reservoir()), (Quota::Gcra(gcra), *gcra.reservoir())]
        {
            let pace = Pace {
                gain: reservoir.pace().gain().get(),
                period: reservoir.pace().unit_credits().get(),
                burst: reservoir.units(),
            };
            let name = quota.algorithm();
            let ended = drift::greedy(&mut Limiter::new(quota), pace, START, requests)
                .map_err(|drift| format!("{name} at {pace:?}: {drift:?}"))?;
            if ended != drift::earned_at(pace, START, requests) {
                return Err(format!("{name} at {pace:?} ended at {ended:?}").into());
            }
            writeln!(out, "{name}: {requests} requests at {pace:?}, none off by a tick")?;
        }
    }
    Ok(())
}
