//! A request whose counters are in several slots of a cluster is all or nothing, once refunds have settled.

use std::sync::Arc;

use tollgate::policy::{Limit, Policy};
use tollgate::{CheckRequest, Clock, Decision, Engine, Quota, Rate};

use crate::cluster::Cluster;
use crate::fleet::mode;
use crate::record::Mode;
use crate::server::Program;
use crate::store::{Shared, connect, new_runtime, secret};
use tollgate_testkit::until;

/// Pairs of keys, and denied requests for each.
const PAIRS: usize = 20;
const DENIED: usize = 25;
/// The capacities of the wide limit and of the tight one.
const WIDE: u64 = 1_000;
const TIGHT: u64 = 3;

fn policy() -> Policy {
    let slow = |burst| Quota::token_bucket(Rate::per_day(5).burst(burst)).unwrap();
    Policy::new(vec![
        Limit::new("wide", slow(WIDE)).by(["wide"]),
        Limit::new("tight", slow(TIGHT)).by(["tight"]),
    ])
    .unwrap()
}

fn left(decision: &Decision, name: &str) -> u64 {
    decision.limits().find(|status| status.limit.name() == name).unwrap().outcome.remaining
}

/// Many concurrent requests, most denied by the tight limit: the wide one keeps exactly what was admitted.
#[test]
fn denial_leaves_no_counter_changed() {
    let cluster = Cluster::calm(Program::Redis);
    let runtime = new_runtime();
    let _inside = runtime.enter();
    let engine: Arc<Engine<Shared>> =
        Arc::new(Engine::builder().policy(policy()).store(connect(&cluster.url())).secret(secret()).build());
    let clock = Clock::precise();
    let ask = |pair: usize| {
        let (engine, clock) = (Arc::clone(&engine), clock.clone());
        async move {
            let (wide, tight) = (format!("w{pair}"), format!("t{pair}"));
            let request = CheckRequest::new().with("wide", &wide).unwrap().with("tight", &tight).unwrap();
            (engine.check(&request, clock.now()).await, engine.operator().peek(&request, clock.now()).await)
        }
    };
    let mut tasks = Vec::new();
    for _ in 0..DENIED {
        tasks.extend((0..PAIRS).map(|pair| (pair, runtime.spawn(ask(pair)))));
    }
    let mut admitted = [0_u64; PAIRS];
    for (pair, task) in tasks {
        let (decision, _) = runtime.block_on(task).unwrap();
        assert_eq!(mode(&decision), Mode::Exact);
        admitted[pair] += u64::from(decision.is_allowed());
    }
    for (pair, &admitted) in admitted.iter().enumerate() {
        assert!(admitted <= TIGHT, "pair {pair} was admitted {admitted} times");
        until("the refunds have settled", || {
            let (wide, tight) = (format!("w{pair}"), format!("t{pair}"));
            let request = CheckRequest::new().with("wide", &wide).unwrap().with("tight", &tight).unwrap();
            let look = runtime.block_on(engine.operator().peek(&request, clock.now()));
            let settled = left(&look, "wide") == WIDE - admitted && left(&look, "tight") == TIGHT - admitted;
            settled.then_some(())
        });
    }
    // Without concurrent requests, the rest of the tight limit is admitted.
    let all: u64 = admitted.iter().sum();
    assert!(all >= PAIRS as u64, "only {all} requests were admitted");
}
