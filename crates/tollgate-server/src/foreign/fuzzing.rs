//! The bodies of the fuzz targets for files of other programs. Not part of the crate's stable interface.

use tollgate::{Engine, MemoryStore, Secret, Timestamp};

use super::{Foreign, Format, InForce, Options, Source, guard};
use crate::at_once::at_once;
use crate::rls::{Descriptor, Question, json};

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

/// No body of `/json` causes a panic. A valid one is answered with one status for each descriptor.
pub fn rls_json(bytes: &[u8]) {
    let Ok(question) = json::question(bytes) else { return };
    if question.check().is_err() {
        return;
    }
    let source = Source { name: "f".to_owned(), bytes: PLAIN.to_vec() };
    let Ok((rules, _)) = Foreign::compile(Format::Envoy, &[source]) else { return };
    ask(rules, &[question]);
}

fn file(format: Format, bytes: &[u8]) {
    let _ = Format::of(bytes);
    let source = Source { name: "f".to_owned(), bytes: bytes.to_vec() };
    let rules = match Foreign::compile(format, &[source]) {
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
            questions.push(Question { domain: domain.to_owned(), descriptors, hits_addend: 1 });
        }
    }
    ask(rules, &questions);
}

fn ask(rules: Foreign, questions: &[Question]) {
    let Ok(guard) = guard() else { return };
    let engine = Engine::with_store(guard, MemoryStore::new(256 << 10, NOW), Secret::repeatable(1));
    let Ok(in_force) = InForce::new(rules, &engine, None, NOW) else { return };
    for question in questions {
        let answer = at_once(in_force.answer(question, &engine, &Options::default(), NOW)).answer;
        assert_eq!(answer.statuses.len(), question.descriptors.len(), "one status for each descriptor");
        let _ = json::document(&answer).to_string();
    }
}
