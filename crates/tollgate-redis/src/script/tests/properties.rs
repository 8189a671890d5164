//! The differential test for histories that proptest shrinks to the shortest failing one.

use std::sync::{Arc, LazyLock};

use proptest::prelude::*;
use tokio::runtime::Runtime;
use tollgate::policy::{Cost, Limit};
use tollgate::{CheckRequest, Engine, Policy, Ticks, Timestamp};

use super::direct::quotas;
use super::server::Server;
use super::twin::Twin;

const START: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

/// Lifetime of a reservation: longer than any counter.
const LIFETIME: Ticks = Ticks::from_secs(400 * 86_400);

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());

/// An operation at one instant.
#[derive(Clone, Copy, Debug)]
enum Act {
    Check(u64),
    Peek,
    /// So many units, charged at most so many microseconds ago.
    Refund(u64, u64),
    Reset,
    Reserve(u64),
    /// Settles one of the open reservations at an actual cost; cancels it without one.
    Settle(usize, Option<u64>),
}

fn acts() -> impl Strategy<Value = Vec<(i64, Act)>> {
    let cost = prop_oneof![Just(1u64), 0u64..13, Just(u64::MAX >> 11)];
    let age = prop_oneof![2 => Just(0u64), 4 => 0u64..30_000_000, 2 => 0u64..4_000_000_000_000, 1 => Just(u64::MAX)];
    let act = prop_oneof![
        8 => cost.clone().prop_map(Act::Check),
        1 => Just(Act::Peek),
        4 => (cost.clone(), age).prop_map(|(units, age)| Act::Refund(units, age)),
        1 => Just(Act::Reset),
        6 => cost.clone().prop_map(Act::Reserve),
        6 => (0usize..8, prop::option::of(0u64..13)).prop_map(|(which, actual)| Act::Settle(which, actual)),
    ];
    // From a tick to two months, forward and back.
    let time = prop_oneof![4 => 0i64..4, 4 => 0i64..20_000_000, 1 => 0i64..6_000_000_000_000, 2 => -90_000_000i64..0];
    prop::collection::vec((time, act), 1..40)
}

async fn play(server: &Arc<Server>, places: &[usize], acts: &[(i64, Act)]) {
    let all = quotas();
    let limits = places.iter().enumerate().map(|(number, &place)| {
        let quota = all[place % all.len()].1.clone();
        Limit::new(&number.to_string(), quota).by(["key"]).cost(Cost::Asked)
    });
    let policy = Policy::new(limits.collect()).unwrap();
    let engine = Engine::builder().policy(policy).store(Twin::new(server, START)).build();
    let mut now = START.unix_micros().cast_signed();
    let mut reservations = Vec::new();
    for &(step, act) in acts {
        // Memory goes back one day before the start.
        now = (now + step).max(START.unix_micros().cast_signed() - 86_400_000_000);
        let at = Timestamp::from_unix_micros(now.cast_unsigned());
        let request = |cost| CheckRequest::new().with("key", "k").unwrap().cost(cost).unwrap();
        match act {
            Act::Check(cost) => drop(engine.check(&request(cost), at).await),
            Act::Peek => drop(engine.operator().peek(&request(1), at).await),
            Act::Refund(units, age) => {
                engine.ledger().refund(&request(units), &[], Ticks::from_micros(age), at).await.unwrap()
            }
            Act::Reserve(cost) => {
                reservations.extend(engine.reservations().reserve(&request(cost), LIFETIME, at).await.1);
            }
            Act::Settle(_, _) if reservations.is_empty() => {}
            Act::Settle(which, actual) => {
                let mut reservation = reservations.swap_remove(which % reservations.len());
                let _ = match actual {
                    Some(actual) => engine.reservations().commit(&mut reservation, actual, at).await,
                    None => engine.reservations().cancel(&mut reservation, at).await,
                };
            }
            Act::Reset => drop(engine.operator().reset(&request(0), &[], at + Ticks::ONE).await.unwrap()),
        }
    }
}

/// For any history of one to three limits, the script answers as memory does.
#[test]
fn any_history_is_answered_as_in_memory() {
    let server = Arc::new(RUNTIME.block_on(Server::start()));
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|said| said.parse().ok()).unwrap_or(150);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(cases));
    let histories = (prop::collection::vec(0usize..12, 1..4), acts());
    let played = runner.run(&histories, |(places, acts)| {
        let server = Arc::clone(&server);
        let played = RUNTIME
            .block_on(async move { tokio::spawn(async move { play(&server, &places, &acts).await }).await });
        played.map_err(|panic| TestCaseError::fail(panic.to_string()))
    });
    if let Err(failure) = played {
        panic!("{failure}");
    }
}
