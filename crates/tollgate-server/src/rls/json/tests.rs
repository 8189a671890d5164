//! Parsing of requests from JSON.

use super::*;

/// Both spellings of every field, numbers as text, and fields that protobuf leaves out.
#[test]
fn requests_are_read_as_protobuf_writes_them() {
    let camel = br#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"},{"key":"x"}],
        "limit":{"requestsPerUnit":7,"unit":"MINUTE"},"hitsAddend":"3","isNegativeHits":true}],"hitsAddend":2}"#;
    let snake = br#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"},{"key":"x","value":null}],
        "limit":{"requests_per_unit":"7","unit":2},"hits_addend":{"value":3},"is_negative_hits":true}],"hits_addend":"2"}"#;
    let read = rls_request(camel).unwrap();
    assert_eq!(read, rls_request(snake).unwrap());
    assert_eq!(read.descriptors[0].hits_addend, Some(3));
    assert_eq!(read.descriptors[0].entries[1], ("x".to_owned(), String::new()));
    assert_eq!(read.descriptors[0].limit.unwrap().unit, Unit::Minute);
    let fractions = br#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"},{"key":"x"}],
        "limit":{"requestsPerUnit":7.0,"unit":"MINUTE"},"hitsAddend":0.3e1,"isNegativeHits":true}],"hitsAddend":2e0}"#;
    assert_eq!(read, rls_request(fractions).unwrap());
    assert_eq!(rls_request(b"{}").unwrap(), RlsRequest::default());
    assert_eq!(
        rls_request(br#"{"descriptors":[{"hitsAddend":0}]}"#).unwrap().descriptors[0].hits_addend,
        Some(0)
    );
}

/// A limit with an unknown unit counts as none.
#[test]
fn limits_without_a_unit_are_none() {
    for unit in ["", r#","unit":"UNKNOWN""#, r#","unit":0"#, r#","unit":99"#, r#","unit":null"#] {
        let body = format!(r#"{{"descriptors":[{{"limit":{{"requestsPerUnit":1{unit}}}}}]}}"#);
        assert_eq!(rls_request(body.as_bytes()).unwrap().descriptors[0].limit, None, "{unit}");
    }
}

/// An error names the wrong field, and no spelling of a number or a unit causes a panic.
#[test]
fn wrong_questions_are_refused_by_name() {
    let cases = [
        ("", "the body is empty; accepted: {\"domain\""),
        ("[]", "no object"),
        (r#"{"domian":"d"}"#, "domian: unknown"),
        (r#"{"domain":7}"#, "domain: is no text"),
        (r#"{"descriptors":{}}"#, "descriptors: is no list"),
        (r#"{"descriptors":[{"entries":[{"key":1}]}]}"#, "descriptors[0].entries[0].key: is no text"),
        (r#"{"hitsAddend":-1}"#, "hits_addend: accepted: whole numbers"),
        (r#"{"hitsAddend":1.5}"#, "hits_addend: accepted: whole numbers"),
        (r#"{"hitsAddend":-1.0}"#, "hits_addend: accepted: whole numbers"),
        (r#"{"hitsAddend":1e30}"#, "hits_addend: accepted: whole numbers"),
        (r#"{"hitsAddend":4294967296}"#, "hits_addend: too large"),
        (r#"{"hitsAddend":1,"hits_addend":1}"#, "hits_addend: given twice"),
        (
            r#"{"descriptors":[{"limit":{"requestsPerUnit":1,"unit":"FORTNIGHT"}}]}"#,
            "descriptors[0].limit.unit: no unit",
        ),
        (
            r#"{"descriptors":[{"limit":{"requestsPerUnit":1,"unit":true}}]}"#,
            "descriptors[0].limit.unit: no unit",
        ),
        (r#"{"descriptors":[{"domain":"x"}]}"#, "wrong place"),
        (r#"{"domain":"a","domain":"b"}"#, "\"domain\" is given twice"),
        (
            r#"{"descriptors":[{"entries":[{"key":"a","value":"b","value":"c"}]}]}"#,
            "\"value\" is given twice",
        ),
    ];
    for (body, expected) in cases {
        let error = rls_request(body.as_bytes()).unwrap_err();
        assert!(error.contains(expected), "{body}: {error}");
    }
}
