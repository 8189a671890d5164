//! Overload at the gateway: an upstream that gets three times what it can do, what becomes of requests that matter, what is charged, and
//! what operators can do about it.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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

/// One number of a controller; of all priorities, where it is told by those.
fn number(page: &str, metric: &str, controller: &str) -> u64 {
    let series = format!("tollgate_overload_{metric}{{controller=\"{controller}\"");
    let found: Vec<u64> = page
        .lines()
        .filter_map(|line| Some(line.strip_prefix(&series)?.rsplit_once(' ')?.1.parse().unwrap()))
        .collect();
    assert!(!found.is_empty(), "no {series} in\n{page}");
    found.iter().sum()
}

/// How many requests of the gateway were told so.
fn decided(page: &str, outcome: &str) -> u64 {
    let series = format!("tollgate_decisions_total{{outcome=\"{outcome}\",wire=\"gateway\"}} ");
    page.lines().find_map(|line| line.strip_prefix(&series)).unwrap().parse().unwrap()
}

/// Whom its own quota refuses is answered 429 where there is no place for anybody; whom there is no place for is answered 503, and keeps
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
    let told = refused.json();
    assert_eq!((&told["reason"], &told["retryable"]), (&"concurrency-limit".into(), &true.into()));
    assert_eq!(["k"; 5].map(status_beside_one), [503; 5]);
    assert_eq!(status_beside_one("spent"), 429);
    drop(held);
    assert_eq!([status("k"), status("k"), status("k"), status("k")], [200, 200, 200, 429]);
    let page = gateway.server.metrics();
    assert_eq!(number(&page, "refused_total", "adaptive-concurrency"), 6);
    let read = "tollgate_overload_refused_total{controller=\"adaptive-concurrency\",priority=\"read\"} 6";
    assert!(page.lines().any(|line| line == read), "{page}");
    // Each is counted once, as what it was told: whom there was no place for was not allowed.
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
    assert_eq!(crate::wire::Response::read(&mut std::io::BufReader::new(&stream)).status, 101);
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

/// Operators turn a controller off, or put it in shadow, for a while; all of them at once; and take it back. Wrong names are told the right ones.
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
    let said = |arguments: &[&str], code, text: &str| {
        let (found, told) = operate(arguments);
        assert_eq!((found, told.contains(text)), (Some(code), true), "{arguments:?}: {told}");
    };
    said(&["kill", "--overload", "adaptive-concurrency", "--for", "10m"], 0, "off until ");
    assert_eq!(gateway.get("/x", "").status, 200);
    assert_eq!(number(&gateway.server.metrics(), "killed", "adaptive-concurrency"), 1);
    said(&["restore", "--overload", "adaptive-concurrency"], 0, "restored");
    said(&["restore", "--overload", "adaptive-concurrency"], 1, "nothing to restore");
    assert_eq!(gateway.get("/x", "").status, 503);
    said(&["shadow", "--overload", "all"], 0, "shadow until ");
    assert_eq!(gateway.get("/x", "").status, 200);
    let page = gateway.server.metrics();
    assert!(number(&page, "would_refuse_total", "adaptive-concurrency") >= 1);
    assert!(page.contains("tollgate_overload_mode{controller=\"worker-shedder\",mode=\"shadow\"} 1"));
    let (_, told) = operate(&["kill", "--overload", "queue"]);
    assert!(told.contains("accepted: all, worker-shedder, adaptive-concurrency"), "{told}");
    let (_, audit) = operate(&["audit"]);
    assert!(audit.contains("overload adaptive-concurrency") && audit.contains("overload all"), "{audit}");
}

/// What operators said over controllers outlives a server that is killed without warning, and what they took back stays so.
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
    let said = modes(&first);
    first.server.signal("-KILL");
    first.server.wait();
    let mut second = start();
    assert!(
        second.server.banner.contains("2 rulings of operators in force again"),
        "{}",
        second.server.banner
    );
    assert_eq!(modes(&second), said);
    let expected = ["\"worker-shedder\",mode=\"shadow\"} 1", "\"adaptive-concurrency\",mode=\"off\"} 1"];
    assert!(expected.iter().all(|expected| said.iter().any(|said| said == expected)), "{said:?}");
    say(&second, "restore --overload all");
    second.server.signal("-KILL");
    second.server.wait();
    assert!(modes(&start()).iter().all(|mode| mode.contains("enforce")));
}

/// What cannot be is told at the start, and what is wrong with its field.
#[test]
fn wrong_sections_stop_the_start() {
    let folder = Folder::new("gateway-overload-wrong");
    let config = |text: &str| folder.write("config.yaml", text).display().to_string();
    let fails = |config: &str, more: &[&str], expected: &[&str]| {
        let arguments = [&["serve", "--http", "127.0.0.1:0", "--config", config], more].concat();
        let output = tollgate(&arguments).output().unwrap();
        let told = stderr(&output);
        assert!(!output.status.success() && expected.iter().all(|text| told.contains(text)), "{told}");
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

/// What was answered in each second, by class: 200, 503, anything else.
type Counts = Vec<[[AtomicU32; 3]; 2]>;

/// How late a request may be sent. A machine that was busy with other things sends what it is late with at once, which is another load.
const LATE: Duration = Duration::from_millis(100);
/// How often a load is tried until the machine could send it as it should be.
const ATTEMPTS: usize = 4;

/// What a second looked like.
#[derive(Clone, Copy, Default)]
struct Second {
    /// Whether all of its requests were sent when they should be.
    is_on_time: bool,
    limit: u64,
    level: u64,
    waiting: u64,
    refused: u64,
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
        // One at a time: each is to be overloaded by its own load.
        static ALONE: Mutex<()> = Mutex::new(());
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let (busy, folder) = (Busy::start(WORKERS), Folder::new(name));
        let priorities = "  priorities:
    - { when: { path: /critical }, priority: critical }
    - { when: { path: /test }, priority: test }
";
        let upstream = format!("http://{}", busy.address);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let attempt = |_| {
            // Each attempt has a gateway that knows nothing of the one before.
            let gateway = gateway(&folder, &format!("{priorities}{overload}"), &upstream, OPEN);
            let counts: Arc<Counts> =
                Arc::new((0..phases.iter().sum()).map(|_| Default::default()).collect());
            let seconds = runtime.block_on(driven(&gateway, phases, &counts));
            (gateway, Self { phases, counts, seconds })
        };
        let on_time = |run: &Self| run.seconds.iter().filter(|second| second.is_on_time).count();
        let (gateway, run) = (0..ATTEMPTS)
            .map(attempt)
            .find(|(_, run)| on_time(run) * 5 >= run.seconds.len() * 4)
            .expect("the machine never sent the load as it should be");
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

    /// The seconds of overload in which the upstream did three quarters of what it can, and of the critical requests in them how many were
    /// answered, and how many there were.
    fn at_work(&self) -> (usize, u64, u64) {
        let seconds = self.phases[0]..self.phases[0] + self.phases[1];
        let done = |second: usize| -> u32 {
            [CRITICAL, TEST].map(|class| self.sum(class, 0, second, second + 1)).iter().sum()
        };
        let (mut count, mut served, mut all) = (0, 0, 0);
        for second in seconds.filter(|&second| u64::from(done(second)) * 4 >= CAPACITY * 3) {
            count += 1;
            served += u64::from(self.sum(CRITICAL, 0, second, second + 1));
            all += (0..3).map(|kind| u64::from(self.sum(CRITICAL, kind, second, second + 1))).sum::<u64>();
        }
        (count, served, all)
    }

    /// How many of a class were answered, and how many there were, while it was overloaded, the first seconds left out, and those that
    /// were sent late or follow one that was.
    fn answered(&self, class: usize, onset: usize) -> (u64, u64) {
        let (from, to) = (self.phases[0] + onset, self.phases[0] + self.phases[1]);
        let (mut answered, mut all) = (0, 0);
        for second in (from..to).filter(|second| self.is_on_time(*second)) {
            answered += u64::from(self.sum(class, 0, second, second + 1));
            all += (0..3).map(|kind| u64::from(self.sum(class, kind, second, second + 1))).sum::<u64>();
        }
        (answered, all)
    }

    /// The most that the upstream could have done in the seconds that [`Self::answered`] counts.
    fn possible(&self, onset: usize) -> u64 {
        let (from, to) = (self.phases[0] + onset, self.phases[0] + self.phases[1]);
        CAPACITY * (from..to).filter(|second| self.is_on_time(*second)).count() as u64
    }

    /// Whether a second's load was what it should be, and that of the one before.
    fn is_on_time(&self, second: usize) -> bool {
        self.seconds[second - 1..=second].iter().all(|second| second.is_on_time)
    }
}

/// At three times what the upstream can do, critical requests are answered from a capacity that is kept for them, while test traffic is shed.
#[test]
fn critical_traffic_survives_three_times_the_load() {
    let overload = "
  fleet: { capacity: 200/s burst 20, reserve: 40%, scope: node }
  worker:
  concurrency: { min: 20, initial: 40, max: 200 }
  queue: { target: 50ms, interval: 1s }
";
    let run = Run::new("gateway-overload-reserve", [3, 15, 2], overload);
    let ((critical, of_critical), (test, of_test)) = (run.answered(CRITICAL, 1), run.answered(TEST, 1));
    assert!(of_critical > 200 && of_test > 5 * of_critical, "{of_critical} {of_test}: too few were sent");
    assert!(critical * 100 >= of_critical * 99, "{critical} of {of_critical}");
    assert!(test * 2 < of_test, "{test} of {of_test}: most of the test traffic is shed");
    let most = run.possible(1);
    assert!((critical + test) * 2 > most, "{critical} and {test} of {most}: what can be done is done");
}

/// Nobody says what the upstream can do, and nothing is kept for anybody: the controllers find out. Critical requests are answered all the
/// same, from the first moment, since they are next in line; and when the load ends shedding goes back step by step, and does not begin
/// again.
#[test]
fn shedding_goes_when_the_load_does() {
    let overload = "
  worker: { shed_over: 8s, restore_over: 32s }
  concurrency: { initial: 10, max: 200, timeout: 5s }
  queue:
";
    let run = Run::new("gateway-overload-proof", [3, 16, 20], overload);
    let ((critical, of_critical), (test, of_test)) = (run.answered(CRITICAL, 0), run.answered(TEST, 0));
    assert!(of_critical > 100 && of_test > 5 * of_critical, "{of_critical} {of_test}: too few were sent");
    assert!(test * 2 < of_test && critical * of_test > 2 * test * of_critical, "{critical} {test}");
    // A second in which the machine had no time for the upstream says nothing of who is served first.
    let (seconds, served, of_served) = run.at_work();
    assert!(seconds >= 4 && served * 100 >= of_served * 99, "{served} of {of_served} in {seconds} seconds");
    let most = run.possible(0);
    assert!((critical + test) * 4 > most, "{critical} and {test} of {most}: what can be done is done");
    let ended = run.phases[0] + run.phases[1];
    assert!(run.seconds[..ended].iter().any(|second| second.level > 0), "nothing was shed");
    // A moment for what was under way; from then on it only goes down, and never up again, unless the machine itself made a crowd.
    let calm: Vec<_> = (ended + 2..run.seconds.len()).filter(|second| run.is_on_time(*second)).collect();
    assert!(
        calm.is_sorted_by(|one, next| {
            next - one > 1 || run.seconds[*one].level >= run.seconds[*next].level
        }),
        "shedding came back"
    );
    let after = &run.seconds[ended + 14..];
    // A machine that has better things to do for a moment fills a line that has no load: now and then, and not for long.
    let calm = after.windows(2).filter(|pair| pair[0].refused == pair[1].refused).count();
    assert!(calm * 2 > after.len(), "somebody was refused again and again");
    assert_eq!(after.last().map(|second| (second.level, second.waiting)), Some((0, 0)));
    assert!(after.iter().all(|second| (2..=200).contains(&second.limit)));
    run.show("overload.svg");
}

/// Sends what each second is to have, whatever is answered, and looks at the numbers at its end.
async fn driven(gateway: &Gateway, phases: [usize; 3], counts: &Arc<Counts>) -> Vec<Second> {
    let idle: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
    let (began, mut seconds, mut sent) = (Instant::now(), Vec::new(), Vec::new());
    for second in 0..counts.len() {
        let mut is_on_time = true;
        let is_loaded = (phases[0]..phases[0] + phases[1]).contains(&second);
        let critical = CAPACITY / 4;
        let all = if is_loaded { CAPACITY * 3 } else { CAPACITY / 2 };
        for turn in 0..all {
            let micros = second as u64 * 1_000_000 + turn * 1_000_000 / all;
            let due = began + Duration::from_micros(micros);
            sleep_until(due).await;
            is_on_time &= due.elapsed() < LATE;
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
        let refused = page.lines().filter(|line| line.starts_with("tollgate_overload_refused_total{"));
        seconds.push(Second {
            is_on_time,
            limit: number(&page, "limit", "adaptive-concurrency"),
            level: number(&page, "level_permille", "worker-shedder"),
            waiting: number(&page, "in_flight", "queue"),
            refused: refused.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum(),
        });
    }
    for sent in sent {
        sent.await.unwrap();
    }
    seconds
}

impl Run {
    /// Draws the run, as the guide shows it, where somebody wants it: `TOLLGATE_PLOTS` names a directory.
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
        if let Some(directory) = std::env::var_os("TOLLGATE_PLOTS") {
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
            let Second { limit, level, waiting, .. } = shown;
            let (critical, test) = (bar(CRITICAL, 5), bar(TEST, 15));
            let level = format!("{}.{:02}", level / 1_000, level % 1_000 / 10);
            let _ = writeln!(text, "{second:3}  {limit:6}  {level:>5}  {waiting:4}   {critical:10}  {test}");
        }
        text
    }
}
