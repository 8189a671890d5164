//! The interface is what its description says: schemathesis makes up requests from `/v1/openapi.json`, right ones and wrong
//! ones, and compares every answer with it.

use std::process::Command;

use serde_json::Value;

use crate::program::Server;
use crate::proxy::{Folder, file};

/// Limits that allow, deny, hold, set aside and refuse, so that every kind of answer comes up.
const POLICY: &str = "limits:
  - {name: everybody, rate: 1000/s}
  - {name: strict, by: [ip], when: {method: POST}, rate: 1/h}
  - {name: in-flight, by: [api_key], concurrency: 3, permit_ttl: 2s}
";

/// Makes up requests for so many seconds, and fails when one of the answers is not as described.
fn explore(server: &Server, seconds: &str, arguments: &[&str]) {
    let folder = Folder::new("openapi");
    let program = file(".cache/python/bin/schemathesis");
    let settings = file("e2e/schemathesis");
    let mut command = Command::new(&program);
    command.args(["--config-file", &settings.join("schemathesis.toml").display().to_string()]);
    command
        .args(["run", &format!("http://{}/v1/openapi.json", server.address), "--checks", "all"])
        .args(arguments);
    command.args([
        "--max-time",
        seconds,
        "--seed",
        "1",
        "--generation-deterministic",
        "--max-examples",
        "40",
    ]);
    command.args(["--no-color", "--report-dir", &folder.0.display().to_string()]);
    command
        .env("PYTHONPATH", &settings)
        .env("SCHEMATHESIS_HOOKS", "tollgate_hooks")
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let output = command.current_dir(&folder.0).output();
    let output =
        output.unwrap_or_else(|error| panic!("{}: {error}; `./test tools` installs it", program.display()));
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(printed.contains(" generated"), "{printed}");
}

/// Every check that schemathesis has, and nothing found. `/json` is asked in protobuf's JSON, which says more than a schema can:
/// which bodies are questions is left out there.
#[test]
fn the_description_is_true() {
    let server = Server::start(POLICY);
    // The admin paths need a token of the operator, and change the server.
    explore(&server, "45", &["--exclude-path", "/json", "--exclude-path-regex", "^/admin/"]);
    explore(
        &server,
        "10",
        &[
            "--include-path",
            "/json",
            "--exclude-checks",
            "positive_data_acceptance,negative_data_rejection",
            "--phases",
            "coverage,fuzzing",
        ],
    );
    assert_eq!(server.send("GET", "/healthz", "").status, 200);
}

/// Every path that the error for a wrong one lists is described, and the other way round.
#[test]
fn every_route_is_described() {
    let server = Server::start(POLICY);
    let described = server.send("GET", "/v1/openapi.json", "");
    assert_eq!((described.status, described.header("content-type")), (200, Some("application/json")));
    let document: Value = described.json();
    let reported = server.send("GET", "/nowhere", "").problem(404);
    let reported: Vec<&str> = reported.split([' ', ',']).filter(|word| word.starts_with('/')).collect();
    let described = document["paths"].as_object().unwrap().keys();
    // The admin interface tells of its own paths.
    let described: Vec<&String> = described.filter(|path| !path.starts_with("/admin/")).collect();
    for path in &described {
        assert!(reported.contains(&path.as_str()), "{path} is described, and the server does not tell of it");
    }
    // The console is a page for people; programs use the admin interface.
    for path in reported.iter().filter(|path| **path != "/console") {
        assert!(described.iter().any(|known| known == path), "{path} is not described");
    }
}
