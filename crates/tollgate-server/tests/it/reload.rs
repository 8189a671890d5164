//! The policy changes while the server runs, or was bad when it started.

use std::fs;
use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tollgate_testkit::{Scratch, rest, until};

use crate::admin::TOKEN;
use crate::admin_verbs::operate;
use crate::program::{Server, run, stderr, stdout, tollgate};
use crate::raw_http::{Response, request};

const FIVE: &str = "limits: [{name: a, by: [api_key], rate: 5/h}]";
const SIX: &str = "limits: [{name: a, by: [api_key], rate: 6/h}]";

/// A server on a file, with more arguments.
fn serve(scratch: &Scratch, more: &[&str]) -> Server {
    let policy = scratch.text("policy.yaml");
    let arguments = [&["serve", "--http", "127.0.0.1:0", "--policy", &policy], more].concat();
    Server::start_with(&arguments, "")
}

/// A file that is edited is in force soon after, counters are kept, and `/readyz` says what is in force and since when.
#[test]
fn an_edited_file_is_in_force() {
    let scratch = Scratch::new();
    scratch.replace("policy.yaml", FIVE);
    let server = serve(&scratch, &[]);
    let before = server.ready();
    assert_eq!(before["status"], "ok");
    assert_eq!(before["policy"]["name"], scratch.text("policy.yaml"));
    assert_eq!(before["policy"]["origin"], "file");
    server.check(r#"{"attributes":{"api_key":"k"},"cost":3}"#);
    scratch.replace("policy.yaml", SIX);
    until("the new limit", || (server.limit() == 6).then_some(()));
    assert_eq!(server.remaining("k"), 2); // Raised by one, and no caller gets a burst.
    server.await_reloads((1, 0));
    let after = server.ready();
    assert_ne!(before["policy"]["version"], after["policy"]["version"]);
    assert!(after["policy"]["loaded_at"].as_str() > before["policy"]["loaded_at"].as_str());
    let sum = Command::new("sha256sum").arg(scratch.path("policy.yaml")).output().unwrap();
    let version = after["policy"]["version"].as_str().unwrap();
    assert!(String::from_utf8(sum.stdout).unwrap().starts_with(version), "{version}");
}

/// Kubernetes writes a new directory and renames a link over `..data`; the policy is a link through it.
#[test]
fn a_config_map_is_swapped() {
    let scratch = Scratch::new();
    for (directory, text) in [("..2030_01", FIVE), ("..2030_02", SIX)] {
        fs::create_dir(scratch.path(directory)).unwrap();
        fs::write(scratch.path(directory).join("policy.yaml"), text).unwrap();
    }
    symlink("..2030_01", scratch.path("..data")).unwrap();
    symlink("..data/policy.yaml", scratch.path("policy.yaml")).unwrap();
    let server = serve(&scratch, &[]);
    assert_eq!(server.limit(), 5);
    symlink("..2030_02", scratch.path("..data_tmp")).unwrap();
    fs::rename(scratch.path("..data_tmp"), scratch.path("..data")).unwrap();
    fs::remove_dir_all(scratch.path("..2030_01")).unwrap();
    until("the new limit", || (server.limit() == 6).then_some(()));
    server.await_reloads((1, 0));
}

/// A file that is written slowly is not read before it is whole: neither a reload nor an error on the way.
#[test]
fn a_torn_write_is_waited_for() {
    let scratch = Scratch::new();
    scratch.replace("policy.yaml", FIVE);
    let server = serve(&scratch, &[]);
    let mut file = fs::File::create(scratch.path("policy.yaml")).unwrap();
    for piece in SIX.as_bytes().chunks(2) {
        file.write_all(piece).unwrap();
        file.flush().unwrap();
        assert_eq!(server.reloads(), (0, 0));
        rest(Duration::from_millis(100));
    }
    until("the new limit", || (server.limit() == 6).then_some(()));
    server.await_reloads((1, 0));
}

/// Regression: an operator who asked for the limits saw the old ones, and nothing said that the new file was refused.
#[test]
fn operators_see_that_a_file_was_refused() {
    let scratch = Scratch::new();
    scratch.replace("policy.yaml", FIVE);
    let policy = scratch.text("policy.yaml");
    let mut command = tollgate(&["serve", "--http", "127.0.0.1:0", "--policy", &policy]);
    command.env("TOLLGATE_ADMIN_TOKEN", TOKEN);
    let server = Server::spawn(command, "");
    let views: [&[&str]; 4] =
        [&["limits"], &["top", "--once"], &["explain", "api_key=k"], &["get", "api_key=k"]];
    let view = |words: &[&str]| stdout(&operate(&server, words).output().unwrap());
    for words in views {
        assert!(!view(words).contains("is not active"), "{words:?}: {}", view(words));
    }
    scratch.replace("policy.yaml", "limits: [{name: a, rate: s/5}]");
    server.await_degraded();
    for words in views {
        let seen = view(words);
        assert!(seen.contains("policy.yaml: the file is not active since "), "{words:?}: {seen}");
        assert!(seen.contains("limits[0] \"a\".rate: s/5 is upside down"), "{words:?}: {seen}");
    }
    scratch.replace("policy.yaml", SIX);
    until("the new limit", || (server.limit() == 6).then_some(()));
    assert!(!view(&["limits"]).contains("is not active"));
}

/// A bad file changes nothing but what the server says about it, in the log and at `/readyz`; the next good one is taken.
#[test]
fn a_bad_file_keeps_the_last_good_policy() {
    let scratch = Scratch::new();
    scratch.replace("policy.yaml", FIVE);
    let mut server = serve(&scratch, &[]);
    scratch.replace("policy.yaml", "limits: [{name: a, rate: s/5}]");
    let error = server.await_degraded();
    assert!(error.contains("limits[0] \"a\".rate"), "{error}");
    server.await_log("the policy was not reloaded");
    assert_eq!((server.limit(), server.reloads()), (5, (0, 1)));
    fs::remove_file(scratch.path("policy.yaml")).unwrap();
    server.await_reloads((0, 2));
    assert_eq!(server.limit(), 5);
    scratch.replace("policy.yaml", SIX);
    until("the new limit", || (server.limit() == 6).then_some(()));
    server.await_reloads((1, 2));
    let ready = server.ready();
    assert_eq!((&ready["status"], ready["policy"].get("error")), (&"ok".into(), None));
}

/// The story: the first step of a rollout, `mode: shadow` for a limit in doubt, was refused as an accident, and only the
/// log said so. The server takes it, and says in the log and to `reload` that the limit denies nothing now.
#[test]
fn one_limit_may_go_to_shadow() {
    let scratch = Scratch::new();
    let two = |more: &str| {
        format!("limits: [{{name: a, by: [api_key], rate: 5/h{more}}}, {{name: b, by: [ip], rate: 9/h}}]")
    };
    scratch.replace("policy.yaml", &two(""));
    let mut server = serve(&scratch, &["--log-format", "text"]);
    scratch.replace("policy.yaml", &two(", mode: shadow"));
    server.await_reloads((1, 0));
    server.await_log("limit \\\"a\\\" denied requests, and only counts them now (mode: shadow)");
    scratch.replace("policy.yaml", "limits: []");
    server.await_reloads((1, 1));
    server.await_log("force it with `tollgate reload --force`");
}

/// A change that looks like an accident is refused, with the reason; SIGHUP does not change that, `--force-reload` does.
#[test]
fn accidents_are_refused_unless_forced() {
    let scratch = Scratch::new();
    scratch.replace("policy.yaml", FIVE);
    let mut guarded = serve(&scratch, &[]);
    let forced = serve(&scratch, &["--force-reload"]);
    scratch.replace("policy.yaml", "limits: [{name: a, by: [api_key], rate: 5/min}]");
    let error = guarded.await_degraded();
    assert!(error.contains("limit \"a\", rate: 5/h becomes 5/min, 60 times as much"), "{error}");
    guarded.signal("-HUP");
    until("the second refusal", || (guarded.reloads() == (0, 2)).then_some(()));
    until("the forced reload", || (forced.reloads() == (1, 0)).then_some(()));
    scratch.replace("policy.yaml", "limits: []");
    let error = until("all limits gone", || {
        let error = guarded.await_degraded();
        error.contains("1 of 1 limits vanish: \"a\"").then_some(error)
    });
    assert!(error.contains("--force-reload"), "{error}");
    guarded.await_log("looks like an accident");
    assert_eq!(guarded.limit(), 5);
    until("no limits", || {
        let answer = forced.check(r#"{"attributes":{"api_key":"k"}}"#);
        answer["limits"].as_array().unwrap().is_empty().then_some(())
    });
}

/// With a state directory the last good policy survives a restart with a bad file, or none; without one, the start is refused.
#[test]
fn the_last_good_policy_survives_a_restart() {
    let scratch = Scratch::new();
    scratch.replace("policy.yaml", FIVE);
    let state = scratch.text("state");
    let policy = scratch.text("policy.yaml");
    let server = serve(&scratch, &["--state-dir", &state]);
    scratch.replace("policy.yaml", SIX);
    until("the new limit", || (server.limit() == 6).then_some(()));
    until("the copy", || {
        let kept = fs::read_to_string(scratch.path("state/last-good.json")).unwrap_or_default();
        kept.contains(server.ready()["policy"]["version"].as_str().unwrap()).then_some(())
    });
    drop(server); // By SIGKILL.
    for bad in [Some("limits: ["), None] {
        match bad {
            Some(text) => scratch.replace("policy.yaml", text),
            None => fs::remove_file(scratch.path("policy.yaml")).unwrap(),
        }
        let refused = run(&["serve", "--http", "127.0.0.1:0", "--policy", &policy], b"");
        assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
        let mut server = serve(&scratch, &["--state-dir", &state]);
        assert!(server.banner.contains("the last good policy is active"), "{}", server.banner);
        server.await_log("the last good policy is active");
        let ready = server.ready();
        assert_eq!((&ready["status"], &ready["policy"]["origin"]), (&"degraded".into(), &"last-good".into()));
        assert_eq!(server.limit(), 6);
        if bad.is_none() {
            scratch.replace("policy.yaml", FIVE);
            until("the good file", || (server.limit() == 5).then_some(()));
            assert_eq!(server.ready()["status"], "ok");
        }
    }
}

/// Nothing that cannot be written stops the server: neither its state directory, nor its log.
#[test]
fn a_full_disk_stops_nothing() {
    let scratch = Scratch::new();
    scratch.replace("policy.yaml", FIVE);
    // A directory where the file is to be: it can be neither written nor replaced.
    fs::create_dir_all(scratch.text("state") + "/last-good.json").unwrap();
    let (policy, state) = (scratch.text("policy.yaml"), scratch.text("state"));
    let mut command =
        tollgate(&["serve", "--http", "127.0.0.1:0", "--policy", &policy, "--state-dir", &state]);
    command.stderr(Stdio::from(fs::OpenOptions::new().write(true).open("/dev/full").unwrap()));
    let server = Server::spawn(command, "");
    until("the failure to be reported", || {
        server.ready()["policy"].get("keep_error").is_some().then_some(())
    });
    scratch.replace("policy.yaml", "limits: [");
    until("the bad file", || (server.reloads() == (0, 1)).then_some(()));
    scratch.replace("policy.yaml", SIX);
    until("the new limit", || (server.limit() == 6).then_some(()));
    assert_eq!(server.ready()["status"], "degraded");
}

/// SIGHUP ends no server, even one that has nothing to reload.
#[test]
fn a_hangup_is_survived() {
    let server = Server::start(FIVE);
    server.signal("-HUP");
    for _ in 0..20 {
        assert_eq!(server.limit(), 5);
        rest(Duration::from_millis(10));
    }
    assert_eq!(server.ready()["policy"]["origin"], "fixed");
}

const CLIENTS: usize = 4;
const RELOADS: u64 = 1_000;
const BUDGET: u64 = 3_000;

/// A policy of which a number changes with each reload, beside a budget that no caller may exceed meanwhile.
fn numbered(number: u64) -> String {
    let rate = 1_000 + number % 7;
    format!(
        "limits: [{{name: budget, rate: {BUDGET}/month}}, {{name: pace, by: [client], rate: {rate}/s burst 100k}}]"
    )
}

/// One client asks on one connection until the test stops it; how often it was answered, and allowed.
fn client(server: &Server, number: usize, stop: &AtomicBool) -> (u64, u64) {
    let stream: TcpStream = server.connect();
    let mut answers = BufReader::new(&stream);
    let body = format!(r#"{{"attributes":{{"client":"c{number}"}}}}"#);
    let question = request("POST", "/v1/check", "Content-Type: application/json\r\n", body.as_bytes());
    let (mut answered, mut allowed) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        (&stream).write_all(&question).unwrap();
        let response = Response::read(&mut answers);
        assert_eq!(response.status, 200);
        let answer = response.json();
        assert_eq!(answer["limits"].as_array().unwrap().len(), 2, "{answer}");
        answered += 1;
        allowed += u64::from(answer["allowed"] == true);
    }
    (answered, allowed)
}

/// A thousand reloads under load: every question is answered, each by one whole policy, on connections that stay open, and not
/// one unit more than the budget is given.
#[test]
fn a_thousand_reloads_lose_no_decision() {
    let scratch = Scratch::new();
    scratch.replace("policy.yaml", &numbered(0));
    let mut command = tollgate(&["serve", "--http", "127.0.0.1:0", "--policy", &scratch.text("policy.yaml")]);
    command.stderr(Stdio::null()); // A thousand unread lines would fill a pipe.
    let server = Server::spawn(command, "");
    let stop = AtomicBool::new(false);
    let counts = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (server, stop) = (&server, &stop);
                scope.spawn(move || client(server, number, stop))
            })
            .collect();
        for number in 1..=RELOADS {
            scratch.replace("policy.yaml", &numbered(number));
            server.signal("-HUP");
            let mut looks = 0;
            while server.reloads().0 < number {
                looks += 1;
                assert!(looks < 20_000, "reload {number} never came");
                std::thread::yield_now();
            }
        }
        // The budget is used up, so that what is counted is exact.
        until("the budget to be used up", || {
            let looked = server.check(r#"{"attributes":{},"cost":0}"#);
            (looked["limits"][0]["remaining"] == 0).then_some(())
        });
        stop.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>()
    });
    let answered: u64 = counts.iter().map(|(answered, _)| answered).sum();
    let allowed: u64 = counts.iter().map(|(_, allowed)| allowed).sum();
    assert_eq!(server.reloads(), (RELOADS, 0));
    assert!(counts.iter().all(|(answered, _)| *answered > 0) && answered > BUDGET, "{counts:?}");
    // One unit of a month's three thousand comes back every fourteen minutes.
    assert!((BUDGET..=BUDGET + 1).contains(&allowed), "{allowed} of {answered}");
}
