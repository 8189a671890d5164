//! Tables of configurations, questions and expected answers, written by hand from the rules of the original programs. A
//! table is one text, so that a case is a line:
//!
//! ```text
//! === name of the configuration
//! (the file)
//! ---
//! [xN] [domain:D] [hits:N] DESCRIPTOR ; DESCRIPTOR => OVERALL STATUS ; STATUS
//! after 60s
//! ```
//!
//! A descriptor is `key=value, key=value` followed by `(hits N)`, `(back N)` or `(limit N/unit)`; a status is `-` for
//! none, `*` for unlimited, or `ok 10/minute left 9 in 60 called name`, of which everything after the numbers may be
//! left out.

use tollgate::{Engine, ManualClock, MemoryStore, Secret, Ticks, Timestamp};

use crate::rls::{Answer, Code, Descriptor, Override, RlsRequest, Status, Unit};
use crate::{ActiveConfig, CompatConfig, Format, Options, Source, guard};
use tollgate::fuzzing::poll_once;

/// A whole minute, well inside every longer unit.
pub(crate) const T0: Timestamp = Timestamp::from_unix_seconds(1_700_000_040);

/// An active configuration, with its own clock.
pub(crate) struct Bench {
    pub(crate) engine: Engine,
    pub(crate) active: ActiveConfig,
    pub(crate) options: Options,
    pub(crate) now: Timestamp,
}

impl Bench {
    pub(crate) fn new(format: Format, file: &str) -> Self {
        let source = Source { name: "test.yaml".to_owned(), bytes: file.as_bytes().to_vec() };
        assert_eq!(Format::of(&source.bytes), format, "{file}");
        let (rules, _) =
            CompatConfig::compile(format, &[source]).unwrap_or_else(|findings| panic!("{findings}\n{file}"));
        let now = ManualClock::starting_at(T0).now();
        let store = MemoryStore::new(4 << 20, now);
        let engine =
            Engine::builder().policy(guard().unwrap()).store(store).secret(Secret::repeatable(7)).build();
        let active = ActiveConfig::new(rules, &engine, None, now).unwrap();
        Self { engine, active, options: Options::default(), now }
    }

    pub(crate) fn ask(&self, rls_request: &RlsRequest) -> Answer {
        poll_once(self.active.answer(rls_request, &self.engine, &self.options, self.now)).answer
    }
}

/// Runs a table. Returns the number of configurations and of answers that it compared.
pub(crate) fn run(format: Format, table: &str) -> (usize, usize) {
    let (mut configurations, mut answers) = (0, 0);
    for section in table.split("\n=== ").skip(1) {
        let (name, rest) = section.split_once('\n').unwrap();
        let (file, cases) = rest.split_once("\n---\n").unwrap();
        let mut bench = Bench::new(format, file);
        configurations += 1;
        for case in cases.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if let Some(time) = case.strip_prefix("after ") {
                bench.now = bench.now + Ticks::from_secs(time.trim_end_matches('s').parse().unwrap());
            } else if let Some(option) = case.strip_prefix("with ") {
                match option {
                    "headers" => bench.options.has_headers = true,
                    "shadow" => bench.options.is_shadow = true,
                    "quota" => bench.options.is_quota = true,
                    _ => {
                        bench.options.override_max =
                            option.strip_prefix("override ").unwrap().parse().unwrap()
                    }
                }
            } else {
                answers += compare(&bench, name, case);
            }
        }
    }
    (configurations, answers)
}

fn compare(bench: &Bench, name: &str, case: &str) -> usize {
    let (asked, expected) = case.split_once(" => ").unwrap_or_else(|| panic!("{name}: {case}"));
    let (times, asked) = match asked.strip_prefix('x').and_then(|rest| rest.split_once(' ')) {
        Some((times, rest)) if times.parse::<usize>().is_ok() => (times.parse().unwrap(), rest),
        _ => (1, asked),
    };
    let rls_request = rls_request(asked, bench.active.rules.domains()[0]);
    for _ in 0..times {
        let answer = bench.ask(&rls_request);
        let actual = shown(&answer, expected);
        assert_eq!(actual, expected, "{name}: {case}\n{answer:?}");
    }
    times
}

fn rls_request(text: &str, domain: &str) -> RlsRequest {
    let mut rls_request = RlsRequest { domain: domain.to_owned(), ..RlsRequest::default() };
    let mut text = text.trim();
    while let Some((word, rest)) = text.split_once(' ') {
        if let Some(domain) = word.strip_prefix("domain:") {
            rls_request.domain = domain.to_owned();
        } else if let Some(hits) = word.strip_prefix("hits:") {
            rls_request.hits_addend = hits.parse().unwrap();
        } else {
            break;
        }
        text = rest;
    }
    rls_request.descriptors = text.split(" ; ").map(descriptor).collect();
    rls_request
}

fn descriptor(text: &str) -> Descriptor {
    let mut descriptor = Descriptor::default();
    let (entries, choices) = match text.find('(') {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    for entry in entries.trim().split(", ").filter(|entry| !entry.is_empty()) {
        let (key, value) = entry.split_once('=').unwrap_or_else(|| panic!("{text}"));
        descriptor.entries.push((key.to_owned(), value.to_owned()));
    }
    for choice in choices.split(['(', ')']).map(str::trim).filter(|choice| !choice.is_empty()) {
        let (what, number) = choice.split_once(' ').unwrap();
        match what {
            "hits" => descriptor.hits_addend = Some(number.parse().unwrap()),
            "back" => {
                descriptor.hits_addend = Some(number.parse().unwrap());
                descriptor.is_negative_hits = true;
            }
            _ => {
                let (requests, unit) = number.split_once('/').unwrap();
                let unit = Unit::of(unit).unwrap();
                descriptor.limit = Some(Override { requests_per_unit: requests.parse().unwrap(), unit });
            }
        }
    }
    descriptor
}

/// An answer in the syntax of the table, with as much of each status as the expected one contains.
fn shown(answer: &Answer, expected: &str) -> String {
    let overall = if answer.overall == Code::Ok { "OK" } else { "OVER" };
    let mut parts = expected.split(" [");
    let wanted: Vec<&str> = parts.next().unwrap_or_default().split(" ; ").collect();
    let statuses: Vec<String> = answer
        .statuses
        .iter()
        .enumerate()
        .map(|(at, status)| one(status, wanted.get(at).unwrap_or(&"")))
        .collect();
    let mut text = format!("{overall} {}", statuses.join(" ; "));
    if parts.next().is_some() {
        let headers: Vec<String> =
            answer.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        text.push_str(&format!(" [{}]", headers.join(" | ")));
    } else {
        assert!(answer.headers.is_empty(), "{answer:?}");
    }
    text
}

fn one(status: &Status, wanted: &str) -> String {
    let code = if status.code == Code::Ok { "ok" } else { "over" };
    let Some(limit) = &status.current_limit else {
        assert_eq!((status.code, status.until_reset), (Code::Ok, None));
        return if status.limit_remaining == u32::MAX {
            "*".to_owned()
        } else {
            assert_eq!(status.limit_remaining, 0);
            "-".to_owned()
        };
    };
    let unit = limit.unit.map_or("?", Unit::name);
    let mut text = format!("{code} {}/{unit}", limit.requests_per_unit);
    if wanted.contains(" left ") {
        text.push_str(&format!(" left {}", status.limit_remaining));
    }
    if wanted.contains(" in ") {
        text.push_str(&format!(" in {}", status.until_reset.unwrap().ceil_seconds()));
    }
    if wanted.contains(" called ") {
        text.push_str(&format!(" called {}", limit.name));
    }
    text
}
