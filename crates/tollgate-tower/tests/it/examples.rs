//! The examples, run as programs.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tonic::Code;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

/// A program that is killed at the end of the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The path of an example, next to that of this test.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().parent().unwrap().join("examples").join(name)
}

/// Starts an example on a free port. Returns its address.
fn started(name: &str) -> (Running, SocketAddr) {
    let mut child = Command::new(example(name)).arg("127.0.0.1:0").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let running = Running(child);
    let address = lines.find_map(|line| line.unwrap().strip_prefix("listening on ").map(str::to_owned));
    (running, address.unwrap().parse().unwrap())
}

/// Five requests a minute for each key, two searches, and any number of health checks.
#[tokio::test]
async fn the_axum_example_limits_each_key() {
    let (_running, address) = started("axum");
    let client = reqwest::Client::new();
    let ask = async |path: &str, key: &str| {
        let response =
            client.get(format!("http://{address}{path}")).header("x-key", key).send().await.unwrap();
        response.status().as_u16()
    };
    let mut statuses = Vec::new();
    for path in ["/search", "/search", "/search", "/", "/", "/", "/", "/healthz"] {
        statuses.push(ask(path, "me").await);
    }
    assert_eq!(statuses, [200, 200, 429, 200, 200, 200, 429, 200]);
    assert_eq!(ask("/", "you").await, 200);
    let refused = client.get(format!("http://{address}/")).header("x-key", "me").send().await.unwrap();
    assert!(refused.headers().contains_key("retry-after"));
    assert!(refused.headers()["ratelimit"].to_str().unwrap().contains("\"per-caller\";r=0"));
}

/// The fourth call of a minute gets a gRPC status that says when to retry.
#[tokio::test]
async fn the_tonic_example_refuses_the_fourth_call() {
    let (_running, address) = started("tonic");
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    let mut client = HealthClient::new(channel);
    for _ in 0..3 {
        client.check(HealthCheckRequest::default()).await.unwrap();
    }
    let refused = client.check(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    // google.rpc.Status: code 8, and a RetryInfo among its details.
    assert!(refused.details().starts_with(&[8, 8]), "{:?}", refused.details());
    let details = String::from_utf8_lossy(refused.details()).into_owned();
    assert!(details.contains("type.googleapis.com/google.rpc.RetryInfo"), "{details}");
    let pushback: u64 =
        refused.metadata().get("grpc-retry-pushback-ms").unwrap().to_str().unwrap().parse().unwrap();
    assert!((1..=20_000).contains(&pushback), "{pushback}");
}

/// The first request is sent immediately, and the others wait in the queue.
#[tokio::test]
async fn the_reqwest_example_waits_between_requests() {
    let (_running, address) = started("axum");
    let output =
        Command::new(example("reqwest")).args([&format!("http://{address}/healthz"), "4"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert_eq!(lines[0], "1: 200, waited 0 ms");
    for line in &lines[1..] {
        let waited: u64 = line.split("waited ").nth(1).unwrap().trim_end_matches(" ms").parse().unwrap();
        assert!(line.contains(": 200,") && waited <= 100, "{text}");
    }
}
