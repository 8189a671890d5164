//! Permits: taken, given back, renewed and expired.

use super::*;

const T0: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

fn permits(limit: u64) -> Concurrency {
    Concurrency::new(limit, Ticks::from_secs(30)).unwrap()
}

fn after(seconds: u64) -> Timestamp {
    T0 + Ticks::from_secs(seconds)
}

/// Permits 0, 1, 2, … taken at the given seconds with the given units.
fn taken(quota: &Concurrency, hits: &[(u64, u64)]) -> State {
    let numbered = (0..).map(PermitId).zip(hits);
    numbered.fold(State::default(), |state, (id, &(seconds, cost))| {
        let (next, outcome) = charge(quota, state, after(seconds), cost, id);
        assert!(outcome.is_allowed());
        next
    })
}

fn remaining(quota: &Concurrency, state: &State, now: Timestamp) -> u64 {
    charge(quota, state.clone(), now, 0, PermitId(99)).1.remaining
}

/// Retry advice is exact for every cost: one tick early is denied, on the tick enough permits have expired.
#[test]
fn every_returned_time_is_exact_to_the_tick() {
    let quota = permits(10);
    let state = taken(&quota, &[(0, 2), (5, 3), (5, 1), (9, 4)]);
    for cost in 1..=10 {
        let (state, denied) = charge(&quota, state.clone(), after(10), cost, PermitId(99));
        let retry_at = after(10) + denied.verdict.retry_after().unwrap();
        let at = |now| charge(&quota, state.clone(), now, cost, PermitId(99)).1.is_allowed();
        assert!(!at(retry_at - Ticks::ONE) && at(retry_at));
    }
    let look = charge(&quota, state.clone(), after(10), 0, PermitId(99)).1;
    assert_eq!((look.remaining, look.next_unit_after), (0, after(30).since(after(10))));
    assert_eq!(look.reset_after, after(39).since(after(10)));
    assert_eq!(idle_at(&quota, &state), after(39));
    assert_eq!(remaining(&quota, &state, after(39)), 10);
}

/// A release frees units at once, and only once; an expired permit has already come back.
#[test]
fn release_is_idempotent() {
    let quota = permits(3);
    let state = taken(&quota, &[(0, 2), (1, 1)]);
    let (state, released) = release(&quota, state, after(2), PermitId(0));
    assert!(released);
    assert_eq!(remaining(&quota, &state, after(2)), 2);
    let (state, again) = release(&quota, state, after(2), PermitId(0));
    assert!(!again);
    let (state, expired) = release(&quota, state, after(31), PermitId(1));
    assert!(!expired);
    assert_eq!(remaining(&quota, &state, after(31)), 3);
}

/// A renewed permit gets a new life and takes no further unit, but only while it lives; also where there is no room
/// for another.
#[test]
fn a_renewed_permit_lives_anew() {
    let quota = permits(3);
    let state = taken(&quota, &[(0, 2), (1, 1)]);
    let (state, renewed) = renew(&quota, state, after(20), PermitId(0));
    assert!(renewed);
    assert_eq!((remaining(&quota, &state, after(20)), remaining(&quota, &state, after(31))), (0, 1));
    assert_eq!((idle_at(&quota, &state), remaining(&quota, &state, after(50))), (after(50), 3));
    for gone in [PermitId(1), PermitId(7)] {
        let (unchanged, renewed) = renew(&quota, state.clone(), after(31), gone);
        assert_eq!((unchanged, renewed), (state.clone(), false), "{gone:?}");
    }
}

/// A permit that is charged again holds both charges and is renewed: that counts against the caller, and one
/// release frees both.
#[test]
fn a_permit_charged_again_is_added_to() {
    let quota = permits(3);
    let state = taken(&quota, &[(0, 1)]);
    let (state, outcome) = charge(&quota, state, after(10), 2, PermitId(0));
    assert_eq!((outcome.remaining, idle_at(&quota, &state)), (0, after(40)));
    let (state, released) = release(&quota, state, after(11), PermitId(0));
    assert!(released);
    assert_eq!(state, State::default());
}

/// Neither a denial nor a look changes anything; a cost above the limit never passes.
#[test]
fn denials_and_looks_change_nothing() {
    let quota = permits(3);
    let state = taken(&quota, &[(0, 2), (1, 1)]);
    for (cost, now) in [(1, after(2)), (3, after(30)), (0, after(90)), (4, after(90))] {
        assert_eq!(charge(&quota, state.clone(), now, cost, PermitId(7)).0, state);
    }
    let verdict = charge(&quota, state, after(90), 4, PermitId(7)).1.verdict;
    assert_eq!(verdict, Verdict::Never);
}

/// A refund returns part of a permit, which keeps the rest until its expiry.
#[test]
fn refunds_give_back_a_part() {
    let quota = permits(5);
    let state = taken(&quota, &[(0, 5)]);
    let state = refund(&quota, state, after(1), PermitId(0), 3);
    assert_eq!(remaining(&quota, &state, after(1)), 3);
    assert_eq!(idle_at(&quota, &state), after(30));
    assert_eq!(refund(&quota, state.clone(), after(1), PermitId(0), 3), State::default());
    assert_eq!(refund(&quota, state.clone(), after(1), PermitId(8), 3), state);
}

/// After the clock steps back no permit expires early, and none lives longer than two lives.
#[test]
fn steps_back_prolong_by_one_life_at_most() {
    let quota = permits(2);
    let state = taken(&quota, &[(0, 1), (20, 1)]);
    let (state, denied) = charge(&quota, state, T0 - Ticks::from_secs(10), 1, PermitId(9));
    assert_eq!(denied.verdict.retry_after(), Some(Ticks::from_secs(40)));
    let long_ago = T0 - Ticks::from_secs(86_400);
    let two_lives = quota.ttl() + quota.ttl();
    let (state, denied) = charge(&quota, state, long_ago, 1, PermitId(9));
    assert_eq!(denied.verdict.retry_after(), Some(two_lives));
    assert_eq!(idle_at(&quota, &state), long_ago + two_lives);
    assert_eq!(remaining(&quota, &state, long_ago + two_lives), 2);
}

/// A live change keeps permits in flight: raising applies at once, lowering waits until enough have come back.
#[test]
fn changed_limits_keep_permits() {
    let state = taken(&permits(5), &[(0, 2), (1, 2)]);
    let raised = inherit(&permits(9), &permits(5), state.clone(), after(2));
    assert_eq!(remaining(&permits(9), &raised, after(2)), 5);
    let lowered = inherit(&permits(2), &permits(9), raised, after(2));
    let look = charge(&permits(2), lowered.clone(), after(2), 0, PermitId(9)).1;
    assert_eq!((look.remaining, look.next_unit_after), (0, after(31).since(after(2))));
    let shorter = Concurrency::new(5, Ticks::from_secs(1)).unwrap();
    let kept = inherit(&shorter, &permits(2), lowered.clone(), after(2));
    assert_eq!(kept, lowered);
    let (drawn_back, _) = charge(&shorter, kept, after(2), 0, PermitId(9));
    assert_eq!(idle_at(&shorter, &drawn_back), after(4));
}

/// A list that becomes an index, and an index that becomes a list again, have the same permits. Released permits
/// use no memory any more, and a single permit never uses any.
#[test]
fn permits_are_the_same_however_they_are_kept() {
    let quota = permits(1_000);
    let mut state = State::default();
    let mut expected = Vec::new();
    for id in 0..200 {
        state = charge(&quota, state, after(id / 10), 1 + id % 3, PermitId(id ^ 0x55)).0;
        expected.push((PermitId(id ^ 0x55), 1 + id % 3, after(id / 10 + 30)));
        let mut listed: Vec<_> = state.permits().collect();
        assert!(listed.is_sorted_by_key(|&(_, _, expires_at)| expires_at));
        listed.sort();
        expected.sort();
        assert_eq!(listed, expected);
        assert_eq!(state, State::from_permits(state.permits()).unwrap());
    }
    assert!(matches!(state.0, Permits::Many(_)));
    while let Some((id, ..)) = expected.pop() {
        let (next, released) = release(&quota, state, after(20), id);
        assert!(released);
        state = next;
        assert_eq!(state, State::from_permits(state.permits()).unwrap());
        assert_eq!(remaining(&quota, &state, after(20)), 1_000 - expected.iter().map(|e| e.1).sum::<u64>());
        assert!(state.heap_bytes() <= 512 + 2 * 80 * expected.len() as u64, "{}", state.heap_bytes());
    }
    assert_eq!((state.heap_bytes(), taken(&quota, &[(0, 5)]).heap_bytes()), (0, 0));
}

/// Numbers out of range are rejected.
#[test]
fn numbers_out_of_range_are_refused() {
    let second = Ticks::from_secs(1);
    assert!(Concurrency::new(PERMITS_MAX, TTL_MAX).is_ok());
    for (limit, ttl) in [(0, second), (PERMITS_MAX + 1, second), (1, Ticks::ZERO), (1, TTL_MAX + Ticks::ONE)]
    {
        assert!(matches!(Concurrency::new(limit, ttl), Err(QuotaError::Range { .. })));
    }
}
