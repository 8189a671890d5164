//! The same random requests to memory and to the script, at the same instants, with a clock that may step back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tollgate::algorithm::calendar::{Calendar, CalendarUnit};
use tollgate::algorithm::fixed_window::Align;
use tollgate::algorithm::sliding_window::Estimate;
use tollgate::policy::{Cost, Limit, LimitBuilder, Mode};
use tollgate::{CheckRequest, Engine, Policy, Quota, Rate, Ticks, Timestamp};

use super::server::Server;
use super::twin::Twin;

const START: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

/// Lifetime of a reservation: longer than any counter.
const LIFETIME: Ticks = Ticks::from_secs(400 * 86_400);

/// A deterministic random number generator.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 8) % bound.max(1)
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::try_from(self.below(all.len() as u64)).unwrap()]
    }
}

/// A random rate.
fn reservoir(random: &mut Random) -> Quota {
    loop {
        let units = random.of(&[1, 2, 3, 7, 10, 100, 999, 33_333, 1_000_000, 9_999_991]);
        let period = random.of(&[1, 7, 1_000, 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000]);
        let rate = Rate::per_ticks(units, Ticks::from_micros(period));
        let burst = random.of(&[1, 2, 5, 10, 1_000, 1_000_003]);
        let made = match random.below(4) {
            0 => Quota::token_bucket(rate),
            1 => Quota::token_bucket(rate.burst(burst)),
            2 => Quota::gcra(rate.burst(burst)),
            _ => Quota::leaky_bucket(rate.burst(random.of(&[1, 1, 3])), random.of(&[0, 1, 9])),
        };
        if let Ok(quota) = made {
            return quota;
        }
    }
}

fn rate(random: &mut Random) -> Rate {
    let units = random.of(&[1, 2, 3, 7, 10, 100, 999, 65_536]);
    let period = random.of(&[7, 1_000, 60_000, 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000]);
    Rate::per_ticks(units, Ticks::from_micros(period))
}

fn fixed_window(random: &mut Random) -> Quota {
    use CalendarUnit::{Day, Hour, Minute, Month, Week, Year};
    loop {
        let unit = random.of(&[Minute, Hour, Day, Week, Month, Year]);
        let zone = random.of(&["UTC", "Europe/Rome", "Australia/Lord_Howe", "Asia/Kathmandu"]);
        let rate = rate(random);
        let (rate, align) = match random.below(3) {
            0 => (rate, Align::Epoch),
            1 => (rate, Align::FirstHit),
            _ => {
                let calendar = Calendar::new(unit, zone).unwrap();
                (Rate::per_ticks(rate.units(), unit.usual()), Align::Calendar(calendar))
            }
        };
        if let Ok(quota) = Quota::fixed_window(rate, align) {
            return quota;
        }
    }
}

fn sliding_window(random: &mut Random) -> Quota {
    loop {
        let precision = random.of(&[1, 1, 2, 3, 10, 60]);
        let estimate = random.of(&[Estimate::Strict, Estimate::Interpolate]);
        if let Ok(quota) = Quota::sliding_window(rate(random), precision, estimate) {
            return quota;
        }
    }
}

fn sliding_log(random: &mut Random) -> Quota {
    loop {
        if let Ok(quota) = Quota::sliding_log(rate(random)) {
            return quota;
        }
    }
}

fn permits(random: &mut Random) -> Quota {
    let life = random.of(&[1, 1_000, 1_000_000, 60_000_000]);
    Quota::concurrency(random.of(&[1, 2, 3, 10, 1_000]), Duration::from_micros(life)).unwrap()
}

fn any(random: &mut Random) -> Quota {
    let all: [Make; 5] = [reservoir, fixed_window, sliding_window, sliding_log, permits];
    random.of(&all)(random)
}

/// The time scale on which a quota's answers change.
fn pulse(quota: &Quota) -> u64 {
    quota.memory().as_micros() / quota.capacity().clamp(1, 1_000)
}

/// Produces another quota of the same algorithm.
type Make = fn(&mut Random) -> Quota;

/// A limit, and how it may change.
struct Changing {
    make: Make,
    quotas: Vec<Quota>,
    is_shadow: bool,
}

impl Changing {
    fn new(random: &mut Random, make: Make) -> Self {
        let mut changing = Self { make, quotas: Vec::new(), is_shadow: random.below(4) == 0 };
        changing.change(random);
        changing
    }

    /// Other quotas, for one tier or for two.
    fn change(&mut self, random: &mut Random) {
        let first = self.quotas.first().cloned().unwrap_or_else(|| (self.make)(random));
        let another = |random: &mut Random| {
            let mut tries = std::iter::repeat_with(|| (self.make)(random));
            tries.find(|quota| quota.algorithm() == first.algorithm()).unwrap()
        };
        self.quotas = match random.below(4) {
            0 => vec![another(random), another(random)],
            1 => vec![first.clone(), another(random)],
            _ => vec![another(random)],
        };
    }

    fn limit(&self, number: usize) -> LimitBuilder {
        let limit = Limit::new(&format!("limit-{number}"), self.quotas[0].clone());
        let limit = match &self.quotas[1..] {
            [other] => limit.tiers("plan", [("free", self.quotas[0].clone()), ("pro", other.clone())]),
            _ => limit,
        };
        let limit = limit.by(["key"]).cost(Cost::Asked);
        if self.is_shadow { limit.mode(Mode::Shadow) } else { limit }
    }
}

fn policy(limits: &[Changing]) -> Policy {
    Policy::new(limits.iter().enumerate().map(|(number, each)| each.limit(number)).collect()).unwrap()
}

async fn run(server: &Arc<Server>, seed: u64, steps: u64, make: Make) -> u64 {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut done = 0;
    while done < steps {
        let limits = (0..random.of(&[1, 1, 2, 3])).map(|_| Changing::new(&mut random, make)).collect();
        done += session(server, limits, &mut random).await;
    }
    done
}

/// The next instant: mostly later, sometimes equal or earlier.
fn next_instant(now: Timestamp, pulse: u64, random: &mut Random) -> Timestamp {
    let now = match random.below(16) {
        0..6 => now,
        6..12 => now + Ticks::from_micros(random.below(2 * pulse + 2)),
        12 => now + Ticks::from_micros(random.below(30 * pulse + 2)),
        13 => now + Ticks::ONE,
        14 => now - Ticks::from_micros(random.below(2 * pulse + 2)),
        _ => now - Ticks::from_micros(random.below(200 * pulse + 2)),
    };
    // Within memory's range.
    now.clamp(START - Ticks::from_secs(300 * 86_400), START + Ticks::from_secs(4 * 366 * 86_400))
}

/// A few dozen requests for two keys.
async fn session(server: &Arc<Server>, mut limits: Vec<Changing>, random: &mut Random) -> u64 {
    let engine = Engine::builder().policy(policy(&limits)).store(Twin::new(server, START)).build();
    let mut now = START + Ticks::from_micros(random.below(1 << 40));
    let (mut permits, mut reservations) = (Vec::new(), Vec::new());
    let swaps = random.below(3) == 0;
    // Policies are swapped at the latest instant so far, and the clock does not step back behind a swap. Otherwise a
    // state counted under the old quota after the swap means another node's state to the script, and a clock that
    // stepped back to memory.
    let (mut earliest, mut latest) = (Timestamp::default(), Timestamp::default());
    for _ in 0..60 {
        if engine.store().is_over.load(Ordering::Relaxed) {
            break;
        }
        let quotas: Vec<&Quota> = limits.iter().flat_map(|limit| &limit.quotas).collect();
        now = next_instant(now, pulse(random.of(&quotas)), random).max(earliest);
        latest = latest.max(now);
        let capacity = quotas.iter().map(|quota| quota.capacity()).min().unwrap_or(1);
        let cost = match random.below(8) {
            0 => 0,
            1 => random.below(capacity + 2),
            2 => capacity,
            3 => random.of(&[2, 3, 1 << 40]),
            _ => 1,
        };
        let (key, plan) = (random.of(&["a", "b"]), random.of(&["free", "pro"]));
        let request = CheckRequest::new().with("key", key).unwrap().with("plan", plan).unwrap();
        let request = request.cost(cost).unwrap();
        match random.below(26) {
            0 | 1 => {
                let age = random.of(&[0, 0, 1, 900_000, 20_000_000, 4_000_000_000, u64::MAX]);
                let within = Ticks::from_micros(random.below(age.saturating_add(1)));
                let _ = engine.ledger().refund(&request, &[], within, now).await;
            }
            2 => {
                engine.operator().reset(&request, &[], now).await.unwrap();
            }
            3 | 4 => drop(engine.operator().peek(&request, now).await),
            5 | 6 if !permits.is_empty() => {
                let index = usize::try_from(random.below(permits.len() as u64)).unwrap();
                let permit = &permits[index];
                let _ = engine.reservations().release(permit, now).await;
            }
            9 | 10 if !permits.is_empty() => {
                let index = usize::try_from(random.below(permits.len() as u64)).unwrap();
                let _ = engine.reservations().renew(&permits[index], now).await;
            }
            11..=13 => reservations.extend(engine.reservations().reserve(&request, LIFETIME, now).await.1),
            14..=16 if !reservations.is_empty() => {
                let index = usize::try_from(random.below(reservations.len() as u64)).unwrap();
                let mut reservation = reservations.swap_remove(index);
                let _ = match random.below(3) {
                    0 => engine.reservations().commit(&mut reservation, cost, now).await,
                    _ => engine.reservations().cancel(&mut reservation, now).await,
                };
            }
            7 | 8 if swaps => {
                random_of_mut(&mut limits, random);
                (now, earliest) = (latest, latest);
                engine.swap(policy(&limits), now).unwrap();
            }
            _ => permits.extend(engine.check(&request, now).await.take_permit()),
        }
    }
    engine.store().steps.load(Ordering::Relaxed)
}

fn random_of_mut(limits: &mut [Changing], random: &mut Random) {
    let index = usize::try_from(random.below(limits.len() as u64)).unwrap();
    limits[index].change(random);
}

/// Random steps per test by default; `TOLLGATE_STEPS` raises them, as `./test --long` does.
const STEPS: u64 = 5_000;

fn said(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|said| said.parse().ok())
}

async fn agree(make: Make) {
    let server = Arc::new(Server::start().await);
    let (seed, steps) = (said("TOLLGATE_SEED").unwrap_or(1), said("TOLLGATE_STEPS").unwrap_or(STEPS));
    let done = run(&server, seed, steps, make).await;
    assert!(done >= steps);
    server.all_keys_expire().await;
}

#[tokio::test]
async fn reservoirs_answer_as_in_memory() {
    agree(reservoir).await;
}

#[tokio::test]
async fn fixed_windows_answer_as_in_memory() {
    agree(fixed_window).await;
}

#[tokio::test]
async fn sliding_windows_answer_as_in_memory() {
    agree(sliding_window).await;
}

#[tokio::test]
async fn sliding_logs_answer_as_in_memory() {
    agree(sliding_log).await;
}

#[tokio::test]
async fn permits_answer_as_in_memory() {
    agree(permits).await;
}

#[tokio::test]
async fn all_algorithms_answer_as_in_memory() {
    agree(any).await;
}
