//! The counters of `CL.THROTTLE` and `THROTTLE` outlive a restart, and operators reach them: with the real program, and bytes on its
//! RESP wire.

use std::process::Output;

use crate::admin::{self, POLICY};
use crate::admin_verbs::operate;
use crate::program::{SLOW_POLICY, Server, stderr, stdout};
use crate::restart::{Scratch, start};

/// Sends one command, and reads the five numbers that answer it.
fn throttle(server: &Server, command: &str) -> Vec<i64> {
    let answer = server.resp_exchange(format!("{command}\r\nQUIT\r\n").as_bytes());
    let numbers = answer.strip_prefix("*5\r\n").and_then(|rest| rest.strip_suffix("+OK\r\n"));
    let numbers = numbers.unwrap_or_else(|| panic!("{command}: {answer:?}"));
    numbers.lines().map(|line| line.strip_prefix(':').unwrap().parse().unwrap()).collect()
}

fn call(server: &Server, arguments: &[&str]) -> Output {
    let output = operate(server, arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
    output
}

/// A server that stops, or is killed after a snapshot, and starts again gives no key a fresh quota, and none has less.
#[test]
fn a_restart_gifts_nothing() {
    let scratch = Scratch::new("cells");
    let mut server = start(&scratch, "100ms", SLOW_POLICY);
    assert_eq!(throttle(&server, "CL.THROTTLE k 1 1 3600"), [0, 2, 1, -1, 3600]);
    assert_eq!(throttle(&server, "CL.THROTTLE k 1 1 3600")[..3], [0, 2, 0]);
    assert_eq!(throttle(&server, "CL.THROTTLE half 1 1 3600")[..3], [0, 2, 1]);
    assert_eq!(throttle(&server, "THROTTLE k 2 1 3600 2")[..3], [1, 2, 0]);
    for signal in ["-TERM", "-KILL"] {
        scratch.await_snapshot();
        server.signal(signal);
        server.wait();
        server = start(&scratch, "100ms", SLOW_POLICY);
        assert!(server.banner.contains("counters restored: 3 ("), "{}", server.banner);
        assert_eq!(throttle(&server, "CL.THROTTLE k 1 1 3600")[..3], [1, 2, 0], "after {signal}");
        assert_eq!(throttle(&server, "CL.THROTTLE half 1 1 3600 0")[..3], [0, 2, 1], "after {signal}");
        assert_eq!(throttle(&server, "THROTTLE k 2 1 3600")[..3], [0, 2, 0], "after {signal}");
        assert_eq!(throttle(&server, "CL.THROTTLE new 1 1 3600 0")[..3], [0, 2, 2], "after {signal}");
    }
}

/// A state directory of an older version, which wrote no such counters, is no obstacle; the next snapshot has them.
#[test]
fn an_older_snapshot_is_taken_over() {
    let scratch = Scratch::new("older-cells");
    let older = include_bytes!("../../../../tollgate/tests/it/snapshot/format-1.snapshot");
    std::fs::create_dir_all(&scratch.0).unwrap();
    std::fs::write(scratch.0.join("counters.snapshot"), older).unwrap();
    let mut server = start(&scratch, "off", SLOW_POLICY);
    assert!(server.banner.contains("counters restored: "), "{}", server.banner);
    assert_eq!(throttle(&server, "CL.THROTTLE k 0 1 3600")[0], 0);
    server.signal("-TERM");
    assert_eq!(server.wait().code(), Some(0));
    let server = start(&scratch, "off", SLOW_POLICY);
    assert_eq!(throttle(&server, "CL.THROTTLE k 0 1 3600")[0], 1);
}

/// A key is blocked for both commands or for one, a command for every key; each answer says for how long, and nothing is counted.
#[test]
fn an_operator_blocks_a_key() {
    let server = admin::server(POLICY);
    let ask = ["CL.THROTTLE bad 4 1 3600", "THROTTLE bad 5 1 3600", "CL.THROTTLE good 4 1 3600"];
    let limited =
        || [throttle(&server, ask[0])[0], 1 - throttle(&server, ask[1])[0], throttle(&server, ask[2])[0]];
    assert_eq!(limited(), [0, 0, 0]);
    call(&server, &["block", "key=bad", "--for", "10m"]);
    assert_eq!(limited(), [1, 1, 0]);
    let reported = throttle(&server, ask[0]);
    assert!(
        reported[..3] == [1, 5, 0] && (590..=600).contains(&reported[3]) && reported[3] == reported[4],
        "{reported:?}"
    );
    call(&server, &["unblock", "key=bad"]);
    assert_eq!(throttle(&server, ask[0])[..3], [0, 5, 3], "nothing was counted meanwhile");
    call(&server, &["block", "key=bad", "command=throttle", "--for", "10m"]);
    assert_eq!(limited(), [0, 1, 0]);
    call(&server, &["block", "command=cl.throttle", "--for", "10m"]);
    assert_eq!(limited(), [1, 1, 1]);
    // A block that names anything else is about other requests.
    for key in [["key=bad", "command=throttle"].as_slice(), &["command=cl.throttle"]] {
        call(&server, &[["unblock"].as_slice(), key].concat());
    }
    call(&server, &["block", "key=bad", "tenant=acme", "--for", "10m", "--anyway"]);
    assert_eq!(limited(), [0, 0, 0]);
}

/// The kill switch for all limits, and shadow, reach these too, and end with what takes them back.
#[test]
fn an_operator_kills_all_limits() {
    let server = admin::server(POLICY);
    let ask = || throttle(&server, "CL.THROTTLE k 1 1 3600");
    let crab = || throttle(&server, "THROTTLE c 1 1 3600");
    assert_eq!([ask()[0], ask()[0], ask()[0]], [0, 0, 1]);
    assert_eq!([crab()[0], crab()[0]], [1, 0]);
    call(&server, &["kill", "--all", "--for", "10m"]);
    assert_eq!(ask(), [0, 2, 2, -1, 0]);
    assert_eq!(crab(), [1, 1, 1, 0, 0]);
    call(&server, &["shadow", "--all", "--for", "10m"]);
    assert_eq!(ask()[..4], [0, 2, 0, -1]);
    assert_eq!(throttle(&server, "CL.THROTTLE other 1 1 3600")[..3], [0, 2, 1], "shadow counts");
    call(&server, &["restore", "--all"]);
    assert_eq!([ask()[0], 1 - crab()[0]], [1, 1]);
    assert_eq!(throttle(&server, "CL.THROTTLE other 1 1 3600 0")[..3], [0, 2, 1]);
    // One limit of the policy is another matter.
    call(&server, &["kill", "per-key", "--for", "10m"]);
    assert_eq!(ask()[0], 1);
}

/// A key is looked at, and made as if never used; a look at the counters of one command leaves those of the other.
#[test]
fn an_operator_looks_and_resets() {
    let server = admin::server(POLICY);
    let ask =
        || [throttle(&server, "CL.THROTTLE k 0 1 3600")[0], 1 - throttle(&server, "THROTTLE k 1 1 3600")[0]];
    assert!(!stdout(&call(&server, &["get", "key=k"])).contains("throttle"));
    assert_eq!([ask(), ask()], [[0, 0], [1, 1]]);
    let seen = stdout(&call(&server, &["get", "key=k"]));
    for command in ["cl.throttle", "throttle"] {
        let line = seen.lines().find(|line| line.starts_with(&format!("{command}, "))).expect(&seen);
        let (_, back) = line.split_once(", by limits of its own: all back in ").expect(line);
        assert!(back == "1 h" || back.starts_with("59 min"), "{line}");
    }
    let seen = stdout(&call(&server, &["get", "key=k", "command=throttle", "--json"]));
    let seen: serde_json::Value = serde_json::from_str(&seen).unwrap();
    assert_eq!(seen["throttled"].as_array().map(Vec::len), Some(1), "{seen}");
    assert_eq!(seen["throttled"][0]["command"], "throttle");
    assert!(seen["throttled"][0]["reset_after_ms"].as_u64().is_some_and(|rest| rest > 3_500_000), "{seen}");
    assert!(stdout(&call(&server, &["reset", "key=k", "command=throttle"])).contains("1 counter reset"));
    assert_eq!(ask(), [1, 0]);
    assert!(stdout(&call(&server, &["reset", "key=k"])).contains("2 counters reset"));
    assert_eq!(ask(), [0, 0]);
    let nothing = operate(&server, &["reset", "key=k", "tenant=acme"]).output().unwrap();
    assert!(
        nothing.status.code() == Some(1) && stdout(&nothing).contains("nothing was reset"),
        "{nothing:?}"
    );
    assert!(stdout(&call(&server, &["audit"])).contains("2 counters reset"));
}
