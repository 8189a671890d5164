//! Every class of reply, and what happens to the request.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use super::fake::{Action, Command, Fake};
use super::*;

/// The reply of the echo script.
pub(super) fn echo_reply(words: &Command) -> Action {
    let keys: usize = words[2].parse().unwrap();
    let bodies = &words[4 + keys..];
    let bodies: String = bodies.iter().map(|body| format!("${}\r\n{body}\r\n", body.len())).collect();
    Action::Reply(format!("*{}\r\n{bodies}", words.len() - 4 - keys))
}

fn error(text: &str) -> Action {
    Action::Reply(format!("-{text}\r\n"))
}

/// A fake that answers all script calls with this error.
async fn failing(text: &'static str) -> (Fake, Client) {
    let fake = Fake::replying(move |words| match words[0].as_str() {
        "EVALSHA" | "EVAL" => error(text),
        _ => error("ERR unknown command"),
    })
    .await;
    let client = client_for(&fake.url());
    (fake, client)
}

/// Errors that prove that nothing was executed say so, are not resent, and open the breaker if their class says so.
#[tokio::test]
async fn errors_keep_their_class_and_are_not_resent() {
    let cases = [
        ("LOADING Redis is loading the dataset in memory", ReplyClass::NotReady, false, 5),
        ("MASTERDOWN Link with MASTER is down", ReplyClass::NotReady, false, 5),
        ("CLUSTERDOWN The cluster is down", ReplyClass::NotReady, false, 5),
        ("BUSY Redis is busy running a script", ReplyClass::Busy, false, 5),
        ("OOM command not allowed when used memory > 'maxmemory'.", ReplyClass::OutOfMemory, false, 5),
        ("MISCONF Redis is configured to save RDB snapshots", ReplyClass::NotWritable, false, 5),
        ("NOREPLICAS Not enough good replicas to write.", ReplyClass::NotWritable, false, 5),
        ("NOPERM this user has no permissions", ReplyClass::Refused, false, 1),
        ("NOAUTH Authentication required.", ReplyClass::Refused, false, 1),
        ("ERR something else", ReplyClass::Other, true, 5),
        ("WRONGTYPE Operation against a key", ReplyClass::WrongType, false, u32::MAX),
        ("CROSSSLOT Keys in request don't hash to the same slot", ReplyClass::CrossSlot, false, u32::MAX),
    ];
    for (text, class, may_have_run, opens_after) in cases {
        let (fake, client) = failing(text).await;
        for request in 1..=8 {
            let failure = echo(&client, "x").await.unwrap_err();
            let expected = if request > opens_after { ReplyClass::Open } else { class };
            assert_eq!(
                failure,
                Failure { class: expected, may_have_run: may_have_run && request <= opens_after },
                "{text}"
            );
        }
        assert_eq!(fake.received("EVALSHA").len(), 8.min(opens_after as usize), "{text}");
    }
}

/// A node without the script gets its source in the same request, on the same connection.
#[tokio::test]
async fn missing_script_is_loaded() {
    let fake = Fake::replying(|words| match words[0].as_str() {
        "EVALSHA" => error("NOSCRIPT No matching script."),
        _ => echo_reply(words),
    })
    .await;
    let client = client_for(&fake.url());
    assert_eq!(echo(&client, "one").await, echoed("one"));
    assert_eq!((fake.received("EVALSHA").len(), fake.received("EVAL").len()), (1, 1));
    assert_eq!(fake.received("EVAL")[0][1], ECHO);
    assert_eq!(failures(&client, ReplyClass::NoScript), 1);
}

/// A hanging call fails at the deadline, is not resent, and may have been executed. Five of them open the breaker, and
/// then requests fail without waiting.
#[tokio::test]
async fn hanging_store_costs_the_deadline_then_nothing() {
    let fake = Fake::replying(|_| Action::Hang).await;
    let client = client_for(&fake.url());
    let began = Instant::now();
    let failure = echo(&client, "x").await.unwrap_err();
    assert_eq!(failure, Failure { class: ReplyClass::Timeout, may_have_run: true });
    assert!(began.elapsed() < DEADLINE * 2, "{:?}", began.elapsed());
    let mut waits = 1;
    while !matches!(echo(&client, &waits.to_string()).await, Err(Failure { class: ReplyClass::Open, .. })) {
        waits += 1;
    }
    assert!(waits <= 6, "{waits}"); // A caller may give up a moment before its call does.
    let mut bodies: Vec<_> =
        fake.received("EVALSHA").iter().map(|words| words.last().unwrap().clone()).collect();
    let sent = bodies.len();
    bodies.dedup();
    assert_eq!(bodies.len(), sent, "{bodies:?}");
    let began = Instant::now();
    assert_eq!(echo(&client, "x").await.unwrap_err().class, ReplyClass::Open);
    assert!(began.elapsed() < Duration::from_millis(5));
}

/// If the connection closes after the write, the call may have been executed and is not resent. The next request gets a
/// new connection.
#[tokio::test]
async fn call_is_not_resent_after_a_disconnect() {
    let calls = AtomicU32::new(0);
    let fake =
        Fake::replying(move |words| match (words[0].as_str(), calls.fetch_add(1, Ordering::Relaxed)) {
            ("EVALSHA", 0) => Action::Close,
            _ => echo_reply(words),
        })
        .await;
    let client = client_for(&fake.url());
    assert_eq!(
        echo(&client, "x").await.unwrap_err(),
        Failure { class: ReplyClass::Disconnected, may_have_run: true }
    );
    until(|| client.report(1, 0).connections == 2).await;
    assert_eq!(echo(&client, "y").await, echoed("y"));
    let bodies: Vec<_> = fake.received("EVALSHA").iter().map(|words| words.last().unwrap().clone()).collect();
    assert_eq!(bodies, ["x", "y"]);
}

/// A malformed reply is not an answer, and the connection is closed.
#[tokio::test]
async fn malformed_reply_is_not_an_answer() {
    for nonsense in ["*3\r\n:1\r\n:2\r\n:3\r\n", "+OK\r\n", ":1\r\n"] {
        let fake = Fake::replying(|_| Action::Reply(nonsense.to_owned())).await;
        let client = client_for(&fake.url());
        assert_eq!(
            echo(&client, "x").await.unwrap_err(),
            Failure { class: ReplyClass::Malformed, may_have_run: true }
        );
    }
    let fake = Fake::replying(|_| Action::Reply("?what\r\n".to_owned())).await;
    let client = client_for(&fake.url());
    assert!(echo(&client, "x").await.unwrap_err().may_have_run);
}

/// A READONLY reply is resent once, on a new connection.
#[tokio::test]
async fn readonly_reply_is_resent_on_a_new_connection() {
    let calls = AtomicU32::new(0);
    let fake = Fake::replying(move |words| match calls.fetch_add(1, Ordering::Relaxed) {
        0 => error("READONLY You can't write against a read only replica."),
        _ => echo_reply(words),
    })
    .await;
    let client = client_for(&fake.url());
    until(|| client.report(1, 0).connections == 1).await;
    // The new connection may take longer than the deadline; then the request was not executed.
    match echo(&client, "x").await {
        Ok(value) => assert_eq!(Ok(value), echoed("x")),
        Err(failure) => assert!(!failure.may_have_run),
    }
    until(|| client.report(1, 0).connections == 2).await;
}

/// A key of the wrong type fails only its own request, even in a batch.
#[tokio::test]
async fn wrong_type_fails_only_its_own_request() {
    let fake = Fake::replying(|words| match words.iter().any(|word| word == "wrong-type") {
        true => error("WRONGTYPE Operation against a key holding the wrong kind of value"),
        false => echo_reply(words),
    })
    .await;
    let client = client_for(&fake.url());
    until(|| client.report(1, 0).connections == 1).await;
    let asked: Vec<_> = (0..40)
        .map(|number| {
            let (client, body) =
                (client.clone(), if number == 20 { "wrong-type".to_owned() } else { number.to_string() });
            tokio::spawn(async move { (echo(&client, &body).await, body) })
        })
        .collect();
    for one in asked {
        let (answer, body) = one.await.unwrap();
        match body.as_str() {
            "wrong-type" => assert_eq!(answer.unwrap_err().class, ReplyClass::WrongType),
            _ => assert_eq!(answer, echoed(&body)),
        }
    }
}

/// A cluster of two nodes: the first owns all slots in the map.
async fn two() -> (Arc<OnceLock<u16>>, impl Fn(u16) -> String) {
    let other = Arc::new(OnceLock::new());
    let slots = |port: u16| format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n");
    (other, slots)
}

/// MOVED is followed once, and the slot map is refreshed.
#[tokio::test]
async fn moved_slots_are_followed() {
    let (other, slots) = two().await;
    let target = Arc::clone(&other);
    let first = Fake::replying(move |words| match words[0].as_str() {
        "CLUSTER" => Action::Reply(slots(*target.get().unwrap())),
        _ => error(&format!("MOVED 1 127.0.0.1:{}", target.get().unwrap())),
    })
    .await;
    let second = Fake::replying(|words| match words[0].as_str() {
        "CLUSTER" => error("ERR not now"),
        _ => echo_reply(words),
    })
    .await;
    other.set(second.port).unwrap();
    let client = client_for(&first.url().replace("redis:", "redis-cluster:"));
    assert_eq!(echo(&client, "x").await, echoed("x"));
    until(|| client.0.routing.owner(0).is_some_and(|shard| shard.host.port == second.port)).await;
    assert_eq!(echo(&client, "y").await, echoed("y"));
    assert!(first.received("EVALSHA").len() <= 1);
}

/// ASK is followed with `ASKING` each time, and the slot map stays as it is.
#[tokio::test]
async fn ask_is_followed_with_asking() {
    let (other, slots) = two().await;
    let own = Arc::new(OnceLock::new());
    let (target, me) = (Arc::clone(&other), Arc::clone(&own));
    let first = Fake::replying(move |words| match words[0].as_str() {
        "CLUSTER" => Action::Reply(slots(*me.get().unwrap())),
        _ => error(&format!("ASK 1 127.0.0.1:{}", target.get().unwrap())),
    })
    .await;
    own.set(first.port).unwrap();
    let second = Fake::replying(|words| match words[0].as_str() {
        "EVALSHA" => error("NOSCRIPT No matching script."),
        _ => echo_reply(words),
    })
    .await;
    other.set(second.port).unwrap();
    let client = client_for(&first.url().replace("redis:", "redis-cluster:"));
    for body in ["x", "y"] {
        assert_eq!(echo(&client, body).await, echoed(body));
    }
    assert_eq!(first.received("EVALSHA").len(), 2);
    assert_eq!(second.received("ASKING").len(), 4); // Before the call, and before the resend with the source.
    assert_eq!(failures(&client, ReplyClass::Ask), 2);
}

/// Nodes that redirect to each other do not hold a request forever, and nothing was executed.
#[tokio::test]
async fn redirection_loops_end() {
    let (other, slots) = two().await;
    let own = Arc::new(OnceLock::new());
    let (target, me) = (Arc::clone(&other), Arc::clone(&own));
    let first = Fake::replying(move |words| match words[0].as_str() {
        "CLUSTER" => Action::Reply(slots(*me.get().unwrap())),
        _ => error(&format!("MOVED 1 127.0.0.1:{}", target.get().unwrap())),
    })
    .await;
    own.set(first.port).unwrap();
    let back = first.port;
    let second = Fake::replying(move |_| error(&format!("MOVED 1 127.0.0.1:{back}"))).await;
    other.set(second.port).unwrap();
    let client = client_for(&first.url().replace("redis:", "redis-cluster:"));
    let failure = echo(&client, "x").await.unwrap_err();
    assert_eq!(failure, Failure { class: ReplyClass::Moved, may_have_run: false });
    assert_eq!(first.received("EVALSHA").len() + second.received("EVALSHA").len(), 3);
}

/// TRYAGAIN is resent once, after a pause.
#[tokio::test]
async fn try_again_is_resent_once() {
    let calls = AtomicU32::new(0);
    let fake = Fake::replying(move |words| match calls.fetch_add(1, Ordering::Relaxed) {
        1 => echo_reply(words),
        _ => error("TRYAGAIN Multiple keys request during rehashing of slot"),
    })
    .await;
    let client = client_for(&fake.url());
    assert_eq!(echo(&client, "x").await, echoed("x"));
    assert_eq!(
        echo(&client, "y").await.unwrap_err(),
        Failure { class: ReplyClass::TryAgain, may_have_run: false }
    );
    assert_eq!(fake.received("EVALSHA").len(), 4);
}

/// A cluster node behind a redis:// URL: the report names the right URL.
#[tokio::test]
async fn cluster_behind_a_standalone_url_is_reported() {
    let (_fake, client) = failing("MOVED 1 127.0.0.1:7001").await;
    assert_eq!(echo(&client, "x").await.unwrap_err().class, ReplyClass::Moved);
    assert!(client.report(1, 0).shards[0].last_error.as_ref().unwrap().contains("redis-cluster://"));
}

/// A refused connection fails requests without waiting for the deadline; the report has the reason.
#[tokio::test]
async fn refused_connection_fails_immediately() {
    let port = Fake::replying(|_| Action::Hang).await.port; // The fake is dropped at the end of this line.
    let client = client_for(&format!("redis://127.0.0.1:{port}"));
    until(|| client.report(1, 0).connection_failures > 0).await;
    let began = Instant::now();
    assert_eq!(
        echo(&client, "x").await.unwrap_err(),
        Failure { class: ReplyClass::Open, may_have_run: false }
    );
    assert!(began.elapsed() < Duration::from_millis(20));
    let report = client.report(1, 0);
    assert!(report.shards[0].last_error.as_ref().unwrap().contains("refused"), "{report:?}");
    assert_eq!(report.shards[0].state, BreakerState::Open);
}

/// Requests above the in-flight limit are shed, and do not count in the breaker.
#[tokio::test]
async fn requests_above_the_limit_are_shed() {
    let fake = Fake::replying(|_| Action::Hang).await;
    let settings = fake.url().parse::<Settings>().unwrap().deadline(DEADLINE).unwrap().in_flight(8).unwrap();
    let client = Client::new(&settings, ECHO, Handle::current());
    until(|| client.report(1, 0).connections == 1).await;
    let asked: Vec<_> = (0..20)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { echo(&client, "x").await.unwrap_err().class })
        })
        .collect();
    let mut shed = 0;
    for one in asked {
        shed += u32::from(one.await.unwrap() == ReplyClass::Shed);
    }
    assert_eq!(shed, 12);
    assert_eq!(client.report(1, 0).shed, 12);
    assert_eq!(client.report(1, 0).shards[0].in_flight, 0);
}

/// A request whose caller gives up in the queue is never sent.
#[tokio::test]
async fn abandoned_requests_are_never_sent() {
    let fake = Fake::replying(|words| match words.last().unwrap().as_str() {
        "slow" => Action::Hang,
        _ => echo_reply(words),
    })
    .await;
    let client = client_for(&fake.url());
    until(|| client.report(1, 0).connections == 1).await;
    let mut slow = Vec::new();
    for flushes in 1..=4 {
        slow.push(tokio::spawn(client.submit(request(0, "slow"), None, soon()).unwrap().answer()));
        until(|| client.report(1, 0).calls == flushes).await;
    }
    let hurried = client.call(request(0, "hurried"), Instant::now() + Duration::from_millis(5)).await;
    assert_eq!(hurried.unwrap_err(), Failure { class: ReplyClass::Late, may_have_run: false });
    drop(client.submit(request(0, "dropped"), None, soon()).unwrap());
    for one in slow {
        assert_eq!(one.await.unwrap().unwrap_err().class, ReplyClass::Timeout);
    }
    until(|| client.report(1, 0).connections >= 2 || fake.received("PING").len() > 1).await;
    let bodies: Vec<_> = fake.received("EVALSHA").iter().map(|words| words.last().unwrap().clone()).collect();
    assert!(bodies.iter().all(|body| body == "slow"), "{bodies:?}");
}

/// Requests for an unowned slot are not sent: their failures would count against a healthy node.
#[tokio::test]
async fn unowned_slot_does_not_count_against_a_node() {
    let own = Arc::new(OnceLock::new());
    let me = Arc::clone(&own);
    let fake = Fake::replying(move |words| match words[0].as_str() {
        "CLUSTER" => {
            let port = me.get().unwrap();
            Action::Reply(format!("*1\r\n*3\r\n:0\r\n:99\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n"))
        }
        _ => echo_reply(words),
    })
    .await;
    own.set(fake.port).unwrap();
    let client = client_for(&fake.url().replace("redis:", "redis-cluster:"));
    until(|| client.0.routing.owner(0).is_some()).await;
    let slot = |group: u16| Key::new(7, Some(group)).slot();
    let (here, nowhere) =
        ((0..).find(|&group| slot(group) < 100).unwrap(), (0..).find(|&group| slot(group) >= 100).unwrap());
    assert_eq!(client.call(request(here, "x"), soon()).await, echoed("x"));
    for _ in 0..10 {
        let failure = client.call(request(nowhere, "y"), soon()).await.unwrap_err();
        assert_eq!(failure, Failure { class: ReplyClass::NoConnection, may_have_run: false });
    }
    assert_eq!(client.call(request(here, "x"), soon()).await, echoed("x"));
}
