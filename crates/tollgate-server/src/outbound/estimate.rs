//! The tokens that a call to a model will use, by its body: input by the length of its texts, output by the maximum that it
//! asks for.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use tollgate::RequestError;
use tollgate::request::VALUE_BYTES_MAX;
use tollgate_outbound::{Call, Preset};

/// The attribute that has the model that a call names.
const MODEL: &str = "model";
/// The attributes that have the tokens of a call to a model.
pub(super) const INPUT_TOKENS: &str = "input_tokens";
pub(super) const MAX_TOKENS: &str = "max_tokens";

/// How the paths of calls end that cost tokens.
const TOKEN_PATHS: [&str; 4] = ["/completions", "/responses", "/embeddings", "/messages"];
/// A token of text has about four bytes.
const TOKEN_BYTES: u64 = 4;
/// A text of at least this many bytes that is base64 is an image, a sound or a file, of about this many tokens.
const MEDIA_BYTES_MIN: usize = 1_024;
const MEDIA_TOKENS: u64 = 1_000;
/// The output of a call that states no maximum.
const OUTPUT_TOKENS: u64 = 1_000;

/// The unit in which calls cost by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CostUnit {
    /// Each call costs 1.
    Calls,
    /// Calls to models cost their tokens.
    Tokens,
}

impl CostUnit {
    pub(super) fn of(preset: Option<Preset>) -> Self {
        match preset.map(|preset| preset.name()) {
            Some("anthropic" | "openai") => Self::Tokens,
            _ => Self::Calls,
        }
    }
}

/// The tokens of a call, as far as they can be known before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TokenEstimate {
    pub(super) input: u64,
    pub(super) output: u64,
}

/// The fields of a body of JSON that matter for its call.
#[derive(Debug, Default)]
pub(super) struct BodySummary {
    model: Option<String>,
    content: Content,
    has_prompt: bool,
    output_max: Option<u64>,
    answers: Option<u64>,
}

impl BodySummary {
    /// Of a body, if it is JSON and an object.
    pub(super) fn of(body: &[u8]) -> Option<Self> {
        serde_json::from_slice(body).ok()
    }

    /// The tokens of a call to this path, if it is one that costs tokens.
    pub(super) fn tokens(&self, path: &str) -> Option<TokenEstimate> {
        if !self.has_prompt || !TOKEN_PATHS.iter().any(|end| path.ends_with(end)) {
            return None;
        }
        let input = self.content.bytes.div_ceil(TOKEN_BYTES) + self.content.media * MEDIA_TOKENS;
        let output = match self.output_max {
            Some(most) => most.saturating_mul(self.answers.unwrap_or(1).max(1)),
            None if path.ends_with("/embeddings") => 0,
            None => OUTPUT_TOKENS,
        };
        Some(TokenEstimate { input: input.max(1), output })
    }

    /// Adds the model to a call that has none.
    pub(super) fn with_model(&self, call: Call) -> Result<Call, RequestError> {
        let model = self.model.as_deref().filter(|model| !model.is_empty() && model.len() <= VALUE_BYTES_MAX);
        match model.filter(|_| call.text(MODEL).is_none()) {
            Some(model) => call.with(MODEL, model),
            None => Ok(call),
        }
    }
}

impl TokenEstimate {
    /// Adds the tokens to a call, and makes them its cost where that is the unit.
    pub(super) fn describe(self, call: Call, unit: CostUnit) -> Result<Call, RequestError> {
        let call = call.with_estimate(INPUT_TOKENS, self.input)?.with_estimate(MAX_TOKENS, self.output)?;
        match unit {
            CostUnit::Calls => Ok(call),
            CostUnit::Tokens => {
                call.estimated_cost(self.input.saturating_add(self.output).min(tollgate::request::COST_MAX))
            }
        }
    }
}

impl<'de> Deserialize<'de> for BodySummary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(SummaryVisitor)
    }
}

struct SummaryVisitor;

impl<'de> Visitor<'de> for SummaryVisitor {
    type Value = BodySummary;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<BodySummary, A::Error> {
        let mut summary = BodySummary::default();
        while let Some(field) = map.next_key::<String>()? {
            match field.as_str() {
                "model" => summary.model = map.next_value::<Value>()?.as_str().map(str::to_owned),
                "max_tokens" | "max_completion_tokens" | "max_output_tokens" => {
                    summary.output_max = map.next_value::<Value>()?.as_u64().or(summary.output_max);
                }
                "n" => summary.answers = map.next_value::<Value>()?.as_u64(),
                name => {
                    summary.has_prompt |= ["messages", "prompt", "input"].contains(&name);
                    summary.content.add(map.next_value()?);
                }
            }
        }
        Ok(summary)
    }
}

/// The texts in a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Content {
    bytes: u64,
    media: u64,
}

impl Content {
    const fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.media += other.media;
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of JSON")
    }

    fn visit_str<E>(self, text: &str) -> Result<Content, E> {
        let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=-_".contains(&byte);
        let is_media =
            text.len() >= MEDIA_BYTES_MIN && (text.starts_with("data:") || text.bytes().all(is_base64));
        Ok(if is_media {
            Content { media: 1, bytes: 0 }
        } else {
            Content { media: 0, bytes: text.len() as u64 }
        })
    }

    /// A prompt may be a list of tokens.
    fn visit_u64<E>(self, _: u64) -> Result<Content, E> {
        Ok(Content { bytes: TOKEN_BYTES, media: 0 })
    }

    fn visit_i64<E>(self, _: i64) -> Result<Content, E> {
        Ok(Content::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Content, E> {
        Ok(Content::default())
    }

    fn visit_bool<E>(self, _: bool) -> Result<Content, E> {
        Ok(Content::default())
    }

    fn visit_unit<E>(self) -> Result<Content, E> {
        Ok(Content::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Content, A::Error> {
        let mut sum = Content::default();
        while let Some(value) = list.next_element()? {
            sum.add(value);
        }
        Ok(sum)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Content, A::Error> {
        let mut sum = Content::default();
        while let Some((IgnoredAny, value)) = map.next_entry()? {
            sum.add(value);
        }
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(path: &str, body: &str) -> Option<(u64, u64)> {
        let tokens = BodySummary::of(body.as_bytes())?.tokens(path)?;
        Some((tokens.input, tokens.output))
    }

    /// Four bytes of text are a token, and the output is what the call allows.
    #[test]
    fn tokens_are_estimated_from_the_body() {
        let chat =
            r#"{"model": "m", "messages": [{"role": "user", "content": "eight b."}], "max_tokens": 50}"#;
        assert_eq!(tokens("/v1/chat/completions", chat), Some((3, 50)));
        assert_eq!(tokens("/v1/messages", chat), Some((3, 50)));
        let several = r#"{"prompt": "12345678", "n": 3, "max_completion_tokens": 20, "max_tokens": null}"#;
        assert_eq!(tokens("/v1/completions", several), Some((2, 60)));
        assert_eq!(tokens("/v1/responses", r#"{"input": "1234"}"#), Some((1, 1_000)));
        assert_eq!(tokens("/v1/embeddings", r#"{"input": [1, 2, 3]}"#), Some((3, 0)));
        assert_eq!(
            tokens("/v1/messages", r#"{"messages": [], "max_tokens": "many", "n": {}}"#),
            Some((1, 1_000))
        );
    }

    /// An image counts by its number, not by its length.
    #[test]
    fn media_do_not_count_by_their_length() {
        let image = "QUJD".repeat(100_000);
        for text in [image.clone(), format!("data:image/png;base64,{image}")] {
            let body = format!(
                r#"{{"max_tokens": 1, "messages": [{{"content": ["1234", {{"data": "{text}"}}]}}]}}"#
            );
            assert_eq!(tokens("/v1/messages", &body), Some((1_001, 1)));
        }
        let prose = "four".repeat(400) + " ";
        assert_eq!(tokens("/v1/messages", &format!(r#"{{"messages": "{prose}"}}"#)), Some((401, 1_000)));
    }

    /// Calls that use no model, and those that only count, have no tokens.
    #[test]
    fn other_calls_have_no_tokens() {
        let chat = r#"{"messages": [], "max_tokens": 5}"#;
        assert_eq!(tokens("/v1/messages/count_tokens", chat), None);
        assert_eq!(tokens("/v1/charges", chat), None);
        assert_eq!(tokens("/channels/1/messages", r#"{"content": "hello"}"#), None);
        for body in ["[]", "", "{", r#"{"content": "hello"}"#] {
            assert_eq!(tokens("/v1/messages", body), None, "{body}");
        }
    }

    /// The model is that of the body, unless the call has one.
    #[test]
    fn a_body_names_the_model() {
        let model = |body: &str, call: Call| {
            let call = BodySummary::of(body.as_bytes()).unwrap().with_model(call).unwrap();
            call.text(MODEL).map(str::to_owned)
        };
        assert_eq!(model(r#"{"model": "m-\u0031"}"#, Call::new()).as_deref(), Some("m-1"));
        assert_eq!(model(r#"{"model": ""}"#, Call::new()), None);
        let own = Call::new().with(MODEL, "class").unwrap();
        assert_eq!(model(r#"{"model": "m-1"}"#, own).as_deref(), Some("class"));
    }
}
