//! Compares the shared store with what people do with Redis today: one redis-server on the first core, asked from the second. Rounds
//! are interleaved; ratios are taken within a round.

mod asker;
mod measure;

use std::rc::Rc;
use std::time::Duration;

use asker::{Asker, LIMITS};
use measure::{Delay, Speed, bytes_a_key, clear, closed, open};
use tollgate_bench_store::Failure;
use tollgate_bench_store::server::Servers;

/// Which contender the ratios of throughput are taken against.
const BASE: &str = "EVALSHA, hash of two fields";
/// Requests a second of the open loop.
const RATE: u64 = 10_000;

/// One contender with what was seen of it.
struct Row {
    name: String,
    asker: Rc<Asker>,
    speeds: Vec<Speed>,
    delays: Vec<Delay>,
    bytes: Option<f64>,
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let rounds = match arguments.iter().position(|argument| argument == "--rounds") {
        Some(place) => arguments
            .get(place + 1)
            .and_then(|text| text.parse().ok())
            .ok_or("--rounds: accepted: a whole number, such as 5")?,
        None => 5,
    };
    let only: Vec<String> = match arguments.iter().position(|argument| argument == "--only") {
        Some(place) => {
            let names =
                arguments.get(place + 1).ok_or("--only: accepted: parts of names, such as hash,gcra")?;
            names.split(',').map(str::to_owned).collect()
        }
        None => Vec::new(),
    };
    let duration = Duration::from_millis(if quick { 400 } else { 1_500 });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(rounds, duration, &only))
}

async fn run(rounds: usize, duration: Duration, only: &[String]) -> Result<(), Failure> {
    let is_wanted = |name: &str| only.is_empty() || only.iter().any(|part| name.contains(part.as_str()));
    let server = Servers::one().await?;
    let [address] = server.addresses()[..] else { return Err("one server has one address".into()) };
    let url = format!("redis://{address}");
    let client = redis::Client::open(url.as_str())?;
    let mut rows = vec![row("PING", Asker::ping(&client).await?)];
    for (name, asker) in Asker::scripts(std::slice::from_ref(&client)).await? {
        rows.push(row(name, asker));
    }
    for (name, limits) in LIMITS {
        rows.push(row(&format!("tollgate {name}"), Asker::tollgate(&url, limits).await?));
    }
    // What ratios are taken against is always there.
    rows.retain(|row| row.name == "PING" || row.name == BASE || is_wanted(&row.name));
    for round in 1..=rounds {
        for row in &mut rows {
            eprintln!("round {round} of {rounds}: {}", row.name);
            row.speeds.push(closed(Rc::clone(&row.asker), &server, duration).await?);
            clear(std::slice::from_ref(&client)).await?;
            row.delays.push(open(Rc::clone(&row.asker), RATE, duration).await?);
        }
    }
    for row in rows.iter_mut().filter(|row| row.name != "PING" && row.name != "tollgate five limits") {
        eprintln!("bytes a key: {}", row.name);
        let asker = row.asker.lasting().map_or_else(|| Rc::clone(&row.asker), Rc::new);
        row.bytes = Some(bytes_a_key(asker, &client, 32_000).await?);
    }
    print(&rows, rounds);
    // They would count on, and beat, beside what is measured next.
    drop((rows, server));
    if is_wanted("cluster") {
        cluster(rounds, duration).await?;
    }
    Ok(())
}

/// Three primaries, which share one core as one server has it for itself.
async fn cluster(rounds: usize, duration: Duration) -> Result<(), Failure> {
    let servers = Servers::cluster().await?;
    let addresses: Vec<String> = servers.addresses().iter().map(ToString::to_string).collect();
    let url = format!("redis-cluster://{}", addresses.join(","));
    let open = |address: &String| redis::Client::open(format!("redis://{address}"));
    let nodes: Vec<redis::Client> = addresses.iter().map(open).collect::<Result<_, _>>()?;
    let mut rows = Vec::new();
    for (name, asker) in Asker::scripts(&nodes).await? {
        rows.push(row(name, asker));
    }
    for (name, limits) in [LIMITS[0], LIMITS[1], LIMITS[3]] {
        rows.push(row(&format!("tollgate {name}"), Asker::tollgate(&url, limits).await?));
    }
    for round in 1..=rounds {
        for row in &mut rows {
            eprintln!("cluster, round {round} of {rounds}: {}", row.name);
            clear(&nodes).await?;
            row.speeds.push(closed(Rc::clone(&row.asker), &servers, duration).await?);
        }
    }
    println!("\n### A cluster of three primaries on one core: closed loop, 256 in flight, 1M keys\n");
    print_speeds(&rows);
    Ok(())
}

fn row(name: &str, asker: Asker) -> Row {
    Row { name: name.to_owned(), asker: Rc::new(asker), speeds: Vec::new(), delays: Vec::new(), bytes: None }
}

fn print(rows: &[Row], rounds: usize) {
    let find = |name: &str| rows.iter().find(|row| row.name == name);
    println!("### One redis-server: closed loop, 256 in flight, 1M keys, medians of {rounds} rounds\n");
    print_speeds(rows);
    println!("\n### Open loop, {RATE} a second\n");
    println!("| | p50 µs | p99 µs | p99 beside PING | by the fallback |\n|---|---:|---:|---:|---:|");
    let p99s = |row: &Row| row.delays.iter().map(|delay| delay.p99).collect::<Vec<_>>();
    let base = find("PING").map(p99s).unwrap_or_default();
    for row in rows {
        let p50 = median(row.delays.iter().map(|delay| delay.p50).collect());
        let elsewhere = median(row.delays.iter().map(|delay| delay.elsewhere).collect()) * 100.0;
        let (p99, beside) = (median(p99s(row)), ratio(&p99s(row), &base));
        println!("| {} | {p50:.0} | {p99:.0} | {beside:.2}× | {elsewhere:.1} % |", row.name);
    }
    let p50s =
        |name: &str| find(name).map(|row| row.delays.iter().map(|delay| delay.p50).collect::<Vec<_>>());
    if let (Some(five), Some(one)) = (p50s("tollgate five limits"), p50s("tollgate token-bucket")) {
        println!(
            "\nFive limits in one request take {:.2}× the time of one (median latency).",
            ratio(&five, &one)
        );
    }
    println!("\n### Bytes a key\n\n| | bytes |\n|---|---:|");
    for row in rows {
        if let Some(bytes) = row.bytes {
            println!("| {} | {bytes:.0} |", row.name);
        }
    }
}

fn print_speeds(rows: &[Row]) {
    println!(
        "| | a second (least–most) | beside the hash | processor µs, store | and client | requests in a call |\n|---|---:|---:|---:|---:|---:|"
    );
    let speeds = |row: &Row| row.speeds.iter().map(|speed| speed.per_second).collect::<Vec<_>>();
    let base = rows.iter().find(|row| row.name == BASE).map(speeds).unwrap_or_default();
    for row in rows {
        let own = speeds(row);
        let (least, most) =
            (own.iter().copied().fold(f64::MAX, f64::min), own.iter().copied().fold(0.0, f64::max));
        let of = |number: fn(&Speed) -> f64| median(row.speeds.iter().map(number).collect());
        let (store, asker) = (of(|speed| speed.store_micros), of(|speed| speed.asker_micros));
        let in_a_call = of(|speed| speed.in_a_call);
        let (shown, beside) = (median(own.clone()), ratio(&own, &base));
        println!(
            "| {} | {shown:.0} ({least:.0}–{most:.0}) | {beside:.2}× | {store:.2} | {asker:.2} | {in_a_call:.0} |",
            row.name
        );
    }
}

/// The median of the rounds' ratios.
fn ratio(own: &[f64], base: &[f64]) -> f64 {
    median(own.iter().zip(base).map(|(own, base)| own / base).collect())
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}
