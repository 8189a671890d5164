//! A store that says nothing: how soon it is known, and that nobody waits for it then.

use super::fake::{Does, Fake};
use super::replies::echo_reply;
use super::*;

/// How soon a connection that swallows everything is known.
const KNOWN: Duration = Duration::from_millis(300);
/// What a busy machine adds to that.
const BUSY: Duration = Duration::from_millis(100);

/// A connection that swallows everything is given up within 300 ms also where requests are rare: too few to open the breaker, and each of
/// them would wait in vain. Whoever still waits is told. The story: three heartbeats were waited for one after the other, and it took
/// nearly half a second.
#[tokio::test]
async fn a_silent_connection_is_known_although_requests_are_rare() {
    let fake = Fake::playing(echo_reply).await;
    let client = client_for(&fake.url());
    until(|| client.report(1, 0).connections == 1).await;
    assert_eq!(echo(&client, "x").await, echoed("x"));
    fake.deafen(true);
    let began = Instant::now();
    let long = began + Duration::from_secs(5);
    let waiting = tokio::spawn(client.submit(request(0, "lost"), None, long).unwrap().answer());
    until(|| client.report(1, 0).shards[0].state != BreakerState::Closed).await;
    assert!(waiting.await.unwrap().unwrap_err().may_have_run);
    assert!(began.elapsed() < KNOWN + BUSY, "{:?}", began.elapsed());
}

/// While a connection that keeps breaking is left alone for a while, nobody waits for it. The story: it was said to be in the making
/// during the whole pause, so that every request waited until its deadline, and none of them opened the breaker.
#[tokio::test]
async fn nobody_waits_while_a_breaking_connection_rests() {
    let fake = Fake::playing(|words| match words.last().is_some_and(|body| body == "break") {
        true => Does::Closes,
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
