//! Problems with JSON, in the words of all other messages: the found value, the accepted ones, and the place. The parser
//! names its own types, which say nothing to a caller.

use std::fmt::Display;

use serde_json::error::Category;

use crate::text::unknown_name;

/// Explains an error of the parser. `accepted` is the form of the whole document. Text of the caller is not echoed,
/// since it may be a credential.
pub(crate) fn explained(error: &serde_json::Error, accepted: &dyn Display) -> String {
    let text = error.to_string();
    let (text, place) = match text.rsplit_once(" at line ") {
        // A column of 0 is the body as a whole.
        Some((text, _)) if error.line() > 0 => match error.column() {
            0 => (text.to_owned(), String::new()),
            column => (text.to_owned(), format!(" (line {}, column {column})", error.line())),
        },
        _ => (text, String::new()),
    };
    match error.classify() {
        Category::Eof if error.column() == 0 => format!("the body is empty; accepted: {accepted}"),
        Category::Eof => format!("not valid JSON: it ends too early{place}; accepted: {accepted}"),
        Category::Syntax | Category::Io => {
            format!("not valid JSON: {}{place}; accepted: {accepted}", expected(&text))
        }
        Category::Data => format!("{}{place}", found(&text, accepted)),
    }
}

/// An error of the grammar as a sentence.
fn expected(text: &str) -> String {
    match text {
        "expected value" => "a value is expected here".to_owned(),
        "key must be a string" => "a field's name is expected here, in double quotes".to_owned(),
        "expected ident" => "true, false or null is expected here".to_owned(),
        "trailing characters" => "there is more text behind its end".to_owned(),
        "trailing comma" => "a comma with nothing behind it".to_owned(),
        _ => match text.strip_prefix("expected ") {
            Some(what) => format!("{what} is expected here"),
            None => text.to_owned(),
        },
    }
}

/// The found and the accepted value of an error about the contents. Messages of this program already have both.
fn found(text: &str, accepted: &dyn Display) -> String {
    if let Some(field) = text.strip_prefix("missing field `") {
        return format!("{}: missing; accepted: {accepted}", field.trim_end_matches('`'));
    }
    if text.contains("did not match any variant") {
        return format!("a value is not accepted; accepted: {accepted}");
    }
    if let Some((field, known)) =
        text.strip_prefix("unknown field `").and_then(|rest| rest.split_once("`, expected "))
    {
        let known = known.trim_start_matches("one of ").replace('`', "").replace(" or ", ", ");
        let known: Vec<&str> = known.split(", ").collect();
        return unknown_name(&format!("unknown field {field:?}"), field, &known);
    }
    for kind in ["invalid type: ", "invalid value: "] {
        let Some((path, rest)) = text.split_once(kind) else { continue };
        if let Some((found, expected)) = rest.rsplit_once(", expected ")
            && (path.is_empty() || path.ends_with(": "))
        {
            let expected = match expected {
                "a boolean" => "true or false".to_owned(),
                "a string" => "text".to_owned(),
                "u8" => "a whole number from 0 to 255".to_owned(),
                "u64" => "a whole number".to_owned(),
                "a sequence" => "an array".to_owned(),
                // A type of this program says nothing to the caller.
                named if named.starts_with("struct ") => accepted.to_string(),
                other => other.to_owned(),
            };
            return format!("{path}{} is not accepted; accepted: {expected}", value(found));
        }
    }
    // The grammar of a value inside of another, behind the name of its field.
    match text.rsplit_once(": ") {
        Some((path, grammar)) => format!("{path}: {}", expected(grammar)),
        None => expected(text),
    }
}

/// A value as the parser names it, in words of JSON.
fn value(found: &str) -> &str {
    match found {
        "map" => "an object",
        "sequence" => "an array",
        found if found.starts_with("string ") => "text",
        // Numbers and truths stand between backticks.
        found => found.split('`').nth(1).unwrap_or(found),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct SampleForm {
        #[allow(dead_code, reason = "only its form matters")]
        limit: String,
        #[allow(dead_code, reason = "only its form matters")]
        force: Option<bool>,
    }

    /// Each message says what was found and what is accepted, and none has a name of the parser.
    #[test]
    fn errors_say_what_was_found_and_what_is_accepted() {
        for (body, expected) in [
            ("", "the body is empty; accepted: THIS"),
            ("{", "not valid JSON: it ends too early (line 1, column 1); accepted: THIS"),
            ("limit=a", "not valid JSON: a value is expected here (line 1, column 1); accepted: THIS"),
            (
                r#"{"limit":"a";}"#,
                "not valid JSON: `,` or `}` is expected here (line 1, column 13); accepted: THIS",
            ),
            ("7", "7 is not accepted; accepted: THIS (line 1, column 1)"),
            ("{}", "limit: missing; accepted: THIS (line 1, column 2)"),
            (
                r#"{"limt":"a"}"#,
                "unknown field \"limt\"; did you mean limit? accepted: limit, force (line 1, column 7)",
            ),
            (
                r#"{"limit":"a","force":"yes"}"#,
                "text is not accepted; accepted: true or false (line 1, column 26)",
            ),
            (r#"{"limit":{}}"#, "an object is not accepted; accepted: text (line 1, column 9)"),
        ] {
            let error = serde_json::from_str::<SampleForm>(body).unwrap_err();
            assert_eq!(explained(&error, &"THIS"), expected, "{body}");
        }
    }
}
