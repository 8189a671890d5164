//! `docs/gateway.md`, `docs/graphql.md` and `docs/gateway-overload.md` are run: their policy is served in front of a real service, and its commands print what it shows.

use crate::gateway_upstream::{Gateway, OPEN, Upstream};
use crate::guide::{Last, blocks, first, shell, succeeded};
use crate::program::{run, stderr};
use crate::proxy::Folder;

const GUIDE: &str = include_str!("../../../../docs/gateway.md");
const GRAPHQL: &str = include_str!("../../../../docs/graphql.md");
const OVERLOAD: &str = include_str!("../../../../docs/gateway-overload.md");

#[test]
fn the_guide_is_true() {
    let (blocks, upstream) = (blocks(GUIDE), Upstream::start());
    let command = first(&blocks, "sh serve");
    assert!(command.contains("--policy policy.yaml --upstream http://127.0.0.1:3000"), "{command}");
    let gateway =
        Gateway::with(&["--upstream", &format!("http://{}", upstream.address)], first(&blocks, "yaml"));
    let mut last = Last::default();
    for (language, block) in &blocks {
        if *language == "sh" {
            let commands = block.replace("127.0.0.1:8000", &gateway.address.to_string());
            last.ran(block, succeeded(shell(&format!("set -eu\n{commands}"))).0);
        } else {
            last.compare(language, block);
        }
    }
    last.at_least(3);
    assert_eq!(upstream.seen().into_iter().filter(|seen| seen.line == "POST /login").count(), 2);
}

/// The routes that the guide shows are accepted as they are, but for the file that they name.
#[test]
fn the_routes_are_true() {
    let (blocks, folder) = (blocks(GUIDE), Folder::new("gateway-guide"));
    let config = folder.write("config.yaml", first(&blocks, "yaml config")).display().to_string();
    let arguments = ["serve", "--http", "127.0.0.1:0", "--gateway", "127.0.0.1:0", "--config", &config];
    let reported = stderr(&run(&arguments, b""));
    let is_only = reported.matches("routes[").count() == 1;
    assert!(is_only && reported.contains("routes[1].ca: upstream-ca.pem: no such file"), "{reported}");
}

/// GraphQL is priced as the guide says.
#[test]
fn the_prices_are_true() {
    let (blocks, folder, upstream) =
        (blocks(GRAPHQL), Folder::new("gateway-guide-graphql"), Upstream::start());
    let config = first(&blocks, "yaml graphql").replace("127.0.0.1:3000", &upstream.address.to_string());
    let config = folder.write("config.yaml", &config).display().to_string();
    let gateway = Gateway::with(&["--config", &config], first(&blocks, "yaml graphql-policy"));
    let mut last = Last::default();
    for (language, block) in
        blocks.iter().filter_map(|(language, block)| Some((language.strip_suffix(" graphql")?, block)))
    {
        if language == "sh" {
            let commands = block.replace("127.0.0.1:8000", &gateway.address.to_string());
            last.ran(block, succeeded(shell(&format!("set -eu\n{commands}"))).0);
        } else {
            last.compare(language, block);
        }
    }
    last.at_least(2);
    assert_eq!(upstream.seen().len(), 2);
}

/// The controllers that the guide shows are accepted as they are, and at work: without a number, and with a capacity.
#[test]
fn the_controllers_are_true() {
    let (folder, upstream) = (Folder::new("gateway-guide-overload"), Upstream::start());
    let address = format!("http://{}", upstream.address);
    let without_capacity: &[&str] = &["worker-shedder", "adaptive-concurrency", "queue"];
    let with_capacity: &[&str] = &["fleet-shedder", "worker-shedder", "adaptive-concurrency", "queue"];
    let mut expected = [without_capacity, with_capacity].into_iter();
    for (_, config) in blocks(OVERLOAD).iter().filter(|(language, _)| *language == "yaml overload") {
        let config = folder.write("config.yaml", config).display().to_string();
        let gateway = Gateway::with(&["--upstream", &address, "--config", &config], OPEN);
        assert_eq!(gateway.get("/healthz", "").status, 200);
        for controller in expected.next().expect("two examples") {
            assert_eq!(gateway.metric("tollgate_overload_mode", controller), 1, "{controller}");
        }
    }
    assert!(expected.next().is_none(), "an example is missing");
}
