//! The files of `deploy/` for Prometheus and Grafana, checked by Prometheus's own tool and against `/metrics` of the real program: no
//! panel and no alert may ask for a number, or a label, that does not exist.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::gateway_upstream::{Gateway, OPEN};
use crate::metrics::promtool;
use crate::program::{SLOW_POLICY, Server};
use crate::proxy::Folder;
use crate::redis::Redis;

const DASHBOARD: &str = include_str!("../../../deploy/grafana/tollgate.json");
const ALERTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/prometheus/alerts.yaml");
const ALERT_TESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/prometheus/alerts.test.yaml");
const GUIDE: &str = include_str!("../../../docs/metrics.md");
/// Labels that Prometheus adds to what it reads.
const ADDED_LABELS: [&str; 2] = ["instance", "job"];
/// Series that Prometheus makes by itself.
const MADE: &str = "up";

/// Names of metrics and of labels that the program has.
struct Known {
    metrics: BTreeSet<String>,
    labels: BTreeSet<String>,
    /// Series that have a number, with their labels.
    series: Vec<String>,
}

impl Known {
    /// The metrics of a server that has decided, and traces.
    fn get() -> Self {
        let redis = Redis::start(&[]);
        let url = redis.url();
        let arguments = [
            "serve",
            "--http",
            "127.0.0.1:0",
            "--policy",
            "-",
            "--otlp",
            "http://127.0.0.1:9",
            "--store",
            &url,
        ];
        let server = Server::start_with(&arguments, SLOW_POLICY);
        for _ in 0..7 {
            server.send("POST", "/v1/check", r#"{"attributes":{"api_key":"k"}}"#);
        }
        let folder = Folder::new("dashboards");
        let all =
            "overload: {worker: , concurrency: , queue: , fleet: {capacity: 100/s}, rate: {target: 1s}}";
        let config = folder.write("config.yaml", all).display().to_string();
        let gateway = Gateway::with(&["--config", &config, "--upstream", "http://127.0.0.1:1"], OPEN);
        gateway.get("/x", "");
        let outbound = "outbound: {listen: '127.0.0.1:0', providers: {api: {url: 'http://127.0.0.1:1'}}}";
        let outbound = folder.write("outbound.yaml", outbound).display().to_string();
        let arguments = ["serve", "--http", "127.0.0.1:0", "--policy", "-", "--config", &outbound];
        let proxy = Server::start_with(&arguments, OPEN);
        // What a server shows that counts in memory, what one that counts elsewhere, and what a gateway that may be overloaded.
        let page = server.metrics()
            + &Server::start(SLOW_POLICY).metrics()
            + &gateway.server.metrics()
            + &proxy.metrics();
        let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let metrics = types.filter_map(|line| Some(line.split_once(' ')?.0.to_owned())).collect();
        let labels = page
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| Some(line.split_once('{')?.1.rsplit_once('}')?.0))
            .flat_map(|labels| {
                labels.split("\",").filter_map(|label| Some(label.split_once("=\"")?.0.to_owned()))
            })
            .chain(ADDED_LABELS.map(str::to_owned))
            .collect();
        let numbers = page.lines().filter(|line| !line.starts_with('#'));
        let series = numbers.filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned())).collect();
        Self { metrics, labels, series }
    }

    /// Whether an expression asks only for what there is; otherwise what it asks for in vain.
    fn missing(&self, expression: &str) -> Vec<String> {
        let base = |name: &str| {
            let suffixes = ["_bucket", "_sum", "_count"];
            suffixes.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name).to_owned()
        };
        let metrics = metrics_in(expression).into_iter().filter(|name| {
            name != MADE && !self.metrics.contains(name) && !self.metrics.contains(&base(name))
        });
        let labels = labels_in(expression).into_iter().filter(|label| !self.labels.contains(label));
        metrics.chain(labels).collect()
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).filter(|word| !word.is_empty())
}

/// An expression without what stands in quotes.
fn unquoted(expression: &str) -> String {
    expression.split('"').step_by(2).collect::<Vec<_>>().join("\"\"")
}

/// The names of metrics in an expression: all of ours, those of the process, and what Prometheus makes.
pub(crate) fn metrics_in(expression: &str) -> BTreeSet<String> {
    let is_metric =
        |word: &&str| word.starts_with("tollgate_") || word.starts_with("process_") || *word == MADE;
    words(&unquoted(expression)).filter(is_metric).map(str::to_owned).collect()
}

/// The names of labels in an expression: inside braces, and after `by`.
fn labels_in(expression: &str) -> BTreeSet<String> {
    let text = unquoted(expression);
    let matchers = text.split('{').skip(1).filter_map(|rest| rest.split_once('}'));
    let groups = text.split("by (").skip(1).filter_map(|rest| rest.split_once(')'));
    matchers
        .chain(groups)
        .flat_map(|(inside, _)| words(inside).map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

/// Everything in the dashboard that is asked of Prometheus.
pub(crate) fn queries(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                match (name.as_str(), value) {
                    ("expr", Value::String(text)) => found.push(text.clone()),
                    _ => queries(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| queries(item, found)),
        _ => {}
    }
}

pub(crate) fn dashboard() -> Value {
    serde_json::from_str(DASHBOARD).expect("the dashboard is JSON")
}

/// The alerts are well formed, do what they say with numbers made for them, and the tests would notice if they did not.
#[test]
fn alerts_fire_when_they_should() {
    let (is_right, printed) = promtool(&["check", "rules", ALERTS], "");
    assert!(is_right, "{printed}");
    let (is_right, printed) = promtool(&["test", "rules", ALERT_TESTS], "");
    assert!(is_right, "{printed}");
    let rules = std::fs::read_to_string(ALERTS).unwrap();
    let tests = std::fs::read_to_string(ALERT_TESTS).unwrap();
    for alert in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        let fires = format!("- alertname: {alert}\n");
        assert!(tests.contains(&fires), "{alert} has no test in which it fires");
    }
    let folder = tollgate_testkit::folder("alerts");
    std::fs::write(folder.join("alerts.yaml"), rules.replace("for: 10m", "for: 3h")).unwrap();
    let broken = folder.join("alerts.test.yaml");
    std::fs::write(&broken, tests).unwrap();
    let (is_right, _) = promtool(&["test", "rules", broken.to_str().unwrap()], "");
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(!is_right, "rules that never fire pass their tests");
}

/// No alert asks for a number or a label that the program does not have.
#[test]
fn alerts_use_existing_metrics() {
    let (known, rules) = (Known::get(), std::fs::read_to_string(ALERTS).unwrap());
    let mut asked = 0;
    let mut lines = rules.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(first) = line.trim().strip_prefix("expr: ") else { continue };
        let mut expression = first.trim_start_matches('|').to_owned();
        while first == "|" && lines.peek().is_some_and(|line| !line.trim().starts_with("for:")) {
            expression.push_str(lines.next().unwrap());
        }
        assert!(!metrics_in(&expression).is_empty(), "{expression}");
        assert_eq!(known.missing(&expression), Vec::<String>::new(), "{expression}");
        asked += 1;
    }
    assert_eq!(asked, rules.matches("- alert: ").count());
    assert_eq!(known.missing(r#"rate(tollgate_nothing{wrong="x"}[5m])"#), ["tollgate_nothing", "wrong"]);
}

/// Every query of the dashboard is PromQL, and asks for what the program has.
#[test]
fn the_dashboard_uses_existing_metrics() {
    let (known, dashboard) = (Known::get(), dashboard());
    let mut found = Vec::new();
    queries(&dashboard, &mut found);
    assert!(found.len() > 25, "{}", found.len());
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    for variable in variables.iter().filter_map(|variable| variable["definition"].as_str()) {
        assert_eq!(known.missing(&variable.replace(", ", "{").replace(')', "})")), Vec::<String>::new());
    }
    let mut rules = String::from("groups:\n- name: panels\n  rules:\n");
    for (number, query) in found.iter().enumerate() {
        assert!(!metrics_in(query).is_empty(), "{query}");
        assert_eq!(known.missing(query), Vec::<String>::new(), "{query}");
        let plain =
            query.replace("$__rate_interval", "5m").replace("$instance", ".*").replace("$limit", ".*");
        assert!(!plain.contains('$'), "{plain}");
        rules.push_str(&format!("  - record: panel_{number}\n    expr: {}\n", Value::from(plain)));
    }
    // A number of overload that a panel asks for, and the controller or priority that it asks for, are shown by a gateway.
    let asks = |query: &&String| query.contains("tollgate_overload_") && !query.contains("_changed_");
    let overload: Vec<&String> = found.iter().filter(asks).collect();
    assert!(overload.len() >= 10, "{overload:?}");
    for query in overload {
        for name in metrics_in(query) {
            let controller = query.split("controller=").nth(1).and_then(|rest| rest.split('"').nth(1));
            let is_shown = |series: &String| {
                series.starts_with(&format!("{name}{{"))
                    && controller.is_none_or(|name| series.contains(name))
            };
            assert!(known.series.iter().any(is_shown), "{query}");
        }
    }
    let scratch = tollgate_testkit::Scratch::new();
    let file = scratch.write("panels.yaml", &rules);
    let (is_right, printed) = promtool(&["check", "rules", file.to_str().unwrap()], "");
    assert!(is_right, "{printed}");
}

/// Panels have ids of their own and do not lie on each other.
#[test]
fn panels_have_their_places() {
    let dashboard = dashboard();
    let mut ids = BTreeSet::new();
    let mut cells = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()));
        let place = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        assert!(place("x") + place("w") <= 24);
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(cells.insert((x, y)), "{}", panel["title"]);
            }
        }
    }
}

/// The guide lists every metric, and none that there is not.
#[test]
fn the_guide_lists_every_metric() {
    let listed: BTreeSet<String> = GUIDE
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|line| Some(line.split_once('`')?.0.to_owned()))
        .filter(|name| name.contains('_'))
        .collect();
    assert_eq!(listed, Known::get().metrics);
}
