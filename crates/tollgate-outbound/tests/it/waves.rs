//! Calls that come in waves to a server that refuses what is too much, and says no more than how long to wait.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate::{Ticks, Timestamp};
use tollgate_testkit::provider::{Asked, Counter, Provider, Rule, Speech};

use crate::fixture::{Client, call, header_map, run_tasks, settings};

const WAVE: usize = 20;
const ROUND_TRIP: Ticks = Ticks::from_millis(20);

/// The time that the calls of a wave took together, and how many of their attempts the server refused.
#[derive(Clone, Copy, Debug)]
struct Wave {
    took: Ticks,
    refused: usize,
}

/// Five calls in any two seconds.
fn server(speech: Speech) -> Provider {
    let counter = Counter::AnyWindow { limit: 5, period: 2_000_000 };
    Provider::new(vec![Rule::calls("calls", counter)], speech, 0)
}

fn micros(at: Timestamp, start: Timestamp) -> u64 {
    at.since(start).as_micros()
}

/// Attempts of one call, until the server takes it.
async fn make(client: Arc<Client>, provider: Arc<Mutex<Provider>>, start: Timestamp) {
    let asked = Asked { route: "", units: 1 };
    loop {
        let guard = client.outbound.acquire(&call()).await.unwrap();
        let answer = provider.lock().unwrap().call(asked, micros(client.time.now(), start));
        client.outbound.clock().sleep_until(client.time.now() + ROUND_TRIP).await;
        let headers: Vec<_> = answer.headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        let headers = header_map(&headers);
        guard.settle(&client.response(answer.status, &headers), None).await.unwrap();
        if !answer.is_refused {
            return;
        }
    }
}

/// Several waves, with pauses between them.
async fn waves(policy: &str, speech: Speech, count: usize, pause: Duration) -> Vec<Wave> {
    let client = Arc::new(Client::new(policy, settings()));
    let (provider, start) = (Arc::new(Mutex::new(server(speech))), client.time.now());
    let mut waves = Vec::new();
    for _ in 0..count {
        let (before, began) = (provider.lock().unwrap().refused.len(), client.time.now());
        let calls: Vec<_> = (0..WAVE)
            .map(|_| tokio::spawn(make(Arc::clone(&client), Arc::clone(&provider), start)))
            .collect();
        while calls.iter().any(|call| !call.is_finished()) {
            run_tasks().await;
            client.time.advance(Duration::from_millis(5));
        }
        let took = client.time.now().since(began);
        waves.push(Wave { took, refused: provider.lock().unwrap().refused.len() - before });
        client.advance(pause).await;
    }
    waves
}

/// With the limit of the server no call is refused, and each wave is as fast as the first.
#[tokio::test]
async fn waves_within_the_limit_are_never_refused() {
    let policy = "limits: [{name: calls, by: [host], algorithm: sliding-log, rate: 5 per 2100ms}]";
    let waves = waves(policy, Speech::RetryAfter, 5, Duration::from_secs(3)).await;
    for wave in &waves {
        assert_eq!(wave.refused, 0, "{waves:?}");
        assert!(wave.took < Ticks::from_millis(6_500), "{waves:?}");
    }
}

/// A policy that is too generous, before a server that says what is left: only calls of the first wave are refused.
#[tokio::test]
async fn a_server_that_tells_refuses_only_calls_of_the_first_wave() {
    let policy = "limits: [{name: calls, by: [host], algorithm: sliding-log, rate: 10 per 2s}]";
    let waves = waves(policy, Speech::Ietf, 5, Duration::from_secs(3)).await;
    assert!(waves[0].refused <= 5, "{waves:?}");
    assert!(waves[1..].iter().all(|wave| wave.refused == 0), "{waves:?}");
}

/// The same before a server that says only how long to wait: the pace of the calls follows what it takes. A call in ten is
/// refused at most, to find out whether it takes more; waves do not become slower.
#[tokio::test]
async fn a_server_that_says_only_how_long_to_wait_is_followed() {
    let policy = "limits: [{name: calls, by: [host], algorithm: sliding-log, rate: 10 per 2s}]";
    for pause in [1, 3, 8] {
        let waves = waves(policy, Speech::RetryAfter, 6, Duration::from_secs(pause)).await;
        assert!(waves[0].refused <= 7, "{waves:?}");
        let later: usize = waves[1..].iter().map(|wave| wave.refused).sum();
        assert!(later <= 10, "{pause} s: {waves:?}");
        assert!(waves.iter().all(|wave| wave.took < Ticks::from_secs(12)), "{pause} s: {waves:?}");
    }
}
