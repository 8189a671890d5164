//! Accepted requests, and the messages of refusals.

use super::*;

fn refusal(body: &str) -> String {
    JsonRequest::check(body.as_bytes()).unwrap_err().detail
}

/// A question is read with its text borrowed or, where it has escapes, owned.
#[test]
fn a_question_is_read() {
    let body = br#" {"cost":3,"attributes":{"api_key":"k","p\u0061th":"\/a","tokens":-5}} "#;
    let question = JsonRequest::check(body).unwrap();
    let request = question.request().unwrap();
    let attributes: Vec<_> = request.attributes().iter().map(|a| (a.name, a.value)).collect();
    let expected =
        [("api_key", Value::Text("k")), ("path", Value::Text("/a")), ("tokens", Value::Number(-5))];
    assert_eq!(attributes, expected);
    assert_eq!(request.units(), 3);
    assert_eq!(JsonRequest::check(br#"{"attributes":{}}"#).unwrap().request().unwrap().units(), 1);
}

/// A whole number may be written with a fraction of zero or an exponent, as far as it is certainly the one that was meant.
#[test]
fn whole_numbers_in_other_words() {
    let body = br#"{"cost":1e3,"attributes":{"a":5.0,"b":-2.0,"c":0.0,"d":-0.0}}"#;
    let question = JsonRequest::check(body).unwrap();
    let request = question.request().unwrap();
    let values: Vec<_> = request.attributes().iter().map(|attribute| attribute.value).collect();
    assert_eq!(values, [5, -2, 0, 0].map(Value::Number));
    assert_eq!(request.units(), 1_000);
}

/// Every refusal names the field, and what would be accepted.
#[test]
fn refusals_name_field_and_cure() {
    let cases = [
        (
            r#"{"attributes":{},"cots":1}"#,
            "unknown field \"cots\"; did you mean cost? accepted: attributes and cost (line 1, column 23)",
        ),
        (r#"{"attributes":{},"ttl_ms":1}"#, "unknown field \"ttl_ms\"; accepted: attributes and cost (line"),
        (r#"{"attributes":{},"attributes":{}}"#, "attributes: given twice"),
        (r#"{"attributes":{},"cost":1,"cost":1}"#, "cost: given twice"),
        (
            r#"{"attributes":{"a":"1","\u0061":"2"}}"#,
            "attributes.\"a\": given twice; give each attribute once",
        ),
        (r#"{"cost":1}"#, "attributes: missing"),
        (
            r#"{"attributes":{},"cost":1.5}"#,
            "cost: 1.5 is not accepted; accepted: a whole number from 0 to 9007199254740991",
        ),
        (r#"{"attributes":{},"cost":-1.0}"#, "cost: -1.0 is not accepted"),
        (
            r#"{"attributes":{},"cost":9007199254740992.0}"#,
            "cost: 9007199254740992 is not accepted; accepted: a whole",
        ),
        (r#"{"attributes":{"a":1e19}}"#, "attributes.\"a\": 1e19 is not accepted"),
        (r#"{"attributes":{},"cost":-1}"#, "cost: -1 is not accepted"),
        (r#"{"attributes":{},"cost":9007199254740992}"#, "cost: 9007199254740992 is not accepted"),
        (r#"{"attributes":{},"cost":1e99}"#, "cost: 1e99 is not accepted"),
        (r#"{"attributes":{},"cost":"1"}"#, "cost: text is not accepted"),
        (r#"{"attributes":{},"cost":null}"#, "cost: null is not accepted"),
        (r#"{"attributes":{},"cost":[1]}"#, "cost: an array is not accepted"),
        (
            r#"{"attributes":{"beta":true}}"#,
            "attributes.\"beta\": true is not accepted; accepted: text, such as \"true\", and whole numbers",
        ),
        (r#"{"attributes":{"a":1.5}}"#, "attributes.\"a\": 1.5 is not accepted"),
        (
            r#"{"attributes":{"a":9223372036854775808}}"#,
            "attributes.\"a\": 9223372036854775808 is not accepted",
        ),
        (r#"{"attributes":{"a":null}}"#, "attributes.\"a\": null is not accepted; leave out"),
        (r#"{"attributes":{"a":{"b":1}}}"#, "attributes.\"a\": an object is not accepted"),
        (r#"{"attributes":[]}"#, "an array is not accepted; accepted: `attributes` as an object"),
        (r#"[]"#, "an array is not accepted; accepted: an object with attributes and cost"),
        (r#"{"attributes":{}} x"#, "not valid JSON: there is more text behind its end"),
        (r#"{"attributes":{},"cost":NaN}"#, "a value is expected here"),
        (r#"{"attributes":{},"cost":01}"#, "invalid number"),
        (r#"{"attributes":{},"cost":+1}"#, "a value is expected here"),
        (r#"{"attributes":{},"cost":99999999999999999999999}"#, "cost: 1e23 is not accepted"),
        (r#"{"attributes":{},"cost":1e999}"#, "number out of range"),
        (
            r#"{"attributes":{"a":-9223372036854775809}}"#,
            "attributes.\"a\": -9.223372036854776e18 is not accepted",
        ),
        (r#"{"attributes":{"a":"\ud800"}}"#, "unexpected end of hex escape"),
        ("{\"attributes\":{\"a\":\"\u{1}\"}}", "control character"),
        ("\u{feff}{\"attributes\":{}}", "a value is expected here"),
        (r#"{"attributes":{},}"#, "a comma with nothing behind it"),
        (r#"{'attributes':{}}"#, "a field's name is expected here"),
        (r#"{"attributes":{}}/**/"#, "there is more text behind its end"),
        (r#"{"attributes":{}}{"attributes":{}}"#, "there is more text behind its end"),
        ("", "the body is empty; accepted: an object with attributes and cost"),
        (
            "api_key=k",
            "not valid JSON: a value is expected here (line 1, column 1); accepted: an object with attributes and cost",
        ),
    ];
    for (body, expected) in cases {
        assert!(refusal(body).contains(expected), "{body}: {}", refusal(body));
    }
    assert!(
        JsonRequest::check(b"{\"attributes\":{\"a\":\"\xff\"}}")
            .unwrap_err()
            .detail
            .contains("not UTF-8 at byte 20")
    );
}

/// However deep a body is, it is refused at the first level that has no meaning.
#[test]
fn depth_is_refused_without_descending() {
    for start in ["[", "{\"attributes\":", "{\"attributes\":{\"a\":", "{\"attributes\":{},\"cost\":"] {
        assert!(JsonRequest::check(format!("{start}{}", "[".repeat(60_000)).as_bytes()).is_err());
    }
}

/// The bounds of attributes are those of the core.
#[test]
fn attributes_are_bounded() {
    let many = |count: usize| {
        let each: Vec<String> = (0..count).map(|i| format!("\"a{i}\":1")).collect();
        format!("{{\"attributes\":{{{}}}}}", each.join(","))
    };
    assert!(JsonRequest::check(many(64).as_bytes()).unwrap().request().is_ok());
    assert!(refusal(&many(65)).contains("attributes: more than 64"));
    let long = format!("{{\"attributes\":{{\"a\":\"{}\"}}}}", "x".repeat(4097));
    let question = JsonRequest::check(long.as_bytes()).unwrap();
    assert!(question.request().unwrap_err().to_string().contains("attributes.a: a value of 4097 bytes"));
}

/// A batch says which of its questions is wrong, and has a bound.
#[test]
fn batches() {
    assert!(JsonRequest::batch(b"[]").unwrap().is_empty());
    let detail =
        JsonRequest::batch(br#"[{"attributes":{}},{"attributes":{},"cost":-1}]"#).unwrap_err().detail;
    assert!(detail.starts_with("[1]: cost: -1 is not accepted"), "{detail}");
    let many = format!("[{}]", vec![r#"{"attributes":{}}"#; BATCH_MAX + 1].join(","));
    assert!(JsonRequest::batch(many.as_bytes()).unwrap_err().detail.contains("more than 1000 items"));
}

/// A reservation may say how long it lives; a settlement says the cost and nothing else.
#[test]
fn reservations_and_settlements() {
    let question = JsonRequest::reservation(br#"{"attributes":{},"ttl_ms":5}"#).unwrap();
    assert_eq!(question.lifetime(), Ticks::from_millis(5));
    assert_eq!(JsonRequest::reservation(br#"{"attributes":{}}"#).unwrap().lifetime(), Ticks::from_secs(60));
    let detail = JsonRequest::reservation(br#"{"attributes":{},"ttl_ms":0}"#).unwrap_err().detail;
    assert!(
        detail.contains("ttl_ms: 0 is not accepted; accepted: a whole number from 1 to 3600000"),
        "{detail}"
    );
    assert_eq!(settlement(br#"{"cost":0}"#), Ok(0));
    assert!(settlement(br#"{}"#).unwrap_err().detail.contains("cost: missing"));
    assert!(
        settlement(br#"{"cost":1,"attributes":{}}"#)
            .unwrap_err()
            .detail
            .contains("unknown field \"attributes\"; accepted: cost")
    );
}
