//! A day of faults around a server that otherwise runs well: its wall clock is set, its policy's path hangs, its store's password is
//! rotated.

use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tollgate_testkit::{Scratch, until};

use crate::admin::operate;
use crate::program::{Server, tollgate};
use crate::redis::Redis;
use crate::shared::quick;

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

/// A server that starts before NTP sets its clock: when the clock is set, windows end by it and headers have it, and the step gives
/// no key a fresh quota.
#[test]
fn a_wall_clock_that_is_set_is_followed() {
    let clock = Scratch::new();
    clock.replace("clock", &format!("-{WEEK}"));
    let policy = "limits: [{name: hourly, by: [api_key], algorithm: fixed-window, align: calendar, rate: 10/h}, \
                  {name: bucket, by: [token], rate: 10/day}]";
    let server = started_by(&clock, &[], policy);
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

/// A server whose wall clock is read from a file.
fn started_by(clock: &Scratch, arguments: &[&str], policy: &str) -> Server {
    let mut command = tollgate(&[&["serve", "--http", "127.0.0.1:0", "--policy", "-"], arguments].concat());
    command.env("LD_PRELOAD", "/usr/$LIB/faketime/libfaketime.so.1");
    command.env("FAKETIME_TIMESTAMP_FILE", clock.path("clock"));
    command.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    command.env("TOLLGATE_ADMIN_TOKEN", crate::admin::TOKEN);
    Server::spawn(command, policy)
}

/// The story: NTP set the clock of a server a week forward. `block --for 1h` then ended a week ago, and so said `limits` and the denial;
/// and a restart took the snapshot of seconds ago for a week old, and gave every quota again. Times that are shown are those of the wall
/// clock, and the restart goes on with what was counted and what operators said.
#[test]
fn a_restart_after_the_clock_was_set_goes_on() {
    let clock = Scratch::new();
    clock.replace("clock", &format!("-{WEEK}"));
    let policy = "limits: [{name: bucket, by: [token], rate: 10/day}, \
                  {name: window, by: [user], algorithm: sliding-window, rate: 10/day}]";
    let state = clock.text("state");
    let mut server = started_by(&clock, &["--state-dir", &state], policy);
    let spent = |server: &Server, cost: u64| {
        ["token", "user"].map(|name| {
            let asked = format!(r#"{{"attributes":{{"{name}":"t"}},"cost":{cost}}}"#);
            server.check(&asked)["limits"][0]["remaining"].as_u64().unwrap()
        })
    };
    assert_eq!(spent(&server, 8), [2, 2]);
    clock.replace("clock", "+0");
    server.await_log("the wall clock was set");
    let shows_the_future = |text: &str, what: &str| {
        let year = text.find("until 20").map(|at| &text[at + "until ".len()..]);
        let until: jiff::Timestamp =
            year.and_then(|rest| rest.split([' ', '\n', '"']).next()?.parse().ok()).expect(what);
        let until = u64::try_from(until.as_second()).unwrap();
        assert!((wall_seconds()..wall_seconds() + 3_700).contains(&until), "{what}: {text}");
    };
    for words in [["block", "ip=10.9.9.9", "--for", "1h"], ["kill", "window", "--for", "1h"]] {
        let output = operate(&server, &words).output().unwrap();
        assert!(output.status.success(), "{words:?}");
        shows_the_future(&String::from_utf8_lossy(&output.stdout), words[0]);
    }
    let listed = operate(&server, &["limits", "--json"]).output().unwrap();
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    shows_the_future(&format!("until {}", listed["blocks"][0]["until"].as_str().unwrap()), "limits");
    let denied = server.check(r#"{"attributes":{"ip":"10.9.9.9"}}"#);
    shows_the_future(denied["detail"].as_str().unwrap(), "the denial");
    assert!(operate(&server, &["restore", "window"]).output().unwrap().status.success());
    server.signal("-TERM");
    assert!(server.wait().success());

    let server = started_by(&clock, &["--state-dir", &state], policy);
    let age = server.banner.split("counters restored: 2 (").nth(1).unwrap_or_default();
    let age = match *age.split(' ').take(2).collect::<Vec<_>>() {
        [seconds, "s"] => seconds.parse::<u64>().ok(),
        [minutes, "min"] => minutes.parse::<u64>().ok().map(|minutes| minutes * 60),
        _ => None,
    };
    assert!(age.is_some_and(|age| age < 600), "{}", server.banner);
    assert_eq!(spent(&server, 0), [2, 2], "a step of the wall clock is no time that passed");
    assert_eq!(server.check(r#"{"attributes":{"ip":"10.9.9.9"}}"#)["reason"], "operator-block");
    let ready = server.ready();
    let loaded: jiff::Timestamp = ready["policy"]["loaded_at"].as_str().unwrap().parse().unwrap();
    assert!(u64::try_from(loaded.as_second()).unwrap() + 600 > wall_seconds(), "{ready}");
}

fn pipe(path: &str) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// The story: a callers file became a pipe, and when a file was there again, it was never read: the look hung for good. It is refused in
/// words, as a policy is, and a file in its place is read.
#[test]
fn a_callers_file_that_becomes_a_pipe_recovers() {
    let scratch = Scratch::new();
    scratch.replace("callers.yaml", "callers: [{key: k1}]");
    let callers = scratch.text("callers.yaml");
    let arguments = ["serve", "--http", "127.0.0.1:0", "--policy", "-", "--callers", &callers];
    let mut server = Server::start_with(&arguments, "limits: [{name: a, by: [api_key], rate: 5/h}]");
    std::fs::remove_file(&callers).unwrap();
    pipe(&callers);
    until("degraded", || {
        let text = server.ready()["callers"]["error"]["text"].as_str().unwrap_or_default().to_owned();
        text.contains("it is a pipe").then_some(())
    });
    assert_eq!(server.ready()["callers"]["known"], 1, "those before stay known");
    std::fs::remove_file(&callers).unwrap();
    scratch.replace("callers.yaml", "callers: [{key: k1}, {key: k2}]");
    until("the new callers", || (server.ready()["callers"]["known"] == 2).then_some(()));
    assert_eq!(server.ready()["status"], "ok");
    std::fs::remove_file(&callers).unwrap();
    pipe(&callers);
    server.signal("-TERM");
    let ended = server.wait_at_most(Duration::from_secs(10));
    assert!(ended.is_some_and(|status| status.success()), "a stop waits for no pipe");
}

/// The story: a server that was started with a pipe that no program writes to hung without a word. Each file that it reads at its start
/// is given up in time, with its name.
#[test]
fn a_start_with_a_pipe_fails_in_words() {
    let scratch = Scratch::new();
    let path = scratch.text("pipe");
    pipe(&path);
    let flags = ["--policy", "--config", "--callers", "--auth-token-file", "--admin-tokens", "--tls-cert"];
    let starts = flags.map(|flag| {
        let mut words = vec!["serve", "--http", "127.0.0.1:0", flag, &path];
        if flag == "--tls-cert" {
            words.extend(["--tls-key", &path]);
        }
        let mut command = tollgate(&words);
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        (flag, command.spawn().unwrap())
    });
    for (flag, mut start) in starts {
        until(flag, || start.try_wait().unwrap());
        let output = start.wait_with_output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{flag}: {printed}");
        assert!(printed.contains(&path) && printed.contains("not read within 10 s"), "{flag}: {printed}");
    }
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
    assert!(ready.contains(&policy) && ready.contains("accepted: a file or a directory"), "{ready}");
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

/// The story: two servers shared a store, an operator blocked a key at one of them, and the other went on to serve it. The answer says
/// that an order holds on one server, and what to do; a server that counts alone has nothing to say.
#[test]
fn an_order_on_a_shared_store_says_where_it_holds() {
    let redis = Redis::start(&[]);
    let started = |more: &[&str]| {
        let mut command = tollgate(&[&["serve", "--http", "127.0.0.1:0", "--policy", "-"], more].concat());
        command.env("TOLLGATE_ADMIN_TOKEN", crate::admin::TOKEN);
        Server::spawn(command, "limits: [{name: a, by: [api_key], rate: 1000/h}]")
    };
    let (shared, alone) = (started(&["--store", &redis.url()]), started(&[]));
    for words in ["block api_key=k --for 1h", "unblock api_key=k", "kill a", "restore a", "percent a 50"] {
        let words: Vec<&str> = words.split(' ').collect();
        let printed = |server: &Server| {
            let output = operate(server, &words).output().unwrap();
            assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let reported = printed(&shared);
        assert!(reported.contains("on every node that reaches the store"), "{words:?}: {reported}");
        assert!(!printed(&alone).contains("every node"), "{words:?}");
    }
    let json = operate(&shared, &["block", "api_key=k", "--for", "1h", "--json"]).output().unwrap();
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert!(json["notice"].as_str().is_some_and(|notice| notice.contains("every node")), "{json}");
    assert!(
        operate(&shared, &["reset", "api_key=k", "--json"])
            .output()
            .is_ok_and(|output| { !String::from_utf8_lossy(&output.stdout).contains("notice") }),
        "a reset reaches the store"
    );
}
