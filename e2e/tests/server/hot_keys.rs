//! Hot keys on a shared store: which they are and how they are decided is seen, by operators and by Prometheus.

use serde_json::Value;
use tollgate::CredentialDigest;
use tollgate_testkit::until;

use crate::admin::operate;
use crate::program::{Server, stdout};
use crate::redis::Redis;
use crate::shared::on;

const POLICY: &str = "limits:
  - {name: per-key, by: [api_key], rate: 10k/s, burst: 20k, consistency: auto}
  - {name: strict, by: [api_key], rate: 10k/s}
";
/// The key that is asked about all the time.
const HOT: &str = "runaway";
/// Questions between two looks.
const ASKS: usize = 100;

fn ask(server: &Server, key: &str) {
    server.check(&format!(r#"{{"attributes":{{"api_key":"{key}"}}}}"#));
}

/// The line of `top` about a key of a limit.
fn reported(server: &Server, limit: &str, key: &str) -> Option<Value> {
    let top = stdout(&operate(server, &["top", "--once", "--json"]).output().unwrap());
    let top: Value = serde_json::from_str(&top).unwrap();
    let is_wanted = |each: &&Value| {
        each["limit"] == limit && each["key"] == format!("api_key={}", CredentialDigest::of(key))
    };
    top["keys"].as_array().unwrap().iter().find(is_wanted).cloned()
}

/// One key is asked about all the time, another twice: the first is drawn ahead of time and shown so, the second is exact, and so is
/// every key of a limit that says so. When requests end, nothing is leased.
#[test]
fn a_hot_key_is_shown_as_leased_and_a_quiet_one_as_exact() {
    let redis = Redis::start(&[]);
    let server = on(&redis.url(), POLICY);
    server.joined();
    let leased = "tollgate_limit_leased_keys{limit=\"per-key\"}";
    let paid =
        "tollgate_limit_decisions_total{limit=\"per-key\",outcome=\"allow\",source=\"lease\",wire=\"http\"}";
    assert_eq!(server.metric(leased), 0);
    assert!(!server.metrics().contains(paid));
    (0..2).for_each(|_| ask(&server, "quiet"));
    until("the hot key is leased, and units of it are held", || {
        (0..ASKS).for_each(|_| ask(&server, HOT));
        let held = server.metric("tollgate_limit_held_units{limit=\"per-key\"}");
        (server.metric(leased) == 1 && held > 0 && server.metrics().contains(paid)).then_some(())
    });
    let before = server.metric(paid);
    until("most of its answers are", || {
        (0..ASKS).for_each(|_| ask(&server, HOT));
        let sources = reported(&server, "per-key", HOT)?["sources"].clone();
        (sources["lease"].as_u64()? > sources["exact"].as_u64()?).then_some(())
    });
    assert!(server.metric(paid) > before);
    for (limit, key) in [("per-key", "quiet"), ("strict", HOT), ("strict", "quiet")] {
        let sources = reported(&server, limit, key).unwrap()["sources"].clone();
        assert!(
            sources["lease"].is_null() && sources["exact"].as_u64() > Some(0),
            "{limit} {key}: {sources}"
        );
    }
    let frame = stdout(&operate(&server, &["top", "--once"]).output().unwrap());
    let line = |key: &str| {
        frame.lines().find(|line| {
            line.starts_with("per-key") && line.ends_with(&format!("api_key={}", CredentialDigest::of(key)))
        })
    };
    assert!(line(HOT).unwrap().contains(" lease "), "{frame}");
    assert!(line("quiet").unwrap().contains(" exact "), "{frame}");
    // A limit that is never leased has no such numbers, and a key has none whatever it does.
    let page = server.metrics();
    assert!(!page.contains("tollgate_limit_leased_keys{limit=\"strict\"}"), "{page}");
    assert!(!page.contains("api_key") && !page.contains(HOT), "{page}");
    until("nothing is leased once requests end", || {
        let held = server.metric("tollgate_limit_held_units{limit=\"per-key\"}");
        (server.metric(leased) == 0 && held == 0).then_some(())
    });
}
