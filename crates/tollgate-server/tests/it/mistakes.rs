//! The mistakes of a beginner, and what Tollgate says to each. `docs/mistakes.md` is that page: this test compares it, or
//! writes it where the variable `MISTAKES` is `write`.

use std::fmt::Write;
use std::fs;

use tollgate_testkit::Scratch;

use crate::program::{Server, stderr, stdout, tollgate};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/mistakes.md");

/// Policies, each with its mistake.
const POLICIES: [(&str, &str); 37] = [
    ("The file is empty", ""),
    ("Not YAML", "limits: [\n"),
    ("A tab for indentation", "limits:\n\t- {name: a, rate: 5/s}"),
    ("A line that is indented differently", "limits:\n  - name: a\n   rate: 5/s"),
    ("A list instead of a table", "- {name: a, rate: 5/s}"),
    ("`limit` instead of `limits`", "limit: [{name: a, rate: 5/s}]"),
    ("A table instead of a list", "limits: {a: 5/s}"),
    ("No name", "limits: [{rate: 5/s}]"),
    ("Two limits of one name", "limits: [{name: a, rate: 5/s}, {name: a, rate: 6/s}]"),
    ("A misspelled field", "limits: [{name: a, rats: 5/s}]"),
    ("A rate without a period", "limits: [{name: a, rate: 100}]"),
    ("A rate upside down", "limits: [{name: a, rate: s/100}]"),
    ("An unknown period", "limits: [{name: a, rate: 5/fortnight}]"),
    ("`M` for minutes", "limits: [{name: a, rate: 5/M}]"),
    ("A fraction", "limits: [{name: a, rate: 0.5/s}]"),
    ("A negative rate", "limits: [{name: a, rate: -5/s}]"),
    ("A rate of 0", "limits: [{name: a, rate: 0/s}]"),
    ("The beginning of an algorithm's name", "limits: [{name: a, rate: 5/s, algorithm: leaky}]"),
    ("Another program's word for shadow", "limits: [{name: a, rate: 5/s, mode: dry-run}]"),
    ("Another program's word for allow", "limits: [{name: a, rate: 5/s, on_store_failure: open}]"),
    ("A letter too much in `ip`", "limits: [{name: a, by: [ipp], rate: 5/s}]"),
    ("A text that begins with `*`", "limits: [{name: a, rate: 5/s, by: [*x]}]"),
    ("A pattern that is none", "limits: [{name: a, rate: 5/s, when: \"path.matches('[')\"}]"),
    ("A burst that is no number", "limits: [{name: a, rate: 5/s, burst: many}]"),
    ("An unknown algorithm", "limits: [{name: a, rate: 5/s, algorithm: token_buckets}]"),
    ("An unknown mode", "limits: [{name: a, rate: 5/s, mode: shaddow}]"),
    ("A header as an attribute", "limits: [{name: a, by: [header.x-tenant], rate: 5/s}]"),
    ("nginx's variable", "limits: [{name: a, by: [$binary_remote_addr], rate: 5/s}]"),
    ("A negation with `!`", "limits: [{name: a, when: {method: !GET}, rate: 5/s}]"),
    ("CEL that does not parse", "limits: [{name: a, when: \"path ===\", rate: 5/s}]"),
    ("`and` in CEL", "limits: [{name: a, when: \"method == 'GET' and path == '/x'\", rate: 5/s}]"),
    ("A path that ends with a slash", "limits: [{name: a, when: {path: /api/}, rate: 5/s}]"),
    ("Two asterisks", "limits: [{name: a, when: {path: /v1/**}, rate: 5/s}]"),
    ("Tiers without `tier_by`", "limits: [{name: a, by: [tenant], tiers: {free: 5/s}}]"),
    (
        "An unknown time zone",
        "limits: [{name: a, rate: 5/day, algorithm: fixed-window, align: calendar, timezone: Rome}]",
    ),
    ("`enforce_percent` without `by`", "limits: [{name: a, rate: 5/s, enforce_percent: 10}]"),
    ("A field given twice", "limits: [{name: a, rate: 5/s, rate: 6/s}]"),
];

/// Configs, each with its mistake.
const CONFIGS: [(&str, &str); 18] = [
    ("A policy instead of a config", "limits: [{name: a, rate: 5/s}]"),
    ("A misspelled field", "trusted_proxy: [10.0.0.0/8]"),
    ("A proxy that is no address", "trusted_proxies: [proxy.internal]"),
    ("One proxy instead of a list", "trusted_proxies: 10.0.0.1"),
    ("A prefix out of range", "ipv6_prefix: 32"),
    ("A prefix that is no number", "ipv6_prefix: wide"),
    ("An unknown choice", "path_match: lose"),
    ("An unknown place of a credential", "credentials: [token]"),
    ("An attribute with two sources", "attributes: {tenant: {header: X-Tenant, query: tenant}}"),
    ("A claim without keys", "attributes: {tenant: {jwt: org}}"),
    ("A route without an upstream", "routes: [{path: /v1/*}]"),
    ("An upstream that is no URL", "routes: [{upstreams: ['127.0.0.1:3000']}]"),
    ("An unknown status of denials", "headers: {denied: 418}"),
    ("Misspelled places of a credential", "credentials: [bearrer, {heder: X-API-Key}]"),
    (
        "A field and a number of a route",
        "routes: [{upstreams: ['http://127.0.0.1:3000'], timeout: 5s, retries: -1}]",
    ),
    ("A store that is none", "store: {url: postgres://db, deadline: 5, nodes: two}"),
    ("A callers file that is not there", "callers: nowhere.yaml"),
    (
        "Several mistakes at once",
        "ipv6_prefix: 200\ntrusted_proxies: [proxy.internal]\nconnections_per_address: lots\nheaders: {denied: 430}\n\
         attributes: {tenant: {jwt: org}}",
    ),
];

/// Command lines. The words are those after `tollgate`.
const COMMANDS: [(&str, &str); 32] = [
    ("A misspelled command", "serv"),
    ("A misspelled flag", "serve --polcy policy.yaml"),
    ("A port instead of an address", "serve --http 8080"),
    ("A name instead of an address", "serve --http example.com:8080"),
    ("An address that others can reach", "serve --http 0.0.0.0:0"),
    ("A policy that is not there", "serve --policy nowhere.yaml"),
    ("A config that is not there", "serve --config nowhere.yaml"),
    ("A store with an unknown scheme", "serve --store mysql://localhost"),
    ("A store without its slashes", "serve --store redis:/localhost"),
    ("A size without sense", "serve --memory lots"),
    ("A key without its certificate", "serve --tls-key key.pem"),
    ("An upstream without a scheme", "serve --upstream localhost:3000"),
    ("A collector of traces that is no URL", "serve --otlp collector"),
    ("A gateway with nothing behind it", "serve --gateway 127.0.0.1:8000"),
    ("Check without a file", "policy check"),
    ("A value for a switch", "policy check --json=1 policy.yaml"),
    ("One policy to compare", "policy diff policy.yaml"),
    ("Neither a policy nor a log", "replay"),
    ("Check of a file that is not there", "policy check nowhere.yaml"),
    ("An attribute without a value", "decide api_key"),
    ("A number that is none", "decide tokens:=many"),
    ("A limit without its policy", "simulate fleet --limit per-key"),
    ("A cost that is none", "decide api_key=k1 --cost x"),
    ("A negative cost", "decide api_key=k1 --cost -1"),
    ("A duration without a unit", "decide api_key=k1 --every 100"),
    ("An unknown shell", "completions powershell"),
    ("An unknown kind", "init web"),
    ("No server runs", "top"),
    ("A server that is no URL", "limits --admin ::1 --token 0123456789abcdef"),
    ("A server that is not there", "limits --admin http://127.0.0.1:1"),
    ("A time without a unit", "shadow per-key --for 10"),
    ("A block without a time", "block api_key=k1"),
];

/// Requests: a method, a path and a body.
const REQUESTS: [(&str, &str, &str, &str); 11] = [
    ("A wrong path", "GET", "/check/v1", ""),
    ("A wrong method", "GET", "/v1/check", ""),
    ("No body", "POST", "/v1/check", ""),
    ("Not JSON", "POST", "/v1/check", "api_key=k1"),
    ("No attributes", "POST", "/v1/check", "{}"),
    ("A misspelled field", "POST", "/v1/check", "{\"atributes\": {\"api_key\": \"k1\"}}"),
    ("A list as a value", "POST", "/v1/check", "{\"attributes\": {\"api_key\": [1]}}"),
    ("An address that is none", "POST", "/v1/check", "{\"attributes\": {\"ip\": \"1.2.3\"}}"),
    ("A negative cost", "POST", "/v1/check", "{\"attributes\": {\"api_key\": \"k1\"}, \"cost\": -1}"),
    ("A batch that is no list", "POST", "/v1/check/batch", "{}"),
    ("A reservation that is none", "DELETE", "/v1/reservations/7", ""),
];

/// Runs a command in a directory, and returns what it says and its status.
fn answer_to(folder: &Scratch, words: &str) -> (String, i32) {
    let words: Vec<&str> = words.split(' ').collect();
    let output = tollgate(&words).current_dir(folder.folder()).env("TOLLGATE_LOG", "error").output().unwrap();
    let text = stderr(&output) + &stdout(&output);
    (text.trim_end().to_owned(), output.status.code().unwrap_or(-1))
}

fn section(page: &mut String, title: &str, shown: &str, answer: &(String, i32)) {
    let _ = write!(
        page,
        "\n### {title}\n\n```text\n{shown}\n```\n\nStatus {}:\n\n```text\n{}\n```\n",
        answer.1, answer.0
    );
}

fn page() -> String {
    let folder = Scratch::new();
    let mut page = String::from(
        "# Mistakes, and what Tollgate says to them\n\n\
         The mistakes of a beginner, each with the message and the exit status, or the status of HTTP. A test compares this\n\
         page with what the program really says.\n\n## In a policy\n",
    );
    for (title, text) in POLICIES {
        fs::write(folder.path("policy.yaml"), text).unwrap();
        section(&mut page, title, text.trim_end(), &answer_to(&folder, "policy check policy.yaml"));
    }
    page.push_str("\n## In a config\n");
    for (title, text) in CONFIGS {
        fs::write(folder.path("config.yaml"), text).unwrap();
        section(&mut page, title, text, &answer_to(&folder, "config check config.yaml"));
    }
    fs::remove_file(folder.path("policy.yaml")).unwrap();
    fs::remove_file(folder.path("config.yaml")).unwrap();
    page.push_str("\n## On the command line\n");
    for (title, words) in COMMANDS {
        section(&mut page, title, &format!("$ tollgate {words}"), &answer_to(&folder, words));
    }
    page.push_str("\n## Over HTTP\n");
    let server = Server::start("limits: [{name: per-key, by: [api_key], rate: 5/s}]");
    for (title, method, path, body) in REQUESTS {
        let response = server.send(method, path, body);
        let problem = response.json();
        let said = ["title", "detail"].map(|name| problem[name].as_str().unwrap_or_default().to_owned());
        let shown = format!("{method} {path} {body}");
        section(&mut page, title, shown.trim_end(), &(said.join(": "), i32::from(response.status)));
    }
    page
}

/// Terms of a parser's inside, which say nothing to a beginner.
const INTERNALS: [&str; 15] = [
    "while parsing",
    "is none:",
    "lookup address",
    "did not find expected",
    "found in string",
    "expected struct",
    "Unsupported binary",
    "invalid type:",
    "unknown variant",
    "did not match any variant",
    "panicked",
    "os error",
    "serde",
    "Syntax error",
    "expecting {",
];

/// Every mistake is answered by a message that names the place, the cause and the cure; none leaks the inside of a
/// parser. The page shows them all.
#[test]
fn mistakes_are_explained() {
    let page = page();
    if std::env::var("MISTAKES").is_ok_and(|wish| wish == "write") {
        fs::write(PAGE, &page).unwrap();
    }
    let count = page.matches("\n### ").count();
    assert!(count >= 70, "only {count} mistakes");
    for leak in INTERNALS {
        let line = page.lines().find(|line| line.contains(leak));
        assert_eq!(line, None, "{leak:?} leaks");
    }
    let known = fs::read_to_string(PAGE).unwrap_or_default();
    assert_eq!(known, page, "docs/mistakes.md differs; MISTAKES=write writes it");
}
