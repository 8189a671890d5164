//! The client against a fake Redis that misbehaves in every way, and against a real one.

pub(crate) mod fake;
#[cfg(feature = "server-tests")]
mod real;
mod replies;
mod silence;

use std::time::Duration;

use redis::Value;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::*;
use crate::key::Key;

/// Answers every request with its own body.
const ECHO: &str = "local r = {} for i = 2, #ARGV do r[i - 1] = ARGV[i] end return r";
/// Long enough that a busy machine does not decide the outcome.
const DEADLINE: Duration = Duration::from_millis(50);

fn client_for(url: &str) -> Client {
    let settings = url.parse::<Settings>().unwrap().deadline(DEADLINE).unwrap();
    Client::new(&settings, ECHO, Handle::current())
}

fn request(group: u16, body: &str) -> EncodedRequest {
    EncodedRequest { keys: [Key::new(7, Some(group))].into_iter().collect(), body: body.as_bytes().to_vec() }
}

fn soon() -> Instant {
    Instant::now() + DEADLINE
}

async fn echo(client: &Client, body: &str) -> Result<Value, Failure> {
    client.call(request(0, body), soon()).await
}

fn echoed(body: &str) -> Result<Value, Failure> {
    Ok(Value::BulkString(body.as_bytes().to_vec()))
}

fn failures(client: &Client, class: ReplyClass) -> u64 {
    client.report(1, 0).failures[class as usize].1
}

/// Polls a condition until it holds, for five seconds at most.
pub(crate) async fn until(mut is_so: impl FnMut() -> bool) {
    for _ in 0..1_000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the condition never held");
}
