//! The tables and charts of `docs/overload-measured.md`.

use std::fmt::Write;

use tollgate::Ticks;
use tollgate_overload::Priority;

use super::limiters::LimiterKind;
use super::scenario::{OverloadScenario, ServiceTime, TimeoutReport};
use super::{OverloadOutcome, Queueing, simulate, simulate_priorities};

/// One scenario with its name and the seconds that count.
#[derive(Clone, Debug)]
pub(crate) struct NamedScenario {
    /// The name in the table.
    pub(crate) name: &'static str,
    /// The server, its callers and the phases of the load.
    pub(crate) scenario: OverloadScenario,
    /// The first second that counts.
    pub(crate) from: u64,
    /// The second after the last that counts.
    pub(crate) to: u64,
}

/// The scenarios of the table.
#[must_use]
pub(crate) fn scenarios(seed: u64) -> Vec<NamedScenario> {
    let ms = Ticks::from_millis;
    let usual = |workers| OverloadScenario::new(workers, ServiceTime::Exponential(ms(40)), seed);
    let row = |name, scenario, from, to| NamedScenario { name, scenario, from, to };
    let stuck = |report| {
        let mut scenario = usual(32).then(30, 50).then_slower(60, 50, 100_000);
        (scenario.timeout, scenario.timeout_report) = (ms(1_000), report);
        scenario
    };
    let mut canceling = usual(64).then(60, 63);
    canceling.cancels = 10;
    let fixed = OverloadScenario::new(16, ServiceTime::Fixed(ms(40)), seed);
    let mixed = OverloadScenario::new(16, ServiceTime::Bimodal(ms(20), ms(400), 10), seed);
    vec![
        row("step to 3 × the capacity", usual(16).then(30, 50).then(60, 300).then(20, 50), 40, 90),
        row(
            "step to 3 × the capacity, fixed service time",
            fixed.then(30, 50).then(60, 300).then(20, 50),
            40,
            90,
        ),
        row("backend 5 × as slow", usual(48).then(30, 60).then_slower(70, 60, 5).then(30, 60), 50, 100),
        row("all calls time out, seen as losses", stuck(TimeoutReport::Loss), 80, 90),
        row("all calls time out, seen as slow answers", stuck(TimeoutReport::SlowAnswer), 80, 90),
        row("step to 3 ×, a tenth take 20 × as long", mixed.then(30, 50).then(60, 300).then(20, 50), 40, 90),
        row("idle for a minute, then 90 %", usual(32).then(30, 50).then(60, 0).then(20, 90), 90, 110),
        row("started during an overload of 3 ×", usual(16).then(100, 300), 50, 100),
        row("1000/s, a tenth cancel", canceling, 20, 60),
    ]
}

/// The table of every scenario with every limiter.
#[must_use]
pub(crate) fn table(seed: u64) -> String {
    let mut text =
        String::from("| scenario | limiter | answered in time, of the possible | p50 | p99 | limit |\n");
    text.push_str("|---|---|--:|--:|--:|--:|\n");
    for scenario in scenarios(seed) {
        for kind in LimiterKind::ALL {
            let outcome = simulate(&scenario.scenario, kind);
            let name = if kind == LimiterKind::ALL[0] { scenario.name } else { "" };
            let _ = writeln!(text, "| {name} | {} | {} |", kind.name(), cells(&scenario, kind, &outcome));
        }
    }
    text
}

fn cells(scenario: &NamedScenario, kind: LimiterKind, outcome: &OverloadOutcome) -> String {
    let (from, to) = (scenario.from, scenario.to);
    let most: u64 = (from..to).map(|second| scenario.scenario.optimum(second)).sum();
    let good = match most {
        0 => "none possible".to_owned(),
        most => format!("{} %", (outcome.good(from, to) * 100 / most).min(100)),
    };
    let latency = |thousandths| match outcome.latency(from, to, thousandths) {
        0 => "–".to_owned(),
        micros => format!("{} ms", micros / 1_000),
    };
    let limits = match outcome.limits(from, to) {
        _ if kind == LimiterKind::Unlimited => "–".to_owned(),
        (low, high) if low == high => format!("{low}"),
        (low, high) => format!("{low}–{high}"),
    };
    format!("{good} | {} | {} | {limits}", latency(500), latency(990))
}

/// A chart of the first scenario with one limiter, four seconds a line.
#[must_use]
pub(crate) fn chart(seed: u64, kind: LimiterKind) -> String {
    const WIDTH: u64 = 60;
    let Some(scenario) = scenarios(seed).into_iter().next() else { return String::new() };
    let outcome = simulate(&scenario.scenario, kind);
    let mut text = String::from("  s  limit    p50    p99   each second: # in time, x too late, . refused\n");
    let most = outcome.seconds.iter().map(|second| second.offered).max().unwrap_or(1).max(1);
    for (start, pair) in outcome.seconds.chunks_exact(4).enumerate() {
        let sum =
            |of: fn(&super::OverloadSecond) -> u64| pair.iter().map(of).sum::<u64>() / pair.len() as u64;
        let bar = |sign: &str, count: u64| {
            sign.repeat(usize::try_from((count * WIDTH + most / 2) / most).unwrap_or_default())
        };
        let bars = [
            bar("#", sum(|second| second.good)),
            bar("x", sum(|second| second.late)),
            bar(".", sum(|second| second.refused)),
        ];
        let (from, to) = (start as u64 * 4, start as u64 * 4 + 4);
        let [half, slow] = [500, 990].map(|thousandths| outcome.latency(from, to, thousandths) / 1_000);
        let limit = match pair.last() {
            Some(second) if kind != LimiterKind::Unlimited => second.limit.to_string(),
            _ => "–".to_owned(),
        };
        let _ = writeln!(text, "{from:3}  {limit:>5}  {half:4}ms {slow:4}ms   {}", bars.concat());
    }
    text
}

/// The table of the percentage of each priority that is served at three times the load, for each way to queue.
#[must_use]
pub(crate) fn priorities(seed: u64) -> String {
    let mut scenario = OverloadScenario::new(16, ServiceTime::Exponential(Ticks::from_millis(40)), seed)
        .then(20, 50)
        .then(60, 300)
        .then(80, 50);
    scenario.timeout = Ticks::from_millis(500);
    let mut text = String::from(
        "| in front of the server | critical | write | read | test | all, of the possible | p99 |\n",
    );
    text.push_str("|---|--:|--:|--:|--:|--:|--:|\n");
    for (name, queueing) in [
        ("worker shedder, limit and queue", Queueing::Shed),
        ("limit and queue", Queueing::ByPriority),
        ("limit and queue, one priority for all", Queueing::OnePriority),
        ("limit and a plain FIFO queue", Queueing::Fifo),
    ] {
        let outcome = simulate_priorities(&scenario, queueing);
        let _ = write!(text, "| {name} |");
        for priority in Priority::ALL.into_iter().rev() {
            let _ = write!(text, " {} % |", outcome.served(priority, 40, 80) / 10);
        }
        let all = outcome.good(40, 80) * 100 / (40 * scenario.capacity());
        let _ = writeln!(text, " {} % | {} ms |", all.min(100), outcome.latency(40, 80, 990) / 1_000);
    }
    text
}
