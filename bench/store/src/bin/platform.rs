//! The platform on one machine: 100,000 keys whose traffic is distributed as zipf has it, 100 a second for each, a limit for each tenant, and one
//! of 500,000 a second for everybody; a redis-server beside. How many decisions a second, how many calls to the store, and whether
//! anybody got more than a limit gives: exact, leased, and exact for quiet keys only.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tollgate::lease::LeasedStore;
use tollgate::{CheckRequest, Clock, Engine, Policy, Secret, Source};
use tollgate_bench_store::Failure;
use tollgate_bench_store::server::Servers;
use tollgate_bench_store::zipf::Zipf;
use tollgate_redis::{Nodes, RedisStore, Settings};

const KEYS: usize = 100_000;
const TENANTS: usize = 1_000;
/// The rate of each limit, and its burst.
const PER_KEY: [u64; 2] = [100, 200];
const PER_TENANT: [u64; 2] = [20_000, 20_000];
const PLATFORM: [u64; 2] = [500_000, 500_000];
/// Askers, each of which has one question under way.
const ASKERS: usize = 256;
/// How many questions an asker asks before it lets another one ask.
const IN_A_ROW: usize = 16;
/// One latency in so many is measured.
const SAMPLED: usize = 16;

type Node = Engine<LeasedStore<RedisStore>>;

/// The result of one run.
struct Seen {
    name: String,
    offered: Option<u64>,
    decided: f64,
    admitted: f64,
    calls: f64,
    asked: f64,
    /// The most that any counter admitted beyond its bound; not above 0 if none did.
    over: i64,
    /// Decisions that the store had no part in, since it did not answer in time.
    without: u64,
    held: u64,
    stranded: u64,
    latency: [f64; 3],
}

fn policy(consistency: &str) -> Result<Policy, Failure> {
    let lease = match consistency {
        "exact" => String::new(),
        _ => ", lease: {max_share: 10%, ttl: 5s}".to_owned(),
    };
    let limit = |name: &str, by: &str, [rate, burst]: [u64; 2]| {
        format!(
            "  - {{name: {name}, {by}rate: {rate}/s, burst: {burst}, consistency: {consistency}{lease}}}\n"
        )
    };
    let file = format!(
        "limits:\n{}{}{}",
        limit("per-key", "by: [api_key], ", PER_KEY),
        limit("plan", "by: [tenant], ", PER_TENANT),
        limit("platform", "", PLATFORM)
    );
    let policy = Policy::compile("platform", file.as_bytes())?;
    Ok(policy)
}

fn main() -> Result<(), Failure> {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let time = Duration::from_secs(if quick { 3 } else { 10 });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let names: Arc<Vec<String>> = Arc::new((0..KEYS).map(|key| format!("key-{key:06}")).collect());
    let tenants: Arc<Vec<String>> = Arc::new((0..TENANTS).map(|key| format!("tenant-{key:04}")).collect());
    let zipf = Zipf::new(KEYS);
    let mut rows = Vec::new();
    let only: Option<String> = {
        let mut arguments = std::env::args().skip_while(|argument| argument != "--only");
        arguments.nth(1)
    };
    let offers: &[Option<u64>] = if quick {
        &[None]
    } else {
        &[Some(10_000), Some(50_000), Some(200_000), Some(500_000), Some(1_000_000), None]
    };
    for &offered in offers {
        for consistency in ["exact", "leased", "auto"] {
            if only.as_deref().is_some_and(|only| only != consistency) {
                continue;
            }
            eprintln!("{consistency}, {}", offered_text(offered));
            let seen = runtime.block_on(run(consistency, offered, time, &names, &tenants, &zipf))?;
            rows.push(seen);
        }
    }
    print(&rows);
    Ok(())
}

fn offered_text(offered: Option<u64>) -> String {
    offered.map_or_else(|| "as fast as it goes".to_owned(), |rate| format!("{rate} a second"))
}

async fn run(
    consistency: &str,
    offered: Option<u64>,
    time: Duration,
    names: &Arc<Vec<String>>,
    tenants: &Arc<Vec<String>>,
    zipf: &Zipf,
) -> Result<Seen, Failure> {
    let server = Servers::beside().await?;
    let url = format!("redis://{}", server.addresses()[0]);
    let settings = url.parse::<Settings>()?.secret(b"a secret of the benchmark")?.nodes(Nodes::Fixed(1))?;
    // The way to the store has a thread of its own: askers that never rest would keep it waiting.
    let own = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let inside = own.enter();
    let store = RedisStore::start(settings.deadline(Duration::from_millis(50))?)?;
    drop(inside);
    let clock = Clock::precise();
    let node: Arc<Node> = Arc::new(
        Engine::builder()
            .policy(policy(consistency)?)
            .store(LeasedStore::new(store, 300_000))
            .secret(Secret::repeatable(7))
            .build(),
    );
    let tending = tokio::spawn({
        let (node, clock) = (Arc::clone(&node), clock.clone());
        async move {
            loop {
                tokio::time::sleep(Duration::from_millis(5)).await;
                node.store().maintain(clock.now()).await;
            }
        }
    });
    // The store connects, and learns the limits.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let admitted: Arc<Vec<AtomicU32>> = Arc::new((0..KEYS).map(|_| AtomicU32::new(0)).collect());
    let (decided, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let without = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let mut tasks = Vec::new();
    for asker in 0..ASKERS {
        let table = zipf.table(0x9E37_79B9_7F4A_7C15 ^ (asker as u64 + 1) << 20, 1 << 14);
        let (node, clock, names, tenants) =
            (Arc::clone(&node), clock.clone(), Arc::clone(names), Arc::clone(tenants));
        let (admitted, decided, stop) = (Arc::clone(&admitted), Arc::clone(&decided), Arc::clone(&stop));
        let without = Arc::clone(&without);
        tasks.push(tokio::spawn(async move {
            let mut latencies = Histogram::<u64>::new_with_bounds(1, 10_000_000_000, 3).ok();
            // So many questions in a row, and then a pause that makes it the offered rate.
            let pause = offered.map(|rate| Duration::from_secs_f64((ASKERS * IN_A_ROW) as f64 / rate as f64));
            let mut due =
                tokio::time::Instant::now() + pause.unwrap_or_default().mul_f64(asker as f64 / ASKERS as f64);
            let mut place = 0;
            while !stop.load(Ordering::Relaxed) {
                match pause {
                    Some(pause) => {
                        tokio::time::sleep_until(due).await;
                        due += pause;
                    }
                    None => tokio::task::yield_now().await,
                }
                for _ in 0..IN_A_ROW {
                    let key = table[place % table.len()] as usize;
                    place += 1;
                    let mut request = CheckRequest::new();
                    let sent = request
                        .push("api_key", names[key].as_str())
                        .and_then(|()| request.push("tenant", tenants[key % TENANTS].as_str()));
                    if sent.is_err() {
                        return latencies;
                    }
                    let asked = (place % SAMPLED == 0).then(Instant::now);
                    let decision = node.check(&request, clock.now()).await;
                    if let (Some(asked), Some(latencies)) = (asked, &mut latencies) {
                        latencies
                            .saturating_record(u64::try_from(asked.elapsed().as_nanos()).unwrap_or(u64::MAX));
                    }
                    let by_store =
                        |source| matches!(source, Source::Exact | Source::Lease | Source::DenyCache);
                    if decision.limits().any(|status| !by_store(status.source)) {
                        without.fetch_add(1, Ordering::Relaxed);
                    }
                    if decision.is_allowed() {
                        admitted[key].fetch_add(1, Ordering::Relaxed);
                    }
                }
                decided.fetch_add(IN_A_ROW as u64, Ordering::Relaxed);
            }
            latencies
        }));
    }
    // Until what is asked about often is known to be.
    tokio::time::sleep(time / 2).await;
    let marks = |node: &Node| {
        (
            decided.load(Ordering::Relaxed),
            node.store().store().report().calls,
            node.store().store().report().decisions,
            Instant::now(),
        )
    };
    let before = marks(&node);
    tokio::time::sleep(time).await;
    let after = marks(&node);
    let (held, stranded) = {
        let report = node.store().report();
        (report.held, report.stranded)
    };
    stop.store(true, Ordering::Relaxed);
    let mut latencies = Histogram::<u64>::new_with_bounds(1, 10_000_000_000, 3)?;
    for task in tasks {
        if let Some(each) = task.await? {
            latencies.add(&each)?;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let steady = after.3.duration_since(before.3).as_secs_f64();
    let a_second = |after: u64, before: u64| (after - before) as f64 / steady;
    tending.abort();
    own.shutdown_background();
    let each: Vec<u64> = admitted.iter().map(|count| u64::from(count.load(Ordering::Relaxed))).collect();
    let by_tenant = (0..TENANTS).map(|tenant| each.iter().skip(tenant).step_by(TENANTS).sum::<u64>());
    let over = |count: u64, [rate, burst]: [u64; 2]| {
        count.cast_signed() - (burst as f64 + rate as f64 * seconds).ceil() as i64
    };
    let total: u64 = each.iter().sum();
    let worst = each
        .iter()
        .map(|&count| over(count, PER_KEY))
        .chain(by_tenant.map(|count| over(count, PER_TENANT)))
        .chain([over(total, PLATFORM)])
        .max()
        .unwrap_or(0);
    let micros = |share: f64| latencies.value_at_quantile(share) as f64 / 1_000.0;
    Ok(Seen {
        name: consistency.to_owned(),
        offered,
        decided: a_second(after.0, before.0),
        admitted: total as f64 / seconds,
        calls: a_second(after.1, before.1),
        asked: a_second(after.2, before.2),
        over: worst,
        without: without.load(Ordering::Relaxed),
        held,
        stranded,
        latency: [micros(0.5), micros(0.99), micros(0.999)],
    })
}

fn print(rows: &[Seen]) {
    println!(
        "### 100,000 keys, zipf 1.0: 100/s each, 20,000/s a tenant, 500,000/s in all; three limits a decision\n"
    );
    println!(
        "| | offered | decisions/s | admitted/s | store calls/s | requests in them/s | worst admitted − bound | without the store | held | stranded | p50 µs | p99 µs | p99.9 µs |"
    );
    println!("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    for row in rows {
        let [p50, p99, p999] = row.latency;
        println!(
            "| {} | {} | {:.0} | {:.0} | {:.0} | {:.0} | {} | {} | {} | {} | {p50:.1} | {p99:.1} | {p999:.1} |",
            row.name,
            offered_text(row.offered),
            row.decided,
            row.admitted,
            row.calls,
            row.asked,
            row.over,
            row.without,
            row.held,
            row.stranded
        );
    }
    println!("\n### Requests to the store a second by offered load\n\n```");
    let most = rows.iter().map(|row| row.asked).fold(1.0, f64::max);
    for row in rows {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the width of a bar")]
        let width = (row.asked / most * 60.0).ceil() as usize;
        println!(
            "{:>18} {:<6} {:<60} {:.0}",
            offered_text(row.offered),
            row.name,
            "█".repeat(width),
            row.asked
        );
    }
    println!("```");
}
