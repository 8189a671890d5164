//! The time of a decision that is paid of leases, beside one in memory: the same policy of three limits, the same keys, one thread, in rounds
//! that take turns. The leases are drawn from counters in memory, so that no other process is part of it, and renewed by a second thread as in
//! a server. The limits are so wide that nobody is denied: a denial is another decision.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tollgate::lease::{LeaseReport, LeasedStore, MemoryLender};
use tollgate::store::Store;
use tollgate::{CheckRequest, Clock, Engine, MemoryStore, Policy};
use tollgate_bench_store::Failure;
use tollgate_bench_store::zipf::Zipf;

/// Keys of each workload.
const WORKLOADS: [usize; 3] = [1, 1_000, 10_000];
const TENANTS: usize = 1_000;
/// Decisions between two looks at the clock: the time is an argument of a decision, and not part of it.
const IN_A_ROW: usize = 64;
/// The most that a leased decision may take, in decisions of memory.
const TARGET: f64 = 2.0;

/// The same for both; memory has no use for the leases.
const POLICY: &str = "
limits:
  - {name: per-key, by: [api_key], rate: 5000000/s, burst: 5000000, consistency: leased, lease: {max_share: 10%, ttl: 5s}}
  - {name: plan, by: [tenant], rate: 5000000/s, burst: 5000000, consistency: leased, lease: {max_share: 10%, ttl: 5s}}
  - {name: platform, rate: 10000000/s, burst: 10000000, consistency: leased, lease: {max_share: 10%, ttl: 5s}}
";

/// The keys of a workload.
struct Keys {
    names: Vec<String>,
    tenants: Vec<String>,
    table: Vec<u32>,
}

impl Keys {
    fn new(keys: usize) -> Self {
        Self {
            names: (0..keys).map(|key| format!("key-{key:06}")).collect(),
            tenants: (0..TENANTS).map(|key| format!("tenant-{key:04}")).collect(),
            table: Zipf::new(keys).table(0x9E37_79B9_7F4A_7C15, 1 << 16),
        }
    }

    /// Says who asks. In place, since a request is large beside the decision about it.
    fn tell<'k>(&'k self, place: usize, request: &mut CheckRequest<'k>) -> Result<(), Failure> {
        let key = self.table[place % self.table.len()] as usize;
        request.push("api_key", self.names[key].as_str())?;
        request.push("tenant", self.tenants[key % TENANTS].as_str())?;
        Ok(())
    }
}

/// The result of the rounds of one workload: nanoseconds of a decision, and how many of the leased ones were paid of what was held.
#[derive(Default)]
struct Seen {
    memory: Vec<f64>,
    leased: Vec<f64>,
    paid: u64,
    asked: u64,
    drawn: u64,
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let rounds: usize = match arguments.iter().position(|argument| argument == "--rounds") {
        Some(place) => arguments
            .get(place + 1)
            .and_then(|text| text.parse().ok())
            .ok_or("--rounds: accepted: a whole number, such as 9")?,
        None => 9,
    };
    let time = Duration::from_millis(if quick { 100 } else { 500 });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut rows = Vec::new();
    for keys in WORKLOADS {
        eprintln!("{keys} keys");
        rows.push((keys, runtime.block_on(workload(&Keys::new(keys), rounds, time))?));
    }
    print(&rows, rounds);
    Ok(())
}

fn policy() -> Result<Policy, Failure> {
    let policy = Policy::compile("leased", POLICY.as_bytes())?;
    Ok(policy)
}

async fn workload(keys: &Keys, rounds: usize, time: Duration) -> Result<Seen, Failure> {
    let clock = Clock::precise();
    let memory = Engine::builder().policy(policy()?).clock(clock.clone()).build();
    let lending = MemoryLender::new(MemoryStore::new(64 << 20, clock.now()), 1);
    let leased = Engine::builder().policy(policy()?).store(LeasedStore::new(lending, 300_000)).build();
    let leased = Arc::new(leased);
    let stop = Arc::new(AtomicBool::new(false));
    let tending = std::thread::spawn({
        let (leased, stop, clock) = (Arc::clone(&leased), Arc::clone(&stop), clock.clone());
        move || -> Result<(), std::io::Error> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                while !stop.load(Ordering::Relaxed) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    leased.store().maintain(clock.now()).await;
                }
            });
            Ok(())
        }
    });
    let mut seen = Seen::default();
    // Until every key is known to be asked about.
    nanos(&memory, keys, &clock, time).await?;
    for _ in 0..4 {
        nanos(&leased, keys, &clock, time).await?;
    }
    for round in 0..rounds {
        // The first of a round is another one each time.
        for which in [round % 2, (round + 1) % 2] {
            if which == 0 {
                seen.memory.push(nanos(&memory, keys, &clock, time).await?);
            } else {
                // What memory's turn left to run out is renewed before the clock starts.
                nanos(&leased, keys, &clock, time / 4).await?;
                let before = leased.store().report();
                seen.leased.push(nanos(&leased, keys, &clock, time).await?);
                seen.add(before, leased.store().report());
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    tending.join().map_err(|_| "the thread that renews has panicked")??;
    Ok(seen)
}

impl Seen {
    fn add(&mut self, before: LeaseReport, after: LeaseReport) {
        self.paid += after.lease_hits - before.lease_hits;
        self.asked += after.store_charges - before.store_charges;
        self.drawn += after.acquired - before.acquired;
    }
}

/// Nanoseconds of a decision.
async fn nanos<S: Store>(
    engine: &Engine<S>,
    keys: &Keys,
    clock: &Clock,
    time: Duration,
) -> Result<f64, Failure> {
    let began = Instant::now();
    let (mut place, mut denied) = (0, 0);
    while began.elapsed() < time {
        let now = clock.now();
        for _ in 0..IN_A_ROW {
            let mut request = CheckRequest::new();
            keys.tell(place, &mut request)?;
            let decision = engine.check(&request, now).await;
            denied += u64::from(!decision.is_allowed());
            place += 1;
        }
    }
    if denied > 0 {
        return Err(
            format!("{denied} of {place} were denied: the machine is too fast for these limits").into()
        );
    }
    Ok(began.elapsed().as_nanos() as f64 / place as f64)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn print(rows: &[(usize, Seen)], rounds: usize) {
    println!(
        "### A leased decision beside one in memory: three limits, one thread, medians of {rounds} rounds\n"
    );
    println!(
        "| keys, zipf 1.0 | memory ns | leased ns | leased ÷ memory (least–most) | admitted from leases | units leased ahead | target ≤ {TARGET} |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---|");
    for (keys, seen) in rows {
        let mut ratios: Vec<f64> =
            seen.leased.iter().zip(&seen.memory).map(|(leased, memory)| leased / memory).collect();
        ratios.sort_by(f64::total_cmp);
        let (least, most) = (ratios.first().copied().unwrap_or(0.0), ratios.last().copied().unwrap_or(0.0));
        let ratio = median(ratios);
        let paid = 100.0 * seen.paid as f64 / (seen.paid + seen.asked).max(1) as f64;
        println!(
            "| {keys} | {:.0} | {:.0} | {ratio:.2} ({least:.2}–{most:.2}) | {paid:.3} % | {} | {} |",
            median(seen.memory.clone()),
            median(seen.leased.clone()),
            seen.drawn,
            if ratio <= TARGET { "reached" } else { "**missed**" },
        );
    }
}
