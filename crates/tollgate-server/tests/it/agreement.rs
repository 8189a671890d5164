//! The same requests, asked in every way there is, get the same decisions.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;
use tollgate::{CheckRequest, Clock, Engine, Policy};

use crate::program::Server;
use crate::rls::{Client, question};

const REQUESTS: usize = 200;

/// Limits of several kinds, none of which gives anything back while the test runs.
const POLICY: &str = "
limits:
  - {name: per-key, by: [api_key], rate: 30/day}
  - {name: login, when: {method: POST, path: /login}, by: [ip], rate: 4/day, algorithm: sliding-window}
  - {name: plan, by: [tenant], tier_by: plan, tiers: {free: 9/day, pro: 40/day burst 50}, overrides: {acme: 90/day}}
  - {name: writes, when: \"method != 'GET'\", by: [api_key], rate: 12/day, algorithm: fixed-window, align: first-hit}
  - {name: watched, by: [path], rate: 3/day, mode: shadow}
  - {name: log, by: [ip, path], rate: 25/day, algorithm: sliding-log}
  - {name: all, rate: 150/day, algorithm: gcra}
";

/// One request.
#[derive(Debug)]
struct Asked {
    attributes: Vec<(&'static str, &'static str)>,
    cost: u64,
}

/// Whether it passed, and if not, which limit denied it.
type Decided = (bool, Option<String>);
type Way = (&'static str, Box<dyn FnMut(&Asked) -> Decided>);

/// Requests that meet all of the limits now and then. Seeded, so a failure repeats.
fn requests() -> Vec<Asked> {
    let mut state = 0x7011_6A7E_u64;
    let mut pick = |choices: &[&'static str]| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        choices[usize::try_from(state >> 33).unwrap() % choices.len()]
    };
    let mut asked = Vec::new();
    for _ in 0..REQUESTS {
        let mut attributes = vec![
            ("api_key", pick(&["k1", "k2", "k3", ""])),
            ("ip", pick(&["192.0.2.1", "192.0.2.2"])),
            ("method", pick(&["GET", "GET", "POST", "PUT"])),
            ("path", pick(&["/", "/login", "/v1/x"])),
        ];
        match pick(&["acme", "free", "pro", "none"]) {
            "none" => {}
            "acme" => attributes.push(("tenant", "acme")),
            plan => attributes.extend([("tenant", pick(&["t1", "t2"])), ("plan", plan)]),
        }
        let cost = pick(&["0", "1", "1", "1", "2", "35"]).parse().unwrap();
        asked.push(Asked { attributes, cost });
    }
    asked
}

fn library() -> Way {
    let policy = Policy::compile("policy.yaml", POLICY.as_bytes()).unwrap();
    let clock = Clock::precise();
    let engine = Engine::builder().policy(policy).clock(clock.clone()).build();
    let decide = move |asked: &Asked| {
        let add = |request: CheckRequest<'static>, &(name, value): &(&'static str, &'static str)| {
            request.with(name, value)
        };
        let request = asked.attributes.iter().try_fold(CheckRequest::new(), add).unwrap();
        let decision = engine.try_check(&request.cost(asked.cost).unwrap(), clock.now()).unwrap();
        (decision.is_allowed(), decision.cause().map(|cause| cause.limit.name().to_owned()))
    };
    ("library", Box::new(decide))
}

fn http() -> Way {
    let server = Server::start(POLICY);
    let decide = move |asked: &Asked| {
        let attributes: serde_json::Map<_, _> =
            asked.attributes.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        let answer = server.check(&json!({"attributes": attributes, "cost": asked.cost}).to_string());
        (answer["allowed"] == true, answer["cause"].as_str().map(str::to_owned))
    };
    ("HTTP", Box::new(decide))
}

fn rls() -> Way {
    let server = Server::start(POLICY);
    let client = Client::new(server.grpc.unwrap());
    let decide = move |asked: &Asked| {
        let _alive = &server;
        let entries: Vec<String> =
            asked.attributes.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let asked = question("api", 0, &format!("{} +{}", entries.join(" "), asked.cost));
        let answer = client.ask(asked).unwrap();
        let allowed = answer.overall_code == 1;
        let status = &answer.statuses[0];
        assert_eq!(status.code, answer.overall_code);
        let cause = status.current_limit.as_ref().filter(|_| !allowed).map(|limit| limit.name.clone());
        (allowed, cause)
    };
    ("RLS", Box::new(decide))
}

fn resp() -> Way {
    let server = Server::start(POLICY);
    let stream = TcpStream::connect(server.resp()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let decide = move |asked: &Asked| {
        let _alive = &server;
        let mut words = vec!["TG.CHECK".to_owned()];
        words.extend(
            asked.attributes.iter().flat_map(|(name, value)| [(*name).to_owned(), (*value).to_owned()]),
        );
        words.extend(["COST".to_owned(), asked.cost.to_string()]);
        let command: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
        (&stream).write_all(format!("*{}\r\n{command}", words.len()).as_bytes()).unwrap();
        // An array of eight: whether it passes, the verdict as text, four numbers, the limit as text, and no permit.
        let mut next = || lines.next().unwrap().unwrap();
        assert_eq!(next(), "*8");
        let allowed = next() == ":1";
        for _ in 0..6 {
            next();
        }
        let limit = if next() == "$-1" { None } else { Some(next()) };
        assert_eq!(next(), "$-1");
        (allowed, limit.filter(|_| !allowed))
    };
    ("RESP", Box::new(decide))
}

/// Every way in gives every request the same decision, for the same reason.
#[test]
fn every_way_in_decides_alike() {
    let mut ways = [library(), http(), rls(), resp()];
    let mut causes = std::collections::BTreeSet::new();
    let mut passed = 0;
    for (number, asked) in requests().iter().enumerate() {
        let (name, first) = (ways[0].0, ways[0].1(asked));
        for (other, decide) in &mut ways[1..] {
            assert_eq!(decide(asked), first, "request {number}, {other} against {name}: {asked:?}");
        }
        passed += usize::from(first.0);
        causes.extend(first.1);
    }
    assert!((50..150).contains(&passed), "{passed} passed: the limits were hardly met");
    assert!(causes.len() >= 4, "only {causes:?} ever denied");
}
