//! Learning: the server's numbers hold calls back, and correct the counters of the policy.

use std::time::Duration;

use tollgate_outbound::{Call, Failure, Learning, Preset, Replenish};

use crate::fixture::{Client, HOST, call, left, run_tasks, settings};

const OPEN: &str = "limits: [{name: open, by: [host], rate: 10_000/s}]";
const SECOND: Duration = Duration::from_secs(1);

/// No more calls are under way than the server says are left, whatever the policy admits.
#[tokio::test]
async fn calls_under_way_count_against_what_the_server_says_is_left() {
    let client = Client::new(OPEN, settings());
    let first = client.outbound.acquire(&call()).await.unwrap();
    // Two calls leave before the first response: the server may not have counted them.
    let (second, third) =
        (client.outbound.acquire(&call()).await.unwrap(), client.outbound.acquire(&call()).await.unwrap());
    let headers = [("ratelimit-policy", r#""default";q=100;w=60"#), ("ratelimit", r#""default";r=4;t=30"#)];
    client.answer(first, 200, &headers).await;
    let more: Vec<_> = (0..5).map(|_| client.start(call())).collect();
    run_tasks().await;
    let gone = more.iter().filter(|call| call.is_finished()).count();
    assert_eq!(gone, 2, "four are left, and two of them are taken by calls under way");
    drop((second, third));
    client.advance(Duration::from_secs(29)).await;
    assert_eq!(more.iter().filter(|call| call.is_finished()).count(), 2);
}

/// A response that was overtaken does not undo the numbers of a newer call.
#[tokio::test]
async fn a_late_response_does_not_undo_a_newer_one() {
    let client = Client::new(OPEN, settings());
    let old = client.outbound.acquire(&call()).await.unwrap();
    let new = client.outbound.acquire(&call()).await.unwrap();
    client.answer(new, 200, &[("ratelimit", r#""default";r=0;t=30"#)]).await;
    client.answer(old, 200, &[("ratelimit", r#""default";r=90;t=30"#)]).await;
    let waits = client.start(call());
    run_tasks().await;
    assert!(!waits.is_finished());
    client.advance(Duration::from_secs(30)).await;
    left(waits).await.finish(None).await;
}

/// After the reset of a long window one call finds out whether it was one, and the others follow.
#[tokio::test]
async fn after_a_reset_one_call_goes_first() {
    let client = Client::new(OPEN, settings());
    let first = client.outbound.acquire(&call()).await.unwrap();
    let headers = [("ratelimit-policy", r#""default";q=5;w=60"#), ("ratelimit", r#""default";r=0;t=30"#)];
    client.answer(first, 200, &headers).await;
    let mut waiting: Vec<_> = (0..4).map(|_| client.start(call())).collect();
    client.advance(Duration::from_secs(30)).await;
    assert_eq!(waiting.iter().filter(|call| call.is_finished()).count(), 1);
    let probe = left(waiting.remove(0)).await;
    let headers = [("ratelimit-policy", r#""default";q=5;w=60"#), ("ratelimit", r#""default";r=4;t=60"#)];
    client.answer(probe, 200, &headers).await;
    for _ in 0..10 {
        run_tasks().await;
    }
    assert!(waiting.iter().all(|call| call.is_finished()));
}

/// A bucket that refills steadily lets calls leave as it refills, and not only when it is full.
#[tokio::test]
async fn a_steady_refill_is_used_as_it_comes() {
    let mut settings = settings();
    settings.replenish = Replenish::Steadily;
    let client = Client::new(OPEN, settings);
    let first = client.outbound.acquire(&call()).await.unwrap();
    let headers = [("ratelimit-policy", r#""default";q=60;w=60"#), ("ratelimit", r#""default";r=0;t=60"#)];
    client.answer(first, 200, &headers).await;
    let (second, third) = (client.start(call()), client.start(call()));
    run_tasks().await;
    assert!(!second.is_finished());
    client.advance(SECOND).await;
    assert!(second.is_finished() && !third.is_finished());
    client.advance(SECOND).await;
    assert!(third.is_finished());
}

/// The server counts a route in a bucket that it names. Unknown routes send one call first, and routes of the same
/// bucket share its numbers.
#[tokio::test]
async fn buckets_are_discovered() {
    let mut settings = settings();
    settings.discovers_buckets = true;
    let client = Client::new(OPEN, settings);
    let to = |route: &str| Call::to(HOST).with("route", route).unwrap();
    let first = client.outbound.acquire(&to("GET /a")).await.unwrap();
    let second = client.start(to("GET /a"));
    run_tasks().await;
    assert!(!second.is_finished(), "the bucket of the route is not known yet");
    let headers = [
        ("x-ratelimit-bucket", "abcd"),
        ("x-ratelimit-limit", "5"),
        ("x-ratelimit-remaining", "1"),
        ("x-ratelimit-reset-after", "50"),
    ];
    client.answer(first, 200, &headers).await;
    run_tasks().await;
    let second = left(second).await;
    let third = client.start(to("GET /a"));
    // It may be of the same bucket, but does not wait so long for that.
    let other = client.outbound.acquire(&to("GET /b")).await.unwrap();
    run_tasks().await;
    assert!(!third.is_finished(), "one was left, and it is taken");
    // The other route has a bucket of its own.
    client.answer(other, 200, &[("x-ratelimit-bucket", "efgh"), ("x-ratelimit-remaining", "4")]).await;
    drop(second);
}

/// A new route may be of a bucket that the server has named. It waits for the reset of that bucket, and is counted there
/// until its response names another.
#[tokio::test]
async fn a_new_route_counts_in_the_buckets_that_are_known() {
    let mut settings = settings();
    settings.discovers_buckets = true;
    let client = Client::new(OPEN, settings);
    let to = |route: &str| Call::to(HOST).with("route", route).unwrap();
    let answer = |bucket, remaining| {
        let numbers = [("x-ratelimit-limit", "2"), ("x-ratelimit-remaining", remaining)];
        [("x-ratelimit-bucket", bucket), numbers[0], numbers[1], ("x-ratelimit-reset-after", "5")]
    };
    let first = client.outbound.acquire(&to("GET /a")).await.unwrap();
    client.answer(first, 200, &answer("abcd", "1")).await;
    let new = client.outbound.acquire(&to("GET /b")).await.unwrap();
    let known = client.start(to("GET /a"));
    run_tasks().await;
    assert!(!known.is_finished(), "the new route may have taken the last one");
    client.answer(new, 200, &answer("efgh", "1")).await;
    client.answer(left(known).await, 200, &answer("abcd", "0")).await;
    let next = client.start(to("GET /c"));
    run_tasks().await;
    assert!(!next.is_finished(), "none is left in a bucket that may count it");
    client.advance(5 * SECOND).await;
    left(next).await.finish(None).await;
}

/// A counter that has more left than the server is lowered, so that other processes on the same store see it.
#[tokio::test]
async fn a_generous_counter_shrinks() {
    let client = Client::new("limits: [{name: my-default, by: [host], rate: 100/h}]", settings());
    let first = client.outbound.acquire(&call()).await.unwrap();
    client.answer(first, 200, &[("ratelimit", r#""default";r=10;t=60"#)]).await;
    let engine = client.outbound.engine();
    let request = tollgate::CheckRequest::new().with("host", HOST).unwrap();
    let left =
        engine.operator().peek(&request, engine.now()).await.limits().next().unwrap().outcome.remaining;
    assert_eq!(left, 10);
}

/// A counter that has less left than the server grows, but only after several responses that say so while calls wait.
#[tokio::test]
async fn a_strict_counter_grows_with_evidence() {
    for (learning, grows) in [(Learning::Follow, true), (Learning::Shrink, false)] {
        let mut settings = settings();
        settings.learning = learning;
        settings.max_wait = Duration::from_secs(7_200);
        let client = Client::new(
            "limits: [{name: my-default, by: [host], rate: 4/h, algorithm: fixed-window}]",
            settings,
        );
        let mut under_way = Vec::new();
        for _ in 0..4 {
            under_way.push(client.outbound.acquire(&call()).await.unwrap());
        }
        let waits = client.start(call());
        run_tasks().await;
        for (number, guard) in under_way.into_iter().enumerate() {
            assert!(number >= 3 || !waits.is_finished(), "after {number} responses");
            client.answer(guard, 200, &[("ratelimit", r#""default";r=50;t=60"#)]).await;
        }
        run_tasks().await;
        assert_eq!(waits.is_finished(), grows, "{learning:?}");
    }
}

/// OpenAI and Anthropic count each model apart, Slack each method: what is left of one says nothing about another, and a
/// refusal stops one.
#[tokio::test]
async fn models_and_routes_that_a_provider_counts_apart_are_followed_apart() {
    for (preset, attribute) in [("openai", "model"), ("anthropic", "model"), ("slack", "route")] {
        let mut settings = Preset::named(preset).unwrap().settings();
        settings.seed = Some(7);
        let client = Client::new(OPEN, settings);
        let to = |name: &str| Call::to(HOST).with("api_key", "k").unwrap().with(attribute, name).unwrap();
        let (small, large) = (to("small"), to("large"));
        let first = client.outbound.acquire(&large).await.unwrap();
        client.answer(first, 200, &requests_left("0", "60s")).await;
        // The other one is not held back, and its numbers do not replace those of the first.
        let second = client.outbound.acquire(&small).await.unwrap();
        client.answer(second, 200, &requests_left("400", "60s")).await;
        let waits = client.start(large.clone());
        run_tasks().await;
        assert!(!waits.is_finished(), "{preset}: nothing is left of the first");
        waits.abort();
        let refused = client.outbound.acquire(&small).await.unwrap();
        client.answer(refused, 429, &[("retry-after", "3600")]).await;
        assert!(client.outbound.acquire(&small).await.is_err(), "{preset}");
        client.advance(Duration::from_secs(61)).await;
        client.outbound.acquire(&large).await.unwrap().finish(None).await;
    }
}

fn requests_left<'t>(left: &'t str, reset: &'t str) -> [(&'t str, &'t str); 3] {
    [
        ("x-ratelimit-limit-requests", "500"),
        ("x-ratelimit-remaining-requests", left),
        ("x-ratelimit-reset-requests", reset),
    ]
}

/// A server that does not say its limit is asked by one call after the reset, and not by a thousand.
#[tokio::test]
async fn after_a_reset_without_a_limit_one_call_goes_first() {
    for reset in [
        &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "30")][..],
        &[("x-ratelimit-remaining-second", "0"), ("ratelimit-reset", "30")],
    ] {
        let client = Client::new(OPEN, settings());
        let first = client.outbound.acquire(&call()).await.unwrap();
        client.answer(first, 200, reset).await;
        let mut waiting: Vec<_> = (0..1_000).map(|_| client.start(call())).collect();
        client.advance(Duration::from_secs(30)).await;
        assert_eq!(waiting.iter().filter(|call| call.is_finished()).count(), 1, "{reset:?}");
        // The probe goes away, and the next one is answered.
        drop(left(waiting.remove(0)).await);
        run_tasks().await;
        assert_eq!(waiting.iter().filter(|call| call.is_finished()).count(), 1, "{reset:?}");
        let probe = left(waiting.remove(0)).await;
        client.answer(probe, 200, &[("x-ratelimit-remaining", "3"), ("x-ratelimit-reset", "30")]).await;
        for _ in 0..10 {
            run_tasks().await;
        }
        // The probe that went away may be the third.
        assert_eq!(waiting.iter().filter(|call| call.is_finished()).count(), 2, "{reset:?}");
    }
}

/// Riot says when a window ends only with its first call. When the response to its last call is lost, the next call waits
/// until the window is over for certain. Once, it left at once and was refused.
#[tokio::test]
async fn a_lost_response_does_not_hide_that_a_window_is_used_up() {
    let client = Client::new(OPEN, settings());
    let first = client.outbound.acquire(&call()).await.unwrap();
    let one_left = [("x-app-rate-limit", "20:30"), ("x-app-rate-limit-count", "19:30")];
    client.answer(first, 200, &one_left).await;
    client.outbound.acquire(&call()).await.unwrap().fail(Failure::Unanswered).await;
    let next = client.start(call());
    client.advance(Duration::from_millis(29_999)).await;
    assert!(!next.is_finished());
    client.advance(Duration::from_millis(1)).await;
    left(next).await.finish(None).await;
}

/// A window without a limit that is over, and that the probe's response does not have, holds no call back any more.
#[tokio::test]
async fn a_window_that_is_over_and_gone_is_forgotten() {
    let client = Client::new(OPEN, settings());
    let first = client.outbound.acquire(&call()).await.unwrap();
    client.answer(first, 200, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "30")]).await;
    let mut waiting: Vec<_> = (0..20).map(|_| client.start(call())).collect();
    client.advance(Duration::from_secs(30)).await;
    let probe = left(waiting.remove(0)).await;
    assert!(waiting.iter().all(|call| !call.is_finished()));
    client.answer(probe, 200, &[]).await;
    run_tasks().await;
    assert!(waiting.iter().all(|call| call.is_finished()));
}

/// When a response names the bucket of a route for the first time, calls of the route that are under way count there, and
/// their responses are no newer than it.
#[tokio::test]
async fn calls_that_left_before_their_bucket_had_a_name_count_in_it() {
    let client = Client::new(OPEN, settings());
    let to = || call().with("route", "GET /a").unwrap();
    let mut under_way = Vec::new();
    for _ in 0..3 {
        under_way.push(client.outbound.acquire(&to()).await.unwrap());
    }
    let (third, second, first) =
        (under_way.pop().unwrap(), under_way.pop().unwrap(), under_way.pop().unwrap());
    let left_of = |remaining| {
        [
            ("x-ratelimit-resource", "core"),
            ("x-ratelimit-limit", "60"),
            ("x-ratelimit-remaining", remaining),
            ("x-ratelimit-reset-after", "60"),
        ]
    };
    client.answer(first, 200, &left_of("2")).await;
    let fourth = client.start(to());
    run_tasks().await;
    assert!(!fourth.is_finished(), "two are left, and two calls are under way");
    // The server counted the second call before the first.
    client.answer(second, 200, &left_of("4")).await;
    let fourth = left(fourth).await;
    let fifth = client.start(to());
    run_tasks().await;
    assert!(!fifth.is_finished(), "two are left, and two calls are under way");
    // The end of a call is the end of it in its new bucket.
    drop((third, fourth));
    let core =
        client.outbound.report().buckets.into_iter().find(|bucket| bucket.name.contains("core")).unwrap();
    assert_eq!(core.in_flight, 0);
}

/// Growth takes new evidence each time, and no more than the server leaves beyond what the counter has by then.
#[tokio::test]
async fn growth_is_not_repeated_without_new_evidence() {
    let mut settings = settings();
    settings.max_wait = Duration::from_secs(7_200);
    let policy = "limits: [{name: my-default, by: [host], rate: 1000/h, algorithm: fixed-window}]";
    let client = Client::new(policy, settings);
    client.outbound.acquire(&call().cost(990).unwrap()).await.unwrap().finish(None).await;
    let mut under_way = Vec::new();
    for _ in 0..10 {
        under_way.push(client.outbound.acquire(&call()).await.unwrap());
    }
    let small = client.start(call());
    run_tasks().await;
    let large = client.start(call().cost(60).unwrap());
    run_tasks().await;
    let mut own = Vec::new();
    for (number, guard) in under_way.into_iter().enumerate().take(6) {
        // Each response leaves 20 for calls that have not left. After three responses the small call has left.
        let in_flight = 9 - number + usize::from(number > 2);
        let state = format!("\"default\";r={};t=60", in_flight + 20);
        client.answer(guard, 200, &[("ratelimit", state.as_str())]).await;
        let engine = client.outbound.engine();
        let request = tollgate::CheckRequest::new().with("host", HOST).unwrap();
        let decision = engine.operator().peek(&request, engine.now()).await;
        own.push(decision.limits().next().unwrap().outcome.remaining);
    }
    assert_eq!(own, [0, 0, 19, 19, 19, 20]);
    assert!(small.is_finished() && !large.is_finished());
}

/// A leaky bucket admits calls to its queue that may not leave yet: they are no units that the server has not.
#[tokio::test]
async fn the_queue_of_a_leaky_bucket_is_not_taken_for_units() {
    let policy = "limits: [{name: my-default, by: [host], algorithm: leaky-bucket, rate: 10/s, queue: 100}]";
    let client = Client::new(policy, settings());
    let first = client.outbound.acquire(&call()).await.unwrap();
    client.answer(first, 200, &[("ratelimit", r#""default";r=50;t=60"#)]).await;
    let next = client.start(call());
    client.advance(Duration::from_millis(100)).await;
    left(next).await.finish(None).await;
}
