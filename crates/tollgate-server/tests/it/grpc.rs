//! A native policy's answers to Envoy, rule by rule, as tables of requests and answers over gRPC.

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use tonic::Code;

use crate::program::Server;
use crate::rls::{Client, question, shown};

/// Asks the questions of a table in order, at one server, which is given back.
fn table(policy: &str, steps: &[(&str, &str)]) -> Server {
    let server = Server::start(policy);
    let client = Client::new(server.grpc.unwrap());
    for (number, (asked, expected)) in steps.iter().enumerate() {
        let answer = client.ask(question("api", 0, asked)).unwrap();
        assert!(is_as(&shown(&answer), expected), "step {number}: {asked}: {}", shown(&answer));
    }
    server
}

/// Whether the texts are the same, where `_` stands for a number that depends on the time of day.
fn is_as(answer: &str, expected: &str) -> bool {
    let (answer, expected): (Vec<&str>, Vec<&str>) =
        (answer.split(' ').collect(), expected.split(' ').collect());
    let is_same = |(answer, expected): (&&str, &&str)| {
        answer == expected || (*expected == "_" && answer.parse::<u64>().is_ok())
    };
    answer.len() == expected.len() && answer.iter().zip(&expected).all(is_same)
}

const POLICY: &str = "
domain: api
limits:
  - {name: per-key, by: [api_key], rate: 3/h}
  - {name: per-path, by: [path], rate: 5/h}
  - {name: pair, by: [api_key, path], rate: 9/h}
";

/// Each limit applies once, to the first descriptor that has its attributes, and to no two descriptors together. There is one
/// status for each descriptor, in order, about the limit with the least left.
#[test]
fn a_limit_applies_to_the_first_descriptor_that_it_matches() {
    table(
        POLICY,
        &[
            (
                "api_key=a | path=/x | api_key=b",
                "OK: OK per-key 3/HOUR left 2 in 20 | OK per-path 5/HOUR left 4 in 12 | OK",
            ),
            ("path=/x | api_key=b", "OK: OK per-path 5/HOUR left 3 in 12 | OK per-key 3/HOUR left 2 in 20"),
            ("api_key=a path=/y", "OK: OK per-key 3/HOUR left 1 in 20"),
            ("other=1", "OK: OK"),
        ],
    );
}

/// When a limit of one descriptor denies, the limits of no descriptor are charged.
#[test]
fn descriptors_are_charged_all_or_none() {
    table(
        POLICY,
        &[
            (
                "api_key=a +3 | path=/x",
                "OK: OK per-key 3/HOUR left 0 in 20 | OK per-path 5/HOUR left 4 in 12",
            ),
            (
                "path=/x | api_key=a",
                "OVER: OK per-path 5/HOUR left 4 in 12 | OVER per-key 3/HOUR left 0 in 20",
            ),
            ("path=/x +0", "OK: OK per-path 5/HOUR left 4 in 12"),
        ],
    );
}

/// Hits: a descriptor's own before the request's, 0 only looks, and more than a limit ever admits is over for good.
#[test]
fn hits_of_a_descriptor() {
    table(
        POLICY,
        &[
            ("api_key=a +2", "OK: OK per-key 3/HOUR left 1 in 20"),
            ("api_key=a +0", "OK: OK per-key 3/HOUR left 1 in 20"),
            ("api_key=a +2", "OVER: OVER per-key 3/HOUR left 0 in 20"),
            ("api_key=a +1", "OK: OK per-key 3/HOUR left 0 in 20"),
            ("api_key=a +0", "OK: OK per-key 3/HOUR left 0 in 20"),
            ("api_key=b +4", "OVER: OVER per-key 3/HOUR left 0"),
            ("api_key=b +18446744073709551615", "OVER: OVER"),
            ("api_key=b +0", "OK: OK per-key 3/HOUR left 3 in 0"),
        ],
    );
}

/// Hits of the request, which has none to say 0 with: 0 is 1.
#[test]
fn hits_of_a_request() {
    let server = Server::start(POLICY);
    let client = Client::new(server.grpc.unwrap());
    let ask = |hits, text| shown(&client.ask(question("api", hits, text)).unwrap());
    assert_eq!(ask(2, "path=/x"), "OK: OK per-path 5/HOUR left 3 in 12");
    assert_eq!(ask(0, "path=/x"), "OK: OK per-path 5/HOUR left 2 in 12");
    assert_eq!(ask(2, "path=/x +1"), "OK: OK per-path 5/HOUR left 1 in 12");
    assert_eq!(ask(u32::MAX, "path=/x"), "OVER: OVER per-path 5/HOUR left 0");
}

/// Negative hits are given back, never more than were taken, and are OK whatever is left; also beside hits that are taken. They are
/// taken to be 15 s old: what the rate gives in that time, here less than a fiftieth of a unit, has come back by itself.
#[test]
fn negative_hits_are_given_back() {
    table(
        POLICY,
        &[
            ("api_key=a +3", "OK: OK per-key 3/HOUR left 0 in 20"),
            ("api_key=a -1", "OK: OK per-key 3/HOUR left 0 in 1"),
            ("api_key=a -0", "OK: OK per-key 3/HOUR left 0 in 1"),
            ("api_key=a -50", "OK: OK per-key 3/HOUR left 3 in 0"),
            ("api_key=a +1", "OK: OK per-key 3/HOUR left 2 in 20"),
            ("api_key=a -18446744073709551615", "OK: OK per-key 3/HOUR left 3 in 0"),
            (
                "path=/x +5 | api_key=a",
                "OK: OK per-path 5/HOUR left 0 in 12 | OK per-key 3/HOUR left 2 in 20",
            ),
            (
                "path=/x -2 | path=/x | api_key=a",
                "OK: OK per-path 5/HOUR left 1 in 1 | OK | OK per-key 3/HOUR left 1 in 20",
            ),
            (
                "path=/x -1 | api_key=a +2",
                "OVER: OK per-path 5/HOUR left 2 in 1 | OVER per-key 3/HOUR left 0 in 20",
            ),
            ("other=1 -7", "OK: OK"),
            (
                "api_key=a +0 | path=/x +0",
                "OK: OK per-key 3/HOUR left 1 in 20 | OK per-path 5/HOUR left 2 in 1",
            ),
        ],
    );
}

/// A limit that a descriptor brings along can tighten what the policy says, and never raises it. The status tells the tighter one.
#[test]
fn a_limit_of_the_request_tightens() {
    let server = table(
        POLICY,
        &[
            // It has no say where the policy is tighter.
            ("api_key=a @1000000/YEAR", "OK: OK per-key 3/HOUR left 2 in 20"),
            ("api_key=a @1000000/YEAR +2", "OK: OK per-key 3/HOUR left 0 in 20"),
            ("api_key=a @1000000/YEAR", "OVER: OVER per-key 3/HOUR left 0 in 20"),
            // Where it is tighter it denies, and then nothing is charged.
            ("path=/x @2/YEAR | api_key=b", "OK: OK  2/YEAR left 1 in _ | OK per-key 3/HOUR left 2 in 20"),
            ("path=/x @2/YEAR", "OK: OK  2/YEAR left 0 in _"),
            (
                "path=/x @2/YEAR | api_key=b",
                "OVER: OVER  2/YEAR left 0 in _ | OK per-key 3/HOUR left 2 in 20",
            ),
            ("path=/x @2/YEAR +0", "OK: OK  2/YEAR left 0 in _"),
            ("path=/x +0", "OK: OK per-path 5/HOUR left 3 in 12"),
            // Another number decides on the same count; what cannot ever pass is over for good.
            ("path=/x @1/YEAR", "OVER: OVER  1/YEAR left 0 in _"),
            ("path=/x @3/YEAR", "OK: OK  3/YEAR left 0 in _"),
            ("path=/x @0/YEAR", "OVER: OVER  0/YEAR left 0"),
            ("path=/z @4/YEAR +5", "OVER: OVER  4/YEAR left 0"),
            // What the policy denies costs the limit of the request nothing.
            ("api_key=a path=/y @9/YEAR", "OVER: OVER per-key 3/HOUR left 0 in 20"),
            ("api_key=a path=/y @9/YEAR +0", "OK: OK per-key 3/HOUR left 0 in 20"),
            // Given back is given back to both.
            ("path=/x @3/YEAR -2", "OK: OK  3/YEAR left 2 in _"),
            ("path=/x +0", "OK: OK per-path 5/HOUR left 3 in 1"),
            // One that no limit of the policy is about is held to what it brought.
            ("other=1 @1/YEAR", "OK: OK  1/YEAR left 0 in _"),
            ("other=1 @1/YEAR", "OVER: OVER  1/YEAR left 0 in _"),
            ("other=1", "OK: OK"),
        ],
    );
    assert_eq!(server.decisions("rls"), 18, "each is counted once, and giving back is none");
    let answer = Client::new(server.grpc.unwrap()).ask(question("api", 0, "other=1 @1/YEAR")).unwrap();
    let header = |name: &str| answer.response_headers_to_add.iter().find(|header| header.key == name);
    assert!(header("Retry-After").is_some_and(|header| header.value.parse::<u64>().unwrap() > 0));
    assert!(header("RateLimit").is_none());
}

/// Many at once that bring a limit along are never admitted more than it says, and what they were refused is not taken.
#[test]
fn a_limit_of_the_request_holds_under_concurrency() {
    let server = Server::start(POLICY);
    let address = server.grpc.unwrap();
    let admitted: usize = std::thread::scope(|scope| {
        let ask = || {
            let client = Client::new(address);
            let is_ok = |_: &usize| {
                shown(&client.ask(question("api", 0, "other=crowd @20/YEAR")).unwrap()).starts_with("OK")
            };
            (0..20).filter(is_ok).count()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!((17..=20).contains(&admitted), "{admitted}");
    let client = Client::new(address);
    for _ in admitted..20 {
        assert!(shown(&client.ask(question("api", 0, "other=crowd @20/YEAR")).unwrap()).starts_with("OK"));
    }
    assert!(shown(&client.ask(question("api", 0, "other=crowd @20/YEAR")).unwrap()).starts_with("OVER"));
}

/// Limits in shadow pass, and report what they would have decided; an enforced limit is reported before them.
#[test]
fn shadow_limits_pass() {
    table(
        "limits:
          - {name: quiet, by: [user], rate: 1/h, mode: shadow}
          - {name: loud, by: [team], rate: 9/h}",
        &[
            ("user=u", "OK: OK quiet 1/HOUR left 0 in 60"),
            ("user=u", "OK: OK quiet 1/HOUR left 0 in 60"),
            ("user=u team=t", "OK: OK loud 9/HOUR left 8 in 7"),
        ],
    );
}

/// Limits are reported in Envoy's units. A limit that has none is reported without; a concurrency limit in flight comes back by itself only.
#[test]
fn limits_are_reported_in_units() {
    table(
        "limits:
          - {name: s, by: [s], rate: 7/s}
          - {name: m, by: [m], rate: 7/min, algorithm: sliding-window}
          - {name: h, by: [h], rate: 7/h burst 20}
          - {name: d, by: [d], rate: 7/day, algorithm: gcra}
          - {name: w, by: [w], rate: 7/week, algorithm: fixed-window, align: first-hit}
          - {name: mo, by: [mo], rate: 7/month, algorithm: fixed-window, align: calendar, timezone: UTC}
          - {name: y, by: [y], rate: 7/year, algorithm: fixed-window, align: calendar, timezone: UTC}
          - {name: odd, by: [odd], rate: 300 per 5m}
          - {name: huge, by: [huge], rate: 10_000_000_000/h}
          - {name: flight, by: [flight], concurrency: 2, permit_ttl: 1h}",
        &[
            ("s=1 +0", "OK: OK s 7/SECOND left 7 in 0"),
            ("m=1 +0", "OK: OK m 7/MINUTE left 7 in 0"),
            ("h=1 +0", "OK: OK h 7/HOUR left 20 in 0"),
            ("d=1 +7", "OK: OK d 7/DAY left 0 in 206"),
            ("w=1 +7", "OK: OK w 7/WEEK left 0 in 10080"),
            ("w=1", "OVER: OVER w 7/WEEK left 0 in 10080"),
            ("odd=1 +300", "OK: OK odd 300/UNKNOWN left 0 in 1"),
            ("huge=1 +0", "OK: OK huge 4294967295/HOUR left 4294967295 in 0"),
            ("flight=1", "OK: OK flight 2/UNKNOWN left 1 in 60"),
            ("flight=1", "OK: OK flight 2/UNKNOWN left 0 in 60"),
            ("flight=1", "OVER: OVER flight 2/UNKNOWN left 0 in 60"),
            ("flight=1 -1", "OK: OK flight 2/UNKNOWN left 0 in 60"),
            ("flight=1", "OVER: OVER flight 2/UNKNOWN left 0 in 60"),
        ],
    );
    let server = Server::start(
        "limits:
          - {name: mo, by: [mo], rate: 7/month, algorithm: fixed-window, align: calendar, timezone: UTC}
          - {name: y, by: [y], rate: 7/year, algorithm: fixed-window, align: calendar, timezone: UTC}",
    );
    let client = Client::new(server.grpc.unwrap());
    for (asked, expected) in [("mo=1", "OK: OK mo 7/MONTH left 6 in "), ("y=1", "OK: OK y 7/YEAR left 6 in ")]
    {
        let answer = shown(&client.ask(question("any", 0, asked)).unwrap());
        assert!(answer.starts_with(expected), "{answer}");
    }
}

/// A policy with a domain answers for it alone. Others have no limit, which is no error.
#[test]
fn another_domain_has_no_limit() {
    let server = Server::start(POLICY);
    let client = Client::new(server.grpc.unwrap());
    for _ in 0..5 {
        let answer = client.ask(question("elsewhere", 0, "api_key=a | path=/x")).unwrap();
        assert_eq!(shown(&answer), "OK: OK | OK");
        assert!(answer.response_headers_to_add.is_empty());
    }
    assert_eq!(
        shown(&client.ask(question("api", 0, "api_key=a")).unwrap()),
        "OK: OK per-key 3/HOUR left 2 in 20"
    );
}

/// A question without a domain or without descriptors is none: the only errors there are.
#[test]
fn a_question_that_is_none_is_an_error() {
    let server = Server::start(POLICY);
    let client = Client::new(server.grpc.unwrap());
    let without = RateLimitRequest { domain: "api".to_owned(), ..RateLimitRequest::default() };
    for (asked, reason) in
        [(question("", 0, "api_key=a"), "domain: it is empty"), (without, "descriptors: there are none")]
    {
        let error = client.ask(asked).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.message().starts_with(reason), "{}", error.message());
    }
}

/// No descriptor of a client of Envoy becomes an error, which Envoy would let pass: it is over the limit.
#[test]
fn input_that_cannot_be_counted_is_over_the_limit() {
    let (long_value, long_name) = (format!("api_key={}", "x".repeat(4_097)), format!("{}=x", "n".repeat(65)));
    let many: String = (0..65).map(|number| format!("n{number}=1 ")).collect();
    let peers = vec!["path=/x"; 65].join(" | ");
    let peers_answer = format!("OVER: {}", vec!["OVER"; 65].join(" | "));
    let server = table(
        POLICY,
        &[
            (&long_value, "OVER: OVER"),
            (&long_name, "OVER: OVER"),
            ("api_key=a api_key=b", "OVER: OVER"),
            ("=x | path=/x", "OVER: OVER | OVER"),
            (&many, "OVER: OVER"),
            (&peers, &peers_answer),
            ("path=/x", "OK: OK per-path 5/HOUR left 4 in 12"),
        ],
    );
    assert_eq!(server.decisions("rls"), 7, "refusals are counted, too");
    table(
        "limits: [{name: tokens, by: [api_key], rate: 9/h, cost: tokens}]",
        &[
            ("api_key=a | path=/x", "OVER: OVER | OVER"),
            ("api_key=a tokens=many", "OVER: OVER"),
            ("api_key=a tokens=4", "OK: OK tokens 9/HOUR left 5 in 7"),
        ],
    );
}

/// Values are text, and an expression that wants numbers says so. What it says is no number is refused.
#[test]
fn a_cost_may_be_computed_from_text() {
    table(
        "limits: [{name: sum, by: [api_key], rate: 9/h, cost: 'int(prompt) + int(most)'}]",
        &[
            ("api_key=a prompt=2 most=3", "OK: OK sum 9/HOUR left 4 in 7"),
            ("api_key=a prompt=2 most=x", "OVER: OVER"),
            ("api_key=a prompt=2 most=3", "OVER: OVER sum 9/HOUR left 0 in 7"),
        ],
    );
}

/// Envoy cannot wait, so what a shaping limit would have wait passes at once, up to the length of its queue.
#[test]
fn a_queue_passes_at_once() {
    table(
        "limits: [{name: line, by: [api_key], rate: 1/h, algorithm: leaky-bucket, queue: 2}]",
        &[
            ("api_key=a", "OK: OK line 1/HOUR left 2 in 60"),
            ("api_key=a", "OK: OK line 1/HOUR left 1 in 60"),
            ("api_key=a", "OK: OK line 1/HOUR left 0 in 60"),
            ("api_key=a", "OVER: OVER line 1/HOUR left 0 in 60"),
        ],
    );
}

/// Headers for the client come along, whatever the code; those that Envoy makes of the statuses are left to it.
#[test]
fn headers_come_along() {
    let server = Server::start(POLICY);
    let client = Client::new(server.grpc.unwrap());
    let ask = |text| client.ask(question("api", 0, text)).unwrap().response_headers_to_add;
    let passed = ask("api_key=a +3");
    let value = |headers: &[envoy_types::pb::envoy::config::core::v3::HeaderValue], name: &str| {
        headers.iter().find(|header| header.key == name).map(|header| header.value.clone())
    };
    assert_eq!(value(&passed, "RateLimit-Policy").as_deref(), Some("\"per-key\";q=3;w=3600"));
    assert!(value(&passed, "RateLimit").unwrap().starts_with("\"per-key\";r=0;t="));
    assert_eq!(value(&passed, "Retry-After"), None);
    let denied = ask("api_key=a");
    let retry: u64 = value(&denied, "Retry-After").unwrap().parse().unwrap();
    assert!((1_200..=1_400).contains(&retry), "{retry}");
    assert_eq!(value(&denied, "Cache-Control").as_deref(), Some("no-store"));
    // Why, for Envoy's access log.
    let answer = client.ask(question("api", 0, "api_key=a")).unwrap();
    let metadata = answer.dynamic_metadata.unwrap().fields;
    let text = |name: &str| format!("{:?}", metadata[name].kind);
    assert!(
        text("cause").contains("per-key") && text("reason").contains("3 requests an hour"),
        "{metadata:?}"
    );
    assert_eq!(client.ask(question("api", 0, "api_key=other")).unwrap().dynamic_metadata, None);
    for header in passed.iter().chain(&denied) {
        assert!(!header.key.to_ascii_lowercase().starts_with("x-ratelimit"), "{}", header.key);
    }
    assert!(ask("api_key=a -1").is_empty());
}
