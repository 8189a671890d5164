//! A capacity of the whole fleet: two gateways before one upstream count it together in the store that they share.

use tokio::time::Instant;

use crate::gateway_upstream::{Gateway, OPEN, Upstream, until};
use crate::proxy::Folder;
use crate::redis::{Cluster, Redis};

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

/// A gateway that waits long for its store: a charge whose reply misses the deadline counts twice, and a busy machine would have many.
fn started(config: &str, upstream: &str, store: &str) -> Gateway {
    let options = ["--config", config, "--upstream", upstream, "--store", store, "--store-deadline", "50ms"];
    Gateway::with(&options, OPEN)
}

/// Two gateways that know of each other.
fn two(config: &str, upstream: &Upstream, store: &str) -> [Gateway; 2] {
    let address = format!("http://{}", upstream.address);
    let start = || started(config, &address, store);
    let gateways = [start(), start()];
    until(|| gateways.iter().all(|gateway| gateway.server.metric("tollgate_store_nodes") == 2));
    gateways
}

/// Both have one capacity together, of which half is for critical requests.
fn counted_together(gateways: &[Gateway]) {
    let began = Instant::now();
    let general = passed(gateways, "/x", 100);
    let earned = began.elapsed().as_secs() / 2 + 1;
    assert!((15..=30 + earned).contains(&general), "{general} of 30 and {earned}");
    let critical = passed(gateways, "/pay", 100);
    let earned = began.elapsed().as_secs() + 1;
    assert!(critical >= 20 && general + critical <= 60 + earned, "{general} {critical} of 60 and {earned}");
    for gateway in gateways {
        let page = gateway.server.metrics();
        let refused = |line: &&str| {
            line.starts_with(
                "tollgate_overload_refused_total{controller=\"fleet-shedder\",priority=\"read\"} ",
            )
        };
        let line = page.lines().find(refused).unwrap();
        assert!(!line.ends_with(" 0"), "{line}");
    }
}

/// Requests that are not critical get half of the capacity from both together, and critical requests the rest; each alone would give twice that. While
/// the store is away each has its share, and when it is back they count together again.
#[test]
fn a_capacity_is_the_whole_fleets() {
    let (upstream, folder, mut redis) = (Upstream::start(), Folder::new("gateway-fleet"), Redis::start(&[]));
    let config = folder.write("config.yaml", CONFIG).display().to_string();
    let gateways = two(&config, &upstream, &redis.url());
    counted_together(&gateways);
    redis.kill();
    until(|| gateways.iter().all(|gateway| gateway.get("/pay", "").status == 200));
    assert!(passed(&gateways, "/pay", 60) < 60, "a share is not all of it");
    redis.start_again();
    until(|| gateways.iter().all(|gateway| gateway.get("/pay", "").status == 200));
    assert!(passed(&gateways, "/x", 60) < 60);
}

/// The same on a cluster of three primaries and their replicas, where the two counters may lie on different nodes.
#[test]
fn a_capacity_on_a_cluster() {
    let (upstream, folder, cluster) =
        (Upstream::start(), Folder::new("gateway-fleet-cluster"), Cluster::start(1, &[]));
    let config = folder.write("config.yaml", CONFIG).display().to_string();
    counted_together(&two(&config, &upstream, &cluster.url()));
}

/// A request that another controller refuses has used nothing of the fleet's capacity: a hundred of them leave it as it was, also where it is drawn from
/// a store.
#[test]
fn refused_requests_use_no_capacity() {
    let (upstream, folder, redis) =
        (Upstream::start(), Folder::new("gateway-fleet-refused"), Redis::start(&[]));
    let text = format!("{CONFIG}  concurrency: {{ min: 1, initial: 1, max: 1 }}\n");
    let config = folder.write("config.yaml", &text).display().to_string();
    let address = format!("http://{}", upstream.address);
    let gateway = started(&config, &address, &redis.url());
    // Usage that it counts by itself before it knows the store is reported to the store later, and is not given back at once.
    until(|| gateway.server.metric("tollgate_store_nodes") == 1);
    let mut held = gateway.connect();
    std::io::Write::write_all(&mut held, b"GET /hang HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    until(|| upstream.count() == 1);
    assert_eq!(passed(std::slice::from_ref(&gateway), "/x", 100), 0);
    let refused = |controller: &str| gateway.metric("tollgate_overload_refused_total", controller);
    assert_eq!((refused("fleet-shedder"), refused("adaptive-concurrency")), (0, 100));
    drop(held);
    until(|| gateway.get("/x", "").status == 200);
    let left = passed(std::slice::from_ref(&gateway), "/x", 25);
    assert!(left >= 20, "{left} of 25");
}
