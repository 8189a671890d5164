//! The views of a node while it counts without its store.

use tollgate_testkit::until;

use crate::admin::{TOKEN, says};
use crate::program::{Server, tollgate};
use crate::redis::Redis;

/// A server with a token and these arguments.
fn with(arguments: &[&str], policy: &str) -> Server {
    let mut command = tollgate(&[&["serve", "--http", "127.0.0.1:0"], arguments].concat());
    command.env("TOLLGATE_ADMIN_TOKEN", TOKEN);
    Server::spawn(command, policy)
}

/// The story: while the store did not answer, `explain` showed times that its own quota could not have, and not whose they are; and the
/// headers had the limit of the policy beside what remained of this node's share.
#[test]
fn numbers_of_a_share_are_shown_as_such() {
    let mut redis = Redis::start(&[]);
    let policy = "limits: [{name: per-key, by: [api_key], rate: 6/h}]";
    let store = ["--policy", "-", "--store", &redis.url(), "--store-min-nodes", "3"];
    let server = with(&store, policy);
    redis.kill();
    let counted = until("this node counts alone", || {
        let decided = server.check(r#"{"attributes":{"api_key":"k"}}"#);
        (decided["limits"][0]["source"] == "local").then_some(decided)
    });
    let limit = &counted["limits"][0];
    let header = |name: &str| counted["headers"][name].as_str().and_then(|text| text.parse::<u64>().ok());
    assert_eq!(header("X-RateLimit-Limit"), limit["limit"].as_u64(), "{counted}");
    assert_eq!(header("X-RateLimit-Remaining"), limit["remaining"].as_u64(), "{counted}");
    let used = limit["limit"].as_u64().unwrap() - limit["remaining"].as_u64().unwrap();
    assert_eq!(header("X-RateLimit-Used"), Some(used), "{counted}");
    let share = format!("because the store does not answer: its share of the quota is {}", limit["limit"]);
    says(&server, "explain api_key=k", &["source: local", "counted by this node alone", &share]);
}
