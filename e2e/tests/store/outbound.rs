//! Outbound calls of a fleet: processes that share limits and freezes through a real Redis. Each client has connections,
//! leases and tasks of its own, as a process has.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use tokio::runtime::Runtime;
use tollgate::Ticks;
use tollgate::store::Store;
use tollgate_outbound::{Call, FleetStore, Outbound, Refusal, ResponseView, Settings};
use tollgate_testkit::until;

use crate::server::Server;
use crate::store::new_runtime;

const HOST: &str = "api.example.com";

fn client(runtime: &Runtime, url: &str, policy: &str) -> Outbound<FleetStore> {
    runtime.block_on(Outbound::connect(url, policy.parse().unwrap(), Settings::default())).unwrap()
}

/// A call that may not wait.
fn call() -> Call {
    Call::to(HOST).max_wait(Duration::ZERO)
}

fn send(runtime: &Runtime, client: &Outbound<FleetStore>) -> Result<(), Refusal> {
    runtime.block_on(async {
        let guard = client.acquire(&call()).await?;
        guard.finish(None).await;
        Ok(())
    })
}

/// Three processes send together what the limit admits, and no more. The count survives a restart of all of them: it is
/// in the store.
#[test]
fn processes_share_one_limit_which_survives_their_restart() {
    let server = Server::redis();
    let runtime = new_runtime();
    // On a busy machine the store may be slower than its deadline. Then no call leaves, instead of one process's share.
    let policy = "limits: [{name: daily, by: [host], algorithm: fixed-window, align: first-hit, rate: 300/day, \
                  on_store_failure: deny}]";
    let clients: Vec<_> = (0..3).map(|_| client(&runtime, &server.url(), policy)).collect();
    let mut sent = 0;
    // One sends more than a third, so that it is not the share of each that holds.
    until("two thirds have left", || {
        while sent < 200 && send(&runtime, &clients[0]).is_ok() {
            sent += 1;
        }
        (sent == 200).then_some(())
    });
    // A store that is too slow refuses for seconds.
    let is_used_up = |refusal: &Refusal| match refusal {
        Refusal::TooLate { bucket, wait, .. } => bucket == "daily" && *wait > Ticks::from_secs(80_000),
        _ => false,
    };
    until("the limit refuses all of them", || {
        let results: Vec<_> = clients.iter().map(|client| send(&runtime, client)).collect();
        sent += results.iter().filter(|result| result.is_ok()).count();
        results.iter().all(|result| result.as_ref().is_err_and(is_used_up)).then_some(())
    });
    // A call whose answer the store gave too late is counted, and does not leave.
    assert!((290..=300).contains(&sent), "{sent}");
    for client in &clients {
        runtime.block_on(client.leave());
    }
    drop(clients);
    let next = client(&runtime, &server.url(), policy);
    until("the next process is refused by the limit", || {
        let refusal = send(&runtime, &next).expect_err("a call left after the restart");
        is_used_up(&refusal).then_some(())
    });
}

/// A process that dies without a word holds its leases no longer than they last: the others send the rest.
#[test]
#[allow(clippy::disallowed_methods, reason = "the test measures a real rate")]
fn a_process_that_dies_returns_its_share() {
    const MEASURED: Duration = Duration::from_secs(2);
    let server = Server::redis();
    let runtime = new_runtime();
    // With half of the rate, two seconds have 50 and the burst. The rate is low, so that a slow machine reaches it, too.
    let policy = "limits: [{name: shared, by: [host], rate: 50/s, burst: 20, consistency: leased, lease: {max_share: 50%}}]";
    let survivor = client(&runtime, &server.url(), policy);
    let dies = new_runtime();
    let dying = client(&dies, &server.url(), policy);
    for _ in 0..10 {
        send(&dies, &dying).unwrap();
    }
    // Its tasks end with their runtime, in the middle of whatever they do.
    dies.shutdown_background();
    std::mem::forget(dying);
    until("the survivor has the whole rate", || {
        let start = std::time::Instant::now();
        let mut sent = 0_u32;
        while start.elapsed() < MEASURED {
            if send(&runtime, &survivor).is_ok() {
                sent += 1;
            } else {
                runtime.block_on(async { tokio::time::sleep(Duration::from_millis(1)).await });
            }
        }
        (sent >= 90).then_some(())
    });
}

/// A refusal with `Retry-After` that one process gets stops the others, and one that starts later.
#[test]
fn a_freeze_holds_for_the_fleet() {
    let server = Server::redis();
    let runtime = new_runtime();
    let policy = "limits: [{name: open, by: [host], rate: 1000/s}]";
    let (one, other) = (client(&runtime, &server.url(), policy), client(&runtime, &server.url(), policy));
    send(&runtime, &other).unwrap();
    runtime.block_on(async {
        let guard = one.acquire(&call()).await.unwrap();
        let headers: HeaderMap = [(http::header::RETRY_AFTER, "3600".parse().unwrap())].into_iter().collect();
        let (status, received) = (StatusCode::TOO_MANY_REQUESTS, one.engine().now());
        let response = ResponseView { status, headers: &headers, body: None, received };
        guard.settle(&response, None).await.unwrap_err();
    });
    let refused = |client: &Outbound<FleetStore>| send(&runtime, client).err();
    let refusal = until("the other process is frozen", || refused(&other));
    let Refusal::TooLate { bucket, wait, .. } = &refusal else { panic!("{refusal}") };
    assert_eq!(bucket, HOST);
    assert!(Duration::from(*wait) > Duration::from_secs(3_000), "{refusal}");
    let late = client(&runtime, &server.url(), policy);
    until("a process that starts later is frozen", || refused(&late));
}

/// Without the store each process goes on with its share. Together they send no more than the limit, with what they had
/// sent before.
#[test]
fn without_the_store_processes_keep_their_shares() {
    let mut server = Server::redis();
    let runtime = new_runtime();
    let policy = "limits: [{name: hourly, by: [host], rate: 100/h}]";
    let clients: Vec<_> = (0..2).map(|_| client(&runtime, &server.url(), policy)).collect();
    until("each knows of the other", || {
        clients.iter().all(|client| client.engine().store().nodes() == 2).then_some(())
    });
    let mut sent = [0, 0];
    for (client, (before, count)) in clients.iter().zip([10, 25].into_iter().zip(&mut sent)) {
        for _ in 0..before {
            send(&runtime, client).unwrap();
            *count += 1;
        }
    }
    server.kill();
    for (client, count) in clients.iter().zip(&mut sent) {
        while *count <= 100 && send(&runtime, client).is_ok() {
            *count += 1;
        }
    }
    assert!(sent[0] > 10 && sent[1] > 25, "each goes on: {sent:?}");
    assert!(sent.iter().sum::<u32>() <= 100, "{sent:?}");
}
