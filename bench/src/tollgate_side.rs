//! Tollgate, used as its documentation recommends. Every call that the bench makes to it is in this file.

use std::hint::black_box;
use std::time::Duration;

use tollgate::{CheckRequest, Clock, Decision, Engine, Gate, KeyedGate, Policy, Rate};

use crate::Failure;
use crate::contender::Contender;
use crate::five::{BURST, Five, Row};
use crate::quota::Quota;
use crate::workload::Requests;

/// Decisions that a batch takes at a time.
const BATCH: usize = 16;
/// A bound that is not reached: what is measured is what the keys need.
const BYTES_PER_KEY: u64 = 64;
/// For a handful of keys.
const BYTES_MIN: u64 = 1 << 20;

/// `KeyedGate::check`: one decision at a time, the gate reads its coarse clock.
pub struct Single {
    gate: KeyedGate,
}

/// `KeyedGate::check_batch`: sixteen decisions at a time.
pub struct Batched {
    gate: KeyedGate,
}

impl Single {
    /// A gate for so many keys.
    ///
    /// # Errors
    /// When Tollgate refuses the quota.
    pub fn new(quota: Quota, keys: usize) -> Result<Self, Failure> {
        Ok(Self { gate: gate(quota, keys, Clock::coarse())? })
    }
}

impl Batched {
    /// A gate for so many keys.
    ///
    /// # Errors
    /// When Tollgate refuses the quota.
    pub fn new(quota: Quota, keys: usize) -> Result<Self, Failure> {
        Ok(Self { gate: gate(quota, keys, Clock::coarse())? })
    }
}

fn gate(quota: Quota, keys: usize, clock: Clock) -> Result<KeyedGate, Failure> {
    let period = Duration::from_secs(quota.seconds.into());
    let rate = Rate::per(quota.units.into(), period).burst(quota.burst.into());
    let bytes = (keys as u64 * BYTES_PER_KEY).max(BYTES_MIN);
    Ok(Gate::builder(tollgate::Quota::gcra(rate)?).capacity_bytes(bytes).clock(clock).keyed())
}

impl Contender for Single {
    fn decide(&self, requests: Requests<'_>) -> usize {
        let mut admitted = 0;
        for key in requests.keys {
            admitted += usize::from(black_box(self.gate.check(key)).is_allowed());
        }
        admitted
    }
}

impl Contender for Batched {
    fn decide(&self, requests: Requests<'_>) -> usize {
        let mut admitted = 0;
        let mut batch = [""; BATCH];
        for keys in requests.keys.chunks(BATCH) {
            let batch = &mut batch[..keys.len()];
            for (place, key) in batch.iter_mut().zip(keys) {
                *place = key;
            }
            self.gate.check_batch(batch, |_, verdict| {
                admitted += usize::from(black_box(verdict).is_allowed());
            });
        }
        admitted
    }
}

/// The five limits of [`crate::five`], as a user writes them. The limits of a route and of the platform are wide: they
/// are counted, not reached.
const POLICY: &str = "
limits:
  - { name: per-key, by: [api_key], rate: 100/s, burst: 200 }
  - { name: per-tenant, by: [tenant], rate: 1M/s, burst: 4M }
  - { name: per-address, by: [ip], rate: 1M/s, burst: 4M }
  - { name: per-route, by: [route], rate: 10M/s, burst: 40M }
  - { name: platform, rate: 10M/s, burst: 40M }
";

/// `Engine::try_check` with a request that is made for each decision, as a server does.
pub struct WholeEngine {
    engine: Engine,
    clock: Clock,
}

impl WholeEngine {
    /// An engine on memory.
    ///
    /// # Errors
    /// When the policy does not compile.
    pub fn new() -> Result<Self, Failure> {
        let policy = Policy::compile("bench", POLICY.as_bytes())?;
        let clock = Clock::coarse();
        Ok(Self { engine: Engine::builder().policy(policy).clock(clock.clone()).build(), clock })
    }
}

impl Five for WholeEngine {
    fn decide(&self, rows: &[Row]) -> usize {
        let mut admitted = 0;
        for row in rows {
            let Ok(request) = request(row) else { continue };
            let decision = self.engine.try_check(&request, self.clock.now());
            // By reference: passing it by value would copy the whole decision, which no caller does.
            admitted += usize::from(black_box(&decision).as_ref().is_ok_and(Decision::is_allowed));
        }
        admitted
    }
}

#[inline]
fn request(row: &Row) -> Result<CheckRequest<'_>, tollgate::RequestError> {
    let mut request = CheckRequest::new();
    request.push("api_key", &row.api_key)?;
    request.push("tenant", &row.tenant)?;
    request.push("ip", &row.address)?;
    request.push("route", &row.route)?;
    Ok(request)
}

const _: () = assert!(BURST == 200, "the policy above and crate::five must agree");
