//! The one suite that every store passes, on every kind of server. The store is told the time.

use tollgate::{Timestamp, conformance};

use crate::cluster::Cluster;
use crate::scratch::among_others;
use crate::sentinel::Watched;
use crate::server::{Plan, Program, Server};
use crate::store::{Shared, new_runtime, settings, told, told_with};

/// All functions of the suite on one store.
fn conforms(store: impl FnOnce() -> Shared) {
    let runtime = new_runtime();
    let _inside = runtime.enter();
    let store = store();
    let make = |_: Timestamp| store.clone();
    let suite = conformance::all(&make);
    let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| runtime.block_on(suite)));
    let report = store.0.report();
    let failed: Vec<_> = report.failures.iter().filter(|(_, count)| *count > 0).collect();
    assert!(
        passed.is_ok(),
        "a promise was broken; calls that failed: {failed:?}, shards: {:?}",
        report.shards
    );
}

#[test]
fn redis_conforms() {
    let _others = among_others();
    let server = Server::redis();
    conforms(|| told(&server.url()));
    let immortal: Vec<_> = server.lives().into_iter().filter(|(_, life)| *life < 0).collect();
    assert!(!server.lives().is_empty() && immortal.is_empty(), "{immortal:?}");
}

#[test]
fn valkey_conforms() {
    let _others = among_others();
    let server = Plan::new(Program::Valkey).start();
    conforms(|| told(&server.url()));
    assert_eq!(server.info("server_name").unwrap(), "valkey");
    assert!(!server.lives().is_empty());
}

#[test]
fn a_cluster_conforms() {
    let _others = among_others();
    let cluster = Cluster::calm(Program::Redis);
    conforms(|| told(&cluster.url()));
    let used = cluster.servers.iter().filter(|server| server.calls("evalsha").0 > 0).count();
    assert!(used >= 3, "only {used} nodes were asked");
    assert_eq!(cluster.immortal(), [""; 0]);
}

#[test]
fn a_valkey_cluster_conforms() {
    let _others = among_others();
    let cluster = Cluster::calm(Program::Valkey);
    conforms(|| told(&cluster.url()));
    assert_eq!(cluster.immortal(), [""; 0]);
}

#[test]
fn a_watched_primary_conforms() {
    let _others = among_others();
    let watched = Watched::start();
    conforms(|| told(&watched.url()));
    assert!(watched.servers[0].calls("evalsha").0 > 0);
}

#[test]
fn inside_tls_it_conforms() {
    let _others = among_others();
    let server = Plan::new(Program::Redis).tls().start();
    let (port, [authority, certificate, key]) = server.tls();
    let files = tollgate_redis::TlsFiles {
        ca: Some(authority.into()),
        certificate: Some(certificate.into()),
        key: Some(key.into()),
    };
    let settings = settings(&format!("rediss://127.0.0.1:{port}")).tls(files).unwrap();
    conforms(|| told_with(settings));
}

/// A user who may do what the store needs, and nothing else.
#[test]
fn a_user_with_few_rights_conforms() {
    let _others = among_others();
    let server = Plan::new(Program::Redis).line(crate::store::ACL_LINE).start();
    let url = format!("redis://tollgate:s%20cret@127.0.0.1:{}", server.port);
    conforms(|| told(&url));
    let refused: Vec<redis::Value> = server.ask(&["ACL", "LOG"]).unwrap();
    assert!(refused.is_empty(), "{refused:?}");
}
