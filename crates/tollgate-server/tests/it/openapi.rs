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

/// Seconds that making up requests may take.
const SECONDS: &str = "45";

/// Every check that schemathesis has, and nothing found.
#[test]
fn the_description_is_true() {
    let server = Server::start(POLICY);
    let folder = Folder::new("openapi");
    let program = file(".cache/python/bin/schemathesis");
    let mut command = Command::new(&program);
    let settings = file("crates/tollgate-server/tests/schemathesis");
    command.args(["--config-file", &settings.join("schemathesis.toml").display().to_string()]);
    command
        .env("PYTHONPATH", &settings)
        .env("SCHEMATHESIS_HOOKS", "tollgate_hooks")
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command.args(["run", &format!("http://{}/v1/openapi.json", server.address)]);
    command.args(["--checks", "all", "--max-time", SECONDS, "--seed", "1", "--generation-deterministic"]);
    command.args(["--max-examples", "40", "--no-color", "--report-dir", &folder.0.display().to_string()]);
    let output = command.current_dir(&folder.0).output();
    let output =
        output.unwrap_or_else(|error| panic!("{}: {error}; `./test tools` installs it", program.display()));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    // It warns that Limitador's paths answer 404 beside a policy of our own, as they should; nothing else.
    let counted =
        said.lines().find_map(|line| line.trim().strip_suffix(" passed")?.split_once(" generated, "));
    let (made, passed) = counted.unwrap_or_else(|| panic!("no count in {said}"));
    assert!(made == passed && made.parse::<u64>().is_ok_and(|made| made > 1_000), "{said}");
    assert!(!said.contains("Failures:"), "{said}");
    assert_eq!(server.send("GET", "/healthz", "").status, 200);
}

/// Every path that a wrong one is told of is described, and the other way round.
#[test]
fn every_route_is_described() {
    let server = Server::start(POLICY);
    let described = server.send("GET", "/v1/openapi.json", "");
    assert_eq!((described.status, described.header("content-type")), (200, Some("application/json")));
    let document: Value = described.json();
    let told = server.send("GET", "/nowhere", "").problem(404);
    let told: Vec<&str> = told.split([' ', ',']).filter(|word| word.starts_with('/')).collect();
    let described: Vec<&String> = document["paths"].as_object().unwrap().keys().collect();
    for path in &described {
        assert!(told.contains(&path.as_str()), "{path} is described, and the server does not tell of it");
    }
    for path in &told {
        assert!(described.iter().any(|known| known == path), "{path} is not described");
    }
}
