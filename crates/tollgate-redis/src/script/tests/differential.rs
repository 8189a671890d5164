//! The same random requests to memory and to the script, at the same instants, steps back of the clock included.

use std::sync::Arc;
use std::time::Duration;

use tollgate::algorithm::calendar::{Calendar, CalendarUnit};
use tollgate::algorithm::fixed_window::Align;
use tollgate::algorithm::sliding_window::Estimate;
use tollgate::policy::{Cost, Limit, LimitBuilder, Mode};
use tollgate::{CheckRequest, Engine, Policy, Quota, Rate, Secret, Ticks, Timestamp};

use super::server::Server;
use super::twin::Twin;

const START: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

/// Numbers that look random and are the same each time.
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

/// A reservoir of some rate.
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
    random.of(&[reservoir, fixed_window, sliding_window, sliding_log, permits])(random)
}

/// The time by which a quota's answers change most.
fn pulse(quota: &Quota) -> u64 {
    quota.memory().as_micros() / quota.capacity().clamp(1, 1_000)
}

async fn run(server: &Arc<Server>, seed: u64, steps: u64, make: fn(&mut Random) -> Quota) -> u64 {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut done = 0;
    while done < steps {
        let quotas: Vec<Quota> = (0..random.of(&[1, 1, 2, 3])).map(|_| make(&mut random)).collect();
        let limits: Vec<LimitBuilder> = (0..)
            .zip(&quotas)
            .map(|(number, quota): (u32, _)| {
                let limit =
                    Limit::new(&format!("limit-{number}"), quota.clone()).by(["key"]).cost(Cost::Asked);
                if random.below(4) == 0 { limit.mode(Mode::Shadow) } else { limit }
            })
            .collect();
        let policy = Policy::new(limits).unwrap();
        let engine = Engine::with_store(policy, Twin::new(server, START), Secret::random());
        done += session(&engine, &quotas, &mut random).await;
    }
    done
}

/// Some dozen requests of two keys.
async fn session(engine: &Engine<Twin>, quotas: &[Quota], random: &mut Random) -> u64 {
    let mut now = START + Ticks::from_micros(random.below(1 << 40));
    let pulses: Vec<u64> = quotas.iter().map(pulse).collect();
    for _ in 0..60 {
        let pulse = random.of(&pulses);
        now = match random.below(16) {
            0..6 => now,
            6..12 => now + Ticks::from_micros(random.below(2 * pulse + 2)),
            12 => now + Ticks::from_micros(random.below(30 * pulse + 2)),
            13 => now + Ticks::ONE,
            14 => now - Ticks::from_micros(random.below(2 * pulse + 2)),
            _ => now - Ticks::from_micros(random.below(200 * pulse + 2)),
        };
        // Within what memory tells apart.
        now = now.clamp(START - Ticks::from_secs(300 * 86_400), START + Ticks::from_secs(4 * 366 * 86_400));
        let capacity = quotas.iter().map(Quota::capacity).min().unwrap_or(1);
        let cost = match random.below(8) {
            0 => 0,
            1 => random.below(capacity + 2),
            2 => capacity,
            3 => random.of(&[2, 3, 1 << 40]),
            _ => 1,
        };
        let key = random.of(&["a", "b"]);
        let request = CheckRequest::new().with("key", key).unwrap().cost(cost).unwrap();
        match random.below(24) {
            0 | 1 => engine.refund(&request, now).await.unwrap(),
            2 => {
                engine.reset(&request, &[], now).await.unwrap();
            }
            3 | 4 => drop(engine.peek(&request, now).await),
            _ => drop(engine.check(&request, now).await),
        }
    }
    engine.store().steps.load(std::sync::atomic::Ordering::Relaxed)
}

async fn agree(steps: u64, make: fn(&mut Random) -> Quota) {
    let server = Arc::new(Server::start().await);
    assert!(run(&server, 1, steps, make).await >= steps);
}

#[tokio::test]
async fn reservoirs_answer_as_in_memory() {
    agree(20_000, reservoir).await;
}

#[tokio::test]
async fn fixed_windows_answer_as_in_memory() {
    agree(20_000, fixed_window).await;
}

#[tokio::test]
async fn sliding_windows_answer_as_in_memory() {
    agree(20_000, sliding_window).await;
}

#[tokio::test]
async fn sliding_logs_answer_as_in_memory() {
    agree(20_000, sliding_log).await;
}

#[tokio::test]
async fn permits_answer_as_in_memory() {
    agree(20_000, permits).await;
}

#[tokio::test]
async fn all_algorithms_answer_as_in_memory() {
    agree(20_000, any).await;
}
