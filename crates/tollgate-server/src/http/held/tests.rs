//! Held things are given back once, expire on their tick, and survive a store failure.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tollgate::store::{Answers, Charge, StoreFailure};
use tollgate::{Engine, ManualClock, MemoryStore, Policy, Timestamp};

use super::super::check;
use super::*;
use crate::service::holds::Holds;

const POLICY: &[u8] = b"
limits:
  - {name: in-flight, by: [k], concurrency: 2, permit_ttl: 30s}
  - {name: units, by: [t], rate: 5/h}
  - {name: line, by: [l], algorithm: leaky-bucket, rate: 1/min, queue: 3}
";

fn service(time: &ManualClock, room: usize) -> Service<MemoryStore> {
    let policy = Policy::compile("test", POLICY).unwrap();
    let mut service =
        Service::new(Engine::builder().policy(policy).clock(time.clock()).build(), time.clock());
    service.holds.permits = Holds::new(room);
    service.holds.reservations = Holds::new(room);
    service
}

/// A memory store behind a connection that can be cut.
struct Flaky {
    memory: MemoryStore,
    down: Arc<AtomicBool>,
}

impl Flaky {
    fn reached(&self) -> Result<&MemoryStore, StoreFailure> {
        if self.down.load(Ordering::SeqCst) { Err(StoreFailure::Unreachable) } else { Ok(&self.memory) }
    }
}

impl Store for Flaky {
    async fn charge(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
        self.reached()?.charge(charges, now).await
    }

    async fn refund(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.reached()?.refund(charges, now).await
    }

    async fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
        self.reached()?.reset(charges, now).await
    }

    fn hold(&self, hold: &tollgate::store::Hold) {
        self.memory.hold(hold);
    }
}

/// The decision of an answer.
fn decided(answered: Result<HttpAnswer, Problem>) -> serde_json::Value {
    match answered.unwrap() {
        HttpAnswer::Decision(text) => serde_json::from_slice(&text).unwrap(),
        other => panic!("no decision: {other:?}"),
    }
}

async fn json<S: Store>(service: &Service<S>, body: &str) -> serde_json::Value {
    decided(check::answer(service, &JsonRequest::check(body.as_bytes()).unwrap()).await)
}

/// Makes two reservations.
async fn reserved<S: Store>(service: &Service<S>, body: &str) -> [Id; 2] {
    let json_request = JsonRequest::reservation(body.as_bytes()).unwrap();
    let answers = [reserve(service, &json_request).await, reserve(service, &json_request).await];
    answers.map(|answer| decided(answer)["reservation"].as_str().and_then(Id::parse).unwrap())
}

/// Without room for another permit, the permit stays taken until it expires: nothing is admitted too much.
#[tokio::test]
async fn a_permit_without_room_returns_by_itself() {
    let time = ManualClock::new();
    let service = service(&time, 0);
    let body = r#"{"attributes":{"k":"x"}}"#;
    for remaining in [1, 0] {
        let answer = json(&service, body).await;
        assert_eq!((&answer["allowed"], answer.get("permit")), (&true.into(), None));
        assert_eq!(answer["limits"][0]["remaining"], remaining);
    }
    let denied = json(&service, body).await;
    assert_eq!((&denied["allowed"], &denied["retry_after_ms"]), (&false.into(), &1_000.into()));
    assert_eq!(denied["limits"][0]["retry_after_ms"], 30_000);
    time.advance(Duration::from_secs(30));
    assert_eq!(json(&service, body).await["allowed"], true);
}

/// An expired permit that is released late frees no other caller's permit.
#[tokio::test]
async fn a_late_release_changes_nothing() {
    let time = ManualClock::new();
    let service = service(&time, 100);
    let body = r#"{"attributes":{"k":"x"}}"#;
    let late = json(&service, body).await["permit"].as_str().and_then(Id::parse).unwrap();
    time.advance(Duration::from_secs(30));
    for _ in 0..2 {
        json(&service, body).await;
    }
    assert!(matches!(release(&service, late).await, Ok(HttpAnswer::Done)));
    assert_eq!(json(&service, body).await["allowed"], false);
}

/// Without room for another reservation nothing is charged, and the caller gets an error.
#[tokio::test]
async fn a_reservation_without_room_charges_nothing() {
    let time = ManualClock::new();
    let service = service(&time, 0);
    let body = br#"{"attributes":{"t":"x"},"cost":3}"#;
    let problem = reserve(&service, &JsonRequest::reservation(body).unwrap()).await.unwrap_err();
    assert_eq!(problem.kind, Kind::TooManyReservations);
    let look = json(&service, r#"{"attributes":{"t":"x"},"cost":0}"#).await;
    assert_eq!(look["limits"][0]["remaining"], 5);
}

/// One tick before its end a reservation can be settled, and at its end it cannot.
#[tokio::test]
async fn a_reservation_expires_on_its_tick() {
    let time = ManualClock::new();
    let service = service(&time, 100);
    let ids = reserved(&service, r#"{"attributes":{"t":"x"},"ttl_ms":1000}"#).await;
    time.advance(Duration::from_micros(999_999));
    assert!(commit(&service, ids[0], 1).await.is_ok());
    time.advance(Duration::from_micros(1));
    assert_eq!(commit(&service, ids[1], 1).await.unwrap_err().kind, Kind::ReservationExpired);
    assert_eq!(cancel(&service, ids[0]).await.unwrap_err().kind, Kind::ReservationSettled);
}

/// Regression: a reservation that waited in the queue longer than its `ttl_ms` was forgotten before its slot came, so
/// it could be neither committed nor cancelled. Its lifetime begins with its slot, and the answer says so.
#[tokio::test]
async fn a_reservation_that_waits_expires_after_its_turn() {
    let time = ManualClock::new();
    let service = service(&time, 100);
    let json_request = JsonRequest::reservation(br#"{"attributes":{"l":"x"},"ttl_ms":1000}"#).unwrap();
    let mut ids = Vec::new();
    for (wait, expires_after) in [(None, 1_000), (Some(60_000), 61_000), (Some(120_000), 121_000)] {
        let answer = decided(reserve(&service, &json_request).await);
        assert_eq!(answer["wait_ms"].as_u64(), wait, "{answer}");
        assert_eq!(answer["expires_after_ms"], expires_after);
        ids.push(answer["reservation"].as_str().and_then(Id::parse).unwrap());
    }
    time.advance(Duration::from_secs(1));
    assert_eq!(commit(&service, ids[0], 1).await.unwrap_err().kind, Kind::ReservationExpired);
    // The last waiter cancels before its slot, and the next request gets that slot.
    assert!(matches!(cancel(&service, ids[2]).await, Ok(HttpAnswer::Done)));
    let next = decided(reserve(&service, &json_request).await);
    assert_eq!((&next["wait_ms"], &next["expires_after_ms"]), (&119_000.into(), &120_000.into()));
    time.advance(Duration::from_micros(60_000_000 - 1));
    let settled = commit(&service, ids[1], 1).await;
    assert!(
        matches!(settled, Ok(HttpAnswer::Settled(settled)) if settled == tollgate::engine::Settled::default())
    );
    let next = next["reservation"].as_str().and_then(Id::parse).unwrap();
    time.advance(Duration::from_micros(60_000_001));
    assert_eq!(commit(&service, next, 1).await.unwrap_err().kind, Kind::ReservationExpired);
}

/// Regression: a commit, a cancel or a release that met an unreachable store lost its id. The id is valid again when
/// the store is back.
#[tokio::test]
async fn a_permit_that_a_failing_store_did_not_release_is_still_held() {
    let (time, down) = (ManualClock::new(), Arc::new(AtomicBool::new(false)));
    let store = Flaky { memory: MemoryStore::new(1 << 20, time.now()), down: Arc::clone(&down) };
    let policy = Policy::compile("test", POLICY).unwrap();
    let service = Service::new(Engine::builder().policy(policy).store(store).build(), time.clock());
    let ids = reserved(&service, r#"{"attributes":{"t":"x"},"cost":2}"#).await;
    let taken = json(&service, r#"{"attributes":{"k":"x"}}"#).await;
    let permit = taken["permit"].as_str().and_then(Id::parse).unwrap();
    down.store(true, Ordering::SeqCst);
    let problems = [
        commit(&service, ids[0], 1).await.unwrap_err(),
        cancel(&service, ids[1]).await.unwrap_err(),
        release(&service, permit).await.unwrap_err(),
    ];
    assert!(problems.iter().all(|problem| problem.kind == Kind::StoreUnavailable), "{problems:?}");
    down.store(false, Ordering::SeqCst);
    assert!(commit(&service, ids[0], 1).await.is_ok());
    assert!(cancel(&service, ids[1]).await.is_ok());
    assert!(release(&service, permit).await.is_ok());
    let look = json(&service, r#"{"attributes":{"t":"x","k":"x"},"cost":0}"#).await;
    assert_eq!((&look["limits"][0]["remaining"], &look["limits"][1]["remaining"]), (&2.into(), &4.into()));
    assert_eq!(commit(&service, ids[0], 1).await.unwrap_err().kind, Kind::ReservationSettled);
}
