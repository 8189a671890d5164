//! A store that stops replying: how soon it is detected, and that requests do not wait for it afterwards.

use super::fake::{Action, Fake};
use super::replies::echo_reply;
use super::*;

/// How soon a silent connection is detected.
const KNOWN: Duration = Duration::from_millis(300);
/// The delay that a busy machine adds.
const BUSY: Duration = Duration::from_millis(100);

/// A silent connection is detected within 300 ms even if requests are too rare to open the breaker, and requests in
/// flight fail. The story: three heartbeats were awaited one after the other, which took nearly half a second.
#[tokio::test]
async fn silent_connection_is_detected_with_few_requests() {
    let fake = Fake::replying(echo_reply).await;
    let client = client_for(&fake.url());
    until(|| client.report(1, 0).connections == 1).await;
    assert_eq!(echo(&client, "x").await, echoed("x"));
    fake.set_silent(true);
    let began = Instant::now();
    let long = began + Duration::from_secs(5);
    let waiting = tokio::spawn(client.submit(request(0, "lost"), None, long).unwrap().answer());
    until(|| client.report(1, 0).shards[0].state != BreakerState::Closed).await;
    assert!(waiting.await.unwrap().unwrap_err().may_have_run);
    assert!(began.elapsed() < KNOWN + BUSY, "{:?}", began.elapsed());
}

/// Requests do not wait during the pause after a connection that keeps breaking. The story: the shard stayed in the
/// state `Connecting` for the whole pause, so every request waited until its deadline and none opened the breaker.
#[tokio::test]
async fn requests_do_not_wait_during_a_reconnect_pause() {
    let fake = Fake::replying(|words| match words.last().is_some_and(|body| body == "break") {
        true => Action::Close,
        false => echo_reply(words),
    })
    .await;
    let client = client_for(&fake.url());
    until(|| client.report(1, 0).connections == 1).await;
    let mut unreached = 0;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) && unreached < 20 {
        let _ = echo(&client, "break").await;
        // More succeed than fail, so the breaker stays closed.
        for _ in 0..3 {
            let asked = Instant::now();
            let answer = echo(&client, "x").await;
            if answer.is_err_and(|failure| failure.class == ReplyClass::NoConnection) {
                unreached += 1;
                assert!(asked.elapsed() < DEADLINE / 2, "it waited for {:?}", asked.elapsed());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    assert!(unreached > 0, "its rest was never noticed");
}
