//! The examples that start programs of others, as their READMEs say. Those that are Rust programs have a smoke test of
//! their own. Compose files are followed without Docker: the same programs, the same files, other addresses.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::compose::Compose;
use crate::dashboards::{dashboard, metrics_in, queries};
use crate::envoy::Envoy;
use crate::guide::{blocks, first, follow_readme, shell, succeeded};
use crate::metrics::promtool;
use crate::program::{run, stderr, stdout};
use crate::proxy::{Folder, Proxy, file, free_port};
use crate::redis::Redis;

const NGINX: &str = include_str!("../../../examples/nginx/README.md");
const PLANS: &str = include_str!("../../../examples/nginx-plans/README.md");
const REVIEW: &str = include_str!("../../../examples/policy-review/README.md");
const ENVOY: &str = include_str!("../../../examples/envoy-redis/README.md");
const PROMETHEUS: &str = include_str!("../../../examples/prometheus-grafana/README.md");
/// The one command that starts a composition.
const COMPOSE_UP: &str = "docker compose up --build";
/// Most lines of a README, blank lines and fences apart.
const README_LINES_MAX: usize = 13;

/// A free address in place of each of these.
fn free(addresses: &[&'static str]) -> Vec<(&'static str, String)> {
    addresses.iter().map(|address| (*address, format!("127.0.0.1:{}", free_port()))).collect()
}

/// The files of an example in a folder of their own, with other addresses in them.
fn adapted(paths: &[&str], addresses: &[(&'static str, String)]) -> Folder {
    let folder = Folder::new("example");
    for path in paths {
        fs::create_dir_all(folder.0.join(path).parent().unwrap()).unwrap();
        let text = fs::read_to_string(file(path)).unwrap();
        let text = addresses.iter().fold(text, |text, (from, to)| text.replace(from, to));
        folder.write(path, &text);
    }
    folder
}

/// The programs that a README starts, each at its address.
fn started(folder: &Folder, name: &str, readme: &str, addresses: &[(&'static str, String)]) -> Vec<Proxy> {
    let port = |address: &str| address.rsplit(':').next().unwrap().to_owned();
    let start = |(line, (_, address)): (&str, &(&str, String))| {
        // Only the first program gets its port, or that of the first, by its arguments.
        let line = line.replace(&port(addresses[0].0), &port(&addresses[0].1));
        let mut command = shell(&format!("exec {line}"));
        command.current_dir(folder.0.join("examples").join(name)).stderr(Stdio::null());
        command.env("TOLLGATE_HTTP", address).env("TOLLGATE_GRPC", "off").env("TOLLGATE_RESP", "off");
        Proxy::start(command, port(address).parse().unwrap())
    };
    first(&blocks(readme), "sh serve").lines().zip(addresses).map(start).collect()
}

/// nginx and Tollgate, started by the very commands of the README.
#[test]
fn nginx_asks_tollgate() {
    let addresses = free(&["127.0.0.1:8080", "127.0.0.1:8000", "127.0.0.1:3000"]);
    let files = ["examples/nginx/nginx.conf", "examples/nginx/policy.yaml", "deploy/nginx/tollgate.conf"];
    let folder = adapted(&files, &addresses);
    let programs = started(&folder, "nginx", NGINX, &addresses);
    assert_eq!(programs.len(), 2);
    follow_readme(NGINX, &addresses);
    let page = programs[1].get("/", "");
    assert_eq!((page.status, page.body.as_slice()), (200, b"hello\n".as_slice()));
    assert!(page.header("ratelimit").unwrap().starts_with("\"per-address\";"));
}

/// nginx, Tollgate and Redis, started by the very commands of the README: each plan has its own limits.
#[test]
fn plans_are_kept_behind_nginx() {
    let addresses = free(&["127.0.0.1:6379", "127.0.0.1:8080", "127.0.0.1:8000", "127.0.0.1:3000"]);
    let files = [
        "examples/nginx/nginx.conf",
        "examples/nginx-plans/policy.yaml",
        "examples/nginx-plans/callers.yaml",
        "deploy/nginx/tollgate.conf",
    ];
    let folder = adapted(&files, &addresses);
    let programs = started(&folder, "nginx-plans", PLANS, &addresses);
    assert_eq!(programs.len(), 3);
    // Before it has its store, the server would count by its share.
    let ready = format!("http://{}/readyz", programs[1].address);
    succeeded(shell(&format!("until curl -s {ready} | grep -q '^{{\"status\":\"ok\"'; do sleep 0.1; done")));
    follow_readme(PLANS, &addresses);
}

/// A changed policy is commented as the README says.
#[test]
fn a_changed_policy_is_reviewed() {
    let blocks = blocks(REVIEW);
    let mut command = shell(first(&blocks, "sh"));
    command.current_dir(file("examples/policy-review"));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output).trim(), first(&blocks, "text"));
}

/// Two Tollgates behind one Envoy count in one Redis: what passes is what one limit admits, and both were asked.
#[test]
fn envoy_asks_two_tollgates_that_share_redis() {
    assert_eq!(first(&blocks(ENVOY), "sh compose"), COMPOSE_UP);
    let compose = Compose::read("examples/envoy-redis");
    let words = compose.command("redis");
    let [program, conf, settings @ ..] = &words[..] else { panic!("{words:?}") };
    assert_eq!(program, "valkey-server");
    let settings: Vec<String> = settings.iter().map(|word| word.replace("0.0.0.0", "127.0.0.1")).collect();
    let redis = Redis::with_file(conf, &settings.iter().map(String::as_str).collect::<Vec<_>>());
    let store = format!("127.0.0.1:{}", redis.port);
    let servers = [(); 2].map(|()| compose.tollgate(&[("redis:6379", &store)]));
    servers.iter().for_each(|server| server.joined());

    let (hello, port) = (compose.command("hello"), free_port());
    let listen = format!("127.0.0.1:{port}");
    let mut command = Command::new(&hello[0]);
    command.args(hello[1..].iter().map(|word| word.replace(":9000", &listen))).stderr(Stdio::null());
    let hello = Proxy::start(command, port);

    let words = compose.command("envoy");
    let [_, _, configuration] = &words[..] else { panic!("{words:?}") };
    let [one, two] = servers.each_ref().map(|server| server.grpc.unwrap());
    let endpoint = |host: &str, port: u16| {
        format!("- endpoint: {{ address: {{ socket_address: {{ address: {host}, port_value: {port} }} }} }}")
    };
    // Where Docker's name leads to two addresses, the test has two endpoints.
    let both =
        format!("{}\n              {}", endpoint("127.0.0.1", one.port()), endpoint("127.0.0.1", two.port()));
    let changes = [
        ("address: 0.0.0.0", "address: 127.0.0.1"),
        ("address: hello", "address: 127.0.0.1"),
        (&endpoint("tollgate", one.port()), &both),
        ("timeout: 0.05s", "timeout: 20s"),
    ];
    let configuration = fs::read_to_string(configuration).unwrap();
    let envoy = Envoy::start_with(&configuration, hello.address, one, &changes);
    assert_eq!(envoy.get("/", "X-API-Key: k0\r\n").body, b"hello\n");
    follow_readme(ENVOY, &[("127.0.0.1:10000", envoy.address.to_string())]);
    for server in &servers {
        assert!(server.decisions("rls") >= 2, "{}", server.metrics());
    }
}

/// Prometheus accepts its file, Grafana finds the dashboard and its source, and what the panels ask for is there.
#[test]
fn prometheus_and_grafana_find_what_they_show() {
    assert_eq!(first(&blocks(PROMETHEUS), "sh compose"), COMPOSE_UP);
    let compose = Compose::read("examples/prometheus-grafana");
    let server = compose.tollgate(&[]);
    follow_readme(PROMETHEUS, &[("127.0.0.1:8080", server.address.to_string())]);

    let folder = Folder::new("example");
    let mounted = |service: &str, path: &str| {
        let text = fs::read_to_string(compose.outside(service, path)).unwrap();
        compose.outside(service, &text)
    };
    let configuration = mounted("prometheus", "/etc/prometheus/prometheus.yml");
    assert!(configuration.contains("targets: [\"tollgate:8080\"]"), "{configuration}");
    let configuration = folder.write("prometheus.yml", &configuration);
    let (is_right, printed) = promtool(&["check", "config", configuration.to_str().unwrap()], "");
    assert!(is_right && printed.contains("1 rule files found"), "{printed}");

    let source = mounted("grafana", "/etc/grafana/provisioning/datasources/tollgate.yaml");
    let source: Value = serde_saphyr::from_str(&source).unwrap();
    assert_eq!(source["datasources"][0]["url"], "http://prometheus:9090");
    let folders = compose.outside("grafana", "/etc/grafana/provisioning/dashboards/tollgate.yaml");
    let folders: Value = serde_saphyr::from_str(&fs::read_to_string(folders).unwrap()).unwrap();
    let home =
        compose.environment("grafana").into_iter().find(|(name, _)| name.ends_with("_PATH")).unwrap().1;
    assert!(home.starts_with(folders["providers"][0]["options"]["path"].as_str().unwrap()), "{home}");
    assert_eq!(serde_json::from_str::<Value>(&mounted("grafana", &home)).unwrap(), dashboard());

    let page = server.metrics();
    let rows = ["At a glance", "Decisions", "Limits", "Speed"];
    for query in rows.iter().flat_map(|row| row_queries(row)) {
        for name in metrics_in(&query) {
            let is_shown =
                |line: &str| line.strip_prefix(&name).is_some_and(|rest| rest.starts_with(['{', ' ']));
            assert!(page.lines().any(is_shown), "{query}");
        }
    }
    let considered = page.lines().find(|line| {
        line.starts_with("tollgate_limit_decisions_total{limit=\"per-tenant-hourly\"")
            && line.contains("would_deny")
    });
    assert!(considered.is_some_and(|line| !line.ends_with(" 0")), "{page}");
}

/// The queries of the panels of a row of the dashboard.
fn row_queries(row: &str) -> Vec<String> {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    let start = panels.iter().position(|panel| panel["type"] == "row" && panel["title"] == row).unwrap();
    let mut found = Vec::new();
    for panel in panels[start + 1..].iter().take_while(|panel| panel["type"] != "row") {
        queries(panel, &mut found);
    }
    assert!(!found.is_empty(), "{row}");
    found
}

/// Every example is listed, has a short README, a policy that compiles, and a test.
#[test]
fn every_example_is_listed_and_short() {
    let listed = fs::read_to_string(file("examples/README.md")).unwrap();
    let manifest = fs::read_to_string(file("Cargo.toml")).unwrap();
    let tested = ["nginx", "nginx-plans", "envoy-redis", "prometheus-grafana", "policy-review"];
    let folders = fs::read_dir(file("examples")).unwrap().map(|entry| entry.unwrap().path());
    let folders: Vec<_> = folders.filter(|path| path.is_dir()).collect();
    assert!(folders.len() >= tested.len());
    for folder in folders {
        let name = folder.file_name().unwrap().to_str().unwrap();
        assert!(listed.contains(&format!("]({name}/)")), "examples/README.md does not list {name}");
        let readme = fs::read_to_string(folder.join("README.md")).unwrap();
        let lines = readme.lines().filter(|line| !line.is_empty() && !line.starts_with("```")).count();
        assert!(lines <= README_LINES_MAX, "the README of {name} has {lines} lines");
        let policy = folder.join("policy.yaml");
        if policy.exists() {
            let output = run(&["policy", "check", policy.to_str().unwrap()], b"");
            assert!(output.status.success(), "{}", stderr(&output));
        }
        let is_member = manifest.contains(&format!("\"examples/{name}\""));
        assert!(
            tested.contains(&name) || is_member && folder.join("tests/smoke.rs").exists(),
            "{name} has no test"
        );
    }
}
