//! The real Prometheus, with the configuration and the alerts of this repository: it reads `/metrics` of the program,
//! loads the alerts, and answers each query of the dashboard.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tollgate_testkit::until;

use crate::cached::succeeds;
use crate::compose::Compose;
use crate::dashboards::{dashboard, queries};
use crate::proxy::{Folder, Proxy, free_port};

/// Where `./test tools` puts it, unless the system has it.
const PROMETHEUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../.cache/tools/bin/prometheus");

/// Queries that have a number on a server that counts in memory. The others are about gateways, overload and shared
/// stores.
const ANSWERED_MIN: usize = 20;

/// A running Prometheus.
struct Prometheus(Proxy);

impl Prometheus {
    /// Starts it with the files of the example, which it reads more often here.
    fn start(folder: &Folder, compose: &Compose, target: &str) -> Self {
        let configuration = compose.outside("prometheus", "/etc/prometheus/prometheus.yml");
        let configuration = compose.outside("prometheus", &fs::read_to_string(configuration).unwrap());
        let here = configuration.replace("tollgate:8080", target).replace("5s", "200ms");
        assert!(here.contains(target) && here.contains("scrape_interval: 200ms"), "{here}");
        let file = folder.write("prometheus.yml", &here);
        let port = free_port();
        let program = if Path::new(PROMETHEUS).exists() { PROMETHEUS } else { "prometheus" };
        let mut command = Command::new(program);
        command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", folder.0.join("numbers").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stderr(Stdio::null());
        let started = Proxy::start(command, port);
        // It listens before it answers.
        until("Prometheus is ready", || (started.get("/-/ready", "").status == 200).then_some(()));
        Self(started)
    }

    fn get(&self, path: &str, form: &[String]) -> Value {
        let mut command = Command::new("curl");
        command.args(["-s", "--max-time", "30", &format!("http://{}{path}", self.0.address)]);
        for field in form {
            command.args(["--data-urlencode", field]);
        }
        serde_json::from_str(&succeeds(&mut command)).unwrap()
    }

    /// The series that a query finds now.
    fn query(&self, query: &str) -> Vec<Value> {
        let answer = self.get("/api/v1/query", &[format!("query={query}")]);
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        answer["data"]["result"].as_array().unwrap().clone()
    }

    /// The number that a query finds.
    fn number(&self, query: &str) -> Option<String> {
        Some(self.query(query).first()?["value"][1].as_str()?.to_owned())
    }
}

/// Prometheus reads the metrics, and finds the decisions that were made. All alerts are loaded and evaluated without an
/// error. Every query of the dashboard is answered, and those about decisions have numbers.
#[test]
fn prometheus_reads_the_metrics_and_answers_the_panels() {
    let compose = Compose::read("examples/prometheus-grafana");
    let server = compose.tollgate(&[]);
    for _ in 0..8 {
        server.check(r#"{"attributes": {"tenant": "acme"}}"#);
    }
    let folder = Folder::new("prometheus");
    let prometheus = Prometheus::start(&folder, &compose, &server.address.to_string());
    until("it reads the decisions", || {
        let decisions = prometheus.number(r#"sum(tollgate_decisions_total{wire="http"})"#);
        decisions.filter(|decisions| decisions == "8")
    });
    assert_eq!(prometheus.number(r#"up{job="tollgate"}"#).as_deref(), Some("1"));
    let denied = prometheus.number(r#"tollgate_decisions_total{outcome="deny",wire="http"}"#);
    assert_eq!(denied.as_deref(), Some("3"));

    let alerts = fs::read_to_string(crate::proxy::file("deploy/prometheus/alerts.yaml")).unwrap();
    until("the alerts are evaluated", || {
        let answer = prometheus.get("/api/v1/rules", &[]);
        let groups = answer["data"]["groups"].as_array()?.clone();
        let rules: Vec<Value> =
            groups.iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect();
        assert!(rules.iter().all(|rule| rule["health"] != "err"), "{rules:?}");
        assert_eq!(rules.len(), alerts.matches("- alert: ").count());
        rules.iter().all(|rule| rule["health"] == "ok").then_some(())
    });

    // A rate needs two readings.
    until("it has two readings", || prometheus.number("sum(rate(tollgate_decisions_total[1m]))"));
    let mut found = Vec::new();
    queries(&dashboard(), &mut found);
    let is_silent = |query: &&String| {
        let query =
            query.replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$limit", ".*");
        prometheus.query(&query).is_empty()
    };
    let silent: Vec<&String> = found.iter().filter(is_silent).collect();
    let answered = found.len() - silent.len();
    assert!(answered >= ANSWERED_MIN, "only {answered} queries have a number; these have none: {silent:#?}");
}
