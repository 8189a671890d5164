//! The tokens that a call to a model used, by its response: `usage` in the JSON, or in events of a stream. The bytes are only
//! looked at as they pass; nothing is kept but the newest `usage`.

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::response::Parts;
use serde::Deserialize;
use tollgate_outbound::{Call, Usage, UsageReader};

use super::estimate::{CostUnit, INPUT_TOKENS, MAX_TOKENS, TokenEstimate};

/// Maximum size of a `usage`.
const USAGE_BYTES_MAX: usize = 16 << 10;
/// Longer than every name that matters.
const WORD_BYTES_MAX: usize = 16;

/// The reader of a response, if its call has an estimate and the response can be read.
pub(super) fn reader(call: &Call, head: &Parts, unit: CostUnit) -> Option<UsageReader> {
    let number = |name| call.number(name).and_then(|number| u64::try_from(number).ok());
    let estimate = TokenEstimate { input: number(INPUT_TOKENS)?, output: number(MAX_TOKENS)? };
    if !head.status.is_success() || head.headers.contains_key(CONTENT_ENCODING) {
        return None;
    }
    let form = match head.headers.get(CONTENT_TYPE)?.to_str().ok()?.split(';').next()?.trim() {
        "application/json" => BodyForm::Json,
        "text/event-stream" => BodyForm::Events,
        _ => return None,
    };
    let mut scanner = UsageScanner::new(form);
    Some(Box::new(move |piece: &[u8]| {
        let tokens = scanner.read(piece)?;
        let (input, output) =
            (tokens.input.unwrap_or(estimate.input), tokens.output.unwrap_or(estimate.output));
        let usage = match unit {
            CostUnit::Calls => Usage::default(),
            CostUnit::Tokens => Usage::of_cost(input.saturating_add(output)),
        };
        Some(usage.with(INPUT_TOKENS, input).with(MAX_TOKENS, output))
    }))
}

/// How a response is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyForm {
    Json,
    /// Server-sent events, each with JSON in one line.
    Events,
}

/// The tokens that a response has reported so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ReportedTokens {
    input: Option<u64>,
    output: Option<u64>,
}

/// A `usage`, as the APIs of OpenAI and Anthropic write it.
#[derive(Default, Deserialize)]
struct UsageDocument {
    prompt_tokens: Option<u64>,
    input_tokens: Option<u64>,
    /// Anthropic counts these apart. Reads of the cache do not count.
    cache_creation_input_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    output_tokens: Option<u64>,
}

/// Where in a text the scanner is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lexeme {
    Outside,
    Text,
    Escape,
}

/// Finds the objects `usage` of the outermost object and of its own fields, such as `message.usage`. Deeper ones are what a
/// model or a tool has written.
struct UsageScanner {
    form: BodyForm,
    lexeme: Lexeme,
    depth: u32,
    /// The newest text, and whether it is the name of the value that follows.
    word: Vec<u8>,
    is_name: bool,
    /// Whether the object at depth 2 is `message`: its usage is what is known before the first word of the answer.
    is_message: bool,
    /// The `usage` that is being read, and the depth at which it ends.
    usage: Option<(Vec<u8>, u32)>,
    fresh: Option<u64>,
    cached: Option<u64>,
    output: Option<u64>,
}

impl UsageScanner {
    fn new(form: BodyForm) -> Self {
        Self {
            form,
            lexeme: Lexeme::Outside,
            depth: 0,
            word: Vec::with_capacity(WORD_BYTES_MAX),
            is_name: false,
            is_message: false,
            usage: None,
            fresh: None,
            cached: None,
            output: None,
        }
    }

    /// Looks at a piece of the body. Returns the tokens if the piece has reported some.
    fn read(&mut self, piece: &[u8]) -> Option<ReportedTokens> {
        let mut has_reported = false;
        for &byte in piece {
            if let Some((usage, _)) = &mut self.usage {
                if usage.len() < USAGE_BYTES_MAX {
                    usage.push(byte);
                } else {
                    self.usage = None;
                }
            }
            match self.lexeme {
                // No text of JSON has a line break.
                _ if byte == b'\n' => self.end_line(),
                Lexeme::Escape => self.lexeme = Lexeme::Text,
                Lexeme::Text => self.read_text(byte),
                Lexeme::Outside => has_reported |= self.read_sign(byte),
            }
        }
        has_reported.then(|| self.tokens())
    }

    fn tokens(&self) -> ReportedTokens {
        let input = match (self.fresh, self.cached) {
            (None, None) => None,
            (fresh, cached) => Some(fresh.unwrap_or(0).saturating_add(cached.unwrap_or(0))),
        };
        ReportedTokens { input, output: self.output }
    }

    fn end_line(&mut self) {
        self.lexeme = Lexeme::Outside;
        if self.form == BodyForm::Events {
            (self.depth, self.usage) = (0, None);
        }
    }

    fn read_text(&mut self, byte: u8) {
        match byte {
            b'\\' => self.lexeme = Lexeme::Escape,
            b'"' => self.lexeme = Lexeme::Outside,
            _ if self.word.len() < WORD_BYTES_MAX => self.word.push(byte),
            _ => {}
        }
    }

    /// Reads a byte outside of texts. Returns whether a usage ends with it.
    fn read_sign(&mut self, byte: u8) -> bool {
        match byte {
            b'"' => {
                self.lexeme = Lexeme::Text;
                self.word.clear();
                self.is_name = false;
            }
            b':' => self.is_name = true,
            b',' => self.is_name = false,
            b'{' | b'[' => self.open(byte),
            b'}' | b']' => return self.close(),
            _ => {}
        }
        false
    }

    fn open(&mut self, byte: u8) {
        let name = if self.is_name { self.word.as_slice() } else { b"" };
        if byte == b'{' && name == b"usage" && (1..=2).contains(&self.depth) && self.usage.is_none() {
            self.usage = Some((vec![byte], self.depth));
        } else if self.depth == 1 {
            self.is_message = name == b"message";
        }
        self.is_name = false;
        self.depth = self.depth.saturating_add(1);
    }

    fn close(&mut self) -> bool {
        self.depth = self.depth.saturating_sub(1);
        match self.usage.take_if(|(_, depth)| *depth == self.depth) {
            Some((usage, depth)) => self.take(&usage, depth),
            None => false,
        }
    }

    /// Takes a usage. Its numbers are totals, so the newest count; zeros are placeholders of what was said before.
    fn take(&mut self, usage: &[u8], depth: u32) -> bool {
        let Ok(usage) = serde_json::from_slice::<UsageDocument>(usage) else { return false };
        let newest = |new: Option<u64>, known| new.filter(|&tokens| tokens > 0).or(known);
        self.fresh = newest(usage.input_tokens.or(usage.prompt_tokens), self.fresh);
        self.cached = newest(usage.cache_creation_input_tokens, self.cached);
        if !(depth == 2 && self.is_message) {
            self.output = usage.output_tokens.or(usage.completion_tokens).or(self.output);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tokens that a body reports, whatever its pieces are.
    fn tokens(form: BodyForm, body: &str) -> (Option<u64>, Option<u64>) {
        let of_pieces = |size: usize| {
            let (mut scanner, mut reported) = (UsageScanner::new(form), ReportedTokens::default());
            for piece in body.as_bytes().chunks(size) {
                reported = scanner.read(piece).unwrap_or(reported);
            }
            reported
        };
        let whole = of_pieces(body.len().max(1));
        for size in [1, 2, 7] {
            assert_eq!(of_pieces(size), whole, "{size}");
        }
        (whole.input, whole.output)
    }

    /// Responses in JSON, also with line breaks.
    #[test]
    fn a_response_in_json_has_its_usage() {
        let chat = r#"{"choices": [{"message": {"content": "\"usage\": {\"prompt_tokens\": 9}"}}],
            "usage": {"prompt_tokens": 12, "completion_tokens": 30, "total_tokens": 42, "details": {"cached_tokens": 3}}}"#;
        assert_eq!(tokens(BodyForm::Json, chat), (Some(12), Some(30)));
        let embeddings = "{\n  \"data\": [[0.1, -2e3]],\n  \"usage\": {\n \"prompt_tokens\": 8\n }\n}";
        assert_eq!(tokens(BodyForm::Json, embeddings), (Some(8), None));
        let messages = r#"{"content": [{"input": {"usage": {"input_tokens": 99}}}], "usage": {"input_tokens": 5,
            "cache_creation_input_tokens": 7, "cache_read_input_tokens": 1000, "output_tokens": 3}}"#;
        assert_eq!(tokens(BodyForm::Json, messages), (Some(12), Some(3)));
        for none in [
            "{}",
            "",
            r#"{"usage": null}"#,
            r#"{"usage": {"prompt_tokens": -1}}"#,
            r#"{"a": "usage", "b": {}}"#,
        ] {
            assert_eq!(tokens(BodyForm::Json, none), (None, None), "{none}");
        }
    }

    /// The last event of a stream of OpenAI has the usage, in both of its APIs.
    #[test]
    fn the_last_event_has_the_usage() {
        let chat = "data: {\"choices\":[{\"delta\":{\"content\":\"{[\"}}],\"usage\":null}\n\n\
                    data: {\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":6}}\n\ndata: [DONE]\n\n";
        assert_eq!(tokens(BodyForm::Events, chat), (Some(4), Some(6)));
        let response = "event: response.created\r\ndata: {\"response\":{\"usage\":null}}\r\n\r\n: it's a \"comment\r\n\
                        data: {\"response\":{\"output\":[],\"usage\":{\"input_tokens\":9,\"output_tokens\":2}}}\r\n\r\n";
        assert_eq!(tokens(BodyForm::Events, response), (Some(9), Some(2)));
    }

    /// A stream of Anthropic begins with the input, and its output is a total that grows. A stream that is cut has no output
    /// to believe in.
    #[test]
    fn a_stream_that_is_cut_reports_its_input() {
        let start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":25,\
                     \"cache_read_input_tokens\":900,\"output_tokens\":1}}}\n\n";
        assert_eq!(tokens(BodyForm::Events, start), (Some(25), None));
        let end = "data: {\"delta\":{},\"usage\":{\"input_tokens\":0,\"output_tokens\":15}}\n\n";
        assert_eq!(tokens(BodyForm::Events, &format!("{start}{end}{end}")), (Some(25), Some(15)));
    }

    /// A usage without an end takes no memory, and the next line is read again.
    #[test]
    fn a_usage_without_an_end_is_given_up() {
        let mut scanner = UsageScanner::new(BodyForm::Events);
        assert!(scanner.read(b"data: {\"usage\":{\"a\":\"").is_none());
        assert!(scanner.read(&vec![b'x'; USAGE_BYTES_MAX + 1]).is_none());
        assert!(scanner.usage.is_none() && scanner.word.len() <= WORD_BYTES_MAX);
        let next = scanner.read(b"\ndata: {\"usage\":{\"output_tokens\":2}}\n").unwrap();
        assert_eq!(next, ReportedTokens { input: None, output: Some(2) });
    }
}
