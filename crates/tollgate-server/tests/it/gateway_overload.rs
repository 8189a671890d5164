//! Overload at the gateway: an upstream that gets three times what it can do, what becomes of requests that matter, what is charged, and
//! what operators can do about it.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

use crate::busy::{Busy, SERVICE_MILLIS, ask};
use crate::gateway_upstream::{Gateway, OPEN, Upstream, until};
use crate::picture::{Line, Panel, picture};
use crate::program::{stderr, stdout, tollgate};
use crate::proxy::{Folder, free_port};

const TOKEN: &str = "admin-token-0123456789";

fn gateway(folder: &Folder, overload: &str, upstream: &str, policy: &str) -> Gateway {
    let config = folder.write("config.yaml", &format!("overload:\n{overload}")).display().to_string();
    let arguments = ["--config", &config, "--upstream", upstream, "--admin-token", TOKEN];
    Gateway::with(&arguments, policy)
}

/// One number of a controller; summed over the priorities where it has them as a label.
fn number(page: &str, metric: &str, controller: &str) -> u64 {
    let series = format!("tollgate_overload_{metric}{{controller=\"{controller}\"");
    let found: Vec<u64> = page
        .lines()
        .filter_map(|line| Some(line.strip_prefix(&series)?.rsplit_once(' ')?.1.parse().unwrap()))
        .collect();
    assert!(!found.is_empty(), "no {series} in\n{page}");
    found.iter().sum()
}

/// How many requests of the gateway had this outcome.
fn decided(page: &str, outcome: &str) -> u64 {
    let series = format!("tollgate_decisions_total{{outcome=\"{outcome}\",wire=\"gateway\"}} ");
    page.lines().find_map(|line| line.strip_prefix(&series)).unwrap().parse().unwrap()
}

/// A client over its own quota is answered 429 where there is no place for any; one that is shed is answered 503, and keeps
/// its quota.
#[test]
fn quotas_and_places_do_not_cost_each_other() {
    let (upstream, folder) = (Upstream::start(), Folder::new("gateway-overload-quota"));
    let address = format!("http://{}", upstream.address);
    let policy = "limits: [{name: per-key, by: [api_key], rate: 3/h}]";
    let gateway = gateway(&folder, "  concurrency: {min: 1, initial: 1, max: 1}\n", &address, policy);
    let in_flight = || number(&gateway.server.metrics(), "in_flight", "adaptive-concurrency");
    // A place is free a moment after the last byte of the answer that held it.
    let status_beside = |key: &str, held: u64| {
        until(|| in_flight() == held);
        gateway.get("/x", &format!("X-API-Key: {key}\r\n")).status
    };
    let status = |key: &str| status_beside(key, 0);
    assert_eq!([status("spent"), status("spent"), status("spent"), status("spent")], [200, 200, 200, 429]);
    let mut held = gateway.connect();
    until(|| in_flight() == 0);
    held.write_all(b"GET /hang HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    until(|| in_flight() == 1);
    let status_beside_one = |key: &str| status_beside(key, 1);
    let refused = gateway.get("/x", "X-API-Key: k\r\n");
    assert_eq!((refused.status, refused.header("retry-after").is_some()), (503, true));
    // It said that 2 are left, and 3 were: what is given back is not shown as taken.
    for name in ["ratelimit", "ratelimit-policy", "x-ratelimit-remaining", "x-ratelimit-used"] {
        assert_eq!(refused.header(name), None, "{name}");
    }
    let reported = refused.json();
    assert_eq!((&reported["reason"], &reported["retryable"]), (&"concurrency-limit".into(), &true.into()));
    assert_eq!(["k"; 5].map(status_beside_one), [503; 5]);
    assert_eq!(status_beside_one("spent"), 429);
    drop(held);
    assert_eq!([status("k"), status("k"), status("k"), status("k")], [200, 200, 200, 429]);
    let page = gateway.server.metrics();
    assert_eq!(number(&page, "refused_total", "adaptive-concurrency"), 6);
    let read = "tollgate_overload_refused_total{controller=\"adaptive-concurrency\",priority=\"read\"} 6";
    assert!(page.lines().any(|line| line == read), "{page}");
    // Each is counted once, by its answer: a shed request was not allowed.
    assert_eq!(["allow", "deny", "shed"].map(|outcome| decided(&page, outcome)), [7, 3, 6]);
    assert_eq!(number(&page, "limit", "adaptive-concurrency"), 1);
}

/// A tunnel takes no place, and an upstream that is away is a loss: fewer places are given.
#[test]
fn tunnels_take_no_place_and_losses_count() {
    let (upstream, folder) = (Upstream::start(), Folder::new("gateway-overload-lost"));
    let address = format!("http://{}", upstream.address);
    let one = gateway(&folder, "  concurrency: {min: 1, initial: 1, max: 1}\n", &address, OPEN);
    let mut stream = one.connect();
    let upgrade = b"GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
    stream.write_all(upgrade).unwrap();
    assert_eq!(crate::raw_http::Response::read(&mut std::io::BufReader::new(&stream)).status, 101);
    // What the request held until it became a tunnel is free a moment later, and the tunnel is still there.
    until(|| number(&one.server.metrics(), "in_flight", "adaptive-concurrency") == 0);
    assert_eq!(one.get("/x", "").status, 200);
    stream.write_all(b"ping").unwrap();
    let mut echoed = [0; 4];
    std::io::Read::read_exact(&mut stream, &mut echoed).unwrap();
    assert_eq!(&echoed, b"ping");
    let away = format!("http://127.0.0.1:{}", free_port());
    let away = gateway(&folder, "  concurrency: {min: 1, initial: 20, max: 20}\n", &away, OPEN);
    let reason = "tollgate_overload_reason{controller=\"adaptive-concurrency\",reason=\"dropped\"} 1";
    until(|| {
        (0..20).for_each(|_| assert!(matches!(away.get("/x", "").status, 502 | 503)));
        away.server.metrics().lines().any(|line| line == reason)
    });
    assert!(number(&away.server.metrics(), "limit", "adaptive-concurrency") < 20);
}

/// Operators turn a controller off, or put it in shadow, for a while; all of them at once; and take it back. An error for a wrong name lists the right ones.
#[test]
fn operators_switch_controllers() {
    let (upstream, folder) = (Upstream::start(), Folder::new("gateway-overload-operate"));
    let address = format!("http://{}", upstream.address);
    let overload = "  concurrency: {min: 1, initial: 1, max: 1}\n  worker:\n";
    let gateway = gateway(&folder, overload, &address, OPEN);
    let operate = |arguments: &[&str]| {
        let mut command = tollgate(arguments);
        command.env("TOLLGATE_ADMIN_TOKEN", TOKEN);
        command.env("TOLLGATE_SERVER", format!("http://{}", gateway.server.address));
        let output = command.output().unwrap();
        (output.status.code(), stdout(&output) + &stderr(&output))
    };
    let mut held = gateway.connect();
    held.write_all(b"GET /hang HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    until(|| number(&gateway.server.metrics(), "in_flight", "adaptive-concurrency") == 1);
    assert_eq!(gateway.get("/x", "").status, 503);
    let printed = |arguments: &[&str], code, text: &str| {
        let (found, reported) = operate(arguments);
        assert_eq!((found, reported.contains(text)), (Some(code), true), "{arguments:?}: {reported}");
    };
    printed(&["kill", "--overload", "adaptive-concurrency", "--for", "10m"], 0, "off until ");
    assert_eq!(gateway.get("/x", "").status, 200);
    assert_eq!(number(&gateway.server.metrics(), "killed", "adaptive-concurrency"), 1);
    printed(&["restore", "--overload", "adaptive-concurrency"], 0, "restored");
    printed(&["restore", "--overload", "adaptive-concurrency"], 1, "nothing to restore");
    assert_eq!(gateway.get("/x", "").status, 503);
    printed(&["shadow", "--overload", "all"], 0, "shadow until ");
    assert_eq!(gateway.get("/x", "").status, 200);
    let page = gateway.server.metrics();
    assert!(number(&page, "would_refuse_total", "adaptive-concurrency") >= 1);
    assert!(page.contains("tollgate_overload_mode{controller=\"worker-shedder\",mode=\"shadow\"} 1"));
    let (_, reported) = operate(&["kill", "--overload", "queue"]);
    assert!(reported.contains("accepted: all, worker-shedder, adaptive-concurrency"), "{reported}");
    let (_, audit) = operate(&["audit"]);
    assert!(audit.contains("overload adaptive-concurrency") && audit.contains("overload all"), "{audit}");
}

/// Operators' changes of controllers outlive a server that is killed without warning, and what they took back stays so.
#[test]
fn switches_outlive_the_process() {
    let (upstream, folder) = (Upstream::start(), Folder::new("gateway-overload-orders"));
    let overload = "overload: {concurrency: {min: 1, initial: 1, max: 1}, worker: , queue: }";
    let config = folder.write("config.yaml", overload).display().to_string();
    let (state, address) =
        (folder.0.join("state").display().to_string(), format!("http://{}", upstream.address));
    let start = || {
        let more = ["--config", &config, "--upstream", &address, "--admin-token", TOKEN];
        Gateway::with(&[&more[..], &["--state-dir", &state, "--snapshot-every", "off"]].concat(), OPEN)
    };
    let say = |gateway: &Gateway, words: &str| {
        let mut command = tollgate(&words.split(' ').collect::<Vec<_>>());
        command.env("TOLLGATE_ADMIN_TOKEN", TOKEN);
        command.env("TOLLGATE_SERVER", format!("http://{}", gateway.server.address));
        let output = command.output().unwrap();
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()), "{words}");
        stdout(&output)
    };
    let modes = |gateway: &Gateway| {
        let page = gateway.server.metrics();
        let mode = |line: &str| Some(line.strip_prefix("tollgate_overload_mode{controller=")?.to_owned());
        page.lines().filter_map(mode).collect::<Vec<String>>()
    };
    let mut first = start();
    say(&first, "kill --overload adaptive-concurrency --for 10m");
    say(&first, "shadow --overload worker-shedder --for 10m");
    say(&first, "kill --overload queue --for 10m");
    say(&first, "restore --overload queue");
    let printed = modes(&first);
    first.server.signal("-KILL");
    first.server.wait();
    let mut second = start();
    assert!(
        second.server.banner.contains("2 overrides of operators active again"),
        "{}",
        second.server.banner
    );
    assert_eq!(modes(&second), printed);
    // The banner says that `limits` lists them, and it did not.
    let listed = say(&second, "limits");
    for expiring in ["worker-shedder        shadow until 20", "adaptive-concurrency  off until 20"] {
        assert!(listed.contains(expiring), "{expiring:?} is not in {listed}");
    }
    let listed: serde_json::Value = serde_json::from_str(&say(&second, "limits --json")).unwrap();
    assert_eq!(listed["overload"].as_array().map(Vec::len), Some(2), "{listed}");
    let expected = ["\"worker-shedder\",mode=\"shadow\"} 1", "\"adaptive-concurrency\",mode=\"off\"} 1"];
    assert!(expected.iter().all(|expected| printed.iter().any(|printed| printed == expected)), "{printed:?}");
    say(&second, "restore --overload all");
    second.server.signal("-KILL");
    second.server.wait();
    assert!(modes(&start()).iter().all(|mode| mode.contains("enforce")));
}

/// Impossible settings are refused at the start, with the problem and its field.
#[test]
fn wrong_sections_stop_the_start() {
    let folder = Folder::new("gateway-overload-wrong");
    let config = |text: &str| folder.write("config.yaml", text).display().to_string();
    let fails = |config: &str, more: &[&str], expected: &[&str]| {
        let arguments = [&["serve", "--http", "127.0.0.1:0", "--config", config], more].concat();
        let output = tollgate(&arguments).output().unwrap();
        let reported = stderr(&output);
        assert!(
            !output.status.success() && expected.iter().all(|text| reported.contains(text)),
            "{reported}"
        );
    };
    let wrong = config("overload: {worker: {shed_above: 120%}, concurrency: {min: 0}}");
    let both =
        ["overload.worker.shed_above: 120% is out of range", "overload.concurrency.min: 0 admits no request"];
    fails(&wrong, &["--upstream", "http://127.0.0.1:1"], &both);
    fails(&config("overload: {worker: }"), &[], &["add routes: to it, or --upstream"]);
    let fleet = config("overload: {fleet: {capacity: 1/s, reserve: 99%}}");
    fails(&fleet, &["--upstream", "http://127.0.0.1:1"], &["overload.fleet.capacity: less than one request"]);
}

/// Workers of the upstream: 200 requests a second, so that a test machine with better things to do can offer three times that.
const WORKERS: u64 = 4;
const CAPACITY: u64 = WORKERS * 1_000 / SERVICE_MILLIS;
const CRITICAL: usize = 0;
const TEST: usize = 1;

/// The answers of each second, by class: 200, 503, anything else.
type Counts = Vec<[[AtomicU32; 3]; 2]>;

/// The answers of one second.
#[derive(Clone, Copy, Default)]
struct Second {
    limit: u64,
    level: u64,
    waiting: u64,
}

/// One run: what was answered, and what the numbers were, in each second.
struct Run {
    /// Seconds of calm, of overload, and of calm again.
    phases: [usize; 3],
    counts: Arc<Counts>,
    seconds: Vec<Second>,
}

impl Run {
    fn new(name: &str, phases: [usize; 3], overload: &str) -> Self {
        let (busy, folder) = (Busy::start(WORKERS), Folder::new(name));
        let upstream = format!("http://{}", busy.address);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let gateway = gateway(&folder, &format!("{PRIORITIES}{overload}"), &upstream, OPEN);
        let counts: Arc<Counts> = Arc::new((0..phases.iter().sum()).map(|_| Default::default()).collect());
        let seconds = runtime.block_on(driven(&gateway, phases, &counts));
        let run = Self { phases, counts, seconds };
        // Shown whether or not anybody asks: it is what the guide shows.
        std::io::stdout().write_all(format!("\n{}", run.plot()).as_bytes()).unwrap();
        // Nothing but answers and refusals, at any time, and nothing stays behind.
        let others: u32 = [CRITICAL, TEST].map(|class| run.sum(class, 2, 0, run.counts.len())).iter().sum();
        assert_eq!(others, 0);
        until(|| number(&gateway.server.metrics(), "in_flight", "adaptive-concurrency") == 0);
        run
    }

    fn sum(&self, class: usize, kind: usize, from: usize, to: usize) -> u32 {
        self.counts[from..to].iter().map(|second| second[class][kind].load(Ordering::Relaxed)).sum()
    }

    /// How many of a class were answered, and how many there were, while it was overloaded.
    fn answered(&self, class: usize) -> (u32, u32) {
        let (from, to) = (self.phases[0], self.phases[0] + self.phases[1]);
        let [answered, refused] = [0, 1].map(|kind| self.sum(class, kind, from, to));
        (answered, answered + refused)
    }
}

/// The directory that pictures are drawn to.
const PLOTS: &str = "TOLLGATE_PLOTS";

/// The runs that the guides show. How many requests come through is the machine's doing. That critical requests come before test traffic,
/// that each request is answered or refused, and that nothing stays behind, is the gateway's on any machine.
#[test]
fn critical_requests_come_first_whatever_the_machine_can_do() {
    let reserve = "
  fleet: { capacity: 200/s burst 20, reserve: 40%, scope: node }
  worker:
  concurrency: { min: 20, initial: 40, max: 200 }
  queue: { target: 50ms, interval: 1s }
";
    let found = "
  worker: { shed_over: 8s, restore_over: 32s }
  concurrency: { initial: 10, max: 200, timeout: 5s }
  queue:
";
    // The seconds of the picture in the guide, or as many as show the order.
    let (kept, proof) =
        if std::env::var_os(PLOTS).is_some() { ([3, 15, 2], [3, 16, 20]) } else { ([2, 7, 1], [2, 9, 8]) };
    let runs = [("gateway-overload-reserve", kept, reserve), ("gateway-overload-proof", proof, found)];
    let [_, found] = runs.map(|(name, phases, overload)| {
        let run = Run::new(name, phases, overload);
        let ((critical, of_critical), (test, of_test)) = (run.answered(CRITICAL), run.answered(TEST));
        assert!(critical * of_test >= test * of_critical, "{critical} of {of_critical}, {test} of {of_test}");
        run
    });
    found.show("overload.svg");
}

const PRIORITIES: &str = "  priorities:
    - { when: { path: /critical }, priority: critical }
    - { when: { path: /test }, priority: test }
";

/// At three times the capacity, critical requests are answered from the part that is kept for them, while test traffic is shed. The
/// capacity is a burst that takes hours to come back, so the counts do not depend on the machine.
#[test]
fn critical_traffic_survives_three_times_the_load() {
    let (upstream, folder) = (Upstream::start(), Folder::new("gateway-overload-three"));
    let overload = format!("{PRIORITIES}  fleet: {{ capacity: 10/h burst 20, reserve: 40%, scope: node }}\n");
    let gateway = gateway(&folder, &overload, &format!("http://{}", upstream.address), OPEN);
    let statuses: Vec<(bool, u16)> = (0..60)
        .map(|turn| {
            let is_critical = turn % 10 == 9;
            let path = if is_critical { "/critical" } else { "/test" };
            (is_critical, gateway.get(path, "").status)
        })
        .collect();
    let count = |asked: (bool, u16)| statuses.iter().filter(|found| **found == asked).count();
    assert_eq!((count((true, 200)), count((true, 503))), (6, 0));
    assert_eq!((count((false, 200)), count((false, 503))), (12, 42), "what is not kept for others is used");
    let refused = gateway.get("/test", "").json();
    assert_eq!(refused["reason"], "capacity-reserved");
}

/// A place that gets free goes to the request of the highest priority, in whatever order they came. The upstream answers when the test lets it.
#[test]
fn critical_requests_are_next_in_line() {
    let (upstream, folder) = (Upstream::start(), Folder::new("gateway-overload-next"));
    let overload = format!(
        "{PRIORITIES}  concurrency: {{ min: 1, initial: 1, max: 1 }}\n  queue: {{ target: 10s, interval: 20s }}\n"
    );
    let gateway = gateway(&folder, &overload, &format!("http://{}", upstream.address), OPEN);
    let waiting = |expected| until(|| number(&gateway.server.metrics(), "in_flight", "queue") == expected);
    let ask = |path: &str| {
        let mut stream = gateway.connect();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
        stream
    };
    let held = ask("/hang");
    until(|| upstream.count() == 1);
    let test = ask("/test");
    waiting(1);
    let critical = ask("/critical");
    waiting(2);
    drop(held);
    for stream in [critical, test] {
        assert_eq!(crate::raw_http::Response::read(&mut std::io::BufReader::new(&stream)).status, 200);
    }
    let lines: Vec<String> = upstream.seen().into_iter().map(|seen| seen.line).collect();
    assert_eq!(lines, ["GET /hang", "GET /critical", "GET /test"]);
}

/// When the load ends shedding goes back step by step, and does not begin again. The load is requests that the upstream does not answer,
/// and it lasts until all test traffic is shed, however long that takes.
#[test]
fn shedding_goes_when_the_load_does() {
    let (upstream, folder) = (Upstream::start(), Folder::new("gateway-overload-back"));
    let overload = format!(
        "{PRIORITIES}  worker: {{ shed_over: 4s, restore_over: 16s }}\n  concurrency: {{ min: 4, initial: 4, max: 4 }}\n"
    );
    let gateway = gateway(&folder, &overload, &format!("http://{}", upstream.address), OPEN);
    let level = || number(&gateway.server.metrics(), "level_permille", "worker-shedder");
    let held: Vec<std::net::TcpStream> = (0..4)
        .map(|_| {
            let mut stream = gateway.connect();
            stream.write_all(b"GET /hang HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            stream
        })
        .collect();
    until(|| upstream.count() == held.len());
    until(|| {
        assert_eq!(gateway.get("/test", "").status, 503, "no place is free");
        level() >= 1_000
    });
    assert_eq!(gateway.get("/test", "").json()["reason"], "shed");
    drop(held);
    until(|| number(&gateway.server.metrics(), "in_flight", "adaptive-concurrency") == 0);
    // One request at a time is no load on four places, however slow the machine is: the level only falls.
    let mut levels = vec![level()];
    until(|| {
        assert_eq!(gateway.get("/critical", "").status, 200);
        gateway.get("/test", "");
        levels.push(level());
        levels.last() == Some(&0)
    });
    assert!(levels.is_sorted_by(|one, next| one >= next) && levels.len() > 2, "{levels:?}");
    let calm: Vec<u16> = (0..200).map(|_| gateway.get("/test", "").status).collect();
    assert_eq!((calm, level()), (vec![200; 200], 0));
}

/// Sends what each second is to have, whatever is answered, and looks at the numbers at its end.
async fn driven(gateway: &Gateway, phases: [usize; 3], counts: &Arc<Counts>) -> Vec<Second> {
    let idle: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
    let (began, mut seconds, mut sent) = (Instant::now(), Vec::new(), Vec::new());
    for second in 0..counts.len() {
        let is_loaded = (phases[0]..phases[0] + phases[1]).contains(&second);
        let critical = CAPACITY / 4;
        let all = if is_loaded { CAPACITY * 3 } else { CAPACITY / 2 };
        for turn in 0..all {
            let micros = second as u64 * 1_000_000 + turn * 1_000_000 / all;
            let due = began + Duration::from_micros(micros);
            sleep_until(due).await;
            // The critical ones are spread evenly among the others.
            let is_critical = (turn + 1) * critical / all > turn * critical / all;
            let (class, path) = if is_critical { (CRITICAL, "critical") } else { (TEST, "test") };
            let request =
                format!("GET /{path} HTTP/1.1\r\nHost: a\r\nX-API-Key: k{}\r\n\r\n", turn * 7 % 101);
            let (address, idle, counts) = (gateway.address, Arc::clone(&idle), Arc::clone(counts));
            sent.push(tokio::spawn(async move {
                let kept = idle.lock().unwrap().pop();
                let mut stream = match kept {
                    Some(stream) => stream,
                    None => TcpStream::connect(address).await.unwrap(),
                };
                let asked = tokio::time::timeout(Duration::from_secs(20), ask(&mut stream, &request)).await;
                let kind = match asked {
                    Ok(Ok(200)) => 0,
                    Ok(Ok(503)) => 1,
                    _ => 2,
                };
                counts[second][class][kind].fetch_add(1, Ordering::Relaxed);
                if kind < 2 {
                    idle.lock().unwrap().push(stream);
                }
            }));
        }
        let page = tokio::task::block_in_place(|| gateway.server.metrics());
        seconds.push(Second {
            limit: number(&page, "limit", "adaptive-concurrency"),
            level: number(&page, "level_permille", "worker-shedder"),
            waiting: number(&page, "in_flight", "queue"),
        });
    }
    for sent in sent {
        sent.await.unwrap();
    }
    seconds
}

impl Run {
    /// Draws the run, as the guide shows it, if `TOLLGATE_PLOTS` names a directory.
    fn show(&self, name: &str) {
        let share = |class: usize| {
            let of_second = |second: &[[AtomicU32; 3]; 2]| {
                let [answered, refused] =
                    [0, 1].map(|kind| u64::from(second[class][kind].load(Ordering::Relaxed)));
                answered * 1_000 / (answered + refused).max(1)
            };
            self.counts.iter().map(of_second).collect::<Vec<u64>>()
        };
        let number = |of: fn(&Second) -> u64| self.seconds.iter().map(of).collect::<Vec<u64>>();
        let panel = |title, most, lines: Vec<Line>| Panel { title, most, lines };
        let answered = vec![
            Line { name: "critical", colour: "#0a7d32", points: share(CRITICAL) },
            Line { name: "test", colour: "#c2410c", points: share(TEST) },
        ];
        let level = vec![Line { name: "level", colour: "#7c3aed", points: number(|second| second.level) }];
        let places = vec![
            Line { name: "places", colour: "#1d4ed8", points: number(|second| second.limit) },
            Line { name: "waiting", colour: "#6b7280", points: number(|second| second.waiting) },
        ];
        let most =
            |lines: &[Line]| lines.iter().flat_map(|line| line.points.clone()).max().unwrap_or(1).max(1);
        let (top_level, top_places) = (most(&level), most(&places));
        let panels = [
            panel("answered, of a thousand that came", 1_000, answered),
            panel("shed, in thousandths of a class", top_level, level),
            panel("places in flight, and requests in line", top_places, places),
        ];
        let text = picture(&panels, self.counts.len(), self.phases[0]..self.phases[0] + self.phases[1]);
        if let Some(directory) = std::env::var_os(PLOTS) {
            std::fs::write(std::path::Path::new(&directory).join(name), text).unwrap();
        }
    }

    /// Every second: places, level, line, and each class as a bar: # answered, . refused.
    fn plot(&self) -> String {
        let mut text = "  s  places  level  line   critical    test: # answered, . refused\n".to_owned();
        for (second, (shown, classes)) in self.seconds.iter().zip(self.counts.iter()).enumerate() {
            let bar = |class: usize, unit: u32| {
                let [answered, refused] = [0, 1].map(|kind| classes[class][kind].load(Ordering::Relaxed));
                let (answered, all) = (answered.div_ceil(unit), (answered + refused).div_ceil(unit));
                format!("{}{}", "#".repeat(answered as usize), ".".repeat((all - answered) as usize))
            };
            let Second { limit, level, waiting } = shown;
            let (critical, test) = (bar(CRITICAL, 5), bar(TEST, 15));
            let level = format!("{}.{:02}", level / 1_000, level % 1_000 / 10);
            let _ = writeln!(text, "{second:3}  {limit:6}  {level:>5}  {waiting:4}   {critical:10}  {test}");
        }
        text
    }
}
