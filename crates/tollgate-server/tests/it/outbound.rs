//! The outbound proxy in front of a real service: what it sends on, what it holds back, and what it answers itself. Its guide,
//! `docs/outbound-proxy.md`, is run.

use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use hyper::Version;
use serde_json::Value;
use tollgate_testkit::until;

use crate::admin::{TOKEN, ask};
use crate::gateway_h2::acceptor;
use crate::gateway_upstream::{OPEN, Upstream};
use crate::guide::{Last, blocks, first, shell, succeeded};
use crate::pki::TestCa;
use crate::program::{Server, run, stderr, tollgate};
use crate::proxy::{Folder, free_port};
use crate::raw_http::Response;

const GUIDE: &str = include_str!("../../../../docs/outbound-proxy.md");

/// A server with an outbound proxy.
struct Outbound {
    server: Server,
    address: String,
    folder: Folder,
}

impl Outbound {
    /// With the section `outbound`, in which `@` stands for the folder of the policies.
    fn start(name: &str, section: &str, policies: &[(&str, &str)]) -> Self {
        let folder = Folder::new(name);
        for (name, policy) in policies {
            folder.write(name, policy);
        }
        let section = section.replace('@', &folder.0.display().to_string());
        let config = folder.write("config.yaml", &section).display().to_string();
        let arguments = ["serve", "--http", "127.0.0.1:0", "--outbound", "127.0.0.1:0", "--config", &config];
        let mut command = tollgate(&[&arguments[..], &["--policy", "-"]].concat());
        command.env("TOLLGATE_ADMIN_TOKEN", TOKEN);
        let server = Server::spawn(command, OPEN);
        let shown = server.banner.lines().find_map(|line| line.trim().strip_prefix("outbound http://"));
        let address = shown.unwrap_or_else(|| panic!("no outbound proxy in {}", server.banner)).to_owned();
        Self { server, address, folder }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    fn send(&self, method: &str, path: &str, fields: &str, body: &str) -> Response {
        let (address, length) = (&self.address, body.len());
        let mut stream = self.connect();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {length}\r\n{fields}\r\n"
        );
        stream.write_all((head + body).as_bytes()).unwrap();
        Response::read(&mut BufReader::new(&stream))
    }

    fn get(&self, path: &str, fields: &str) -> Response {
        self.send("GET", path, fields, "")
    }

    /// The sum of a metric over all providers.
    fn metric(&self, name: &str) -> u64 {
        let page = self.server.metrics();
        let lines = page.lines().filter(|line| line.starts_with(&format!("tollgate_outbound_{name}{{")));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    }
}

fn json(response: &Response) -> Value {
    serde_json::from_slice(&response.body).unwrap()
}

/// The commands of the guide answer what it shows.
#[test]
fn the_guide_is_true() {
    let (blocks, upstream) = (blocks(GUIDE), Upstream::start());
    let here = format!("http://{}", upstream.address);
    let section = first(&blocks, "yaml config")
        .replace("https://api.openai.com", &here)
        .replace("https://api.github.com", &here)
        .replace("policy: ", "policy: @/");
    let outbound =
        Outbound::start("outbound-guide", &section, &[("github.yaml", first(&blocks, "yaml policy"))]);
    assert!(first(&blocks, "sh serve").contains("tollgate serve --config config.yaml"));
    for (language, block) in &blocks {
        let command = match *language {
            "yaml policy" => "policy",
            "yaml config" => "config",
            _ => continue,
        };
        outbound.folder.write("shown.yaml", block);
        let mut check = shell(&format!("tollgate {command} check shown.yaml"));
        check.current_dir(&outbound.folder.0);
        succeeded(check);
    }
    let mut last = Last::default();
    for (language, block) in &blocks {
        if *language == "sh" {
            let commands = block.replace("127.0.0.1:8090", &outbound.address);
            last.ran(block, succeeded(shell(&format!("set -eu\n{commands}"))).0);
        } else {
            last.compare(language, block);
        }
    }
    assert_eq!(last.compared, 2);
    assert!(outbound.metric("waited_total") > 0 && outbound.metric("refused_total") == 1);
}

/// The path loses its prefix and gets the base of the URL; the API sees its own host, the body and the credential, and neither the
/// fields for the proxy nor those of the connection. A link of the API leads through the proxy.
#[test]
fn a_call_arrives_as_if_it_was_sent_directly() {
    let upstream = Upstream::start();
    let section = format!(
        "outbound: {{providers: {{api: {{url: 'http://{}/echo', prefix: /a/b}}}}}}",
        upstream.address
    );
    let outbound = Outbound::start("outbound-arrives", &section, &[]);
    let fields = "Authorization: Bearer k\r\nTollgate-Max-Wait: 5s\r\nTollgate-Priority: batch\r\nTollgate-Cost: 2\r\n\
                  Connection: x-hop\r\nX-Hop: 1\r\nX-Kept: 1\r\nX-Under_score: 1\r\n";
    let response = outbound.send("POST", "/a/b/c%2Fd//e?q=1&q=2", fields, "hello");
    assert_eq!((response.status, response.body.as_slice()), (200, b"hello".as_slice()));
    let seen = upstream.only();
    assert_eq!(seen.line, "POST /echo/c%2Fd//e?q=1&q=2");
    assert_eq!(seen.header("host"), upstream.address.to_string());
    assert_eq!(
        (seen.header("authorization").as_str(), seen.header("content-length").as_str()),
        ("Bearer k", "5")
    );
    assert_eq!((seen.header("x-kept").as_str(), seen.header("x-under_score").as_str()), ("1", "1"));
    let gone = [
        "tollgate-max-wait",
        "tollgate-priority",
        "tollgate-cost",
        "x-hop",
        "connection",
        "x-forwarded-for",
        "via",
    ];
    for name in gone {
        assert_eq!(seen.header(name), "", "{name}");
    }
}

/// A large body, and one of unknown length, pass as they come.
#[test]
fn large_bodies_pass() {
    let upstream = Upstream::start();
    let section = format!("outbound: {{providers: {{api: {{url: 'http://{}'}}}}}}", upstream.address);
    let outbound = Outbound::start("outbound-large", &section, &[]);
    let body = "x".repeat(9 << 20);
    assert_eq!(outbound.send("POST", "/api/whole", "", &body).body, b"hello");
    let mut stream = outbound.connect();
    let head = format!(
        "POST /api/trail HTTP/1.1\r\nHost: {}\r\nTransfer-Encoding: chunked\r\n\r\n",
        outbound.address
    );
    stream.write_all((head + "3\r\nabc\r\n").as_bytes()).unwrap();
    stream.write_all(b"2\r\nde\r\n0\r\n\r\n").unwrap();
    assert_eq!(Response::read(&mut BufReader::new(&stream)).body, b"abcde|");
    assert_eq!(outbound.get("/api/big/3", "").body.len(), 3 << 20);
}

/// Each answer of the proxy itself has its status, its type and a message, and is not to be retried.
#[test]
fn answers_of_its_own_are_typed() {
    let upstream = Upstream::start();
    let section = format!(
        "outbound:\n  providers:\n    api: {{url: 'http://{0}', policy: '@/policy.yaml'}}\n    gone: {{url: 'http://127.0.0.1:{1}'}}\n    \
         slow: {{url: 'http://{0}', timeouts: {{response: 300ms}}}}\n",
        upstream.address,
        free_port()
    );
    let policy = "limits: [{name: forbidden, when: {model: m-2}, rate: deny}, \
                  {name: few, by: [route], rate: 2/h, burst: 2}]";
    let outbound = Outbound::start("outbound-typed", &section, &[("policy.yaml", policy)]);
    let assert_own = |response: &Response, status: u16, code: &str, kind: &str| {
        let answer = json(response);
        assert_eq!(
            (response.status, answer["status"].as_u64()),
            (status, Some(u64::from(status))),
            "{answer}"
        );
        assert_eq!(answer["type"], format!("urn:tollgate:problem:{code}"), "{answer}");
        assert_eq!((&answer["error"]["code"], &answer["error"]["type"]), (&code.into(), &kind.into()));
        assert!(!answer["message"].as_str().unwrap().is_empty());
        assert_eq!(response.header("x-should-retry"), Some("false"));
        assert_eq!(response.header("content-type"), Some("application/json"));
    };
    assert_own(&outbound.get("/other/x", ""), 404, "no-provider", "invalid_request_error");
    assert_own(&outbound.get("/apix", ""), 404, "no-provider", "invalid_request_error");
    let wrong = [
        "Tollgate-Max-Wait: soon",
        "Tollgate-Max-Wait: 61m",
        "Tollgate-Priority: high",
        "Tollgate-Cost: much",
    ];
    for field in wrong {
        let response = outbound.get("/api/x", &format!("{field}\r\n"));
        assert_own(&response, 400, "invalid-request", "invalid_request_error");
    }
    assert_own(&outbound.get("/gone/x", ""), 502, "call-failed", "api_error");
    assert_own(&outbound.send("POST", "/slow/hang", "", "{}"), 504, "call-unanswered", "api_error");
    assert_eq!(upstream.seen().len(), 1, "a POST without an answer is not sent again");
    let refused = outbound.send("POST", "/api/x", "", r#"{"model": "m-2"}"#);
    assert_own(&refused, 403, "denied-by-policy", "permission_error");
    let costly = outbound.get("/api/x", "Tollgate-Cost: 3\r\n");
    assert_own(&costly, 400, "cost-exceeds-capacity", "invalid_request_error");
    assert_eq!(upstream.seen().len(), 0, "none of these left");
    for _ in 0..2 {
        assert_eq!(outbound.get("/api/x", "").status, 200);
    }
    let late = outbound.get("/api/x", "");
    assert_own(&late, 429, "call-too-late", "rate_limit_error");
    let answer = json(&late);
    assert_eq!((&answer["bucket"], &answer["numbers"]), (&"few".into(), &"policy".into()), "{answer}");
    let (millis, seconds) = (answer["retry_after_ms"].as_u64().unwrap(), late.header("retry-after").unwrap());
    assert!(millis > 1_700_000 && seconds.parse::<u64>().unwrap() == millis.div_ceil(1_000), "{answer}");
    assert!(answer["until"].as_str().unwrap().ends_with('Z'), "{answer}");
    assert_eq!(upstream.seen().len(), 2);
}

/// The call that learns of a used-up budget, or of a refusal beyond its longest wait, gets the API's own answer: SDKs read
/// its status, its fields and its body. The next call gets that of the proxy, and is not sent.
#[test]
fn the_call_that_learns_of_a_long_refusal_gets_the_answer_of_the_api() {
    const QUOTA: &str = r#"{"error": {"code": "insufficient_quota", "message": "You exceeded your quota"}}"#;
    const CREDIT: &str = r#"{"error": {"message": "Your credit balance is too low"}}"#;
    const HOUR: &str = r#"{"error": "slow down"}"#;
    let upstream = Upstream::start();
    let section = format!("outbound: {{providers: {{api: {{url: 'http://{}/give'}}}}}}", upstream.address);
    let outbound = Outbound::start("outbound-long", &section, &[]);
    for (status, field, body, code) in [
        (429, "", QUOTA, "call-quota-exhausted"),
        (400, "", CREDIT, "call-quota-exhausted"),
        (429, "Give-Retry-After: 3600\r\n", HOUR, "call-too-late"),
        (503, "Give-Retry-After: 3600\r\n", HOUR, "call-too-late"),
    ] {
        let key = format!("Authorization: Bearer {}\r\n", upstream.count());
        let fields = format!("{key}{field}Give-X-Request-Id: 7\r\nGive-Body: {body}\r\n");
        let first = outbound.get(&format!("/api/{status}"), &fields);
        assert_eq!((first.status, first.body.as_slice()), (status, body.as_bytes()));
        assert_eq!(first.header("x-request-id"), Some("7"));
        assert_eq!(first.header("retry-after").is_some(), !field.is_empty());
        assert_eq!(first.header("x-should-retry"), (status == 429).then_some("false"));
        let sent = upstream.count();
        let next = outbound.get("/api/200", &key);
        assert_eq!((next.status, upstream.count()), (429, sent), "{code}");
        assert_eq!(json(&next)["type"], format!("urn:tollgate:problem:{code}"));
    }
}

/// The story: an API that asked for a day was not called for a day, and nothing showed it. The log has each long freeze once,
/// in the words of the API, and the answer of the proxy names them.
#[test]
fn a_long_freeze_is_logged_once_with_the_words_of_the_api() {
    let upstream = Upstream::start();
    let section =
        format!("outbound: {{providers: {{partner: {{url: 'http://{}/give'}}}}}}", upstream.address);
    let mut outbound = Outbound::start("outbound-frozen", &section, &[]);
    outbound.get("/partner/429", "Give-Retry-After: 86400\r\n");
    outbound.server.await_log("and said Retry-After: 86400; no call is sent until ");
    for _ in 0..3 {
        let answer = json(&outbound.get("/partner/200", ""));
        let detail = answer["detail"].as_str().unwrap();
        assert!(
            detail.contains("the server refused a call at ") && detail.contains("said to wait 24 h"),
            "{detail}"
        );
        assert!(!detail.contains("call less often"), "{detail}");
    }
    // Another credential has the same bucket name, and its freeze is no longer.
    let at_once = "Authorization: Bearer k2\r\nTollgate-Max-Wait: 0s\r\nGive-Retry-After: 30\r\n";
    assert_eq!(outbound.get("/partner/429", at_once).status, 429);
    outbound.server.signal("-TERM");
    let rest = outbound.server.rest_of_log();
    assert!(!rest.contains("no call is sent"), "{rest}");
}

/// The commands of the guide show a freeze and end it: the next call leaves. The audit log has who did it.
#[test]
fn an_operator_lists_freezes_and_ends_them() {
    let upstream = Upstream::start();
    let section = format!("outbound: {{providers: {{github: {{url: 'http://{}/give'}}}}}}", upstream.address);
    let outbound = Outbound::start("outbound-thaw", &section, &[]);
    outbound.get("/github/429", "Give-Retry-After: 86400\r\n");
    assert_eq!(outbound.get("/github/200", "").status, 429);
    let here = outbound.server.address.to_string();
    let blocks = blocks(GUIDE);
    let commands: Vec<&str> = blocks
        .iter()
        .filter(|(language, _)| *language == "sh admin")
        .map(|(_, block)| block.as_str())
        .collect();
    let answers = commands.into_iter().map(|command| {
        let mut command = shell(&command.replace("127.0.0.1:8080", &here));
        command.env("TOKEN", TOKEN);
        serde_json::from_str::<Value>(&succeeded(command).0).unwrap()
    });
    let answers: Vec<Value> = answers.collect();
    let [listed, thawed] = &answers[..] else { panic!("{answers:?}") };
    let (provider, frozen) = (&listed["providers"][0], &listed["providers"][0]["frozen"][0]);
    assert_eq!(
        (&provider["provider"], &frozen["bucket"]),
        (&"github".into(), &upstream.address.to_string().into())
    );
    assert_eq!(
        (&frozen["kind"], &frozen["retry_after_ms"]),
        (&"rate".into(), &86_400_000.into()),
        "{listed}"
    );
    assert!(frozen["until"].is_string() && frozen["stated_at"].is_string(), "{listed}");
    assert_eq!((&thawed["provider"], &thawed["thawed"][0]), (&"github".into(), frozen));
    assert_eq!(outbound.get("/github/200", "").status, 200);
    let path = "/admin/v1/outbound/thaw";
    let again = ask(&outbound.server, TOKEN, "POST", path, r#"{"provider": "github"}"#).json();
    assert_eq!(again["thawed"], serde_json::json!([]));
    let unknown = ask(&outbound.server, TOKEN, "POST", path, r#"{"provider": "githbu"}"#).problem(404);
    assert!(unknown.contains("did you mean github?"), "{unknown}");
    let audit = ask(&outbound.server, TOKEN, "GET", "/admin/v1/audit", "").json();
    let entries = audit["entries"].as_array().unwrap();
    let is_thaw = |entry: &&Value| entry["verb"] == "outbound thaw" && entry["about"] == "github";
    let outcomes: Vec<&Value> = entries.iter().filter(is_thaw).map(|entry| &entry["outcome"]).collect();
    assert_eq!(outcomes, ["0 buckets thawed", "1 bucket thawed"]);
}

/// The story: `by: [api_kye]` was accepted, and the limit never applied to any call. An attribute in the config is no
/// mistake.
#[test]
fn limits_that_apply_to_no_call_are_warned_of() {
    let folder = Folder::new("outbound-never");
    let policy = folder.write(
        "p.yaml",
        "limits:\n  - {name: typo, by: [api_kye], rate: 1/s}\n  - {name: good, by: [api_key, plan], rate: 1/s}\n",
    );
    let section = format!(
        "outbound: {{providers: {{api: {{url: 'http://127.0.0.1:9', policy: '{}', attributes: {{plan: live}}}}}}}}",
        policy.display()
    );
    let config = folder.write("config.yaml", &section).display().to_string();
    let checked = run(&["config", "check", &config], b"");
    let warnings = stderr(&checked);
    assert!(checked.status.success(), "{warnings}");
    let expected = "p.yaml:2:23: warning: limits[0] \"typo\".by[0]: no call to the provider api has an attribute api_kye, so the \
                    limit never applies; did you mean api_key?";
    assert!(warnings.contains(expected) && warnings.lines().count() == 1, "{warnings}");
}

/// A server that only calls other APIs shows these with their limits, and not the example policy.
#[test]
fn a_server_without_a_policy_shows_its_providers() {
    let folder = Folder::new("outbound-banner");
    let policy = folder.write("p.yaml", "limits: [{name: calls, by: [host], rate: 2/s}]");
    let section = format!(
        "outbound: {{providers: {{api: {{url: 'http://127.0.0.1:9/v1', policy: '{}'}}, bare: {{url: 'http://127.0.0.1:9'}}}}}}",
        policy.display()
    );
    let config = folder.write("config.yaml", &section).display().to_string();
    let arguments = ["serve", "--http", "127.0.0.1:0", "--outbound", "127.0.0.1:0", "--config", &config];
    let server = Server::spawn(tollgate(&arguments), "");
    let shown = &server.banner;
    assert!(
        shown.contains("Calls to other APIs:\n")
            && shown.contains("  api → http://127.0.0.1:9/v1\n    calls: "),
        "{shown}"
    );
    assert!(
        shown.contains("  bare → http://127.0.0.1:9\n    no limits but those that its answers report"),
        "{shown}"
    );
    assert!(
        !shown.contains("Limits:") && shown.contains("Try it:\n  curl -s -i http://127.0.0.1:"),
        "{shown}"
    );
}

/// A client that leaves takes its call out of the queue: it is not sent, and the next one does not wait for it.
#[test]
fn a_client_that_leaves_is_not_waited_for() {
    let upstream = Upstream::start();
    let section = format!(
        "outbound: {{providers: {{api: {{url: 'http://{}', policy: '@/policy.yaml'}}}}}}",
        upstream.address
    );
    let policy = "limits: [{name: one, by: [host], concurrency: 1, permit_ttl: 60s}]";
    let outbound = Outbound::start("outbound-leaves", &section, &[("policy.yaml", policy)]);
    let begun = |path: &str| {
        let mut stream = outbound.connect();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
        stream
    };
    let holding = begun("/api/hang");
    until("the first call", || (upstream.count() == 1).then_some(()));
    let open = |server: &Server| server.metric("tollgate_connections_open{wire=\"outbound\"}");
    assert_eq!(open(&outbound.server), 1);
    let waiting = begun("/api/left");
    until("the second one to wait", || (outbound.metric("waiting") == 1).then_some(()));
    drop(waiting);
    until("it to leave", || (outbound.metric("waiting") == 0).then_some(()));
    drop(holding);
    assert_eq!(outbound.get("/api/last", "").status, 200);
    let lines: Vec<String> = upstream.seen().into_iter().map(|seen| seen.line).collect();
    assert_eq!(lines, ["GET /hang", "GET /last"]);
}

/// A call to a model is charged its estimated tokens, and then what the answer says, in JSON and in events. A call whose
/// estimate is more than the limit ever admits waits for all of it, instead of being refused for ever.
#[test]
fn calls_to_models_are_settled_at_their_tokens() {
    let upstream = Upstream::start();
    let section = format!(
        "outbound: {{providers: {{api: {{url: 'http://{}/give/200', preset: openai, policy: '@/policy.yaml'}}}}}}",
        upstream.address
    );
    let policy = "limits: [{name: tokens, by: [model], rate: 100/h}, {name: calls, rate: 9/h, cost: 1}]";
    let outbound = Outbound::start("outbound-tokens", &section, &[("policy.yaml", policy)]);
    let ask = |kind: &str, answer: &str, output: u64| {
        let body =
            format!(r#"{{"model": "m", "messages": [{{"content": "eight b."}}], "max_tokens": {output}}}"#);
        let fields = format!(
            "Tollgate-Max-Wait: 0s\r\nAccept-Encoding: gzip\r\nGive-Content-Type: {kind}\r\nGive-Body: {answer}\r\n"
        );
        outbound.send("POST", "/api/v1/chat/completions", &fields, &body)
    };
    let json = r#"{"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": 12}}"#;
    let events = r#"data: {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 15}}\n\ndata: [DONE]\n\n"#;
    assert_eq!(ask("application/json", json, 90).body, json.as_bytes());
    assert_eq!(upstream.only().header("accept-encoding"), "identity");
    // 20 tokens were used: there is room for 2 + 78, and was none.
    let second = until("the first call is settled", || {
        Some(ask("text/event-stream", events, 78)).filter(|response| response.status == 200)
    });
    assert_eq!(second.body, events.replace("\\n", "\n").as_bytes());
    until("the second call is settled", || (ask("application/json", "{}", 58).status == 200).then_some(()));
    assert_eq!(upstream.count(), 2);
    // Without a usage the estimate stays, so that nothing is left.
    for output in [1, 5_000] {
        let refused = ask("application/json", json, output);
        let answer = self::json(&refused);
        assert_eq!((refused.status, &answer["bucket"]), (429, &"tokens".into()), "{answer}");
        assert_eq!(answer["type"], "urn:tollgate:problem:call-too-late");
    }
    assert_eq!(upstream.count(), 2);
}

/// The preset of GitHub counts a mutation of GraphQL as five points and as content, and a query as one point: the proxy
/// reads which of them a body has.
#[test]
fn mutations_of_graphql_cost_more_than_queries() {
    let upstream = Upstream::start();
    let section = format!(
        "outbound: {{providers: {{api: {{url: 'http://{}/give/200', policy: '@/policy.yaml'}}}}}}",
        upstream.address
    );
    let policy = "limits: [{name: points, by: [host], rate: 12/h,
        cost: \"has(operation) && operation == 'mutation' ? 5 : 1\"}]";
    let outbound = Outbound::start("outbound-graphql", &section, &[("policy.yaml", policy)]);
    let ask = |query: &str| {
        let body = serde_json::json!({"query": query}).to_string();
        outbound.send("POST", "/api/graphql", "Tollgate-Max-Wait: 0s\r\n", &body).status
    };
    let (query, mutation) = ("{ viewer { login } }", "mutation { addStar(input: {}) { clientMutationId } }");
    let statuses = [mutation, query, mutation, mutation, query, query].map(ask);
    assert_eq!(statuses, [200, 200, 200, 429, 200, 429]);
}

/// Attributes in the config count in all calls to a provider: a preset's plan can be chosen.
#[test]
fn a_provider_has_attributes() {
    let upstream = Upstream::start();
    let section = format!(
        "outbound: {{providers: {{api: {{url: 'http://{}', policy: '@/policy.yaml', attributes: {{plan: live}}}}}}}}",
        upstream.address
    );
    let policy = "limits: [{name: calls, by: [plan], tier_by: plan, tiers: {live: 2/h}, rate: 1/h}]";
    let outbound = Outbound::start("outbound-attributes", &section, &[("policy.yaml", policy)]);
    let statuses = [(); 3].map(|()| outbound.get("/api/x", "Tollgate-Max-Wait: 0s\r\n").status);
    assert_eq!(statuses, [200, 200, 429]);
}

/// A provider has as many calls in flight as its config allows.
#[test]
fn calls_in_flight_have_a_bound() {
    let upstream = Upstream::start();
    let section = format!(
        "outbound: {{providers: {{api: {{url: 'http://{}', connections: 1, timeouts: {{connect: 500ms}}}}}}}}",
        upstream.address
    );
    let outbound = Outbound::start("outbound-bound", &section, &[]);
    let mut holding = outbound.connect();
    holding.write_all(b"GET /api/hang HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    until("the first call", || (upstream.count() == 1).then_some(()));
    let refused = outbound.get("/api/x", "");
    assert_eq!((refused.status, upstream.count()), (502, 1));
    drop(holding);
    until("its end", || (outbound.get("/api/x", "").status == 200).then_some(()));
}

/// A call that was sent just before the stop is answered, also on a connection that the proxy has not looked at yet.
#[test]
fn calls_sent_before_the_stop_are_answered() {
    let upstream = Upstream::start();
    let section = format!("outbound: {{providers: {{api: {{url: 'http://{}'}}}}}}", upstream.address);
    for _ in 0..3 {
        let mut outbound = Outbound::start("outbound-stop", &section, &[]);
        let begun = (0..20).map(|_| {
            let mut stream = outbound.connect();
            stream.write_all(b"GET /api/x HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            stream
        });
        let streams: Vec<_> = begun.collect();
        outbound.server.signal("-TERM");
        for stream in &streams {
            assert_eq!(Response::read(&mut BufReader::new(stream)).status, 200);
        }
        drop(streams);
        assert_eq!(outbound.server.wait().code(), Some(0));
    }
}

/// An API over TLS is called in the protocol that was agreed on, if its certificate is known.
#[test]
fn an_api_over_tls_is_called() {
    let authority = TestCa::new("test");
    let pair = authority.server();
    for (protocol, version) in [("h2", Version::HTTP_2), ("http/1.1", Version::HTTP_11)] {
        let upstream = Upstream::start_with(Some(acceptor(&pair, &[protocol])));
        let section = format!(
            "outbound: {{providers: {{api: {{url: 'https://{0}', ca: '@/ca.pem'}}, strange: {{url: 'https://{0}'}}}}}}",
            upstream.address
        );
        let outbound = Outbound::start("outbound-tls", &section, &[("ca.pem", &authority.pem)]);
        assert_eq!(outbound.send("POST", "/api/echo", "", "hello").body, b"hello");
        assert_eq!(upstream.only().version, version);
        assert_eq!(outbound.get("/strange/echo", "").status, 502);
        assert!(outbound.folder.0.join("ca.pem").exists());
    }
}

/// A config that cannot be served stops the start, with the field and what would be accepted.
#[test]
fn a_wrong_config_stops_the_start() {
    let folder = Folder::new("outbound-wrong");
    let report = |text: &str, more: &[&str]| {
        let config = folder.write("config.yaml", text).display().to_string();
        stderr(&run(&[&["serve", "--http", "127.0.0.1:0", "--config", &config], more].concat(), b""))
    };
    let section = "outbound: {providers: {a: {url: 'http://127.0.0.1:9', policy: none.yaml}}}";
    assert!(
        report(section, &["--outbound", "127.0.0.1:0"]).contains("outbound.providers.a.policy: none.yaml")
    );
    assert!(
        report("{}", &["--outbound", "127.0.0.1:0"]).contains("--outbound: the config has no `outbound`")
    );
    let section = "outbound: {providers: {a: {url: 'http://127.0.0.1:9'}}}";
    assert!(report(section, &["--outbound", "0.0.0.0:0"]).contains("add --insecure"));
    // Regression: a token counted as protection of the proxy, which does not ask for one.
    let token = folder.write("token", "a-token-of-sixteen-bytes").display().to_string();
    let guarded = report(section, &["--outbound", "0.0.0.0:0", "--auth-token-file", &token]);
    assert!(guarded.contains("--outbound: 0.0.0.0:0 can be reached from other machines"), "{guarded}");
    assert!(report("outbound: {providers: {a: {url: ftp}}}", &[]).contains("outbound.providers.a.url: "));
}
