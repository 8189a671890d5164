//! The example of docs/library-engine.md.

use std::process::Command;

use tollgate_testkit::until;

use crate::server::Server;

const EXAMPLE: &str = include_str!("../../../crates/tollgate-redis/examples/engine.rs");
const GUIDE: &str = include_str!("../../../docs/library-engine.md");

/// The guide shows the example verbatim, from its first `use` to its end.
#[test]
fn guide_shows_the_example() {
    let start = EXAMPLE.find("use tollgate::").unwrap();
    assert!(
        GUIDE.contains(&format!("```rs\n{}```\n", &EXAMPLE[start..])),
        "docs/library-engine.md shows another example"
    );
}

/// Two runs of the example share a counter: of six requests five are admitted, all by the store.
#[test]
fn two_processes_share_the_counter() {
    let server = Server::redis();
    let program = std::env::current_exe().unwrap().with_file_name("").join("../examples/engine");
    assert!(program.is_file(), "build the example with `cargo build -p tollgate-redis --examples`");
    let run = || {
        let output = Command::new(&program).arg(server.url()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    // A decision has 5 ms, which a busy machine can let pass by itself: then the limit is closed, and the test runs both again.
    let is_exact = |output: &str| output.lines().all(|line| line.ends_with("source: exact"));
    let (first, second) = until("every decision is made in the store", || {
        server.tell(&["FLUSHALL"]);
        Some((run(), run())).filter(|(first, second)| is_exact(first) && is_exact(second))
    });
    let allowed = "allowed: true, source: exact\n";
    assert_eq!(first, allowed.repeat(3));
    assert_eq!(second, format!("{}allowed: false, source: exact\n", allowed.repeat(2)));
}
