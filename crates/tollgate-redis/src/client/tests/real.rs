//! The client against a real redis-server.

use std::process::Command;

use super::*;
use crate::metrics::ShardReport;
use tollgate_testkit::redis::Redis;

/// A client whose store answers. On a busy machine the first attempts to connect may fail and open the breaker.
async fn connected(url: &str) -> Client {
    let client = client_for(url);
    let answers = |shard: &ShardReport| shard.is_connected && shard.state == BreakerState::Closed;
    until(|| client.report(1, 0).shards.iter().any(answers)).await;
    client
}

/// Requests are answered, and the script stays loaded.
#[tokio::test]
async fn requests_are_answered() {
    let server = Redis::start(&[]);
    let client = connected(&server.url()).await;
    for body in ["one", "two", "three"] {
        assert_eq!(echo(&client, body).await, echoed(body));
    }
    let report = client.report(1, 0);
    assert_eq!((report.decisions, failures(&client, ReplyClass::NoScript)), (4, 1)); // The first was sent twice.
    server.run(&["SCRIPT", "FLUSH"]);
    assert_eq!(echo(&client, "four").await, echoed("four"));
    assert_eq!(report.latency.iter().sum::<u64>(), report.calls);
}

/// Concurrent requests share calls, and each gets its own answer. A single request is sent immediately.
#[tokio::test]
async fn concurrent_requests_share_calls() {
    let server = Redis::start(&[]);
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

/// A server that is killed and restarted: requests fail in between and succeed afterwards.
#[tokio::test]
async fn restart_of_the_server_is_survived() {
    let server = Redis::start(&[]);
    let port = server.port;
    let client = connected(&server.url()).await;
    assert_eq!(echo(&client, "x").await, echoed("x"));
    drop(server);
    until(|| client.report(1, 0).shards[0].state != BreakerState::Closed).await;
    assert!(!echo(&client, "x").await.unwrap_err().may_have_run);
    assert!(client.away_for(0, Instant::now()).is_some());
    let _server = Redis::start_at(port, &[]);
    let began = Instant::now();
    until(|| client.report(1, 0).shards[0].state == BreakerState::Closed).await;
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    assert_eq!(echo(&client, "y").await, echoed("y"));
}

/// A stopped server is detected by heartbeats alone: its kernel still accepts data.
#[tokio::test]
async fn stopped_server_is_detected_without_requests() {
    let server = Redis::start(&[]);
    let client = connected(&server.url()).await;
    let signal = |name: &str| {
        let pid = server.run(&["INFO", "server"]);
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

/// A full server still serves reads, so only a probe that writes keeps the breaker open.
#[tokio::test]
async fn full_server_is_probed_with_writes() {
    let server = Redis::start(&[]);
    const WRITE: &str = "redis.call('SET', KEYS[1], '1', 'PX', 60000) return {'ok'}";
    let settings = server.url().parse::<Settings>().unwrap().deadline(DEADLINE).unwrap();
    let client = Client::new(&settings, WRITE, Handle::current());
    until(|| client.report(1, 0).shards[0].is_connected).await;
    assert_eq!(echo(&client, "x").await, echoed("ok"));
    server.run(&["CONFIG", "SET", "maxmemory", "1"]);
    for _ in 0..5 {
        assert_eq!(echo(&client, "x").await.unwrap_err().class, ReplyClass::OutOfMemory);
    }
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_ne!(client.report(1, 0).shards[0].state, BreakerState::Closed);
    server.run(&["CONFIG", "SET", "maxmemory", "0"]);
    until(|| client.report(1, 0).shards[0].state == BreakerState::Closed).await;
    assert_eq!(echo(&client, "x").await, echoed("ok"));
    assert_ne!(server.run(&["PTTL", "tg:{@@@@}probe"]), "-1");
}

/// An ACL user with the right password and permissions can decide. A wrong password opens the breaker.
#[tokio::test]
async fn acl_users_log_in() {
    let server = Redis::start(&[]);
    let rules = "ACL SETUSER toll on >word resetkeys ~tg:* -@all +eval +evalsha +set +ping";
    server.run(&rules.split(' ').collect::<Vec<_>>());
    server.run(&["CONFIG", "SET", "requirepass", "other"]);
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

/// Plain commands are sent and answered.
#[tokio::test]
async fn plain_commands_are_sent() {
    let server = Redis::start(&[]);
    let client = connected(&server.url()).await;
    let mut set = redis::cmd("SET");
    set.arg("tg:{x}").arg("1").arg("PX").arg(10_000);
    assert_eq!(client.command(Some(3), &set, soon()).await, Ok(Value::Okay));
    let mut wrong = redis::cmd("LPUSH");
    wrong.arg("tg:{x}").arg("1");
    assert_eq!(client.command(None, &wrong, soon()).await.unwrap_err().class, ReplyClass::WrongType);
}
