//! Freezes: a refusal of the server stops every caller behind its bucket, and one probe ends it.

use std::time::Duration;

use tollgate::Ticks;
use tollgate_outbound::{Basis, Call, Failure, FreezeCause, Refusal, Statement, ThrottleKind};

use crate::fixture::{Client, HOST, call, left, run_tasks, settings};

const OPEN: &str = "limits: [{name: open, by: [host], rate: 10_000/s}]";

/// After a 429 with Retry-After no call leaves before it, then one, and the others after its success.
#[tokio::test]
async fn a_refusal_stops_all_callers_and_one_probe_ends_it() {
    let client = Client::new(OPEN, settings());
    let refused = client.outbound.acquire(&call()).await.unwrap();
    client.answer(refused, 429, &[("retry-after", "10")]).await;
    let mut waiting: Vec<_> = (0..20).map(|_| client.start(call())).collect();
    client.advance(Duration::from_millis(9_999)).await;
    assert!(waiting.iter().all(|call| !call.is_finished()), "a call left during the freeze");
    // The jitter is at most a tenth and 100 ms.
    client.advance(Duration::from_millis(1_101)).await;
    let probes: Vec<usize> =
        waiting.iter().enumerate().filter(|(_, call)| call.is_finished()).map(|(at, _)| at).collect();
    assert_eq!(probes, [0], "one call finds out, the first");
    let probe = left(waiting.remove(0)).await;
    client.answer(probe, 200, &[]).await;
    let mut rounds = 0;
    while !waiting.is_empty() {
        let (finished, rest): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|call| call.is_finished());
        assert!(!finished.is_empty());
        assert!(finished.len() <= 2 << rounds, "{} calls at once in round {rounds}", finished.len());
        for call in finished {
            let guard = left(call).await;
            client.answer(guard, 200, &[]).await;
        }
        waiting = rest;
        rounds += 1;
    }
}

/// A probe that is refused again freezes the bucket again. One whose caller goes away leaves the probe to the next.
#[tokio::test]
async fn a_probe_may_fail_or_go_away() {
    let client = Client::new(OPEN, settings());
    let refused = client.outbound.acquire(&call()).await.unwrap();
    client.answer(refused, 429, &[("retry-after", "1")]).await;
    let (first, second) = (client.start(call()), client.start(call()));
    client.advance(Duration::from_secs(2)).await;
    let probe = left(first).await;
    assert!(!second.is_finished());
    client.answer(probe, 429, &[("retry-after", "1")]).await;
    client.advance(Duration::from_secs(2)).await;
    let probe = left(second).await;
    let third = client.start(call());
    run_tasks().await;
    assert!(!third.is_finished());
    drop(probe);
    run_tasks().await;
    left(third).await.finish(None).await;
}

/// A response to a call that left before the freeze does not end it.
#[tokio::test]
async fn an_older_response_does_not_end_a_freeze() {
    let client = Client::new(OPEN, settings());
    let (slow, refused) =
        (client.outbound.acquire(&call()).await.unwrap(), client.outbound.acquire(&call()).await.unwrap());
    client.answer(refused, 429, &[("retry-after", "5")]).await;
    client.answer(slow, 200, &[]).await;
    let waits = client.start(call());
    run_tasks().await;
    assert!(!waits.is_finished());
}

/// A refusal concerns one server and one credential.
#[tokio::test]
async fn other_servers_and_credentials_go_on() {
    let client = Client::new("limits: [{name: open, rate: 10_000/s}]", settings());
    let with_key = |key: &str| Call::to(HOST).with("api_key", key).unwrap();
    let refused = client.outbound.acquire(&with_key("a")).await.unwrap();
    client.answer(refused, 429, &[("retry-after", "5")]).await;
    client.outbound.acquire(&with_key("b")).await.unwrap().finish(None).await;
    client.outbound.acquire(&Call::to("other.example.com")).await.unwrap().finish(None).await;
    let waits = client.start(with_key("a"));
    run_tasks().await;
    assert!(!waits.is_finished());
    assert!(!format!("{:?}", client.outbound.report()).contains("api_key"), "a credential is not shown");
}

/// A call that may not wait for the end of a freeze learns the instant at once.
#[tokio::test]
async fn a_long_freeze_is_an_error_with_its_instant() {
    let client = Client::new(OPEN, settings());
    let refused = client.outbound.acquire(&call()).await.unwrap();
    let now = client.time.now();
    let settled = client.answer(refused, 429, &[("retry-after", "3600")]).await;
    let refusal = client.outbound.acquire(&call()).await.err().unwrap();
    assert_eq!(settled, Some(refusal.clone()), "the refused call and the next one say the same");
    let Refusal::TooLate { bucket, basis, until, .. } = &refusal else { panic!("{refusal}") };
    assert_eq!((bucket.as_str(), *basis), (HOST, Basis::Server));
    assert!(until.since(now) >= Ticks::from_secs(3_600), "{until:?}");
    assert!(refusal.to_string().contains(HOST) && refusal.to_string().contains("the server"), "{refusal}");
}

/// The story: one `Retry-After: 86400` stopped an API for a day, and nothing lifted it. An operator sees the freeze with the
/// server's words, and ends it: one call finds out, and the bucket is frozen again if the server refuses that one.
#[tokio::test]
async fn an_operator_ends_a_freeze() {
    let client = Client::new(OPEN, settings());
    let refused = client.outbound.acquire(&call()).await.unwrap();
    let stated_at = client.time.now();
    let fields = [("retry-after", "86400"), ("ratelimit-remaining", "0"), ("ratelimit-reset", "86400")];
    client.answer(refused, 429, &fields).await;
    let refusal = client.outbound.acquire(&call()).await.err().unwrap().to_string();
    assert!(refusal.contains("said to wait 24 h;") && !refusal.contains("call less often"), "{refusal}");
    let frozen = client.outbound.freezes();
    let statement = frozen.iter().map(|bucket| bucket.frozen.unwrap().statement.unwrap()).collect::<Vec<_>>();
    let day = Ticks::from_secs(86_400);
    assert!(
        matches!(statement[..], [Statement { at, wait }] if at == stated_at && wait == day),
        "{statement:?}"
    );
    assert_eq!(client.outbound.thaw(|bucket| bucket.owner == "other.example.com"), []);
    assert_eq!(client.outbound.thaw(|bucket| bucket.owner == HOST), frozen);
    assert_eq!(client.outbound.freezes(), []);
    let probe = client.outbound.acquire(&call()).await.unwrap();
    client.answer(probe, 429, &fields).await;
    assert_eq!(client.outbound.freezes().len(), 1);
}

/// Money is no matter of waiting.
#[tokio::test]
async fn an_exhausted_budget_is_an_error() {
    let client = Client::new(OPEN, settings());
    let guard = client.outbound.acquire(&call()).await.unwrap();
    let headers = crate::fixture::header_map(&[("content-type", "application/json")]);
    let mut response = client.response(429, &headers);
    let body = br#"{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":"insufficient_quota"}}"#;
    response.body = Some(body);
    let settled = guard.settle(&response, None).await.unwrap_err();
    let refusal = client.outbound.acquire(&call()).await.err().unwrap();
    assert_eq!(settled, refusal, "the refused call and the next one say the same");
    let Refusal::Exhausted { kind, wait, until, .. } = &refusal else { panic!("{refusal}") };
    assert_eq!((*kind, client.time.now() + *wait), (ThrottleKind::Money, *until));
}

/// Without Retry-After the pause grows with each refusal in a row. A time of zero is no time: `Retry-After: 0`, a date
/// that is over, and a window that is said to be full again.
#[tokio::test]
async fn refusals_without_a_time_back_off() {
    for headers in [
        &[][..],
        &[("retry-after", "0")],
        &[("retry-after-ms", "0")],
        &[("retry-after", "Wed, 18 Nov 2015 20:00:00 GMT"), ("date", "Wed, 18 Nov 2026 20:00:00 GMT")],
        &[("ratelimit", r#""default";r=0;t=0"#)],
    ] {
        let client = Client::new(OPEN, settings());
        let mut pauses = Vec::new();
        let mut guard = client.outbound.acquire(&call()).await.unwrap();
        for _ in 0..4 {
            client.answer(guard, 429, headers).await;
            let frozen = client.outbound.report().buckets.iter().find_map(|bucket| bucket.frozen).unwrap();
            assert_eq!(frozen.cause, FreezeCause::Throttled(ThrottleKind::Rate));
            pauses.push(frozen.until.since(client.time.now()).as_micros() / 1_000_000);
            let next = client.start(call());
            run_tasks().await;
            client.advance(frozen.until.since(client.time.now()).into()).await;
            guard = left(next).await;
        }
        assert_eq!(pauses, [1, 2, 4, 8], "{headers:?}");
    }
}

/// A probe that fails on the network says nothing about the refusal: the waiters are not refused, and the next of them
/// is the probe. Once, one broken connection after a 429 failed a thousand calls with an open circuit.
#[tokio::test]
async fn a_probe_that_fails_on_the_network_leaves_the_probe_to_the_next() {
    let client = Client::new(OPEN, settings());
    let refused = client.outbound.acquire(&call()).await.unwrap();
    client.answer(refused, 429, &[("retry-after", "1")]).await;
    let mut waiting: Vec<_> = (0..6).map(|_| client.start(call())).collect();
    client.advance(Duration::from_secs(2)).await;
    for failure in [Failure::Unanswered, Failure::Unreachable, Failure::NotSent] {
        let probe = left(waiting.remove(0)).await;
        assert!(waiting.iter().all(|call| !call.is_finished()), "a call left beside the probe");
        probe.fail(failure).await;
        run_tasks().await;
    }
    let probe = left(waiting.remove(0)).await;
    client.answer(probe, 200, &[]).await;
    for waiter in waiting {
        left(waiter).await.finish(None).await;
    }
}

/// A call that was not sent, or that its caller gave up, is no failure of the server; one without a connection is.
#[tokio::test]
async fn only_failures_of_the_server_open_the_circuit() {
    for (failure, opens) in
        [(Failure::NotSent, false), (Failure::Unreachable, true), (Failure::Unanswered, true)]
    {
        let client = Client::new(OPEN, settings());
        for _ in 0..5 {
            client.outbound.acquire(&call()).await.unwrap().fail(failure).await;
        }
        let refusal = client.outbound.acquire(&call()).await.err();
        assert_eq!(matches!(refusal, Some(Refusal::CircuitOpen { .. })), opens, "{failure:?}");
    }
}

/// The probe of an open circuit is different: one more failure opens it again.
#[tokio::test]
async fn the_probe_of_an_open_circuit_opens_it_again() {
    let client = Client::new(OPEN, settings());
    for _ in 0..5 {
        client.outbound.acquire(&call()).await.unwrap().fail(Failure::Unanswered).await;
    }
    client.advance(Duration::from_millis(1_101)).await;
    client.outbound.acquire(&call()).await.unwrap().fail(Failure::Unanswered).await;
    let refusal = client.outbound.acquire(&call()).await.err().unwrap();
    assert!(matches!(refusal, Refusal::CircuitOpen { failures: 6, .. }), "{refusal}");
}

/// Five failures in a row open the circuit: calls fail at once until one attempt succeeds.
#[tokio::test]
async fn a_failing_server_is_left_alone() {
    let client = Client::new(OPEN, settings());
    for _ in 0..5 {
        let guard = client.outbound.acquire(&call()).await.unwrap();
        guard.fail(Failure::Unanswered).await;
    }
    let refusal = client.outbound.acquire(&call()).await.err().unwrap();
    let Refusal::CircuitOpen { failures, .. } = &refusal else { panic!("{refusal}") };
    assert_eq!(*failures, 5);
    client.advance(Duration::from_millis(1_101)).await;
    let probe = client.outbound.acquire(&call()).await.unwrap();
    client.answer(probe, 200, &[]).await;
    client.outbound.acquire(&call()).await.unwrap().finish(None).await;
}

/// A server that fails with one credential is left alone with all of them. A success with any is a success.
#[tokio::test]
async fn a_server_that_fails_is_left_alone_with_every_credential() {
    let client = Client::new("limits: [{name: open, rate: 10_000/s}]", settings());
    let with_key = |key: &str| Call::to(HOST).with("api_key", key).unwrap();
    for key in ["a", "b", "a", "b"] {
        client.outbound.acquire(&with_key(key)).await.unwrap().fail(Failure::Unanswered).await;
    }
    let works = client.outbound.acquire(&with_key("c")).await.unwrap();
    client.answer(works, 200, &[]).await;
    for key in ["a", "b", "c", "d", "e"] {
        client.outbound.acquire(&with_key(key)).await.unwrap().fail(Failure::Unanswered).await;
    }
    let refusal = client.outbound.acquire(&with_key("f")).await.err().unwrap();
    assert!(
        matches!(&refusal, Refusal::CircuitOpen { failures: 5, bucket, .. } if bucket == HOST),
        "{refusal}"
    );
    client.outbound.acquire(&Call::to("other.example.com")).await.unwrap().finish(None).await;
}

/// A thousand waiters do not return as a herd: after the probe their number grows with the successes.
#[tokio::test]
async fn a_thousand_waiters_return_step_by_step() {
    let client = Client::new(OPEN, settings());
    let refused = client.outbound.acquire(&call()).await.unwrap();
    client.answer(refused, 429, &[("retry-after", "10")]).await;
    let mut waiting: Vec<_> = (0..1_000).map(|_| client.start(call())).collect();
    run_tasks().await;
    client.advance(Duration::from_millis(11_101)).await;
    let mut at_once = Vec::new();
    while !waiting.is_empty() {
        for _ in 0..50 {
            run_tasks().await;
        }
        let (finished, rest): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|call| call.is_finished());
        at_once.push(finished.len());
        waiting = rest;
        // One round trip for all of them, and no call leaves meanwhile.
        client.advance(Duration::from_millis(50)).await;
        for call in finished {
            let guard = left(call).await;
            let headers = http::HeaderMap::new();
            guard.settle(&client.response(200, &headers), None).await.unwrap();
        }
        assert!(at_once.len() < 100, "{at_once:?}");
    }
    assert_eq!(at_once[0], 1, "{at_once:?}");
    assert!(at_once.windows(2).all(|pair| pair[1] <= 2 * pair[0]), "{at_once:?}");
    assert!(at_once.iter().all(|calls| *calls <= 100), "{at_once:?}");
}

/// A refusal that concerns one resource or one endpoint stops the calls of its route, and no others.
#[tokio::test]
async fn a_refusal_of_one_route_does_not_stop_the_others() {
    for reason in ["resource-specific", "endpoint-rate"] {
        let client = Client::new(OPEN, settings());
        let to = |route: &str| call().with("route", route).unwrap();
        let refused = client.outbound.acquire(&to("POST /v1/charges/{id}")).await.unwrap();
        let headers = [("stripe-rate-limited-reason", reason), ("retry-after", "5")];
        client.answer(refused, 429, &headers).await;
        let waits = client.start(to("POST /v1/charges/{id}"));
        run_tasks().await;
        assert!(!waits.is_finished(), "{reason}");
        client.outbound.acquire(&to("GET /v1/balance")).await.unwrap().finish(None).await;
        client.advance(Duration::from_secs(6)).await;
        client.answer(left(waits).await, 200, &[]).await;
    }
    // Without a route the refusal concerns all that is known of the call: its server.
    let client = Client::new(OPEN, settings());
    let refused = client.outbound.acquire(&call()).await.unwrap();
    let headers = [("stripe-rate-limited-reason", "resource-specific"), ("retry-after", "5")];
    client.answer(refused, 429, &headers).await;
    let waits = client.start(call());
    run_tasks().await;
    assert!(!waits.is_finished());
}
