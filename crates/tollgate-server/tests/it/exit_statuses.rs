//! The exit status of every command: the table in `docs/cli.md` is compared with what the program does.

use std::fs;

use tollgate_testkit::Scratch;
use tollgate_testkit::admin::output_of;

use crate::admin::{TOKEN, server};
use crate::program::{stderr, stdout, tollgate};

const PAGE: &str = include_str!("../../../../docs/cli.md");
/// An address where no server listens.
const NO_SERVER: &str = "--admin http://127.0.0.1:1 --token 0123456789abcdef";

/// The files that the commands read.
const FILES: [(&str, &str); 15] = [
    ("policy.yaml", "limits: [{name: per-key, by: [api_key], rate: 1/h}]"),
    ("other.yaml", "limits: [{name: per-key, by: [api_key], rate: 2/h}]"),
    ("wrong.yaml", "limits: [{name: per-key, rate: fast}]"),
    ("unmapped.yaml", "limits: [{name: a, by: [plann], rate: 1/h}]"),
    ("config.yaml", "ipv6_prefix: 56"),
    ("mapped.yaml", "attributes: {plan: {header: X-Plan}}"),
    ("wrong-config.yaml", "ipv6_prefix: 5"),
    ("callers.yaml", "callers: []"),
    ("wrong-callers.yaml", "callers: 5"),
    (
        "pass.yaml",
        "policy: policy.yaml\ncases: [{name: a, requests: [{attributes: {api_key: k}, expect: allow}]}]",
    ),
    (
        "fail.yaml",
        "policy: policy.yaml\ncases: [{name: a, requests: [{attributes: {api_key: k}, expect: deny}]}]",
    ),
    ("wrong-test.yaml", "policy: policy.yaml\ncases: 5"),
    ("envoy.yaml", "domain: d\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 2}}]"),
    (
        "wrong-envoy.yaml",
        "domain: d\ndescriptors: [{key: user, rate_limit: {unit: eon, requests_per_unit: 2}}]",
    ),
    ("log.csv", "time,api_key\n2030-01-01T00:00:00.000Z,k1\n2030-01-01T00:00:01.000Z,k2\n"),
];

/// Commands without a server: the name in the table, the status, and the words, which run in a directory with the files.
/// They run in this order.
const LOCAL: [(&str, i32, &str); 64] = [
    ("serve", 2, "serve --http 8080"),
    ("serve", 2, "serve --http 0.0.0.0:0"),
    ("serve", 2, "serve --store postgres://x"),
    ("serve", 2, "serve --upstream x"),
    ("serve", 2, "serve --otlp foo"),
    ("serve", 2, "serve --gateway 127.0.0.1:0"),
    ("serve", 2, "serve --policy none.yaml"),
    ("serve", 2, "serve --policy wrong.yaml"),
    ("serve", 2, "serve --config none.yaml"),
    ("serve", 2, "serve --config wrong-config.yaml"),
    ("serve", 2, "serve --callers none.yaml"),
    ("serve", 2, "serve --tls-cert none.pem --tls-key none.pem"),
    ("serve", 2, "serve --admin-tokens none"),
    ("serve", 2, "serve --http 127.0.0.1:0 --fleet-ca none.pem"),
    ("init", 0, "init api --dir new"),
    ("init", 1, "init api --dir new"),
    ("init", 2, "init api --dir policy.yaml/x"),
    ("policy check", 0, "policy check policy.yaml"),
    ("policy check", 1, "policy check wrong.yaml"),
    ("policy check", 1, "policy check policy.yaml --deny-warnings"),
    ("policy check", 1, "policy check config.yaml"),
    ("policy check", 2, "policy check none.yaml"),
    ("policy test", 0, "policy test pass.yaml"),
    ("policy test", 1, "policy test fail.yaml"),
    ("policy test", 2, "policy test wrong-test.yaml"),
    ("policy test", 2, "policy test none.yaml"),
    ("policy diff", 0, "policy diff policy.yaml policy.yaml"),
    ("policy diff", 1, "policy diff policy.yaml other.yaml"),
    ("policy diff", 2, "policy diff policy.yaml wrong.yaml"),
    ("policy diff", 2, "policy diff policy.yaml none.yaml"),
    ("policy convert", 0, "policy convert envoy.yaml"),
    ("policy convert", 1, "policy convert policy.yaml"),
    ("policy convert", 2, "policy convert wrong-envoy.yaml"),
    ("policy convert", 2, "policy convert none.yaml"),
    ("policy schema", 0, "policy schema"),
    ("config schema", 0, "config schema"),
    ("config check", 0, "config check config.yaml"),
    ("config check", 0, "config check mapped.yaml --policy unmapped.yaml"),
    ("config check", 1, "config check mapped.yaml --policy unmapped.yaml --deny-warnings"),
    ("config check", 1, "config check wrong-config.yaml"),
    ("config check", 2, "config check none.yaml"),
    ("callers add", 0, "callers add --file callers.yaml key-0123456789abcdef tenant=t"),
    ("callers add", 1, "callers add --file callers.yaml key-0123456789abcdef tenant=t"),
    ("callers add", 2, "callers add --file wrong-callers.yaml key-0123456789abcdef tenant=t"),
    ("callers list", 0, "callers list --file callers.yaml"),
    ("callers list", 2, "callers list --file wrong-callers.yaml"),
    ("callers remove", 0, "callers remove --file callers.yaml key-0123456789abcdef"),
    ("callers remove", 1, "callers remove --file callers.yaml key-0123456789abcdef"),
    ("callers remove", 2, "callers remove --file wrong-callers.yaml key-0123456789abcdef"),
    ("store check", 1, "store check redis://127.0.0.1:1"),
    ("store check", 2, "store check postgres://x"),
    ("decide", 0, "decide --policy policy.yaml api_key=k"),
    ("decide", 1, "decide --policy policy.yaml api_key=k --times 2"),
    ("decide", 2, "decide --policy wrong.yaml api_key=k"),
    ("decide", 2, "decide --policy none.yaml api_key=k"),
    ("replay", 0, "replay --policy policy.yaml log.csv"),
    ("replay", 2, "replay --policy policy.yaml none.csv"),
    ("suggest", 1, "suggest --by api_key log.csv"),
    ("suggest", 2, "suggest --by api_key none.csv"),
    ("simulate fleet", 0, "simulate fleet --offered 10 --duration 1s"),
    ("simulate fleet", 2, "simulate fleet --limit nope"),
    ("completions", 0, "completions bash"),
    ("man", 0, "man pages"),
    ("man", 2, "man policy.yaml/x"),
];

/// Commands to a server with the first policy.
const OPERATING: [(&str, i32, &str); 33] = [
    ("limits", 0, "limits"),
    ("top", 0, "top --once"),
    ("tail", 0, "tail --once"),
    ("audit", 0, "audit"),
    ("fleet", 0, "fleet"),
    ("get", 0, "get api_key=k"),
    ("explain", 0, "explain api_key=k"),
    ("explain", 1, "explain api_key=k --cost 2"),
    ("reset", 1, "reset api_key=k"),
    ("block", 0, "block api_key=k --for 1m"),
    ("get", 1, "get api_key=k"),
    ("unblock", 0, "unblock api_key=k"),
    ("unblock", 1, "unblock api_key=k"),
    ("kill", 0, "kill per-key --for 1m"),
    ("shadow", 0, "shadow per-key --for 1m"),
    ("percent", 0, "percent per-key 10 --for 1m"),
    ("kill", 2, "kill nope"),
    ("shadow", 2, "shadow nope"),
    ("percent", 2, "percent nope 10"),
    ("block", 2, "block api_key= --for 1m"),
    ("restore", 0, "restore per-key"),
    ("restore", 1, "restore per-key"),
    ("restore", 2, "restore nope"),
    ("reset", 2, "reset api_key=k --limit nope"),
    ("limits", 2, ""),
    ("top", 2, "--once"),
    ("tail", 2, "--once"),
    ("audit", 2, ""),
    ("fleet", 2, ""),
    ("get", 2, "api_key=k"),
    ("explain", 2, "api_key=k"),
    ("unblock", 2, "api_key=k"),
    ("restore", 2, "per-key"),
];

/// The rows of the table: the command, and the statuses other than 0 that it has.
fn rows() -> Vec<(String, Vec<i32>)> {
    let table = PAGE.lines().skip_while(|line| !line.starts_with("| command | 1 |")).skip(2);
    let rows = table.take_while(|line| line.starts_with('|')).flat_map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let statuses = [(1, cells[1]), (2, cells[2])].into_iter().filter(|(_, text)| !text.is_empty());
        let statuses: Vec<i32> = statuses.map(|(status, _)| status).collect();
        let names: Vec<&str> = cells[0].split('`').skip(1).step_by(2).collect();
        names.into_iter().map(|name| (name.to_owned(), statuses.clone())).collect::<Vec<_>>()
    });
    rows.collect()
}

/// Each command ends with the statuses of its row and with no other, and each status of a row is reached.
#[test]
fn the_table_of_exit_statuses_is_true() {
    let folder = Scratch::new();
    FILES.iter().for_each(|(name, text)| fs::write(folder.path(name), text).unwrap());
    let mut reached: Vec<(&str, i32)> = Vec::new();
    for (name, status, words) in LOCAL {
        let words: Vec<&str> = words.split(' ').collect();
        let output = tollgate(&words).current_dir(folder.folder()).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{words:?}: {}{}", stdout(&output), stderr(&output));
        reached.push((name, status));
    }
    let running = server("limits: [{name: per-key, by: [api_key], rate: 1/h}]");
    for (name, status, words) in OPERATING {
        let is_elsewhere = !words.starts_with(name);
        let words = if is_elsewhere { format!("{name} {words} {NO_SERVER}") } else { words.to_owned() };
        let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
        let (code, text) = output_of(&running, &words);
        assert_eq!(code, Some(status), "{words}: {text}");
        reached.push((name, status));
    }
    let taken = running.address.to_string();
    let output = tollgate(&["serve", "--http", &taken]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    reached.push(("serve", 1));
    for (words, status) in [("bench", 2), ("bench --duration 10ms --warmup 0s --connections 1 --keys 1", 0)] {
        let address = if status == 0 { taken.as_str() } else { "127.0.0.1:1" };
        let (code, text) = output_of(&running, &format!("{words} --to {address}"));
        assert_eq!(code, Some(status), "{words}: {text}");
        reached.push(("bench", status));
    }
    reload(&folder, &mut reached);
    for (command, statuses) in rows() {
        let mut found: Vec<i32> = reached
            .iter()
            .filter(|(name, status)| *name == command && *status > 0)
            .map(|(_, s)| *s)
            .collect();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found, statuses, "{command}");
    }
    let named: Vec<String> = rows().into_iter().map(|(command, _)| command).collect();
    let missing: Vec<_> =
        reached.iter().filter(|(name, _)| !named.iter().any(|known| known == name)).collect();
    assert!(missing.is_empty(), "not in the table: {missing:?}");
}

/// A reload of a file that is active, that is refused, and without a server.
fn reload(folder: &Scratch, reached: &mut Vec<(&str, i32)>) {
    let policy = folder.text("policy.yaml");
    let mut command = tollgate(&["serve", "--http", "127.0.0.1:0", "--policy", &policy]);
    command.env("TOLLGATE_ADMIN_TOKEN", TOKEN);
    let server = crate::program::Server::spawn(command, "");
    assert_eq!(output_of(&server, "reload").0, Some(0));
    fs::write(&policy, "limits: []").unwrap();
    let (code, text) = output_of(&server, "reload");
    assert!(code == Some(1) && text.contains("tollgate reload --force"), "{text}");
    let (code, text) = output_of(&server, &format!("reload {NO_SERVER}"));
    assert_eq!(code, Some(2), "{text}");
    reached.extend([("reload", 1), ("reload", 2)]);
}
