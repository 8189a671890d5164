//! The conformance suite of stores, on every kind of server, with an injected time.

use tollgate::{Timestamp, conformance};

use crate::cluster::Cluster;
use crate::sentinel::SentinelSetup;
use crate::server::{Plan, Program};
use crate::store::{Shared, new_runtime, settings, with_injected_time, with_injected_time_from};

/// Makes the store of each promise.
type Make = Box<dyn Fn(Timestamp) -> Shared>;

/// Runs the whole suite on one store.
fn conforms(store: impl FnOnce() -> Shared) {
    run(store, async |make| conformance::all(&make).await);
}

/// Runs a part of the suite on a store that another one differs from by its connections alone: the scripts and their replies are the same.
fn answers_alike(store: impl FnOnce() -> Shared) {
    run(store, async |make| {
        conformance::all_or_nothing::all(&make).await;
        conformance::modes::all(&make).await;
    });
}

fn run(store: impl FnOnce() -> Shared, suite: impl AsyncFnOnce(Make)) {
    let runtime = new_runtime();
    let _inside = runtime.enter();
    let store = store();
    let shared = store.clone();
    let suite = suite(Box::new(move |_: Timestamp| shared.clone()));
    let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| runtime.block_on(suite)));
    let report = store.0.report();
    let failed: Vec<_> = report.failures.iter().filter(|(_, count)| *count > 0).collect();
    assert!(passed.is_ok(), "the suite failed; failed calls: {failed:?}, shards: {:?}", report.shards);
}

/// Through an ACL user with only the permissions that the store needs.
#[test]
fn redis_conforms() {
    let server = Plan::new(Program::Redis).line(crate::store::ACL_LINE).start();
    let url = format!("redis://tollgate:s%20cret@127.0.0.1:{}", server.port);
    conforms(|| with_injected_time(&url));
    let refused: Vec<redis::Value> = server.ask(&["ACL", "LOG"]).unwrap();
    assert!(refused.is_empty(), "{refused:?}");
    let immortal: Vec<_> = server.lives().into_iter().filter(|(_, life)| *life < 0).collect();
    assert!(!server.lives().is_empty() && immortal.is_empty(), "{immortal:?}");
}

#[test]
fn valkey_conforms() {
    let server = Plan::new(Program::Valkey).start();
    conforms(|| with_injected_time(&server.url()));
    assert_eq!(server.info("server_name").unwrap(), "valkey");
    assert!(!server.lives().is_empty());
}

#[test]
fn redis_cluster_conforms() {
    let cluster = Cluster::calm(Program::Redis);
    conforms(|| with_injected_time(&cluster.url()));
    let used = cluster.servers.iter().filter(|server| server.calls("evalsha").0 > 0).count();
    assert!(used >= 3, "only {used} nodes were asked");
    assert_eq!(cluster.immortal(), [""; 0]);
}

#[test]
fn valkey_cluster_conforms() {
    let cluster = Cluster::calm(Program::Valkey);
    answers_alike(|| with_injected_time(&cluster.url()));
    assert_eq!(cluster.immortal(), [""; 0]);
}

#[test]
fn primary_behind_sentinels_conforms() {
    let watched = SentinelSetup::start();
    answers_alike(|| with_injected_time(&watched.url()));
    assert!(watched.servers[0].calls("evalsha").0 > 0);
}

#[test]
fn tls_conforms() {
    let server = Plan::new(Program::Redis).tls().start();
    let (port, [authority, certificate, key]) = server.tls();
    let files = tollgate_redis::TlsFiles {
        ca: Some(authority.into()),
        certificate: Some(certificate.into()),
        key: Some(key.into()),
    };
    let settings = settings(&format!("rediss://127.0.0.1:{port}")).tls(files).unwrap();
    answers_alike(|| with_injected_time_from(settings));
}
