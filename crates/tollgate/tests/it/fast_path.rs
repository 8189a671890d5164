//! The fast paths of an engine on memory decide as the general path does: of two engines that hash alike, one has a further
//! limit that never applies, so that it asks the index of limits; and one is asked with `check`, the other with
//! `try_check`. They never differ.

use proptest::prelude::*;
use tollgate::{
    Block, CheckRequest, Decision, Engine, ExpiringOverride, LimitOverride, MemoryStore, Policy, Scope,
    Secret, Ticks, Timestamp,
};

use crate::executor::block_on;

const T0: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);

/// Policies whose only limit is plain, nearly plain, or has a neighbour.
fn policies() -> impl Strategy<Value = String> {
    let rate = prop::sample::select(vec!["3/s", "5/m, burst: 7", "2/s, burst: 9", "60000/s", "7/h"]);
    let algorithm = prop::sample::select(vec![
        "gcra",
        "token-bucket",
        "leaky-bucket",
        "fixed-window",
        "sliding-window",
        "sliding-log",
    ]);
    let by = prop::sample::select(vec!["[k]", "[k]", "[k]", "[k, other]", "[other]", "[]"]);
    let rest = prop::sample::select(vec![
        "",
        "",
        "",
        ", cost: 2",
        ", cost: 1",
        ", cost: cost",
        ", mode: shadow",
        ", mode: off",
        ", enforce_percent: 50",
        ", when: {other: x}",
        "}, {name: second, rate: 4/s",
    ]);
    let text = (rate, algorithm, by, rest).prop_map(|(rate, algorithm, by, rest)| {
        let rate = if algorithm.contains("window") || algorithm.contains("log") {
            rate.split(',').next().unwrap_or_default()
        } else {
            rate
        };
        format!("limits: [{{name: first, by: {by}, rate: {rate}, algorithm: {algorithm}{rest}}}]")
    });
    text.prop_filter("a policy that is right", |text| policy(text).is_some())
}

/// An event of an engine.
#[derive(Clone, Debug)]
enum Event {
    Ask { key: Option<Key>, other: Option<u8>, cost: u64 },
    Later(u64),
    Rule(LimitOverride, u64),
    Block(u8, u64),
    Swap(String),
}

/// A key, as text or as the number that is the same text.
#[derive(Clone, Copy, Debug)]
enum Key {
    Text(u8),
    Number(u8),
}

/// One that is as long as keys are for which the shortest hash is taken.
fn number(key: u8) -> i64 {
    1_000_000_000 + i64::from(key)
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let key = prop_oneof![4 => (0..3u8).prop_map(Key::Text), 1 => (0..3u8).prop_map(Key::Number)];
    let cost = prop::sample::select(vec![1, 1, 1, 1, 0, 2, 3, 100]);
    let ask = (prop::option::weighted(0.9, key), prop::option::of(0..2u8), cost);
    let kind =
        prop::sample::select(vec![LimitOverride::Off, LimitOverride::Shadow, LimitOverride::Percent(40)]);
    let event = prop_oneof![
        30 => ask.prop_map(|(key, other, cost)| Event::Ask { key, other, cost }),
        6 => (0..2_000_000u64).prop_map(Event::Later),
        1 => (kind, 0..2_000_000u64).prop_map(|(kind, ticks)| Event::Rule(kind, ticks)),
        1 => (0..3u8, 0..2_000_000u64).prop_map(|(key, ticks)| Event::Block(key, ticks)),
        1 => policies().prop_map(Event::Swap),
    ];
    prop::collection::vec(event, 1..80)
}

/// The same policy with a further limit, for an attribute that no request has.
fn beside_another(text: &str) -> String {
    text.replace("}]", "}, {name: never, by: [absent], rate: 1/s}]")
}

fn policy(text: &str) -> Option<Policy> {
    Policy::compile("test", text.as_bytes()).ok()
}

/// All that a decision says.
fn said(decision: &Decision) -> String {
    let limits: Vec<_> = decision
        .limits()
        .map(|status| {
            (
                status.index,
                status.descriptor,
                status.enforcement,
                status.source,
                status.key_hash,
                status.outcome,
            )
        })
        .collect();
    let fault = decision.fault().map(ToString::to_string);
    format!("{:?} {limits:?} {fault:?} {:?}", decision.verdict(), decision.block().map(Block::until))
}

/// Engines that hash alike, and what is done to both of them. The first takes the general path.
struct Alike {
    engines: [Engine; 2],
}

impl Alike {
    fn new(text: &str) -> Option<Self> {
        let engine = |text: &str| {
            let store = MemoryStore::new(1 << 20, T0);
            policy(text).map(|policy| {
                Engine::builder().policy(policy).store(store).secret(Secret::repeatable(5)).build()
            })
        };
        Some(Self { engines: [engine(&beside_another(text))?, engine(text)?] })
    }

    fn each(&self, change: impl Fn(&Engine)) {
        self.engines.iter().for_each(change);
    }

    /// Asks both engines the same.
    fn ask(&self, request: &CheckRequest<'_>, now: Timestamp) -> Result<(), TestCaseError> {
        let [general, fast] = &self.engines;
        let wanted = block_on(general.check(request, now));
        prop_assert_eq!(said(&fast.try_check(request, now).unwrap()), said(&wanted));
        Ok(())
    }
}

fn played(text: &str, events: &[Event]) -> Result<(), TestCaseError> {
    let Some(engines) = Alike::new(text) else {
        return Err(TestCaseError::fail(format!(
            "{text}: {:?}",
            Policy::compile("test", text.as_bytes()).err()
        )));
    };
    let mut now = T0;
    for event in events {
        match event {
            Event::Later(ticks) => now = now + Ticks::from_micros(*ticks),
            Event::Rule(kind, ticks) => {
                let expiring = ExpiringOverride { kind: *kind, until: now + Ticks::from_micros(*ticks) };
                engines.each(|engine| {
                    engine.operator().set_override(Scope::All, expiring, now).expect("within bounds")
                });
            }
            Event::Block(key, ticks) => engines.each(|engine| {
                let (text, until) = (number(*key).to_string(), now + Ticks::from_micros(1 + ticks));
                let blocked = CheckRequest::new().with("k", &text).expect("within bounds");
                engine.operator().block(&blocked, until, now).expect("within bounds");
            }),
            Event::Swap(text) => {
                let texts = [beside_another(text), text.clone()];
                for (engine, text) in engines.engines.iter().zip(&texts) {
                    engine.swap(policy(text).expect("a policy that is right"), now).expect("within bounds");
                }
            }
            Event::Ask { key, other, cost } => {
                let number = key.map(|(Key::Text(key) | Key::Number(key))| number(key));
                let text = number.map(|number| number.to_string());
                let mut request = CheckRequest::new().cost(*cost).expect("within bounds");
                match (key, number, &text) {
                    (Some(Key::Number(_)), Some(number), _) => {
                        request.push("k", number).expect("within bounds")
                    }
                    (_, _, Some(text)) => request.push("k", text).expect("within bounds"),
                    _ => {}
                }
                if let Some(other) = other {
                    request.push("other", ["x", "y"][usize::from(*other)]).expect("within bounds");
                }
                engines.ask(&request, now)?;
            }
        }
    }
    Ok(())
}

proptest! {
    /// Whatever the policy, the questions, and what an operator does meanwhile.
    #[test]
    fn fast_paths_decide_as_the_general_path(text in policies(), events in events()) {
        played(&text, &events)?;
    }
}
