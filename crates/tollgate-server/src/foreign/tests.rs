//! Which format a file has, and how foreign rules come into force and go.

use tollgate::{CheckRequest, Clock, Engine, ManualClock, Policy};

use super::{Foreign, Format, Source, guard};
use crate::policy_file::Rules;
use crate::rls::{self, Code, Descriptor, Question};
use crate::service::{Service, Wire};

/// The format is told by the outermost shape, whatever else is wrong with a file.
#[test]
fn formats_are_told_by_their_shape() {
    let cases = [
        ("limits: []", Format::Native),
        ("domain: d\nlimits: []", Format::Native),
        ("", Format::Native),
        ("text", Format::Native),
        ("{", Format::Native),
        ("rats: 1", Format::Native),
        ("domain: d\ndescriptors: []", Format::Envoy),
        ("# a comment\n---\ndescriptors: [", Format::Envoy),
        ("domain: d", Format::Envoy),
        ("{domain: {limits: 1}, descriptors: []}", Format::Envoy),
        ("[]", Format::Limitador),
        ("- namespace: n", Format::Limitador),
        ("- limits: []", Format::Limitador),
    ];
    for (text, format) in cases {
        assert_eq!(Format::of(text.as_bytes()), format, "{text}");
    }
    assert_eq!(Format::of(b"\xff"), Format::Native);
}

fn foreign(requests: u32) -> Rules {
    let text = format!(
        "domain: d\ndescriptors: [{{key: k, rate_limit: {{unit: day, requests_per_unit: {requests}}}}}]"
    );
    let source = Source { name: "f".to_owned(), bytes: text.into_bytes() };
    let (rules, _) = Foreign::compile(Format::Envoy, &[source]).unwrap();
    Rules::Foreign(rules, guard().unwrap())
}

fn native() -> Rules {
    Rules::Native(Policy::compile("p", b"limits: [{name: own, by: [k], rate: 1/h}]").unwrap().0)
}

/// Rules of every format take each other's place; counters stay, and at no time does the engine admit past foreign rules.
#[tokio::test]
async fn rules_of_all_formats_take_turns() {
    let time = ManualClock::new();
    let clock: Clock = time.clock();
    let now = time.now();
    let (Rules::Native(policy) | Rules::Foreign(_, policy)) = native();
    let service = Service::new(Engine::new(policy, now), clock);
    let entries = vec![("k".to_owned(), "v".to_owned())];
    let descriptors = vec![Descriptor { entries, ..Descriptor::default() }];
    let question = Question { domain: "d".to_owned(), descriptors, hits_addend: 1 };
    let request = CheckRequest::new().with("k", "v").unwrap();
    assert!(rls::answer(&service, &question, now).await.is_err());
    assert!(service.check(&request, now, Wire::Http).await.is_allowed());

    service.replace(foreign(2), now).unwrap();
    for expected in [Code::Ok, Code::Ok, Code::OverLimit] {
        assert_eq!(rls::answer(&service, &question, now).await.unwrap().overall, expected);
    }
    for _ in 0..3 {
        assert!(!service.check(&request, now, Wire::Resp).await.is_allowed(), "the guard refuses");
    }
    service.replace(foreign(4), now).unwrap();
    for expected in [Code::Ok, Code::OverLimit] {
        assert_eq!(rls::answer(&service, &question, now).await.unwrap().overall, expected);
    }
    service.replace(native(), now).unwrap();
    assert!(service.foreign().is_none());
}
