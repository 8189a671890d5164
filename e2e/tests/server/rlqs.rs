//! The quota service on a shared store.

use crate::redis::Redis;
use crate::rls::Client;
use crate::shared::{on, quick};
use tollgate_testkit::rlqs::Quotas;

/// On a shared store what one server's Envoy used is gone for another server, and lowers what that assigns.
#[test]
fn counters_in_redis_are_shared_between_servers() {
    let redis = Redis::start(&[]);
    let policy = "domain: api\nlimits: [{name: per-key, by: [api_key], rate: 100/h}]";
    let (one, other) = (on(&redis.url(), policy), on(&redis.url(), policy));
    let (first, second) = (Client::new(one.grpc.unwrap()), Client::new(other.grpc.unwrap()));
    quick(|key| {
        let mut quotas = Quotas::open(&first);
        quotas.report(&[("api_key", key)], 1);
        quotas.report(&[("api_key", key)], 59);
        let reported = Quotas::open(&second).report(&[("api_key", key)], 0);
        (other.left(key) == 40 && reported.starts_with("36 and ")).then_some(())
    });
}
