//! A changed quota applies to existing counters while nodes with the old and the new policy run side by side.

use tollgate::algorithm::fixed_window::{Align, FixedWindow};
use tollgate::policy::{Limit, Policy};
use tollgate::{CheckRequest, Clock, Engine, Quota, Rate};

use crate::fleet::mode;
use crate::record::Mode;
use crate::server::Server;
use crate::store::{Shared, connect, new_runtime, secret};

struct Two {
    runtime: tokio::runtime::Runtime,
    nodes: [Engine<Shared>; 2],
    clock: Clock,
    quota: fn(u64) -> Quota,
}

fn bucket(units: u64) -> Quota {
    Quota::token_bucket(Rate::per_day(units)).unwrap()
}

fn window(units: u64) -> Quota {
    Quota::FixedWindow(FixedWindow::new(Rate::per_day(units), Align::FirstHit).unwrap())
}

impl Two {
    fn new(server: &Server, quota: fn(u64) -> Quota, units: u64) -> Self {
        let runtime = new_runtime();
        let inside = runtime.enter();
        let nodes = [(), ()].map(|()| {
            Engine::builder()
                .policy(policy(quota, units))
                .store(connect(&server.url()))
                .secret(secret())
                .build()
        });
        drop(inside);
        Self { runtime, nodes, clock: Clock::precise(), quota }
    }

    /// Sends a request to a node; returns whether it is admitted.
    fn ask(&self, node: usize, cost: u64) -> bool {
        let request = CheckRequest::new().with("key", "k").unwrap().cost(cost).unwrap();
        let decision = self.runtime.block_on(self.nodes[node].check(&request, self.clock.now()));
        assert_eq!(mode(&decision), Mode::Exact);
        decision.is_allowed()
    }

    /// The remaining units that a node reports.
    fn left(&self, node: usize) -> u64 {
        let request = CheckRequest::new().with("key", "k").unwrap();
        let look = self.runtime.block_on(self.nodes[node].operator().peek(&request, self.clock.now()));
        look.limits().next().unwrap().outcome.remaining
    }

    fn swap(&self, node: usize, units: u64) {
        let _inside = self.runtime.enter();
        self.nodes[node].swap(policy(self.quota, units), self.clock.now()).unwrap();
    }
}

fn policy(quota: fn(u64) -> Quota, units: u64) -> Policy {
    let limit = Limit::new("limit", quota(units)).by(["key"]).cost(tollgate::policy::Cost::Asked);
    Policy::new(vec![limit]).unwrap()
}

/// A window keeps its usage, whichever node and policy counted it.
#[test]
fn window_keeps_its_usage_under_two_policies() {
    let server = Server::redis();
    let two = Two::new(&server, window, 10);
    assert!(two.ask(0, 6) && two.left(1) == 4);
    two.swap(0, 20);
    assert_eq!((two.left(0), two.left(1)), (14, 4));
    assert!(two.ask(1, 1) && two.ask(0, 1) && two.ask(1, 1));
    assert_eq!((two.left(0), two.left(1)), (11, 1));
    assert!(two.ask(0, 5));
    // Fourteen are used: more than the old limit, so the old policy admits nothing.
    assert!(!two.ask(1, 1));
    assert_eq!((two.left(0), two.left(1)), (6, 0));
    two.swap(1, 20);
    assert_eq!((two.left(0), two.left(1)), (6, 6));
    two.swap(0, 5);
    assert!(!two.ask(0, 1));
    assert!(two.ask(1, 6));
    assert!(!two.ask(1, 1) && !two.ask(0, 1));
}

/// A bucket keeps its available units: a raised quota adds none, a lowered one clamps them, and switching back and
/// forth gains nothing.
#[test]
fn bucket_gains_nothing_under_two_policies() {
    let server = Server::redis();
    let two = Two::new(&server, bucket, 10);
    assert!(two.ask(0, 6) && two.left(1) == 4);
    two.swap(0, 20);
    assert_eq!((two.left(0), two.left(1)), (4, 4));
    two.swap(1, 2);
    assert!(!two.ask(1, 3));
    assert_eq!(two.left(1), 2);
    // The node with the lower quota has clamped it for both.
    assert!(two.ask(1, 1));
    assert_eq!((two.left(0), two.left(1)), (1, 1));
    for _ in 0..10 {
        assert!(two.left(0) <= 1 && two.left(1) <= 1);
    }
    assert!(two.ask(0, 1));
    assert!(!two.ask(0, 1) && !two.ask(1, 1));
}
