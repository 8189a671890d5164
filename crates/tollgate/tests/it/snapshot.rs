//! Counters written down and read again: an engine that was restarted decides as one that was not.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use tollgate::algorithm::calendar::{Calendar, CalendarUnit};
use tollgate::algorithm::fixed_window::Align;
use tollgate::engine::{RestoreError, RestoreReport, SNAPSHOT_PART_BYTES_MAX, SnapshotError};
use tollgate::policy::{Limit, LimitBuilder, Mode};
use tollgate::time::WallOffset;
use tollgate::{
    Decision, Engine, MemoryStore, Outcome, Permit, Policy, Quota, Rate, Secret, Snapshot, Source,
    SwapReport, Ticks, Timestamp,
};

use crate::fixture::{ALGORITHMS, HOUR, NOW, asking, bucket, limit, now_or_never, permits, policy};

const CAPACITY: u64 = 4 << 20;
const DAY: Ticks = Ticks::from_secs(86_400);

fn engine(limits: Vec<LimitBuilder>, now: Timestamp) -> Engine {
    Engine::builder().policy(policy(limits)).store(MemoryStore::new(CAPACITY, now)).build()
}

fn written(engine: &Engine, now: Timestamp) -> Vec<u8> {
    let mut bytes = Vec::new();
    let report = engine.maintenance().snapshots().write(now, &mut bytes).expect("memory takes everything");
    assert_eq!(report.bytes, bytes.len() as u64);
    bytes
}

fn read(
    bytes: &[u8],
    policy: Policy,
    now: Timestamp,
) -> Result<(Engine, RestoreReport, SwapReport), RestoreError> {
    let snapshot = Snapshot::read(CAPACITY, now, &mut &*bytes)?;
    let report = snapshot.report();
    let (engine, limits) = snapshot.restore(policy, |memory| memory, now).expect("few quotas are in use");
    Ok((engine, report, limits))
}

/// Why bytes are no snapshot.
fn refused(bytes: &[u8]) -> RestoreError {
    Snapshot::read(128 << 10, NOW, &mut &*bytes).expect_err("it is wrong")
}

fn restored(
    engine: &Engine,
    limits: Vec<LimitBuilder>,
    now: Timestamp,
) -> (Engine, RestoreReport, SwapReport) {
    read(&written(engine, now), policy(limits), now).expect("it was just written")
}

fn shown(decision: &Decision) -> Vec<(String, Outcome, Source)> {
    decision.limits().map(|status| (status.limit.name().to_owned(), status.outcome, status.source)).collect()
}

fn remaining(engine: &Engine, key: &str, now: Timestamp) -> u64 {
    let look = now_or_never(engine.operator().peek(&asking(key, 1), now));
    look.limits().next().expect("there is a limit").outcome.remaining
}

/// SplitMix64: a failure repeats by its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (word ^ (word >> 31)) % most
    }

    /// One request of random traffic: a key, a cost, and the time since the one before.
    fn request(&mut self) -> (String, u64, Ticks) {
        let gap = [0, 1, 1_000, 60_000_000, 600_000_000][usize::try_from(self.below(5)).expect("five")];
        (format!("k-{}", self.below(12)), self.below(4), Ticks::from_micros(gap))
    }
}

/// All algorithms at once, each in a limit of its own, so many units each; one in shadow, and one that is often left out.
fn everything(random: &mut Random) -> Vec<LimitBuilder> {
    let mut limits = Vec::new();
    for (index, (name, quota)) in ALGORITHMS.into_iter().enumerate() {
        if random.below(12) == 0 {
            continue; // The limit is gone, or not there yet.
        }
        let made = Limit::new(name, quota(5 + random.below(60))).by(["key"]);
        limits.push(if index % 4 == 3 { made.mode(Mode::Shadow) } else { made });
    }
    limits
}

fn copy(limits: impl Fn() -> Vec<LimitBuilder>) -> [Policy; 2] {
    [policy(limits()), policy(limits())]
}

/// Random traffic through random policies, then a snapshot and a restart; from there both engines get the same requests, and in
/// between the same policies. Every answer is the same, to the tick.
#[test]
fn a_restarted_engine_decides_as_one_that_was_not() {
    let mut compared = 0u64;
    for seed in 0..60u64 {
        let mut random = Random(seed);
        let mut now = NOW;
        let policies = |seed: u64| copy(move || everything(&mut Random(seed)));
        let first = policies(seed << 32);
        let [initial, _] = first;
        let old = Engine::builder()
            .policy(initial)
            .store(MemoryStore::new(CAPACITY, now))
            .secret(Secret::repeatable(seed))
            .build();
        for step in 0..random.below(400) {
            let (key, cost, gap) = random.request();
            now = now + gap;
            let _ = old.try_check(&asking(&key, cost), now).unwrap();
            if random.below(60) == 0 {
                let [next, _] = policies((seed << 32) + 1_000 + step);
                old.swap(next, now).expect("few quotas are in use");
            }
        }
        // A restart with the same policy, or with another one: to the engine that lives on, a swap.
        now = now + Ticks::from_secs([0, 1, 4_000][usize::try_from(random.below(3)).expect("three")]);
        let bytes = written(&old, now);
        let [for_old, for_new] = policies((seed << 32) + random.below(2) * 999_999);
        old.swap(for_old, now).expect("few quotas are in use");
        let (new, report, _) = read(&bytes, for_new, now).expect("it was just written");
        assert_eq!((report.dropped, report.taken_at), (0, now), "seed {seed}");
        for step in 0..200 {
            let (key, cost, gap) = random.request();
            now = now + gap;
            let [one, two] =
                [&old, &new].map(|engine| shown(&engine.try_check(&asking(&key, cost), now).unwrap()));
            assert_eq!(one, two, "seed {seed}, step {step}");
            compared += 1;
            if random.below(50) == 0 {
                let [for_old, for_new] = policies((seed << 32) + 5_000 + step);
                old.swap(for_old, now).expect("few quotas are in use");
                new.swap(for_new, now).expect("few quotas are in use");
            }
        }
    }
    assert_eq!(compared, 60 * 200);
}

/// The story that snapshots are for: a month's quota stays used over a restart, even one with another policy, and even if the
/// new process starts at once.
#[test]
fn a_months_quota_stays_used() {
    let monthly = |units| {
        let calendar = Calendar::new(CalendarUnit::Month, "Europe/Rome").expect("Rome is there");
        let quota = Quota::fixed_window(Rate::per_month(units), Align::Calendar(calendar)).expect("valid");
        vec![limit("monthly", quota)]
    };
    let before = engine(monthly(1_000), NOW);
    assert!(before.try_check(&asking("acme", 990), NOW).unwrap().is_allowed());
    let (same, report, limits) = restored(&before, monthly(1_000), NOW + DAY);
    assert_eq!((report.keys, report.idle, limits), (1, 0, SwapReport::default()));
    assert_eq!(remaining(&same, "acme", NOW + DAY), 10);
    let (raised, _, limits) = restored(&same, monthly(1_100), NOW + DAY);
    assert_eq!(limits.changed, ["monthly"]);
    assert_eq!(remaining(&raised, "acme", NOW + DAY), 110);
    // With the next month it is over, and the counter is not even kept.
    let next_month = NOW + Ticks::from_secs(40 * 86_400);
    let (later, report, _) =
        read(&written(&same, NOW + DAY), policy(monthly(1_000)), next_month).expect("written");
    assert_eq!((report.keys, report.idle), (0, 1));
    assert_eq!(remaining(&later, "acme", next_month), 1_000);
}

/// A quota that was slowed shortly before the restart: a counter without requests since is held, and is held on after it. For every
/// algorithm, an engine that lives on and one that was restarted agree at every instant of the longer memory.
#[test]
fn slowed_quotas_are_held_over_a_restart() {
    let slow = |units| Quota::token_bucket(Rate::per_day(units).burst(units)).expect("valid");
    let old = engine(vec![bucket("limit", 60)], NOW);
    assert!(old.try_check(&asking("quiet", 60), NOW).unwrap().is_allowed());
    let slowed = NOW + Ticks::from_secs(60);
    old.swap(policy(vec![limit("limit", slow(60))]), slowed).expect("few quotas are in use");
    // By the old quota it is idle after an hour; by the new one a unit takes 24 minutes.
    let restart = NOW + HOUR + HOUR;
    let (new, report, _) = restored(&old, vec![limit("limit", slow(60))], restart);
    assert_eq!((report.keys, report.idle), (1, 0));
    for minutes in [0, 10, 600, 1_200, 1_500] {
        let at = restart + Ticks::from_secs(60 * minutes);
        assert_eq!(remaining(&new, "quiet", at), remaining(&old, "quiet", at), "after {minutes} minutes");
    }
    assert!(remaining(&new, "quiet", restart) < 10, "the hold was forgotten, and a day's quota gifted");
    // A second restart finds the hold again.
    let again = restart + HOUR;
    let (third, _, _) = restored(&new, vec![limit("limit", slow(60))], again);
    assert_eq!(remaining(&third, "quiet", again), remaining(&old, "quiet", again));
    // And slowing it by the restart itself is the same as by a swap.
    let old = engine(vec![bucket("limit", 60)], NOW);
    assert!(old.try_check(&asking("quiet", 60), NOW).unwrap().is_allowed());
    let (new, _, _) = restored(&old, vec![limit("limit", slow(60))], slowed);
    old.swap(policy(vec![limit("limit", slow(60))]), slowed).expect("few quotas are in use");
    for hours in [0, 1, 2, 20] {
        let at = slowed + Ticks::from_secs(3_600 * hours);
        let filler = asking("other", 1);
        assert_eq!(shown(&new.try_check(&filler, at).unwrap()), shown(&old.try_check(&filler, at).unwrap()));
        assert_eq!(remaining(&new, "quiet", at), remaining(&old, "quiet", at), "after {hours} hours");
    }
}

/// Places in flight are in flight after a restart. A permit of before can be given back, and one of after has a name of its own.
#[test]
fn permits_survive() {
    let old = engine(vec![permits("in-flight", 3)], NOW);
    let take = |engine: &Engine| -> Permit {
        engine.try_check(&asking("k", 1), NOW).unwrap().take_permit().expect("there is a permit")
    };
    let early = take(&old);
    let (new, _, _) = restored(&old, vec![permits("in-flight", 3)], NOW);
    assert_eq!(remaining(&new, "k", NOW), 2);
    let late = take(&new);
    assert_ne!(early.id(), late.id(), "two permits of one name would be one");
    assert_eq!(now_or_never(new.reservations().release(&late, NOW)), Ok(()));
    assert_eq!(remaining(&new, "k", NOW), 2, "the early permit was given back with the late one");
    assert_eq!(now_or_never(new.reservations().release(&early, NOW)), Ok(()));
    assert_eq!(remaining(&new, "k", NOW), 3);
}

/// A limit that was gone before the restart, and one that goes with it, find their counters when they come back.
#[test]
fn limits_that_are_gone_are_remembered() {
    let old = engine(vec![bucket("one", 10), bucket("two", 10)], NOW);
    assert!(old.try_check(&asking("k", 4), NOW).unwrap().is_allowed());
    old.swap(policy(vec![bucket("two", 10)]), NOW).expect("few quotas are in use");
    let (new, _, limits) = restored(&old, vec![bucket("three", 10)], NOW);
    assert_eq!((limits.added, limits.removed), (vec!["three".to_owned()], vec!["two".to_owned()]));
    let (new, _, _) = restored(&new, vec![bucket("one", 10), bucket("two", 20)], NOW);
    let decision = now_or_never(new.operator().peek(&asking("k", 1), NOW));
    let left: Vec<u64> = decision.limits().map(|status| status.outcome.remaining).collect();
    assert_eq!(left, [6, 6], "{:?}", shown(&decision));
}

/// The longest wait that `docs/restarts.md` states for a client after a restart with the clock set back, of quotas of an hour.
fn longest_wait(quota: &Quota) -> Ticks {
    match quota {
        Quota::TokenBucket(_) | Quota::Gcra(_) | Quota::LeakyBucket(_) => HOUR,
        Quota::FixedWindow(_) | Quota::SlidingLog(_) | Quota::Concurrency(_) => HOUR + HOUR,
        Quota::SlidingWindow(window) => HOUR + HOUR + window.sub_window(),
    }
}

/// A clock that is behind after the restart, by seconds, years, or back at its beginning: no burst is gifted, and no caller waits
/// longer than is stated, which for windows is more than one of them. One that is ahead: that much time has passed. So it is for every algorithm, and for the machine of
/// another node whose clock differs.
#[test]
fn clocks_that_jump_gift_nothing() {
    let behind = [1, 3_600, 86_400 * 365, 86_400 * 365 * 10, 1_699_999_999];
    for (name, quota) in ALGORITHMS {
        // The wide bucket refills in microseconds; all others take an hour.
        let old = engine(vec![limit("limit", quota(50))], NOW);
        assert!(old.try_check(&asking("k", 50), NOW).unwrap().is_allowed());
        let bytes = written(&old, NOW);
        for seconds in behind {
            let now = NOW - Ticks::from_secs(seconds);
            let (new, report, _) =
                read(&bytes, policy(vec![limit("limit", quota(50))]), now).expect("written");
            assert!(report.taken_at > now && report.keys == 1, "{name}, {seconds} s behind: {report:?}");
            assert_eq!(remaining(&new, "k", now), 0, "{name}, {seconds} s behind");
            let denied = new.try_check(&asking("k", 1), now).unwrap();
            let wait = denied.retry_after().expect("nothing is left, and waiting cures it");
            assert!(wait <= longest_wait(&quota(50)), "{name}, {seconds} s behind: {wait:?}");
            let is_window = !quota(50).is_reservoir();
            if seconds > 3_600 {
                assert_eq!(wait > HOUR, is_window, "{name}, {seconds} s behind: {wait:?}");
            }
            assert!(
                new.try_check(&asking("k", 1), now + wait).unwrap().is_allowed(),
                "{name}, {seconds} s behind"
            );
        }
        let ahead = NOW + Ticks::from_secs(86_400 * 365 * 20);
        let (new, report, _) = read(&bytes, policy(vec![limit("limit", quota(50))]), ahead).expect("written");
        assert_eq!((report.keys, report.idle), (0, 1), "{name}");
        assert!(new.try_check(&asking("k", 50), ahead).unwrap().is_allowed(), "{name}");
    }
}

/// The story: words count from a year before the store was made, for six years; restarted every month, a counter would one day
/// have run out of time. It counts from each restart anew.
#[test]
fn a_life_of_restarts_never_runs_out_of_time() {
    let gcra = || vec![limit("limit", Quota::gcra(Rate::per_month(10)).expect("valid"))];
    let mut now = NOW;
    let mut engine = engine(gcra(), now);
    for month in 0..240 {
        assert!(engine.try_check(&asking("k", 10), now).unwrap().is_allowed(), "month {month}");
        assert_eq!(remaining(&engine, "k", now), 0, "month {month}");
        engine = restored(&engine, gcra(), now).0;
        assert_eq!(remaining(&engine, "k", now), 0, "month {month}");
        now = now + Ticks::from_secs(30 * 86_400);
    }
}

/// Under load nothing is gifted: what a key had been admitted when the snapshot began is in it, and nothing that never was.
#[test]
fn under_load_no_counter_is_gifted() {
    const KEYS: usize = 3_000;
    let month =
        |name| limit(name, Quota::fixed_window(Rate::per_month(1 << 40), Align::Epoch).expect("valid"));
    let limits = || vec![month("pairs"), bucket("words", 1 << 30), limit("large", ALGORITHMS[5].1(1 << 20))];
    let engine = engine(limits(), NOW);
    let admitted: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    let counts = || admitted.iter().map(|count| count.load(Ordering::SeqCst)).collect::<Vec<u64>>();
    thread::scope(|scope| {
        for thread in 0..2u64 {
            let (engine, admitted, stop) = (&engine, &admitted, &stop);
            scope.spawn(move || {
                let mut random = Random(thread);
                while !stop.load(Ordering::Relaxed) {
                    // New keys all the time, so that the tables grow while they are read.
                    let key = usize::try_from(random.below(KEYS as u64)).expect("small");
                    assert!(engine.try_check(&asking(&format!("k-{key}"), 1), NOW).unwrap().is_allowed());
                    admitted[key].fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for _ in 0..12 {
            let before = counts();
            let bytes = written(&engine, NOW);
            let after = counts();
            let (new, report, _) = read(&bytes, policy(limits()), NOW).expect("written");
            assert_eq!(report.dropped, 0);
            for key in 0..KEYS {
                let look = now_or_never(new.operator().peek(&asking(&format!("k-{key}"), 0), NOW));
                for status in look.limits() {
                    let used = status.outcome.limit - status.outcome.remaining;
                    let name = status.limit.name();
                    assert!(used >= before[key], "{name}: {used} of {} admitted before", before[key]);
                    // Each of the two threads may be between its admission and its note of it.
                    assert!(used <= after[key] + 2, "{name}: {used} of {} admitted after", after[key]);
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(counts().iter().sum::<u64>() > 10_000, "the load did not run");
}

/// A snapshot during which another policy came into force is refused: it would belong to two.
#[test]
fn a_snapshot_belongs_to_one_policy() {
    /// Swaps once something was written.
    struct Swapping<'e>(&'e Engine, u64);
    impl std::io::Write for Swapping<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.1 += 1;
            if self.1 == 9 {
                self.0.swap(policy(vec![bucket("limit", 20)]), NOW).expect("few quotas are in use");
            }
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let engine = engine(vec![bucket("limit", 10)], NOW);
    assert!(engine.try_check(&asking("k", 1), NOW).unwrap().is_allowed());
    let refused = engine
        .maintenance()
        .snapshots()
        .write(NOW, &mut Swapping(&engine, 0))
        .expect_err("the policy changed");
    assert!(matches!(refused, SnapshotError::PolicyChanged), "{refused}");
}

/// A smaller store takes what it has room for, and says what it had none for. One of the same size takes everything, however
/// full the first was.
#[test]
fn dropped_counters_are_reported() {
    let old = engine(vec![bucket("words", 10), limit("pairs", ALGORITHMS[3].1(10))], NOW);
    for key in 0..100_000 {
        let _ = old.try_check(&asking(&format!("k-{key}"), 1), NOW).unwrap();
    }
    let bytes = written(&old, NOW);
    let usage = old.store().usage(NOW);
    let limits = || policy(vec![bucket("words", 10), limit("pairs", ALGORITHMS[3].1(10))]);
    let (same, report, _) = read(&bytes, limits(), NOW).expect("written");
    assert_eq!((report.keys + report.dropped, report.overflow_keys), (usage.keys, usage.overflow_keys));
    assert!(report.dropped <= usage.keys / 50, "{report:?} of {usage:?}");
    assert_eq!(same.store().usage(NOW).keys, report.keys);
    let small = Snapshot::read(1 << 20, NOW, &mut &*bytes).expect("written");
    let report = small.report();
    let (small, _) = small.restore(limits(), |memory| memory, NOW).expect("few quotas are in use");
    assert!(report.dropped > 0 && report.keys > 1_000, "{report:?}");
    assert_eq!(small.store().usage(NOW).keys, report.keys);
    assert!(small.store().usage(NOW).bytes <= 1 << 20);
}

/// A small snapshot with every kind of state in it.
fn sample() -> Vec<u8> {
    let limits = ALGORITHMS.map(|(name, quota)| limit(name, quota(50)));
    let engine = engine(limits.into(), NOW);
    for key in ["a", "b"] {
        assert!(engine.try_check(&asking(key, 3), NOW).unwrap().is_allowed());
    }
    written(&engine, NOW)
}

/// However much of a snapshot is missing, it is refused, and says so.
#[test]
fn a_snapshot_that_was_cut_off_is_refused() {
    let bytes = sample();
    for length in 0..bytes.len() {
        let refused = refused(&bytes[..length]);
        assert!(matches!(refused, RestoreError::Truncated { .. }), "cut at {length}: {refused}");
    }
}

/// One bit changed anywhere is noticed.
#[test]
fn a_snapshot_that_was_changed_is_refused() {
    let bytes = sample();
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        assert!(!refused(&changed).to_string().is_empty(), "a bit changed at byte {at}");
    }
}

/// A file that is no snapshot, has another version, or continues after its end: each has its own error.
#[test]
fn each_unreadable_file_has_its_own_error() {
    let bytes = sample();
    assert!(matches!(refused(b"GIF89a, and a few bytes more"), RestoreError::NotASnapshot));
    let mut newer = bytes.clone();
    newer[8] = 9;
    assert!(matches!(refused(&newer), RestoreError::TooNew { found: 9 }));
    assert!(refused(&newer).to_string().contains("format 9"));
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(refused(&longer).to_string().contains("something follows its end"));
    // A length of four gigabytes with nothing behind it costs nothing to refuse.
    let mut hostile = bytes[..13].to_vec();
    hostile.extend_from_slice(&u32::MAX.to_le_bytes());
    assert!(refused(&hostile).to_string().contains("larger than any can be"));
    hostile[13..].copy_from_slice(&(32u32 << 20).to_le_bytes());
    assert!(matches!(refused(&hostile), RestoreError::Truncated { .. }));
}

/// An empty engine has a snapshot, too.
#[test]
fn nothing_is_restored_as_nothing() {
    let (new, report, _) = restored(&engine(vec![bucket("limit", 10)], NOW), vec![bucket("limit", 10)], NOW);
    assert_eq!((report.keys, report.overflow_keys, report.idle, report.dropped), (0, 0, 0, 0));
    assert_eq!(remaining(&new, "k", NOW), 10);
}

/// A snapshot with every kind of state, as the first format was written.
const FORMAT_1: &[u8] = include_bytes!("snapshot/format-1.snapshot");

/// A snapshot of an older version is read completely.
#[test]
fn the_format_before_is_read() {
    let limits = || policy(ALGORITHMS.map(|(name, quota)| limit(name, quota(50))).into());
    let (older, older_report, _) = read(FORMAT_1, limits(), NOW).expect("it was whole when it was written");
    let (newer, report, _) = read(&sample(), limits(), NOW).expect("it was just written");
    assert_eq!(older_report, report);
    for key in ["a", "b", "never seen"] {
        let look = |engine: &Engine| shown(&now_or_never(engine.operator().peek(&asking(key, 1), NOW)));
        assert_eq!(look(&older), look(&newer), "{key}");
    }
}

/// Parts that the program adds to a snapshot are restored with their keys; a reader that does not ask for them is not disturbed; and
/// what it finds wrong makes the snapshot a damaged one.
#[test]
fn caller_parts_are_restored() {
    let engine = engine(vec![bucket("limit", 10)], NOW);
    assert!(engine.try_check(&asking("k", 4), NOW).unwrap().is_allowed());
    let parts: [&[u8]; 3] = [b"one", b"", &[7; 100_000]];
    let mut bytes = Vec::new();
    engine
        .maintenance()
        .snapshots()
        .write_with(|store| Some(store), NOW, parts, &mut bytes)
        .expect("memory takes everything");

    let mut found = Vec::new();
    let keep = |taken_at: Timestamp, part: &[u8]| {
        found.push((taken_at, part.to_vec()));
        Ok(())
    };
    let snapshot = Snapshot::read_with(CAPACITY, NOW + HOUR, keep, &mut &*bytes).expect("it is whole");
    assert_eq!(found, parts.map(|part| (NOW, part.to_vec())));
    let (next, _) =
        snapshot.restore(policy(vec![bucket("limit", 10)]), |memory| memory, NOW).expect("few quotas");
    let hash = |engine: &Engine, name: &str| engine.ledger().key_family(name).hash(b"key");
    assert_eq!(hash(&engine, "beside"), hash(&next, "beside"));
    assert_ne!(hash(&engine, "beside"), hash(&engine, "other"));

    let (next, report, _) = read(&bytes, policy(vec![bucket("limit", 10)]), NOW).expect("it is whole");
    assert_eq!((report.keys, remaining(&next, "k", NOW)), (1, 6));
    let wrong = |_, part: &[u8]| if part.is_empty() { Err("it is empty".to_owned()) } else { Ok(()) };
    let refused = Snapshot::read_with(CAPACITY, NOW, wrong, &mut &*bytes).expect_err("a part is wrong");
    assert!(refused.to_string().ends_with("it is empty"), "{refused}");
    let large = vec![0; SNAPSHOT_PART_BYTES_MAX as usize + 1];
    assert!(
        engine
            .maintenance()
            .snapshots()
            .write_with(|store| Some(store), NOW, [large], &mut std::io::sink())
            .is_err()
    );
}

/// The story: a server started with a wrong clock, NTP set it two hours forward, and a restart said "counters restored (7202 s old)" of
/// a snapshot that was seconds old: every quota was there again. The snapshot says how far the wall clock is ahead of the clock that
/// counted, and the next process goes on by that clock, over as many steps as there are.
#[test]
fn a_restart_after_a_step_of_the_wall_clock_gives_nothing() {
    let calendar = || {
        let hour = Calendar::new(CalendarUnit::Hour, "UTC").expect("valid");
        limit("calendar", Quota::fixed_window(Rate::per_hour(50), Align::Calendar(hour)).expect("valid"))
    };
    let limits = || {
        let mut limits: Vec<LimitBuilder> = ALGORITHMS.map(|(name, quota)| limit(name, quota(50))).into();
        limits.push(calendar());
        limits
    };
    let look = |engine: &Engine, now| shown(&now_or_never(engine.operator().peek(&asking("k", 1), now)));
    for steps in [&[7_200_i64][..], &[-7_200], &[90_000, 86_400], &[1_800, -5_400, 600]] {
        let running = engine(limits(), NOW);
        let mut now = NOW;
        assert!(running.try_check(&asking("k", 7), now).unwrap().is_allowed());
        for step in steps {
            now = now + Ticks::from_secs(5);
            running.maintenance().follow_wall(WallOffset::from_micros(step * 1_000_000), now);
            assert!(running.try_check(&asking("other", 1), now).unwrap().is_allowed());
        }
        let bytes = written(&running, now);
        let wall = Snapshot::wall(&mut &*bytes).expect("it was just written");
        assert_eq!(wall, running.maintenance().wall(), "{steps:?}");
        let (next, report, _) = read(&bytes, policy(limits()), now).expect("it was just written");
        assert_eq!((report.taken_at, next.maintenance().wall()), (now, wall), "{steps:?}");
        let later = now + Ticks::from_secs(2);
        assert_eq!(look(&next, later), look(&running, later), "{steps:?}");
        for engine in [&running, &next] {
            engine.maintenance().follow_wall(WallOffset::from_micros(3_600_000_000), later);
        }
        assert_eq!(look(&next, later), look(&running, later), "{steps:?} and one more after the restart");
    }
}

/// A snapshot of an older version has no settings of the wall clock, and a file that is no snapshot has none either.
#[test]
fn the_wall_clock_of_an_older_snapshot_is_the_clock_that_counted() {
    assert_eq!(Snapshot::wall(&mut &*FORMAT_1).expect("it is whole"), WallOffset::NONE);
    assert!(Snapshot::wall(&mut &b"something else"[..]).is_err());
}
