//! Settings out of a file's tree, by serde. The tree comes from the reader of policies, so a config file fails in the
//! words of a policy: with its line and column, the field, what is wrong and what would be accepted.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use tollgate::policy::Problem;
use tollgate::policy::source::{Entry, Node, Position, Reading, Report, Tree, nearest, quoted, read};

/// Reads a file whose outermost value is a table. An empty file is an empty table.
pub(crate) fn table(bytes: &[u8], report: &mut Report) -> Option<Node> {
    let is_blank = |line: &[u8]| matches!(line.trim_ascii_start().first(), None | Some(b'#'));
    let empty = Node { at: Position { line: 1, column: 1 }, tree: Tree::Table(Vec::new()) };
    if bytes.split(|byte| *byte == b'\n').all(is_blank) {
        return Some(empty);
    }
    let root = read(bytes, Reading::OWN, report)?;
    match root.tree {
        Tree::Empty => Some(empty),
        Tree::Table(_) => Some(root),
        Tree::Text(_) | Tree::List(_) => {
            report.error(root.at, "", Problem::new(format!("the file is {}", root.kind()), "a table"));
            None
        }
    }
}

/// Maximum number of values that one table reports as wrong.
const WRONG_MAX: usize = 100;

/// The settings in a table, if all of it is right. Each wrong value is reported.
pub(crate) fn settings<T: DeserializeOwned>(table: &Node, report: &mut Report) -> Option<T> {
    let (settings, wrong) = readable(table, report);
    settings.filter(|_| wrong.0.is_empty())
}

/// The settings in a table without its wrong values, each of which is reported, so that the rest can be checked as well.
pub(crate) fn readable<T: DeserializeOwned>(table: &Node, report: &mut Report) -> (Option<T>, WrongParts) {
    let mut wrong = WrongParts::default();
    loop {
        let error = match T::deserialize(Value { node: table, wrong: &wrong }) {
            Ok(settings) => return (Some(settings), wrong),
            Err(error) => error,
        };
        // A field that is missing only because its value is wrong was reported with its value.
        if !(error.is_missing && find(table, &error.field, &WrongParts::default()).is_whole) {
            let at = error.at.map_or(table.at, Part::position);
            report.error(at, &error.field, error.problem);
        }
        let is_new = error.at.is_some_and(|part| wrong.0.insert(part));
        if !is_new || wrong.0.len() >= WRONG_MAX {
            return (None, wrong);
        }
    }
}

/// A name or a value of a document, known by its position and its kind: a table begins where its first name does, and
/// a list may begin where its first item does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Name(u32, u32),
    Value(u32, u32, &'static str),
}

impl Part {
    fn name(at: Position) -> Self {
        Part::Name(at.line, at.column)
    }

    fn value(node: &Node) -> Self {
        Part::Value(node.at.line, node.at.column, node.kind())
    }

    fn position(self) -> Position {
        let (Part::Name(line, column) | Part::Value(line, column, _)) = self;
        Position { line, column }
    }
}

/// The parts of a table that could not be read. Readers leave them out.
#[derive(Debug, Default)]
pub(crate) struct WrongParts(BTreeSet<Part>);

impl WrongParts {
    fn has_entry(&self, entry: &Entry) -> bool {
        self.0.contains(&Part::name(entry.at)) || self.has_value(&entry.node)
    }

    fn has_value(&self, node: &Node) -> bool {
        self.0.contains(&Part::value(node))
    }

    /// Whether a value is wrong, or anything inside it.
    fn touch(&self, node: &Node) -> bool {
        self.has_value(node)
            || match &node.tree {
                Tree::Table(entries) => {
                    entries.iter().any(|entry| self.has_entry(entry) || self.touch(&entry.node))
                }
                Tree::List(items) => items.iter().any(|item| self.touch(item)),
                Tree::Empty | Tree::Text(_) => false,
            }
    }
}

/// Reports a problem that begins with its field, such as `routes[0].path: "x" does not begin with /; accepted: …`, at
/// the position of that field. The numbers of items count those that could be read. A field with a wrong part has been
/// reported already.
pub(crate) fn report_problem(table: &Node, wrong: &WrongParts, text: &str, report: &mut Report) {
    let (field, mut rest) = text.split_once(": ").unwrap_or(("", text));
    let (mut field, mut found) = (field.to_owned(), find(table, field, wrong));
    // A field inside it may follow.
    while let Some((name, message)) = rest.split_once(": ") {
        let inner = format!("{field}.{name}");
        let deeper = find(table, &inner, wrong);
        if !deeper.is_whole {
            break;
        }
        (field, found, rest) = (inner, deeper, message);
    }
    if found.is_whole && wrong.touch(found.node) {
        return;
    }
    let (message, accepted) = rest.split_once("; accepted: ").unwrap_or((rest, ""));
    report.error(found.node.at, &found.field, Problem::new(message, accepted));
}

/// The value of a field, or the innermost value on the way to it.
struct Found<'n> {
    node: &'n Node,
    /// The field, as the file counts its items.
    field: String,
    /// Whether it is the whole way.
    is_whole: bool,
}

/// Finds the value of a field such as `routes[0].path`, where items that could not be read do not count.
fn find<'n>(table: &'n Node, field: &str, wrong: &WrongParts) -> Found<'n> {
    let mut found = Found { node: table, field: String::new(), is_whole: true };
    let mut rest = field;
    for part in field.split(['.', '[']) {
        let inner = match &found.node.tree {
            Tree::Table(entries) => {
                let entry = entries.iter().find(|entry| entry.key == part);
                entry.map(|entry| (part.to_owned(), &entry.node))
            }
            Tree::List(items) => {
                let mut read = items.iter().enumerate().filter(|(_, item)| !wrong.has_value(item));
                let number: Option<usize> = part.trim_end_matches(']').parse().ok();
                number.and_then(|number| read.nth(number)).map(|(index, item)| (format!("{index}]"), item))
            }
            Tree::Empty | Tree::Text(_) => None,
        };
        let Some((shown, inner)) = inner else {
            found.field.push_str(rest);
            return Found { is_whole: false, ..found };
        };
        found.node = inner;
        rest = &rest[part.len()..];
        found.field.push_str(&shown);
        if let Some(separator) = rest.chars().next() {
            found.field.push(separator);
            rest = &rest[separator.len_utf8()..];
        }
    }
    found
}

/// Why a value cannot be used, and where it is.
#[derive(Debug)]
struct DocumentError {
    at: Option<Part>,
    field: String,
    problem: Problem,
    /// Whether a field is missing, and not wrong.
    is_missing: bool,
}

impl DocumentError {
    fn new(problem: Problem) -> Self {
        Self { at: None, field: String::new(), problem, is_missing: false }
    }

    /// The error as one of this part, unless the part is known, and of this field.
    fn inside(mut self, at: Part, field: &str) -> Self {
        self.at.get_or_insert(at);
        let dot = if self.field.is_empty() || self.field.starts_with('[') { "" } else { "." };
        self.field = format!("{field}{dot}{}", self.field);
        self
    }
}

impl fmt::Display for DocumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

impl std::error::Error for DocumentError {}

impl de::Error for DocumentError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(Problem::new(message.to_string(), ""))
    }

    /// Never shows a text, which may be a password.
    fn invalid_type(given: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        let given = match given {
            Unexpected::Str(_) => "a single value",
            Unexpected::Seq => "a list",
            Unexpected::Map => "a table",
            Unexpected::Unit | Unexpected::Option => "no value",
            Unexpected::Bool(_) => "true or false",
            _ => "a number",
        };
        Self::new(Problem::new(format!("is {given}"), expected.to_string()))
    }

    fn invalid_value(given: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        let given = match given {
            Unexpected::Str(text) => quoted(text),
            Unexpected::Unsigned(number) => number.to_string(),
            _ => "this".to_owned(),
        };
        Self::new(Problem::new(format!("{given} is not accepted"), expected.to_string()))
    }

    fn unknown_field(name: &str, expected: &'static [&'static str]) -> Self {
        let message = match nearest(name, expected.iter().copied()) {
            Some(meant) => format!("unknown field; did you mean {meant}?"),
            None => "unknown field".to_owned(),
        };
        Self::new(Problem::new(message, expected.join(", ")))
    }

    fn unknown_variant(given: &str, expected: &'static [&'static str]) -> Self {
        let message = match nearest(given, expected.iter().copied()) {
            Some(meant) => format!("{} is unknown; did you mean {meant}?", quoted(given)),
            None => format!("{} is unknown", quoted(given)),
        };
        Self::new(Problem::new(message, expected.join(", ")))
    }

    fn missing_field(name: &'static str) -> Self {
        Self { field: name.to_owned(), is_missing: true, ..Self::new(Problem::new("missing", "")) }
    }
}

type Read<T> = Result<T, DocumentError>;

/// One value, as serde reads it.
struct Value<'n> {
    node: &'n Node,
    wrong: &'n WrongParts,
}

impl<'n> Value<'n> {
    fn wrong<T>(&self, accepted: &str) -> Read<T> {
        let message = match self.node.tree {
            Tree::Empty => "has no value".to_owned(),
            _ => format!("is {}", self.node.kind()),
        };
        Err(DocumentError::new(Problem::new(message, accepted)))
    }

    fn text(&self, accepted: &str) -> Read<&'n str> {
        self.node.as_text().map_or_else(|| self.wrong(accepted), Ok)
    }

    /// A whole number of at most `most`.
    fn number<V: Visitor<'n>>(&self, most: u64, visitor: V) -> Read<V::Value> {
        let accepted = format!("a whole number up to {most}");
        let text = self.text(&accepted)?;
        match text.parse() {
            Ok(number) if number <= most => visitor.visit_u64(number),
            _ => {
                let message = format!("{} is not accepted", quoted(text));
                Err(DocumentError::new(Problem::new(message, accepted)))
            }
        }
    }
}

impl<'n> Deserializer<'n> for Value<'n> {
    type Error = DocumentError;

    /// A text that looks like a number or a truth is one: a field that may be either has no other way to tell.
    fn deserialize_any<V: Visitor<'n>>(self, visitor: V) -> Read<V::Value> {
        match &self.node.tree {
            Tree::Empty => visitor.visit_unit(),
            Tree::List(_) => self.deserialize_seq(visitor),
            Tree::Table(_) => self.deserialize_map(visitor),
            Tree::Text(text) => match (text.parse(), text.parse()) {
                (Ok(number), _) => visitor.visit_u64(number),
                (_, Ok(truth)) => visitor.visit_bool(truth),
                _ => visitor.visit_str(text),
            },
        }
    }

    fn deserialize_bool<V: Visitor<'n>>(self, visitor: V) -> Read<V::Value> {
        match self.text("true or false")?.parse() {
            Ok(truth) => visitor.visit_bool(truth),
            Err(_) => Err(DocumentError::new(Problem::new("is neither", "true or false"))),
        }
    }

    fn deserialize_u8<V: Visitor<'n>>(self, visitor: V) -> Read<V::Value> {
        self.number(u8::MAX.into(), visitor)
    }

    fn deserialize_u16<V: Visitor<'n>>(self, visitor: V) -> Read<V::Value> {
        self.number(u16::MAX.into(), visitor)
    }

    fn deserialize_u32<V: Visitor<'n>>(self, visitor: V) -> Read<V::Value> {
        self.number(u32::MAX.into(), visitor)
    }

    fn deserialize_u64<V: Visitor<'n>>(self, visitor: V) -> Read<V::Value> {
        self.number(u64::MAX, visitor)
    }

    fn deserialize_str<V: Visitor<'n>>(self, visitor: V) -> Read<V::Value> {
        visitor.visit_str(self.text("a text")?)
    }

    fn deserialize_string<V: Visitor<'n>>(self, visitor: V) -> Read<V::Value> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'n>>(self, visitor: V) -> Read<V::Value> {
        match self.node.tree {
            Tree::Empty => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_seq<V: Visitor<'n>>(self, visitor: V) -> Read<V::Value> {
        match &self.node.tree {
            Tree::List(items) => {
                visitor.visit_seq(Items { next: items.iter().enumerate(), wrong: self.wrong })
            }
            Tree::Empty => visitor.visit_seq(Items { next: [].iter().enumerate(), wrong: self.wrong }),
            Tree::Text(_) | Tree::Table(_) => self.wrong("a list"),
        }
    }

    fn deserialize_map<V: Visitor<'n>>(self, visitor: V) -> Read<V::Value> {
        match &self.node.tree {
            Tree::Table(entries) => {
                visitor.visit_map(Entries { next: entries.iter(), value: None, wrong: self.wrong })
            }
            Tree::Empty => visitor.visit_map(Entries { next: [].iter(), value: None, wrong: self.wrong }),
            Tree::Text(_) | Tree::List(_) => self.wrong("a table"),
        }
    }

    fn deserialize_struct<V: Visitor<'n>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Read<V::Value> {
        self.deserialize_map(visitor)
    }

    fn deserialize_enum<V: Visitor<'n>>(
        self,
        _: &'static str,
        words: &'static [&'static str],
        visitor: V,
    ) -> Read<V::Value> {
        visitor.visit_enum(self.text(&words.join(", "))?.into_deserializer())
    }

    forward_to_deserialize_any! {
        <V: Visitor<'n>>
        i8 i16 i32 i64 i128 u128 f32 f64 char bytes byte_buf unit unit_struct newtype_struct tuple tuple_struct
        identifier ignored_any
    }
}

/// The items of a list.
struct Items<'n> {
    next: std::iter::Enumerate<std::slice::Iter<'n, Node>>,
    wrong: &'n WrongParts,
}

impl<'n> SeqAccess<'n> for Items<'n> {
    type Error = DocumentError;

    fn next_element_seed<T: DeserializeSeed<'n>>(&mut self, seed: T) -> Read<Option<T::Value>> {
        let wrong = self.wrong;
        let Some((index, node)) = self.next.find(|(_, node)| !wrong.has_value(node)) else { return Ok(None) };
        let item = seed.deserialize(Value { node, wrong });
        item.map(Some).map_err(|error| error.inside(Part::value(node), &format!("[{index}]")))
    }
}

/// The fields of a table, and the one whose name was read last.
struct Entries<'n> {
    next: std::slice::Iter<'n, Entry>,
    value: Option<&'n Entry>,
    wrong: &'n WrongParts,
}

impl<'n> MapAccess<'n> for Entries<'n> {
    type Error = DocumentError;

    fn next_key_seed<K: DeserializeSeed<'n>>(&mut self, seed: K) -> Read<Option<K::Value>> {
        let wrong = self.wrong;
        self.value = self.next.find(|entry| !wrong.has_entry(entry));
        let Some(entry) = self.value else { return Ok(None) };
        let name = entry.key.as_str().into_deserializer();
        seed.deserialize(name)
            .map(Some)
            .map_err(|error: DocumentError| error.inside(Part::name(entry.at), &quoted(&entry.key)))
    }

    fn next_value_seed<V: DeserializeSeed<'n>>(&mut self, seed: V) -> Read<V::Value> {
        let Some(entry) = self.value.take() else {
            return Err(de::Error::custom("a value was read before its name"));
        };
        let value = seed.deserialize(Value { node: &entry.node, wrong: self.wrong });
        value.map_err(|error| error.inside(Part::value(&entry.node), &quoted(&entry.key)))
    }
}

/// The settings of a text, or the findings about it.
#[cfg(test)]
pub(crate) fn from_text<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let mut report = Report::new("test.yaml");
    let settings = table(text.as_bytes(), &mut report).and_then(|table| settings(&table, &mut report));
    settings.filter(|_| report.errors() == 0).ok_or_else(|| report.into_findings().to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields, default)]
    struct Sample {
        number: Option<u8>,
        truth: bool,
        word: Word,
        named: BTreeMap<String, Inner>,
        list: Vec<Inner>,
        either: Option<Either>,
    }

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(rename_all = "lowercase")]
    enum Word {
        #[default]
        One,
        Three,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        text: String,
        count: Option<usize>,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(untagged)]
    enum Either {
        Text(String),
        Inner(Inner),
    }

    /// Every kind of value is read. Fields without a value keep their defaults.
    #[test]
    fn every_kind_of_value_is_read() {
        let text = "{number: 7, truth: true, word: three, named: {a: {text: '5'}}, list: [{text: x, count: 2}], either: {text: x, count: 3}}";
        let inner = |text: &str, count| Inner { text: text.to_owned(), count };
        let expected = Sample {
            number: Some(7),
            truth: true,
            word: Word::Three,
            named: BTreeMap::from([("a".to_owned(), inner("5", None))]),
            list: vec![inner("x", Some(2))],
            either: Some(Either::Inner(inner("x", Some(3)))),
        };
        assert_eq!(from_text(text), Ok(expected));
        for empty in ["", "# nothing\n", "---\n", "{}", "number:\nnamed:\nlist:\n"] {
            assert_eq!(from_text(empty), Ok(Sample::default()), "{empty:?}");
        }
    }

    /// Each field reports its first problem, in the words and the form of the policy's reader.
    #[test]
    fn problems_have_their_position_and_a_cure() {
        let cases = [
            (
                "numbr: 7",
                "1:1: numbr: unknown field; did you mean number? accepted: number, truth, word, named, list, either",
            ),
            ("number: 700", "1:9: number: 700 is not accepted; accepted: a whole number up to 255"),
            ("truth: perhaps", "1:8: truth: is neither; accepted: true or false"),
            ("word: thre", "1:7: word: thre is unknown; did you mean three? accepted: one, three"),
            ("named:\n  a: {text: [x]}", "2:13: named.a.text: is a list; accepted: a text"),
            ("list:\n- {count: 1}", "2:3: list[0].text: missing"),
            ("list: hidden", "1:7: list: is a single value; accepted: a list"),
            ("list: [hidden]", "1:8: list[0]: is a single value; accepted: a table"),
            ("number: 1\nnumber: 2", "2:1: number: given twice; accepted: each field once"),
            ("- a", "1:1: the file is a list; accepted: a table"),
        ];
        for (text, expected) in cases {
            assert_eq!(from_text::<Sample>(text), Err(format!("test.yaml:{expected}")), "{text}");
        }
        let several = from_text::<Sample>("number: x\nlist: 5\nword: three\nother: 1").unwrap_err();
        let fields: Vec<&str> = several.lines().filter_map(|line| line.split(": ").nth(1)).collect();
        assert_eq!(fields, ["number", "list", "other"], "{several}");
    }

    /// The story: of several wrong values in one section only the first was reported. All are, each once, and what is
    /// right is read.
    #[test]
    fn every_wrong_value_is_reported_once() {
        let text = "number: x\nword: thre\nlist:\n- {text: [a], count: y, cuont: 1}\n- {text: b}\n- 5\nnamed:\n  a: {count: -1}\n  b: {text: c}\n";
        let mut report = Report::new("f");
        let table = table(text.as_bytes(), &mut report).unwrap();
        let (read, wrong) = readable::<Sample>(&table, &mut report);
        let read = read.unwrap();
        assert_eq!(read.list, [Inner { text: "b".to_owned(), count: None }]);
        assert_eq!(read.named.keys().collect::<Vec<_>>(), ["b"]);
        // An item is found by its number among those that were read.
        report_problem(&table, &wrong, "list[0].text: b is odd", &mut report);
        // A list that lost its items to such problems is not reported for being short.
        report_problem(&table, &wrong, "list: too short", &mut report);
        let found = report.into_findings().to_string();
        let places: Vec<&str> =
            found.lines().map(|line| line.split(": ").nth(1).unwrap_or_default()).collect();
        let expected = [
            "number",
            "word",
            "list[0].text",
            "list[0].count",
            "list[0].cuont",
            "list[1].text",
            "list[2]",
            "named.a.text",
            "named.a.count",
        ];
        assert_eq!(places, expected, "{found}");
    }

    /// A problem that names its field stands at that field, or at the innermost value on the way to it.
    #[test]
    fn a_named_field_is_found() {
        let text = "routes:\n- path: x\n  health: {interval: 1}\n";
        let cases = [
            (
                "routes[0].path: \"x\" is short; accepted: /…",
                "2:9: routes[0].path: \"x\" is short; accepted: /…",
            ),
            ("routes[0].health: interval: 1 is odd", "3:22: routes[0].health.interval: 1 is odd"),
            ("routes[0].host and path: twice: so", "2:3: routes[0].host and path: twice: so"),
            ("other: missing", "1:1: other: missing"),
        ];
        for (problem, expected) in cases {
            let mut report = Report::new("f");
            let table = table(text.as_bytes(), &mut report).unwrap();
            report_problem(&table, &WrongParts::default(), problem, &mut report);
            assert_eq!(report.into_findings().to_string(), format!("f:{expected}"));
        }
    }
}
