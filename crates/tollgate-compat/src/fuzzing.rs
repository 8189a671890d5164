//! The bodies of the fuzz targets for files of other programs. Not part of the crate's stable interface.

use tollgate::{Engine, MemoryStore, Secret, Timestamp};

use crate::rls::{Answer, Descriptor, RlsRequest};
use crate::{ActiveConfig, CompatConfig, Format, Options, Source, guard};
use tollgate::fuzzing::poll_once;

const NOW: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);
const PLAIN: &[u8] = b"domain: d\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 3}}]";

/// No bytes make the reader of envoyproxy/ratelimit's files panic. A file that it accepts can be explained, converted
/// and queried.
pub fn envoy_file(bytes: &[u8]) {
    file(Format::Envoy, bytes);
}

/// No bytes make the reader of Limitador's files panic. A file that it accepts can be explained, converted and queried.
pub fn limitador_file(bytes: &[u8]) {
    file(Format::Limitador, bytes);
}

/// The answer of a small configuration to a question that its protocol accepts.
#[must_use]
pub fn answer(rls_request: &RlsRequest) -> Option<Answer> {
    let source = Source { name: "f".to_owned(), bytes: PLAIN.to_vec() };
    let (rules, _) = CompatConfig::compile(Format::Envoy, &[source]).ok()?;
    answers(rules, std::slice::from_ref(rls_request)).pop()
}

fn file(format: Format, bytes: &[u8]) {
    let _ = Format::of(bytes);
    let source = Source { name: "f".to_owned(), bytes: bytes.to_vec() };
    let rules = match CompatConfig::compile(format, &[source]) {
        Ok((rules, warnings)) => {
            let _ = warnings.to_string();
            rules
        }
        Err(findings) => return assert!(!findings.to_string().is_empty(), "refused without a reason"),
    };
    let _ = rules.sentences();
    let mut questions = Vec::new();
    for domain in rules.domains().into_iter().take(4) {
        let _ = rules.converted(Some(domain));
        for value in ["acme", "/a/x/b", "", "7"] {
            let entry = |key: &str| (key.to_owned(), value.to_owned());
            let descriptor = |keys: &[&str]| Descriptor {
                entries: keys.iter().map(|key| entry(key)).collect(),
                ..Descriptor::default()
            };
            let descriptors =
                vec![descriptor(&["tenant", "user"]), descriptor(&["path"]), descriptor(&["user", "n", "a"])];
            questions.push(RlsRequest { domain: domain.to_owned(), descriptors, hits_addend: 1 });
        }
    }
    let _ = answers(rules, &questions);
}

fn answers(rules: CompatConfig, questions: &[RlsRequest]) -> Vec<Answer> {
    let Ok(guard) = guard() else { return Vec::new() };
    let engine = Engine::builder()
        .policy(guard)
        .store(MemoryStore::new(256 << 10, NOW))
        .secret(Secret::repeatable(1))
        .build();
    let Ok(active) = ActiveConfig::new(rules, &engine, None, NOW) else { return Vec::new() };
    let answer = |rls_request: &RlsRequest| {
        let answer = poll_once(active.answer(rls_request, &engine, &Options::default(), NOW)).answer;
        assert_eq!(answer.statuses.len(), rls_request.descriptors.len(), "one status for each descriptor");
        answer
    };
    questions.iter().map(answer).collect()
}
