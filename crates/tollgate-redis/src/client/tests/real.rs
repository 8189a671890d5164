//! The client against a real redis-server.

use std::process::Command;

use super::server::Server;
use super::*;

async fn connected(url: &str) -> Client {
    let client = client_for(url);
    until(|| client.report(1, 0).shards.iter().any(|shard| shard.is_connected)).await;
    client
}

/// An answer, and the script known from then on.
#[tokio::test]
async fn requests_are_answered() {
    let server = Server::start();
    let client = connected(&server.url()).await;
    for body in ["one", "two", "three"] {
        assert_eq!(echo(&client, body).await, echoed(body));
    }
    let report = client.report(1, 0);
    assert_eq!((report.decisions, failures(&client, ReplyClass::NoScript)), (4, 1)); // The first was sent twice.
    server.tell(&["SCRIPT", "FLUSH"]);
    assert_eq!(echo(&client, "four").await, echoed("four"));
    assert_eq!(report.latency.iter().sum::<u64>(), report.calls);
}

/// Requests that come together are decided together, and each has its own answer. One that comes alone goes alone, at once.
#[tokio::test]
async fn concurrent_requests_share_calls() {
    let server = Server::start();
    let client = connected(&server.url()).await;
    assert_eq!(echo(&client, "warm").await, echoed("warm"));
    let before = client.report(1, 0);
    let asked: Vec<_> = (0..400)
        .map(|number| {
            let client = client.clone();
            tokio::spawn(async move { (echo(&client, &number.to_string()).await, number) })
        })
        .collect();
    for one in asked {
        let (answer, number) = one.await.unwrap();
        assert_eq!(answer, echoed(&number.to_string()));
    }
    let after = client.report(1, 0);
    assert_eq!(after.decisions - before.decisions, 400);
    let calls = after.calls - before.calls;
    assert!(calls < 100, "{calls} calls for 400 requests");
    assert!(after.batches > before.batches);
}

/// A server that is killed and started again: failures in between, answers after, in about two seconds.
#[tokio::test]
async fn a_restart_is_survived() {
    let server = Server::start();
    let port = server.port;
    let client = connected(&server.url()).await;
    assert_eq!(echo(&client, "x").await, echoed("x"));
    drop(server);
    until(|| client.report(1, 0).shards[0].state != BreakerState::Closed).await;
    assert!(!echo(&client, "x").await.unwrap_err().may_have_run);
    assert!(client.away_for(0, Instant::now()).is_some());
    let _server = Server::at(port, &[]);
    let began = Instant::now();
    until(|| client.report(1, 0).shards[0].state == BreakerState::Closed).await;
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    assert_eq!(echo(&client, "y").await, echoed("y"));
}

/// A server that stops in its tracks: the kernel still accepts what is sent, so only the heart tells.
#[tokio::test]
async fn a_stopped_server_is_noticed_without_requests() {
    let server = Server::start();
    let client = connected(&server.url()).await;
    let signal = |name: &str| {
        let pid = server.tell(&["INFO", "server"]);
        let pid = pid.lines().find_map(|line| line.strip_prefix("process_id:")).unwrap().trim().to_owned();
        (name.to_owned(), pid)
    };
    let (_, pid) = signal("STOP");
    assert!(Command::new("kill").args(["-STOP", &pid]).status().unwrap().success());
    let began = Instant::now();
    until(|| client.report(1, 0).shards[0].state != BreakerState::Closed).await;
    let noticed = began.elapsed();
    assert!(Command::new("kill").args(["-CONT", &pid]).status().unwrap().success());
    assert!(noticed < Duration::from_millis(1_000), "{noticed:?}");
    until(|| client.report(1, 0).shards[0].state == BreakerState::Closed).await;
    assert_eq!(echo(&client, "x").await, echoed("x"));
}

/// A server that is full: reads would work, so only a probe that writes keeps the breaker open.
#[tokio::test]
async fn a_full_server_is_probed_with_writes() {
    let server = Server::start();
    const WRITE: &str = "redis.call('SET', KEYS[1], '1', 'PX', 60000) return {'ok'}";
    let settings = Settings::parse(&server.url()).unwrap().deadline(DEADLINE).unwrap();
    let client = Client::new(&settings, WRITE, Handle::current());
    until(|| client.report(1, 0).shards[0].is_connected).await;
    assert_eq!(echo(&client, "x").await, echoed("ok"));
    server.tell(&["CONFIG", "SET", "maxmemory", "1"]);
    for _ in 0..5 {
        assert_eq!(echo(&client, "x").await.unwrap_err().class, ReplyClass::OutOfMemory);
    }
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_ne!(client.report(1, 0).shards[0].state, BreakerState::Closed);
    server.tell(&["CONFIG", "SET", "maxmemory", "0"]);
    until(|| client.report(1, 0).shards[0].state == BreakerState::Closed).await;
    assert_eq!(echo(&client, "x").await, echoed("ok"));
    assert_ne!(server.tell(&["PTTL", "tg:{@@@@}probe"]), "-1");
}

/// Users of the access list: one with the right word and rights decides; a wrong word opens the breaker at once.
#[tokio::test]
async fn users_log_in() {
    let server = Server::start();
    let rules = "ACL SETUSER toll on >word resetkeys ~tg:* -@all +eval +evalsha +set +ping";
    server.tell(&rules.split(' ').collect::<Vec<_>>());
    server.tell(&["CONFIG", "SET", "requirepass", "other"]);
    let client = connected(&server.url().replace("://", "://toll:word@")).await;
    assert_eq!(echo(&client, "x").await, echoed("x"));
    let wrong = client_for(&server.url().replace("://", "://toll:wrong@"));
    until(|| failures(&wrong, ReplyClass::Refused) > 0).await;
    assert_eq!(echo(&wrong, "x").await.unwrap_err().class, ReplyClass::Open);
    let said = wrong.report(1, 0).shards[0].last_error.clone().unwrap();
    assert!(!said.contains("wrong") || said.contains("WRONGPASS") || said.contains("invalid"), "{said}");
    let none = client_for(&server.url());
    until(|| none.report(1, 0).shards[0].is_connected || failures(&none, ReplyClass::Refused) > 0).await;
    assert!(matches!(echo(&none, "x").await.unwrap_err().class, ReplyClass::Refused | ReplyClass::Open));
}

/// Plain commands go the same way.
#[tokio::test]
async fn commands_are_sent() {
    let server = Server::start();
    let client = connected(&server.url()).await;
    let mut set = redis::cmd("SET");
    set.arg("tg:{x}").arg("1").arg("PX").arg(10_000);
    assert_eq!(client.command(Some(3), &set, soon()).await, Ok(Value::Okay));
    let mut wrong = redis::cmd("LPUSH");
    wrong.arg("tg:{x}").arg("1");
    assert_eq!(client.command(None, &wrong, soon()).await.unwrap_err().class, ReplyClass::WrongType);
}
