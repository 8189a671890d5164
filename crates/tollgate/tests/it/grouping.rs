//! `shard_by`: which counters a store keeps together if it asks for groups.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use tollgate::store::{Answers, Charge, Hold, Store, StoreFailure};
use tollgate::{CheckRequest, Engine, MemoryStore, Policy, Secret, Timestamp};

use crate::fixture::{NOW, now_or_never};

/// Memory that writes down where each counter would be kept: a store of several parts keeps one counter for each key *and* group.
struct Parted {
    memory: MemoryStore,
    seen: Mutex<Vec<(u128, Option<u16>)>>,
}

impl Store for Parted {
    async fn charge(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
        let places = charges.iter().map(|charge| (charge.key(), charge.group()));
        self.seen.lock().expect("no test panics with it").extend(places);
        self.memory.charge(charges, now).await
    }

    fn is_grouped(&self) -> bool {
        true
    }

    async fn refund(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.memory.refund(charges, now).await
    }

    async fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.memory.reset(charges, now).await
    }

    fn hold(&self, hold: &Hold) {
        self.memory.hold(hold);
    }
}

/// The counters of one decision, with their groups.
fn charged(engine: &Engine<Parted>, pairs: &[(&str, &str)]) -> Vec<(u128, Option<u16>)> {
    let mut request = CheckRequest::new();
    for (name, value) in pairs {
        request.push(name, *value).expect("valid");
    }
    now_or_never(engine.check(&request, NOW));
    std::mem::take(&mut *engine.store().seen.lock().expect("no test panics with it"))
}

fn engine(policy: &str) -> Engine<Parted> {
    let policy = Policy::compile("policy.yaml", policy.as_bytes()).expect("valid");
    let store = Parted { memory: MemoryStore::new(1 << 20, NOW), seen: Mutex::default() };
    Engine::builder().policy(policy).store(store).secret(Secret::repeatable(1)).build()
}

/// The story: with `shard_by: tenant` every counter of a request was kept where the request's tenant is. So the platform's limit, and
/// that of an address, had a counter for each group of tenants, and admitted as many times what they allow.
#[test]
fn a_counter_has_one_place_whoever_asks() {
    let engine = engine(
        "shard_by: tenant
limits:
  - {name: platform, rate: 1000/h}
  - {name: address, by: [ip], rate: 1000/h}
  - {name: tenant, by: [tenant], rate: 1000/h}
  - {name: user, by: [tenant, user], rate: 1000/h}
",
    );
    let mut places: BTreeMap<u128, BTreeSet<Option<u16>>> = BTreeMap::new();
    let mut groups = BTreeSet::new();
    for number in 0..40 {
        let tenant = format!("t{number}");
        let user = format!("u{}", number % 3);
        let charged = charged(&engine, &[("tenant", &tenant), ("user", &user), ("ip", "192.0.2.1")]);
        assert_eq!(charged.len(), 4);
        for (key, group) in &charged {
            places.entry(*key).or_default().insert(*group);
        }
        // Counters by tenant share a slot, so that one call decides.
        let grouped: BTreeSet<u16> = charged.iter().filter_map(|(_, group)| *group).collect();
        assert_eq!((grouped.len(), charged.iter().filter(|(_, group)| group.is_none()).count()), (1, 2));
        groups.extend(grouped);
    }
    assert_eq!(places.len(), 2 + 40 + 40, "the platform and the address have one counter each");
    assert!(places.values().all(|places| places.len() == 1), "a counter was kept in two places");
    assert!(groups.len() > 20, "tenants are spread");
}

/// A request without the attribute has no group, and neither has anything without `shard_by`.
#[test]
fn without_the_attribute_there_is_no_group() {
    let sharded =
        engine("shard_by: tenant\nlimits: [{name: all, rate: 9/h}, {name: t, by: [tenant], rate: 9/h}]");
    assert!(charged(&sharded, &[("user", "u")]).iter().all(|(_, group)| group.is_none()));
    let plain = engine("limits: [{name: t, by: [tenant], rate: 9/h}]");
    assert!(charged(&plain, &[("tenant", "t")]).iter().all(|(_, group)| group.is_none()));
}
