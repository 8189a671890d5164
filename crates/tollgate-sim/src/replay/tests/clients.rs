//! Clients that come back: a replay decides as the engine does about clients that are written down from the definition.

use std::collections::HashMap;

use tollgate::{CheckRequest, Engine, MemoryStore, Secret, Ticks, Timestamp};

use super::{POLICIES, START, Sent, policy, record_of, requests};
use crate::replay::arrivals::client_of;
use crate::replay::{Clients, Given, InputReport, Options, Replay};

fn engine(text: &str) -> Engine {
    let store = MemoryStore::new(64 << 20, Timestamp::from_unix_micros(START));
    Engine::builder().policy(policy(text)).store(store).secret(Secret::repeatable(3)).build()
}

/// Asks the engine. Returns whether the request passes, and when it comes back if it does not.
fn ask(engine: &Engine, sent: &Sent, now: Timestamp) -> (bool, Option<Timestamp>) {
    let asked = CheckRequest::new().with("user", &sent.user).unwrap();
    let asked = asked.with("plan", sent.plan).unwrap().with("size", &sent.size).unwrap();
    let decision = engine.try_check(&asked, now).unwrap();
    let back = decision.retry_advice().filter(|_| !decision.is_allowed());
    (decision.is_allowed(), back.map(|advice| now + Ticks::from_secs(advice.ceil_seconds().max(1))))
}

/// The outcome of the requests.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    decisions: u64,
    denied: u64,
    retries: u64,
    retries_allowed: u64,
    still_waiting: u64,
}

impl Counts {
    fn add(&mut self, is_retry: bool, is_allowed: bool) {
        self.decisions += 1;
        self.denied += u64::from(!is_allowed);
        self.retries += u64::from(is_retry);
        self.retries_allowed += u64::from(is_retry && is_allowed);
    }
}

/// Each denied request comes back once, at its Retry-After, before a new one of the same instant.
fn retrying(text: &str, requests: &[Sent]) -> Counts {
    let (engine, mut counts) = (engine(text), Counts::default());
    // Requests that come back, in the order in which they were denied.
    let mut returns: Vec<(Timestamp, usize)> = Vec::new();
    let come_back = |returns: &mut Vec<(Timestamp, usize)>, counts: &mut Counts, until: Timestamp| {
        while let Some(next) = (0..returns.len()).min_by_key(|place| returns[*place].0) {
            if returns[next].0 > until {
                break;
            }
            let (at, index) = returns.remove(next);
            counts.add(true, ask(&engine, &requests[index], at).0);
        }
    };
    for (index, request) in requests.iter().enumerate() {
        come_back(&mut returns, &mut counts, request.at);
        let (is_allowed, back) = ask(&engine, request, request.at);
        counts.add(false, is_allowed);
        returns.extend(back.map(|back| (back, index)));
    }
    come_back(&mut returns, &mut counts, Timestamp::MAX);
    counts
}

/// A denied client holds back what it would send, and goes on when its request passes.
fn obeying(text: &str, requests: &[Sent]) -> Counts {
    let (engine, mut counts) = (engine(text), Counts::default());
    // Clients that wait, each with its instant, the number of its wait, and its requests. The first was asked before.
    let mut waits: HashMap<&str, (Timestamp, usize, Vec<usize>)> = HashMap::new();
    let mut number = 0;
    for (index, request) in requests.iter().enumerate() {
        while let Some((client, (at, _, held))) = waits
            .iter()
            .min_by_key(|(_, (at, number, _))| (*at, *number))
            .filter(|(_, (at, ..))| *at <= request.at)
            .map(|(client, wait)| (*client, wait.clone()))
        {
            waits.remove(client);
            for (place, held_request) in held.iter().enumerate() {
                let (is_allowed, back) = ask(&engine, &requests[*held_request], at);
                counts.add(place == 0, is_allowed);
                if let Some(back) = back {
                    number += 1;
                    waits.insert(client, (back, number, held[place..].to_vec()));
                    break;
                }
            }
        }
        if let Some((_, _, held)) = waits.get_mut(request.user.as_str()) {
            held.push(index);
            continue;
        }
        let (is_allowed, back) = ask(&engine, request, request.at);
        counts.add(false, is_allowed);
        if let Some(back) = back {
            number += 1;
            waits.insert(&request.user, (back, number, vec![index]));
        }
    }
    counts.still_waiting = waits.values().map(|(.., held)| held.len() as u64).sum();
    counts
}

/// Whatever the policy, clients that retry and clients that obey get the decisions that the engine gives them.
#[test]
fn clients_that_come_back_get_the_decisions_of_the_engine() {
    for text in POLICIES {
        for seed in 0..3 {
            let requests = requests(seed, 1_500);
            for (clients, expected) in
                [(Clients::Retry, retrying(text, &requests)), (Clients::Obey, obeying(text, &requests))]
            {
                let options = Options { clients, ..Options::default() };
                let mut replay = Replay::new(policy(text), None, options, Given);
                requests.iter().for_each(|request| replay.push(&record_of(request)).unwrap());
                let totals = replay.finish(InputReport::default()).unwrap().totals;
                let found = Counts {
                    decisions: totals.decisions,
                    denied: totals.denied,
                    retries: totals.retries,
                    retries_allowed: totals.retries_allowed,
                    still_waiting: totals.still_waiting,
                };
                assert_eq!(found, expected, "{text}, seed {seed}, {clients:?}");
                assert!(found.retries > 0, "{text}: none came back, so it proves nothing");
            }
        }
    }
}

/// Not only the counts: each single request is decided as the engine decides it. Each has a user of its own here, which no
/// limit counts by, so that the denied clients are the denied requests.
#[test]
fn each_request_is_decided_as_the_engine_does() {
    for text in POLICIES {
        let (requests, engine) = (requests(11, 2_000), engine(text));
        let mut replay = Replay::new(policy(text), None, Options::default(), Given);
        let mut expected = Vec::new();
        for (index, request) in requests.iter().enumerate() {
            let mut record = record_of(request);
            record.user = Some(index.to_string().into());
            expected.push((client_of(&record, &replay.client_names), !ask(&engine, request, request.at).0));
            replay.push(&record).unwrap();
        }
        let mut batch = Vec::new();
        while replay.arrivals.release(&mut batch) {
            replay.decide(&mut batch);
        }
        let sheet = &replay.working.as_ref().unwrap().sheet;
        for (index, (client, is_denied)) in expected.iter().enumerate() {
            assert_eq!(sheet.is_touched(*client), *is_denied, "{text}, request {index}");
        }
        assert!(expected.iter().any(|(_, is_denied)| *is_denied), "{text} denies nothing");
    }
}
