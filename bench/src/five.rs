//! Five limits at once: by API key, by tenant, by address, by route, and one for everybody. A policy does it in one
//! decision; with governor it takes five calls, which charge what came before the one that denies.

use std::hint::black_box;

use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, RateLimiter};
use tollgate_sim::random::Random;

use crate::Failure;
use crate::peers::governor::translated;
use crate::quota::{self, Quota};

/// Requests before they repeat.
const ROWS: usize = 1 << 18;
const API_KEYS: u64 = 100_000;
const TENANTS: u64 = 5_000;
const ADDRESSES: u64 = 200_000;
const ROUTES: u64 = 50;

/// Requests that an API key may make at once.
pub const BURST: u32 = quota::USER.burst;

/// A request as a server has it.
#[derive(Debug)]
pub struct Row {
    /// The key of the caller.
    pub api_key: String,
    /// The tenant of the caller.
    pub tenant: String,
    /// The address of the caller.
    pub address: String,
    /// The route that is called.
    pub route: String,
}

/// Something that holds a request against five limits.
pub trait Five: Send + Sync {
    /// Decides about each request and says how many were admitted.
    fn decide(&self, rows: &[Row]) -> usize;
}

/// Requests by many callers, the same in every run.
#[must_use]
pub fn rows() -> Vec<Row> {
    let mut random = Random::new(5);
    let rows = (0..ROWS).map(|_| row(random.below(API_KEYS), random.below(ADDRESSES), random.below(ROUTES)));
    rows.collect()
}

fn row(caller: u64, address: u64, route: u64) -> Row {
    Row {
        api_key: format!("key-{caller:08}"),
        tenant: format!("tenant-{:05}", caller % TENANTS),
        address: format!("10.{}.{}.{}", address >> 16, (address >> 8) & 255, address & 255),
        route: format!("GET /v1/resource-{route:02}/:id"),
    }
}

/// Makes sure that the limit of one API key is enforced: of its burst and some more, not all are admitted.
///
/// # Errors
/// When all are admitted, or nothing is: then its speed means nothing.
pub fn verify(name: &str, five: &dyn Five) -> Result<(), Failure> {
    let burst = BURST as usize;
    // Half as many again: a slow machine refills a few meanwhile.
    let asked: Vec<Row> = (0..burst + burst / 2).map(|_| row(API_KEYS, ADDRESSES, ROUTES)).collect();
    let admitted = five.decide(&asked);
    if admitted < burst || admitted == asked.len() {
        return Err(format!(
            "{name} admits {admitted} of {}, the burst is {burst}: it does not limit",
            asked.len()
        )
        .into());
    }
    Ok(())
}

/// governor, called five times.
pub struct FiveGovernors {
    api_key: DefaultKeyedRateLimiter<String>,
    tenant: DefaultKeyedRateLimiter<String>,
    address: DefaultKeyedRateLimiter<String>,
    route: DefaultKeyedRateLimiter<String>,
    platform: DefaultDirectRateLimiter,
}

impl FiveGovernors {
    /// Five limiters; all but the first are wide, counted and not reached.
    ///
    /// # Errors
    /// When a quota is not one of governor's.
    pub fn new() -> Result<Self, Failure> {
        let per_second = |units, burst| translated(Quota { units, seconds: 1, burst });
        Ok(Self {
            api_key: RateLimiter::dashmap(translated(quota::USER)?),
            tenant: RateLimiter::dashmap(per_second(1_000_000, 4_000_000)?),
            address: RateLimiter::dashmap(per_second(1_000_000, 4_000_000)?),
            route: RateLimiter::dashmap(per_second(10_000_000, 40_000_000)?),
            platform: RateLimiter::direct(per_second(10_000_000, 40_000_000)?),
        })
    }

    #[inline]
    fn admits(&self, row: &Row) -> bool {
        black_box(self.api_key.check_key(&row.api_key)).is_ok()
            && black_box(self.tenant.check_key(&row.tenant)).is_ok()
            && black_box(self.address.check_key(&row.address)).is_ok()
            && black_box(self.route.check_key(&row.route)).is_ok()
            && black_box(self.platform.check()).is_ok()
    }
}

impl Five for FiveGovernors {
    fn decide(&self, rows: &[Row]) -> usize {
        rows.iter().filter(|row| self.admits(row)).count()
    }
}
