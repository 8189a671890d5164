//! A day of faults around a server that otherwise runs well: its wall clock is set, its policy's path hangs, its store's password is
//! rotated.

use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tollgate_testkit::{Scratch, until};

use crate::program::{Server, tollgate};
use crate::redis::Redis;
use crate::shared::{quick, turn};

/// A week, in seconds.
const WEEK: u64 = 604_800;

#[allow(clippy::disallowed_methods, reason = "the server's wall clock is compared with that of the test")]
fn wall_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// The second at which the only limit of an answer is reset, as GitHub's header tells it.
fn reset(answer: &Value) -> u64 {
    answer["headers"]["X-RateLimit-Reset"].as_str().unwrap().parse().unwrap()
}

/// A server that starts before NTP sets its clock: when the clock is set, windows end by it and headers tell it, and the step gives
/// nobody anything.
#[test]
fn a_wall_clock_that_is_set_is_followed() {
    let clock = Scratch::new();
    clock.replace("clock", &format!("-{WEEK}"));
    let policy = "limits: [{name: hourly, by: [api_key], algorithm: fixed-window, align: calendar, rate: 10/h}, \
                  {name: bucket, by: [token], rate: 10/day}]";
    let mut command = tollgate(&["serve", "--http", "127.0.0.1:0", "--policy", "-"]);
    command.env("LD_PRELOAD", "/usr/$LIB/faketime/libfaketime.so.1");
    command.env("FAKETIME_TIMESTAMP_FILE", clock.path("clock"));
    command.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    let server = Server::spawn(command, policy);
    let hourly = r#"{"attributes":{"api_key":"k"},"cost":3}"#;
    let before = server.check(hourly);
    assert!(reset(&before) < wall_seconds() - WEEK + 2 * 3_600, "the clock is a week behind: {before}");
    assert_eq!(server.check(r#"{"attributes":{"token":"t"},"cost":8}"#)["limits"][0]["remaining"], 2);
    clock.replace("clock", "+0");
    let look = r#"{"attributes":{"api_key":"k"},"cost":0}"#;
    let after = until("the clock is followed", || {
        let seen = server.check(look);
        (reset(&seen) > wall_seconds()).then_some(seen)
    });
    assert_eq!(reset(&after) % 3_600, 0, "an hour ends with the hour: {after}");
    assert!(reset(&after) <= wall_seconds() + 3_600, "{after}");
    assert!(after["limits"][0]["remaining"].as_u64().unwrap() <= 7, "the step gives nothing: {after}");
    let bucket = server.check(r#"{"attributes":{"token":"t"},"cost":0}"#);
    assert_eq!(bucket["limits"][0]["remaining"], 2, "a week of the wall is no week of time");
}

/// A policy that becomes a pipe is refused in words instead of being waited for, and a reload and a stop are not held up; with a file
/// in its place reloading goes on.
#[test]
fn a_policy_that_becomes_a_pipe_holds_up_nothing() {
    let scratch = Scratch::new();
    scratch.replace("policy.yaml", "limits: [{name: a, rate: 5/h}]");
    let policy = scratch.text("policy.yaml");
    let mut server = Server::start_with(&["serve", "--http", "127.0.0.1:0", "--policy", &policy], "");
    std::fs::remove_file(&policy).unwrap();
    assert!(Command::new("mkfifo").arg(&policy).status().unwrap().success());
    let ready = until("degraded", || {
        let ready = server.ready();
        let text = ready["policy"]["error"]["text"].as_str().unwrap_or_default().to_owned();
        text.contains("pipe").then_some(text)
    });
    assert!(ready.contains(&policy) && ready.contains("accepted is a file or a directory"), "{ready}");
    std::fs::remove_file(&policy).unwrap();
    scratch.replace("policy.yaml", "limits: [{name: a, rate: 6/h}]");
    until("the new limit", || {
        (server.check(r#"{"attributes":{},"cost":0}"#)["limits"][0]["limit"] == 6).then_some(())
    });
    assert_eq!(server.ready()["status"], "ok");
    std::fs::remove_file(&policy).unwrap();
    assert!(Command::new("mkfifo").arg(&policy).status().unwrap().success());
    server.signal("-TERM");
    let ended = server.wait_at_most(Duration::from_secs(10));
    assert!(ended.is_some_and(|status| status.success()), "a stop waits for no pipe");
}

/// The store's password is rotated without a restart: both are accepted, the file is replaced, the old one is taken away, and
/// connections that are made then log in with the new one. No decision is made without the store.
#[test]
fn a_stores_password_is_rotated() {
    let _turn = turn();
    let scratch = Scratch::new();
    scratch.replace("password", "old-one\n");
    let redis = Redis::start(&[]);
    let all = ["~*", "&*", "+@all", "on"];
    redis.cli(&[&["ACL", "SETUSER", "gate", ">old-one"], &all[..]].concat());
    let file = scratch.text("password");
    let server = Server::spawn(
        tollgate(&[
            "serve",
            "--http",
            "127.0.0.1:0",
            "--policy",
            "-",
            "--store",
            &redis.url(),
            "--store-deadline",
            "50ms",
            "--store-user",
            "gate",
            "--store-password-file",
            &file,
        ]),
        "limits: [{name: a, by: [api_key], rate: 1000/h}]",
    );
    let exact = |key: &str| {
        let answer = server.check(&format!(r#"{{"attributes":{{"api_key":"{key}"}}}}"#));
        (answer["limits"][0]["source"] == "exact").then_some(())
    };
    until("counted in the store", || exact("k"));
    redis.tell(&["ACL", "SETUSER", "gate", ">new-one"]);
    scratch.replace("password", "new-one\n");
    redis.tell(&["ACL", "SETUSER", "gate", "<old-one"]);
    quick(|key| (0..20).try_for_each(|_| exact(key)));
    // Who is let go comes back with the password of now.
    redis.cli(&["CLIENT", "KILL", "USER", "gate"]);
    until("counted in the store again", || exact("k"));
    quick(|key| (0..20).try_for_each(|_| exact(key)));
    // The other order: who is refused is let in as soon as the file has what the store wants.
    redis.tell(&["ACL", "SETUSER", "gate", "resetpass", ">third"]);
    redis.cli(&["CLIENT", "KILL", "USER", "gate"]);
    until("refused", || (server.ready()["status"] == "degraded").then_some(()));
    scratch.replace("password", "third\n");
    until("let in again", || exact("k"));
}
