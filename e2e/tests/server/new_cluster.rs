//! A cluster that is new to a server, and one in the midst of a migration.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;

use tollgate_testkit::until;

use crate::program::{Server, tollgate};
use crate::redis::{Cluster, Redis};
use crate::shared::on;

/// A crowd that meets a new cluster at once, from the very first request of the server: every shard is ready for it, and `concurrency: 10`
/// holds no more than ten. Nor does it where nearly every deadline is missed, and this server gives permits of its share beside those of
/// the store: 11 were once held there, when the message about such a permit was lost or on its way.
#[test]
fn concurrent_first_requests_get_no_more_than_the_limit() {
    let cluster = Cluster::start(1, &[]);
    for store_deadline in ["1ms", "50ms"] {
        let policy = "limits: [{name: in-flight, by: [api_key], concurrency: 10, permit_ttl: 60s}]";
        let url = cluster.url();
        let store = ["--store", &url, "--store-deadline", store_deadline];
        let command = tollgate(&[&["serve", "--http", "127.0.0.1:0", "--policy", "-"], &store[..]].concat());
        let server = Server::spawn(command, policy);
        let keys: Vec<String> = (0..6).map(|key| format!("{store_deadline}-{key}")).collect();
        let held: BTreeMap<&String, usize> = thread::scope(|scope| {
            let askers: Vec<_> = (0..12)
                .map(|_| {
                    let ask = || {
                        let each = (0..4).flat_map(|_| &keys);
                        each.filter(|key| {
                            let asked = format!(r#"{{"attributes":{{"api_key":"{key}"}}}}"#);
                            server.check(&asked)["allowed"] == true
                        })
                        .collect::<Vec<&String>>()
                    };
                    scope.spawn(ask)
                })
                .collect();
            let passed = askers.into_iter().flat_map(|asker| asker.join().unwrap());
            passed.fold(BTreeMap::new(), |mut held, key| {
                *held.entry(key).or_default() += 1;
                held
            })
        });
        assert!(held.values().all(|&held| held <= 10), "{held:?}");
        assert_eq!(held.len(), keys.len(), "each key has its places: {held:?}");
    }
}

/// The keys of counters that a node has.
fn counters(node: &Redis) -> BTreeSet<String> {
    let keys = node.cli(&["--scan", "--pattern", "tg:{????}*"]);
    keys.lines().filter(|key| key.len() == 30 && !key.ends_with("probe")).map(str::to_owned).collect()
}

/// A slot that migrates from one node and that no node imports: no node answers for its new keys. Decisions are made without it, and
/// `/readyz`, the metrics and the log name the slot and what to do, until it is put right.
#[test]
fn a_half_migrated_slot_shows() {
    let cluster = Cluster::start(0, &[]);
    let mut server = on(&cluster.url(), "limits: [{name: per-key, by: [api_key], rate: 10/h}]");
    let ask = || server.check(r#"{"attributes":{"api_key":"k"}}"#)["limits"][0]["source"].clone();
    let before: Vec<BTreeSet<String>> = cluster.nodes.iter().map(counters).collect();
    until("counted in the cluster", || (ask() == "exact").then_some(()));
    let (from, key) = until("the counter", || {
        let mut now = cluster.nodes.iter().map(counters).zip(&before).enumerate();
        now.find_map(|(node, (now, before))| Some((node, now.difference(before).next()?.clone())))
    });
    let (from, to) = (&cluster.nodes[from], &cluster.nodes[(from + 1) % 3]);
    let slot = from.cli(&["CLUSTER", "KEYSLOT", &key]).trim().to_owned();
    let target = to.cli(&["CLUSTER", "MYID"]).trim().to_owned();
    from.tell(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]);
    from.cli(&["DEL", &key]);
    assert_eq!(ask(), "local", "no node answers");
    let named = until("degraded", || {
        let ready = server.ready();
        (ready["status"] == "degraded").then(|| ready["store"]["shards"].to_string())
    });
    assert!(named.contains(&format!("slot {slot}")) && named.contains("--cluster fix"), "{named}");
    let metrics = String::from_utf8(server.send("GET", "/metrics", "").body).unwrap();
    assert!(metrics.contains("tollgate_store_slots_unserved 1"), "{metrics}");
    from.tell(&["CLUSTER", "SETSLOT", &slot, "STABLE"]);
    until("counted in the cluster again", || (ask() == "exact").then_some(()));
    until("well again", || (server.ready()["status"] == "ok").then_some(()));
    server.await_log(&format!("slot {slot}"));
}
