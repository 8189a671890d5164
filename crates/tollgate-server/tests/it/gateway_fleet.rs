//! A capacity of the whole fleet: two gateways before one upstream count it together in the store that they share.

use tokio::time::Instant;

use crate::gateway_upstream::{Gateway, OPEN, Upstream, until};
use crate::proxy::Folder;
use crate::redis::Redis;

/// Sixty at once and one a second, of which half is for critical requests.
const CONFIG: &str = "overload:
  priorities: [{ when: { path: /pay }, priority: critical }]
  fleet: { capacity: 3600/h burst 60, reserve: 50%, scope: fleet }
";

/// How many of so many requests pass, sent to each in turn.
fn passed(gateways: &[Gateway], path: &str, count: usize) -> u64 {
    let statuses = (0..count).map(|turn| gateways[turn % gateways.len()].get(path, "").status);
    let statuses: Vec<u16> = statuses.collect();
    assert!(statuses.iter().all(|status| [200, 503].contains(status)), "{statuses:?}");
    statuses.iter().filter(|status| **status == 200).count() as u64
}

/// What is not critical gets half of the capacity from both together, and critical requests the rest; each alone would give twice that. While
/// the store is away each has its share, and when it is back they count together again.
#[test]
fn a_capacity_is_the_whole_fleets() {
    let (upstream, folder, mut redis) = (Upstream::start(), Folder::new("gateway-fleet"), Redis::start(&[]));
    let config = folder.write("config.yaml", CONFIG).display().to_string();
    let (address, store) = (format!("http://{}", upstream.address), redis.url());
    let start = || Gateway::with(&["--config", &config, "--upstream", &address, "--store", &store], OPEN);
    let gateways = [start(), start()];
    until(|| gateways.iter().all(|gateway| gateway.server.metric("tollgate_store_nodes") == 2));
    let began = Instant::now();
    let general = passed(&gateways, "/x", 100);
    let earned = began.elapsed().as_secs() / 2 + 1;
    assert!((15..=30 + earned).contains(&general), "{general} of 30 and {earned}");
    let critical = passed(&gateways, "/pay", 100);
    let earned = began.elapsed().as_secs() + 1;
    assert!(critical >= 20 && general + critical <= 60 + earned, "{general} {critical} of 60 and {earned}");
    for gateway in &gateways {
        let page = gateway.server.metrics();
        let refused = |line: &&str| {
            line.starts_with(
                "tollgate_overload_refused_total{controller=\"fleet-shedder\",priority=\"read\"} ",
            )
        };
        let line = page.lines().find(refused).unwrap();
        assert!(!line.ends_with(" 0"), "{line}");
    }
    redis.kill();
    until(|| gateways.iter().all(|gateway| gateway.get("/pay", "").status == 200));
    assert!(passed(&gateways, "/pay", 60) < 60, "a share is not all of it");
    redis.start_again();
    until(|| gateways.iter().all(|gateway| gateway.get("/pay", "").status == 200));
    assert!(passed(&gateways, "/x", 60) < 60);
}
