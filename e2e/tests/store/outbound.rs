//! Outbound calls of a fleet: processes that share limits and freezes through a real Redis. Each client has connections,
//! leases and tasks of its own, as a process has.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use tokio::runtime::Runtime;
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

/// How many calls leave until the limit holds all of them back.
fn drained(runtime: &Runtime, clients: &[Outbound<FleetStore>]) -> u64 {
    let (mut sent, mut refused) = (0, 0);
    while refused < 200 {
        refused += 1;
        for client in clients {
            if send(runtime, client).is_ok() {
                (sent, refused) = (sent + 1, 0);
            }
        }
        if refused > 0 {
            // A process that holds nothing more returns it, so that the others get it.
            runtime.block_on(async { tokio::time::sleep(Duration::from_millis(5)).await });
        }
    }
    sent
}

/// Three processes send together what the limit admits, and no more. The count survives a restart of all of them: it is
/// in the store.
#[test]
fn processes_share_one_limit_which_survives_their_restart() {
    let server = Server::redis();
    let runtime = new_runtime();
    let policy =
        "limits: [{name: daily, by: [host], algorithm: fixed-window, align: first-hit, rate: 300/day}]";
    let clients: Vec<_> = (0..3).map(|_| client(&runtime, &server.url(), policy)).collect();
    let sent = drained(&runtime, &clients);
    assert_eq!(sent, 300);
    for client in &clients {
        runtime.block_on(client.leave());
    }
    drop(clients);
    let next = client(&runtime, &server.url(), policy);
    let refusal = send(&runtime, &next).unwrap_err();
    let Refusal::TooLate { bucket, wait, .. } = &refusal else { panic!("{refusal}") };
    assert_eq!(bucket, "daily");
    assert!(Duration::from(*wait) > Duration::from_secs(86_000), "{refusal}");
}

/// A process that dies without a word holds its leases no longer than they last: the others send the rest.
#[test]
#[allow(clippy::disallowed_methods, reason = "the test measures a real rate")]
fn a_process_that_dies_returns_its_share() {
    let server = Server::redis();
    let runtime = new_runtime();
    // With half of the rate, a second has 250 and the burst.
    let policy = "limits: [{name: shared, by: [host], rate: 500/s, burst: 100, consistency: leased}]";
    let survivor = client(&runtime, &server.url(), policy);
    let dies = new_runtime();
    let dying = client(&dies, &server.url(), policy);
    for _ in 0..20 {
        send(&dies, &dying).unwrap();
    }
    // Its tasks end with their runtime, in the middle of whatever they do.
    dies.shutdown_background();
    std::mem::forget(dying);
    // The survivor gets the whole rate, within what a clock of a busy machine lets us measure.
    until("the survivor has the whole rate", || {
        let start = std::time::Instant::now();
        let mut sent = 0_u32;
        while start.elapsed() < Duration::from_secs(1) {
            if send(&runtime, &survivor).is_ok() {
                sent += 1;
            } else {
                runtime.block_on(async { tokio::time::sleep(Duration::from_millis(1)).await });
            }
        }
        (sent >= 475).then_some(())
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
        let headers: HeaderMap = [(http::header::RETRY_AFTER, "120".parse().unwrap())].into_iter().collect();
        let (status, received) = (StatusCode::TOO_MANY_REQUESTS, one.engine().now());
        guard.settle(&ResponseView { status, headers: &headers, body: None, received }, None).await;
    });
    let refused = |client: &Outbound<FleetStore>| send(&runtime, client).err();
    let refusal = until("the other process is frozen", || refused(&other));
    let Refusal::TooLate { bucket, wait, .. } = &refusal else { panic!("{refusal}") };
    assert_eq!(bucket, HOST);
    assert!(Duration::from(*wait) > Duration::from_secs(110), "{refusal}");
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
