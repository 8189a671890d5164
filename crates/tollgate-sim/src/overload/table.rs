//! The scenarios as a table, and one of them as a picture: what `docs/overload.md` shows.

use std::fmt::Write;

use tollgate::Ticks;
use tollgate::overload::Priority;

use super::contrast::Way;
use super::scene::{Loss, Scene, Service};
use super::{Crowd, Outcome, crowd, play};

/// One scenario: its name, what happens, and the seconds that count.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What it is called.
    pub name: &'static str,
    /// What happens.
    pub scene: Scene,
    /// From this second on it counts.
    pub from: u64,
    /// And up to this one.
    pub to: u64,
}

/// The scenarios of the reference.
#[must_use]
pub fn scenarios(seed: u64) -> Vec<Scenario> {
    let ms = Ticks::from_millis;
    let usual = |workers| Scene::new(workers, Service::Exponential(ms(40)), seed);
    let row = |name, scene, from, to| Scenario { name, scene, from, to };
    let stuck = |loss| {
        let mut scene = usual(32).then(30, 50).then_slower(60, 50, 100_000);
        (scene.timeout, scene.loss) = (ms(1_000), loss);
        scene
    };
    let mut leaving = usual(64).then(60, 63);
    leaving.cancels = 10;
    let fixed = Scene::new(16, Service::Fixed(ms(40)), seed);
    let mixed = Scene::new(16, Service::Bimodal(ms(20), ms(400), 10), seed);
    vec![
        row("step to 3 × the capacity", usual(16).then(30, 50).then(60, 300).then(20, 50), 40, 90),
        row("the same, all requests alike", fixed.then(30, 50).then(60, 300).then(20, 50), 40, 90),
        row("backend 5 × as slow", usual(48).then(30, 60).then_slower(70, 60, 5).then(30, 60), 50, 100),
        row("all calls end at a timeout, told", stuck(Loss::Told), 80, 90),
        row("all calls end at a timeout, untold", stuck(Loss::Untold), 80, 90),
        row("a tenth take 20 × as long, 3 ×", mixed.then(30, 50).then(60, 300).then(20, 50), 40, 90),
        row("idle for a minute, then 90 %", usual(32).then(30, 50).then(60, 0).then(20, 90), 90, 110),
        row("born in an overload of 3 ×", usual(16).then(100, 300), 50, 100),
        row("1000/s, a tenth go away", leaving, 20, 60),
    ]
}

/// What each limit makes of each scenario.
#[must_use]
pub fn table(seed: u64) -> String {
    let mut text = String::from(
        "| scenario | limit | answered in time, of the most that can be | p50 | p99 | places |\n",
    );
    text.push_str("|---|---|--:|--:|--:|--:|\n");
    for scenario in scenarios(seed) {
        for way in Way::ALL {
            let outcome = play(&scenario.scene, way);
            let name = if way == Way::ALL[0] { scenario.name } else { "" };
            let _ = writeln!(text, "| {name} | {} | {} |", way.name(), cells(&scenario, way, &outcome));
        }
    }
    text
}

fn cells(scenario: &Scenario, way: Way, outcome: &Outcome) -> String {
    let (from, to) = (scenario.from, scenario.to);
    let most: u64 = (from..to).map(|second| scenario.scene.optimum(second)).sum();
    let good = match most {
        0 => "nothing can be".to_owned(),
        most => format!("{} %", (outcome.good(from, to) * 100 / most).min(100)),
    };
    let latency = |thousandths| match outcome.latency(from, to, thousandths) {
        0 => "–".to_owned(),
        micros => format!("{} ms", micros / 1_000),
    };
    let places = match outcome.limits(from, to) {
        _ if way == Way::Open => "–".to_owned(),
        (low, high) if low == high => format!("{low}"),
        (low, high) => format!("{low}–{high}"),
    };
    format!("{good} | {} | {} | {places}", latency(500), latency(990))
}

/// The first scenario, four seconds a line.
#[must_use]
pub fn picture(seed: u64, way: Way) -> String {
    const WIDTH: u64 = 60;
    let Some(scenario) = scenarios(seed).into_iter().next() else { return String::new() };
    let outcome = play(&scenario.scene, way);
    let mut text = String::from("  s  places   p50    p99   each second: # in time, x too late, . refused\n");
    let most = outcome.seconds.iter().map(|second| second.offered).max().unwrap_or(1).max(1);
    for (start, pair) in outcome.seconds.chunks_exact(4).enumerate() {
        let sum = |of: fn(&super::Second) -> u64| pair.iter().map(of).sum::<u64>() / pair.len() as u64;
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
            Some(second) if way != Way::Open => second.limit.to_string(),
            _ => "–".to_owned(),
        };
        let _ = writeln!(text, "{from:3}  {limit:>5}  {half:4}ms {slow:4}ms   {}", bars.concat());
    }
    text
}

/// Who is served at three times the load, of a hundred of each priority: with the worker shedder, without, and in a plain queue.
#[must_use]
pub fn priorities(seed: u64) -> String {
    let mut scene = Scene::new(16, Service::Exponential(Ticks::from_millis(40)), seed)
        .then(20, 50)
        .then(60, 300)
        .then(80, 50);
    scene.timeout = Ticks::from_millis(500);
    let mut text = String::from(
        "| in front of the server | critical | write | read | test | all, of the most that can be | p99 |\n",
    );
    text.push_str("|---|--:|--:|--:|--:|--:|--:|\n");
    for (name, way) in [
        ("worker shedder, limit and line", Crowd::Shed),
        ("limit and line", Crowd::Line),
        ("the same, but all requests are alike", Crowd::Alike),
        ("limit and a plain queue", Crowd::Queue),
    ] {
        let outcome = crowd(&scene, way);
        let _ = write!(text, "| {name} |");
        for priority in Priority::ALL.into_iter().rev() {
            let _ = write!(text, " {} % |", outcome.served(priority, 40, 80) / 10);
        }
        let all = outcome.good(40, 80) * 100 / (40 * scene.capacity());
        let _ = writeln!(text, " {} % | {} ms |", all.min(100), outcome.latency(40, 80, 990) / 1_000);
    }
    text
}
