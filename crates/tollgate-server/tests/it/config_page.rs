//! `docs/config.md` is held to the program: each field that the config reader knows is on the page, and its examples are
//! accepted.

use tollgate_testkit::guide::blocks;

use crate::program::{run, stderr};
use crate::proxy::Folder;

const PAGE: &str = include_str!("../../../../docs/config.md");
/// A field that no section knows.
const UNKNOWN: &str = "zzz";

/// The program's output about a config, before it would listen.
fn report(folder: &Folder, config: &str) -> String {
    let path = folder.write("config.yaml", config).display().to_string();
    // The second address is none, so that the program ends even if the config is good.
    stderr(&run(
        &["serve", "--http", "127.0.0.1:0", "--admin-tokens", "no-such-file", "--config", &path],
        b"",
    ))
}

/// The fields that a section knows: the program lists them when it meets one that it does not know.
fn known(folder: &Folder, section: &str) -> Vec<String> {
    let printed = report(folder, &section.replace('@', &format!("{UNKNOWN}: 1")));
    let line = printed.lines().rev().find(|line| line.contains(UNKNOWN) && line.contains("unknown field"));
    let line = line.unwrap_or_else(|| panic!("{section} has no unknown field:\n{printed}"));
    let accepted = ["expected one of ", "expected ", "accepted: "];
    let list = accepted.iter().find_map(|words| line.split_once(words)).map(|(_, list)| list);
    let list = list.unwrap_or_else(|| panic!("{section}: no list of fields:\n{line}"));
    let list = list.split(" (line").next().unwrap_or(list);
    let words = list.split([',', ' ', '`']).filter(|word| !word.is_empty() && *word != "or");
    words.map(str::to_owned).collect()
}

/// Each field that the config reader knows stands on the page, by its name or behind that of its section.
#[test]
fn every_field_is_on_the_page() {
    let folder = Folder::new("config-page");
    let sections = [
        ("", "{@}"),
        ("", "jwt: {jwks: keys.json, @}"),
        ("", "headers: {@}"),
        ("", "store: {@}"),
        ("", "attributes: {a: {@}}"),
        ("", "routes: [{@}]"),
        ("timeouts.", "routes: [{upstreams: ['http://a'], timeouts: {@}}]"),
        ("health.", "routes: [{upstreams: ['http://a'], health: {@}}]"),
        ("pace.", "routes: [{upstreams: ['http://a'], pace: {@}}]"),
        ("", "routes: [{upstreams: ['http://a'], graphql: {@}}]"),
        ("caps.", "routes: [{upstreams: ['http://a'], graphql: {caps: {@}}}]"),
        ("persisted.", "routes: [{upstreams: ['http://a'], graphql: {persisted: {file: f, @}}}]"),
        ("", "outbound: {providers: {a: {url: 'http://a'}}, @}"),
        ("", "outbound: {providers: {a: {url: 'http://a', @}}}"),
        ("timeouts.", "outbound: {providers: {a: {url: 'http://a', timeouts: {@}}}}"),
        ("", "overload: {@}"),
        ("fleet.", "overload: {fleet: {capacity: 1/s, @}}"),
        ("worker.", "overload: {worker: {@}}"),
        ("concurrency.", "overload: {concurrency: {@}}"),
        ("queue.", "overload: {concurrency: , queue: {@}}"),
        ("rate.", "overload: {rate: {target: 1s, @}}"),
    ];
    let mut missing = Vec::new();
    let mut fields = 0;
    for (within, section) in sections {
        for field in known(&folder, section) {
            let is_of_each = field == "mode" && PAGE.contains("| `mode`, in each controller |");
            // A field stands there alone, with a value, or as the section of others: `hash`, `hash: true`, `fleet.scope`.
            let mut ends = ["`", ": ", "."].iter();
            let is_there = ends.any(|end| PAGE.contains(&format!("`{within}{field}{end}")));
            if !(is_there || is_of_each) {
                missing.push(format!("{section}: {within}{field}"));
            }
            fields += 1;
        }
    }
    assert!(missing.is_empty(), "docs/config.md lacks:\n{}", missing.join("\n"));
    assert!(fields > 100, "only {fields} fields were found");
}

/// The examples of the page are accepted, but for the files that they name.
#[test]
fn the_examples_are_accepted() {
    let folder = Folder::new("config-page-examples");
    let keys = folder.write(
        "keys.json",
        r#"{"keys":[{"kty":"oct","k":"c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"}]}"#,
    );
    let blocks = blocks(PAGE);
    let examples = blocks.iter().filter(|(language, _)| *language == "yaml config");
    let mut seen = 0;
    for (_, example) in examples {
        let config = example.replace("/etc/tollgate/keys.json", &keys.display().to_string());
        let printed = report(&folder, &config);
        let mut findings = printed.lines().filter(|line| line.contains("config.yaml:"));
        assert!(findings.all(|line| line.contains(": no such file")), "{example}\n{printed}");
        assert!(printed.contains("no such file") && !printed.contains("no config"), "{example}\n{printed}");
        seen += 1;
    }
    assert!(seen >= 4, "only {seen} examples were found");
}
