//! Operators' overrides of the policy outlive the process: the real program is killed without warning and started again.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use serde_json::Value;
use tollgate_testkit::{Scratch, rest, until};

use crate::admin::TOKEN;
use crate::admin_verbs::operate;
use crate::program::{Server, stderr, stdout, tollgate};

const POLICY: &str =
    "limits: [{name: per-key, by: [api_key], rate: 5/h}, {name: share, by: [tenant], rate: 1000/h}]";
const FILE: &str = "state/operator.state";

fn start(scratch: &Scratch, policy: &str) -> Server {
    let state = scratch.text("state");
    let mut command = tollgate(&[
        "serve",
        "--http",
        "127.0.0.1:0",
        "--policy",
        "-",
        "--state-dir",
        &state,
        "--snapshot-every",
        "off",
    ]);
    command.env("TOLLGATE_ADMIN_TOKEN", TOKEN);
    Server::spawn(command, policy)
}

fn kill(mut server: Server) {
    server.signal("-KILL");
    assert!(server.wait().code().is_none());
}

/// Says something to a server that takes it; returns what it warned of.
fn say(server: &Server, words: &str) -> String {
    let output = operate(server, &words.split(' ').collect::<Vec<_>>()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{words}: {}", stderr(&output));
    stderr(&output)
}

fn limits(server: &Server) -> Value {
    let output = operate(server, &["limits", "--json"]).output().unwrap();
    serde_json::from_str(&stdout(&output)).unwrap()
}

fn is_allowed(server: &Server, key: &str) -> bool {
    server.check(&format!(r#"{{"attributes":{{"api_key":"{key}"}}}}"#))["allowed"] == true
}

fn ready(server: &Server) -> Value {
    server.send("GET", "/readyz", "").json()
}

/// Killed without warning at any moment after an answer, the server has forgotten no operator's change: blocks, kill switches,
/// shadow and shares go on to their own end, what was taken back stays so, and what has ended meanwhile is over.
#[test]
fn a_crash_takes_nothing_back() {
    let scratch = Scratch::new();
    let server = start(&scratch, POLICY);
    assert!(!server.banner.contains("of operators"), "{}", server.banner);
    for words in [
        "block api_key=bad --for 10m",
        "block api_key=forgiven --for 10m",
        "block api_key=brief --for 1s",
        "kill per-key --for 1h",
        "percent share 40 --for 2h",
        "unblock api_key=forgiven",
    ] {
        assert_eq!(say(&server, words), "", "{words}");
    }
    let mut before = limits(&server);
    assert_eq!(fs::metadata(scratch.path(FILE)).unwrap().permissions().mode() & 0o777, 0o600);
    kill(server);
    rest(Duration::from_millis(1_100));

    let server = start(&scratch, POLICY);
    let reported = "state   1 block and 2 overrides of operators active again";
    assert!(server.banner.contains(reported), "{}", server.banner);
    before["blocks"]
        .as_array_mut()
        .unwrap()
        .retain(|block| block["attributes"]["api_key"] != "sha256:29a8825bd242f14386ee528d76e0e8f1");
    let mut after = limits(&server);
    // The policy became active when the server started.
    for view in [&mut before, &mut after] {
        view["policy"].take();
    }
    assert_eq!(after, before, "with the same ends");
    assert!(!is_allowed(&server, "bad") && is_allowed(&server, "forgiven") && is_allowed(&server, "brief"));
    for _ in 0..10 {
        assert!(is_allowed(&server, "k"), "five an hour, but the limit is off");
    }
    say(&server, "restore per-key");
    kill(server);

    // The limit of an override is gone for a while, and comes back with it.
    let server = start(&scratch, "limits: [{name: per-key, by: [api_key], rate: 5/h}]");
    assert!(server.banner.contains("1 block and 1 override of"), "{}", server.banner);
    say(&server, "shadow --all --for 1h");
    kill(server);
    let server = start(&scratch, POLICY);
    let after = limits(&server);
    assert_eq!(
        (&after["all"]["override"], &after["limits"][1]["own_override"]["percent"]),
        (&"shadow".into(), &40.into())
    );
    assert_eq!(ready(&server)["status"], "ok");
}

/// A damaged file stops no start: it is set aside and reported at once in the banner, the log and `/readyz`, until an
/// operator says something anew.
#[test]
fn a_damaged_file_is_reported() {
    let scratch = Scratch::new();
    let server = start(&scratch, POLICY);
    say(&server, "block api_key=k1 --for 10m");
    kill(server);
    let text = fs::read_to_string(scratch.path(FILE)).unwrap();
    fs::write(
        scratch.path(FILE),
        text.replace("6ab9f1eb8f7d3388f4f9d586f66e99fd", "015f7e6bc5aeaf483724089e9252cc13"),
    )
    .unwrap();

    let mut server = start(&scratch, POLICY);
    assert!(
        server.banner.contains("warning: operator.state: it is not what was written"),
        "{}",
        server.banner
    );
    server.await_log("the operator state cannot be read");
    assert!(is_allowed(&server, "k1") && is_allowed(&server, "k2"), "what is damaged is not half believed");
    let degraded = ready(&server);
    let error = degraded["orders"]["error"]["text"].as_str().unwrap();
    assert_eq!(
        (&degraded["status"], error.contains("set aside as operator.state.bad-1")),
        (&"degraded".into(), true)
    );
    assert!(scratch.path("state/operator.state.bad-1").exists());
    assert_eq!(say(&server, "block api_key=k1 --for 10m"), "");
    assert_eq!(ready(&server)["status"], "ok");
    kill(server);
    assert!(!is_allowed(&start(&scratch, POLICY), "k1"));
}

/// When the disk does not take a change, it applies all the same; the operator is warned, `/readyz` says so, and once the disk is
/// well again it is written without being asked.
#[test]
fn a_failing_disk_is_reported_and_retried() {
    let scratch = Scratch::new();
    let server = start(&scratch, POLICY);
    say(&server, "block api_key=first --for 10m");
    // A directory stands where the next file is to be written.
    fs::create_dir(scratch.path("state/operator.state.tmp")).unwrap();
    let warning = say(&server, "block api_key=second --for 10m");
    assert!(
        warning.contains("warning: operator.state: ") && warning.contains("would not survive"),
        "{warning}"
    );
    assert!(!is_allowed(&server, "second"));
    assert_eq!(ready(&server)["status"], "degraded");
    fs::remove_dir(scratch.path("state/operator.state.tmp")).unwrap();
    until("it is written again", || (ready(&server)["status"] == "ok").then_some(()));
    kill(server);
    let server = start(&scratch, POLICY);
    assert!(!is_allowed(&server, "first") && !is_allowed(&server, "second"));
}
