//! A store that is milliseconds away: what each round trip costs shows.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tollgate_testkit::{rest, until};

use crate::program::{Server, tollgate};
use crate::redis::Redis;

/// Stands before a port. Every byte arrives this much later, in either direction. Its threads end with their connections.
fn far(to: u16, delay: Duration) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for near in listener.incoming() {
            let (Ok(near), Ok(there)) = (near, TcpStream::connect(("127.0.0.1", to))) else { continue };
            for stream in [&near, &there] {
                stream.set_nodelay(true).unwrap();
            }
            carry(near.try_clone().unwrap(), there.try_clone().unwrap(), delay);
            carry(there, near, delay);
        }
    });
    port
}

fn carry(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (sender, receiver) = mpsc::channel::<(Instant, Vec<u8>)>();
    std::thread::spawn(move || {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(read @ 1..) = from.read(&mut bytes) {
            if sender.send((now() + delay, bytes[..read].to_vec())).is_err() {
                break;
            }
        }
    });
    std::thread::spawn(move || {
        for (due, bytes) in receiver {
            rest(due.saturating_duration_since(now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}

#[allow(clippy::disallowed_methods, reason = "the delay of a network is real")]
fn now() -> Instant {
    Instant::now()
}

/// A server on that store, with the deadline that decisions have unless something else is said.
fn on(port: u16, policy: &str, deadline: &str) -> Server {
    let store = format!("redis://127.0.0.1:{port}");
    let arguments = ["serve", "--http", "127.0.0.1:0", "--policy", "-", "--store", &store];
    let mut command = tollgate(&arguments);
    command.args(["--store-deadline", deadline]);
    Server::spawn(command, policy)
}

/// The first decision about a limit, a tier or an override takes one round trip: what the fleet must agree on before was agreed when the
/// policy was put in force, although that takes longer than a decision may.
#[test]
fn the_first_decision_is_made_in_the_store() {
    let redis = Redis::start(&[]);
    // One round trip is 24 ms, and leaves a busy machine 26 of the 50 that a decision has; two do not fit.
    let port = far(redis.port, Duration::from_millis(12));
    let policy = "limits:
  - {name: plan, by: [tenant], tier_by: plan, tiers: {free: 10/h, pro: 20/h}, overrides: {acme: 30/h}}
  - {name: whole, rate: 1000/h}";
    let questions = [("t", "free"), ("u", "pro"), ("acme", "free")]
        .map(|(tenant, plan)| format!(r#"{{"attributes":{{"tenant":"{tenant}","plan":"{plan}"}}}}"#));
    // A very busy machine can make even that pass by itself, so each question may have five servers to be the first of.
    for question in &questions {
        let is_exact = || {
            redis.cli(&["FLUSHALL"]);
            let server = on(port, policy, "50ms");
            // It signs itself when it is connected, and has agreed with the fleet by then.
            until("it has signed itself", || (server.metric("tollgate_store_nodes") == 1).then_some(()));
            let answer = server.check(question);
            let limits = answer["limits"].as_array().unwrap().clone();
            limits.len() == 2 && limits.iter().all(|limit| limit["source"] == "exact")
        };
        assert!((0..5).any(|_| is_exact()), "{question}");
    }
}

/// How often the script was called.
fn calls(redis: &Redis) -> u64 {
    let stats = redis.cli(&["INFO", "commandstats"]);
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:calls="));
    line.and_then(|line| line.split(['=', ',']).nth(1)).map_or(0, |number| number.parse().unwrap())
}

/// How many answers this server has given without its store, because the machine was too slow.
fn missed(server: &Server) -> u64 {
    let metrics = server.metrics();
    let local = metrics.lines().filter(|line| line.contains("source=\"local\""));
    local.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

/// A server whose store is 4 ms away, there and back, and tells how often it was called.
struct Far {
    redis: Redis,
    server: Server,
}

impl Far {
    fn new(policy: &str) -> Self {
        let redis = Redis::start(&[]);
        let port = far(redis.port, Duration::from_millis(2));
        let server = on(port, policy, "50ms");
        Self { redis, server }
    }

    /// The answer to a request, and how many calls it took; with a key of its own until all of it was decided in the store.
    fn ask(&self, mut question: impl FnMut(&Server, &str) -> String) -> (String, u64) {
        for attempt in 0..10 {
            let (before, missed_before) = (calls(&self.redis), missed(&self.server));
            let printed = question(&self.server, &format!("key-{attempt}"));
            let after = calls(&self.redis);
            if missed(&self.server) == missed_before {
                return (printed, after - before);
            }
        }
        panic!("the machine was never quick enough");
    }
}

const POLICY: &str = "limits: [{name: per-key, by: [api_key], rate: 10/h}]";

/// A pipeline waits for the store a few times, not once for each of its commands, and its answers are those of one command after the
/// other.
#[test]
fn a_pipeline_shares_calls() {
    const CHECKS: usize = 64;
    let (printed, calls) = Far::new(POLICY).ask(|server, key| {
        let pipeline = format!("TG.CHECK api_key {key}\r\n").repeat(CHECKS) + "QUIT\r\n";
        server.resp_exchange(pipeline.as_bytes())
    });
    let answers: Vec<&str> = printed.split("*8\r\n").skip(1).collect();
    assert_eq!(answers.len(), CHECKS, "{printed}");
    for (place, answer) in answers.iter().enumerate() {
        // Whether it passes, the verdict, and what is left.
        let expected = match place {
            0..10 => format!(":1\r\n$5\r\nallow\r\n:{}\r\n", 9 - place),
            _ => ":0\r\n$4\r\ndeny\r\n:0\r\n".to_owned(),
        };
        assert!(answer.starts_with(&expected), "{place}: {answer}");
    }
    assert!(printed.ends_with("+OK\r\n"), "{printed}");
    assert!(calls <= 6, "{calls} calls for {CHECKS} checks");
}

/// A command that is no valid check keeps its position; a change of the protocol is none for what came before it.
#[test]
fn a_pipeline_keeps_its_order() {
    let (printed, _) = Far::new(POLICY).ask(|server, key| {
        let check = format!("TG.CHECK api_key {key}\r\n");
        let pipeline = format!(
            "{check}PING\r\n{check}TG.CHECK api_key\r\n{check}HELLO 3\r\n{check}PING\r\n{check}QUIT\r\n"
        );
        server.resp_exchange(pipeline.as_bytes())
    });
    let kinds: String = printed
        .chars()
        .enumerate()
        .filter_map(|(at, kind)| {
            let starts_line = at == 0 || printed.as_bytes()[at - 1] == b'\n';
            (starts_line && "*%+-".contains(kind)).then_some(kind)
        })
        .collect();
    assert_eq!(kinds, "*+*-*%*%+%+", "{printed}");
    assert!([9, 8, 7].iter().all(|left| printed.contains(&format!("allow\r\n:{left}\r\n"))), "{printed}");
}

/// The checks of a batch reach the store in their order: of those about one key the first pass.
#[test]
fn a_batch_keeps_its_order() {
    let (printed, calls) = Far::new(POLICY).ask(|server, key| {
        let check = format!(r#"{{"attributes":{{"api_key":"{key}"}}}}"#);
        let answer = server.send("POST", "/v1/check/batch", &format!("[{}]", vec![check; 40].join(",")));
        let answers = answer.json();
        answers
            .as_array()
            .unwrap()
            .iter()
            .map(|answer| if answer["allowed"] == true { '+' } else { '-' })
            .collect()
    });
    assert_eq!(printed, "+".repeat(10) + &"-".repeat(30));
    assert!(calls <= 6, "{calls} calls for 40 checks");
}

/// The descriptors of a question to a file of another program are asked together, in their order.
#[test]
fn descriptors_share_calls() {
    let envoy = "domain: d\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 10}}]";
    let (printed, calls) = Far::new(envoy).ask(|server, key| {
        let descriptor =
            |place: usize| format!(r#"{{"entries":[{{"key":"user","value":"{key}-{}"}}]}}"#, place / 10);
        let descriptors: Vec<String> = (0..20).map(descriptor).collect();
        let question = format!(r#"{{"domain":"d","descriptors":[{}]}}"#, descriptors.join(","));
        let answer = server.send("POST", "/json", &question).json();
        let left = |status: &serde_json::Value| status["limitRemaining"].as_u64().unwrap_or(0).to_string();
        answer["statuses"].as_array().unwrap().iter().map(left).collect()
    });
    assert_eq!(printed, "9876543210".repeat(2));
    assert!(calls <= 6, "{calls} calls for 20 descriptors");
}
