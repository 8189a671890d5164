//! A policy file as a tree of texts, lists and tables, each with its line and column. This module handles YAML and its
//! dangers; [`super::compile`] handles the meaning of the fields.
//!
//! The tree is built from the event parser of serde-saphyr, not through serde, so that every duplicate key is found and
//! every value keeps its position.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde_saphyr::granit_parser::{self, ErrorKind, Event, Parser, ScalarStyle, Span, StrInput, Tag};

use crate::policy::finding::{Position, Problem, Report, quoted};

/// Largest policy file, in bytes.
pub const FILE_BYTES_MAX: usize = 16 << 20;
/// Most values in a file. An alias counts at each use, and a long text counts as several values.
pub const NODES_MAX: usize = 4_000_000;
/// Most items in one list or table.
pub const ITEMS_MAX: usize = 100_000;
/// Deepest nesting of lists and tables; a policy needs six.
pub const DEPTH_MAX: usize = 16;
/// Longest single text, in bytes.
pub(crate) const TEXT_BYTES_MAX: usize = 65_536;
/// The field of a limit whose names may be credentials.
const OVERRIDES: &str = "overrides";

/// One value and its position.
#[derive(Clone, Debug)]
pub struct Node {
    /// Where it begins.
    pub at: Position,
    /// Its value.
    pub tree: Tree,
}

/// A value of a document.
#[derive(Clone, Debug)]
pub enum Tree {
    /// Nothing: `~`, `null`, or no text at all.
    Empty,
    /// Text as written; numbers and booleans are text until a field reads them.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// A table, in the file's order, each key once.
    Table(Vec<Entry>),
}

/// One field of a table.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its name.
    pub key: String,
    /// The position of the name.
    pub at: Position,
    /// Its value.
    pub node: Node,
}

impl Node {
    /// The kind of the value, for messages.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self.tree {
            Tree::Empty => "no value",
            Tree::Text(_) => "a single value",
            Tree::List(_) => "a list",
            Tree::Table(_) => "a table",
        }
    }

    /// The value, if it is text.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        if let Tree::Text(text) = &self.tree { Some(text) } else { None }
    }
}

/// How a file is read. Files of other programs need other settings than Tollgate's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Deepest nesting of lists and tables.
    pub depth_max: usize,
    /// How a second document is handled.
    pub second_document: SecondDocument,
}

/// How a second document in a file is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecondDocument {
    /// It is an error.
    Refused,
    /// It is not read, and a warning says so.
    Ignored,
}

impl Reading {
    /// How a policy file is read.
    pub const OWN: Reading = Reading { depth_max: DEPTH_MAX, second_document: SecondDocument::Refused };
}

/// Reads a file. Without a result the report has at least one error; with one it may still have some.
pub fn read(bytes: &[u8], reading: Reading, report: &mut Report) -> Option<Node> {
    let text = utf8(bytes, report)?;
    let options = granit_parser::options! {
        emit_comments: false,
        flow_nesting_limit: reading.depth_max + 1,
        block_nesting_limit: reading.depth_max + 1,
    };
    let mut reader = TreeReader {
        text,
        events: Parser::new_from_str_with_options(text, options),
        reading,
        anchors: HashMap::new(),
        nodes: 0,
        path: String::new(),
        report,
    };
    match reader.file() {
        Ok(node) => node,
        Err(Stop { at, problem }) => {
            let path = std::mem::take(&mut reader.path);
            report.error(at, &path, problem);
            None
        }
    }
}

fn utf8<'b>(bytes: &'b [u8], report: &mut Report) -> Option<&'b str> {
    if bytes.len() > FILE_BYTES_MAX {
        let message = format!("the file has {} bytes", bytes.len());
        let accepted = format!("at most {FILE_BYTES_MAX}");
        report.error(Position { line: 1, column: 1 }, "", Problem::new(message, accepted));
        return None;
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => Some(text.strip_prefix('\u{feff}').unwrap_or(text)),
        Err(error) => {
            let valid = std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default();
            let line = valid.matches('\n').count() + 1;
            let column = valid.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
            let byte = bytes[error.valid_up_to()];
            let message = format!("byte {} (0x{byte:02x}) is not UTF-8", error.valid_up_to());
            report.error(place(line, column), "", Problem::new(message, "a file in UTF-8"));
            None
        }
    }
}

/// The top level of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outline {
    /// A table with these fields, in order, up to a decisive one.
    Table(Vec<String>),
    /// A list.
    List,
    /// Something else, or unreadable.
    Other,
}

/// Reads the top level of a file, up to the first decisive field.
#[must_use]
pub fn outline(bytes: &[u8], decisive: &[&str]) -> Outline {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) if bytes.len() <= FILE_BYTES_MAX => text.strip_prefix('\u{feff}').unwrap_or(text),
        _ => return Outline::Other,
    };
    let mut events = Parser::new_from_str(text);
    let (mut depth, mut fields, mut is_name) = (0_usize, None, true);
    while let Some(Ok((event, _))) = events.next_event() {
        match event {
            Event::SequenceStart(..) if depth == 0 => return Outline::List,
            Event::SequenceStart(..) => depth += 1,
            Event::MappingStart(..) => {
                fields.get_or_insert_with(Vec::new);
                depth += 1;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                depth = depth.saturating_sub(1);
                is_name = true;
            }
            Event::Scalar(name, ..) if depth == 1 && is_name => {
                let is_decisive = decisive.contains(&&*name);
                fields.get_or_insert_with(Vec::new).push(name.into_owned());
                is_name = false;
                if is_decisive {
                    break;
                }
            }
            Event::Scalar(..) | Event::Alias(_) if depth == 1 => is_name = true,
            Event::DocumentEnd => break,
            _ => {}
        }
    }
    fields.map_or(Outline::Other, Outline::Table)
}

/// Why reading cannot go on.
struct Stop {
    at: Position,
    problem: Problem,
}

type Step<T> = Result<T, Stop>;

fn stop<T>(at: Position, message: impl Into<String>, accepted: impl Into<String>) -> Step<T> {
    Err(Stop { at, problem: Problem::new(message, accepted) })
}

/// An anchored value (`&name`): the number of its values, and its depth.
struct Anchored {
    node: Node,
    nodes: usize,
    depth: usize,
}

struct TreeReader<'t, 'r> {
    text: &'t str,
    events: Parser<'t, StrInput<'t>>,
    reading: Reading,
    anchors: HashMap<usize, Anchored>,
    nodes: usize,
    path: String,
    report: &'r mut Report,
}

impl<'t> TreeReader<'t, '_> {
    /// The one document of the file.
    fn file(&mut self) -> Step<Option<Node>> {
        let mut root = None;
        loop {
            let (event, at) = self.next()?;
            match event {
                Event::StreamStart | Event::DocumentEnd => {}
                Event::DocumentStart(..) if root.is_none() => {
                    let (event, at) = self.next()?;
                    root = Some(self.node(event, at, 0)?.0);
                }
                Event::DocumentStart(..) if self.reading.second_document == SecondDocument::Ignored => {
                    let message = "a second document begins here, and is not read";
                    self.report.warning(at, "", Problem::new(message, "one document a file"));
                    break;
                }
                Event::DocumentStart(..) => {
                    return stop(at, "a second document begins here", "one document a file");
                }
                _ => break,
            }
        }
        if root.is_none() {
            let accepted = "a table with `limits:`, such as `limits: [{name: all, rate: 100/s}]`";
            return stop(Position { line: 1, column: 1 }, "the file is empty", accepted);
        }
        Ok(root)
    }

    fn next(&mut self) -> Step<(Event<'t>, Position)> {
        match self.events.next_event() {
            Some(Ok((event, span))) => Ok((event, start(&span))),
            Some(Err(error)) => {
                let marker = error.marker();
                let at = place(marker.line(), marker.col() + 1);
                match error.kind() {
                    ErrorKind::TabNotAllowed | ErrorKind::TabInBlockIndentation => {
                        stop(at, "a tab indents this line", "spaces")
                    }
                    ErrorKind::ExpectedBlockMappingKey
                    | ErrorKind::ExpectedBlockSequenceEntry
                    | ErrorKind::MappingValueNotAllowed => {
                        let problem = misindented(self.text, marker.line());
                        Err(Stop {
                            at,
                            problem: problem.unwrap_or_else(|| not_yaml(error.kind(), &error.info())),
                        })
                    }
                    kind => Err(Stop { at, problem: not_yaml(kind, &error.info()) }),
                }
            }
            None => Ok((Event::StreamEnd, Position::default())),
        }
    }

    /// One value and its depth.
    fn node(&mut self, event: Event<'t>, at: Position, depth: usize) -> Step<(Node, usize)> {
        self.is_shallow(depth, at)?;
        let before = self.nodes;
        self.count(weight(&event), at)?;
        let (anchor, tree, inner) = match event {
            Event::Scalar(text, style, anchor, tag) => (anchor, scalar(text, style, tag, at)?, 0),
            Event::SequenceStart(_, anchor, tag) => {
                untagged(tag.as_deref(), at)?;
                let (items, inner) = self.list(depth)?;
                (anchor, Tree::List(items), inner)
            }
            Event::MappingStart(_, anchor, tag) => {
                untagged(tag.as_deref(), at)?;
                let (entries, inner) = self.table(depth)?;
                (anchor, Tree::Table(entries), inner)
            }
            Event::Alias(id) => return self.alias(id, at, depth),
            _ => return stop(at, "the file ends in the middle of a value", "a complete file"),
        };
        let node = Node { at, tree };
        if anchor > 0 {
            let nodes = self.nodes - before;
            self.count(nodes, at)?; // The copy that the anchor keeps.
            let anchored = Anchored { node: node.clone(), nodes, depth: inner };
            self.anchors.insert(anchor, anchored);
        }
        Ok((node, inner))
    }

    /// The value of `*name`, as if it were written here.
    fn alias(&mut self, id: usize, at: Position, depth: usize) -> Step<(Node, usize)> {
        let Some(anchored) = self.anchors.get(&id) else {
            return stop(at, "this alias is part of the value it stands for", "the value itself");
        };
        let (nodes, inner) = (anchored.nodes, anchored.depth);
        // Counted before it is copied, so that aliases of aliases cannot fill the memory.
        self.count(nodes, at)?;
        self.is_shallow(depth + inner, at)?;
        let tree = self.anchors[&id].node.tree.clone();
        Ok((Node { at, tree }, inner))
    }

    fn is_shallow(&self, depth: usize, at: Position) -> Step<()> {
        let most = self.reading.depth_max;
        if depth > most { stop(at, "nested too deep", format!("at most {most} levels")) } else { Ok(()) }
    }

    fn count(&mut self, nodes: usize, at: Position) -> Step<()> {
        self.nodes += nodes;
        if self.nodes > NODES_MAX {
            let message = "too many values, counting each alias as often as it is used";
            return stop(at, message, format!("at most {NODES_MAX}"));
        }
        Ok(())
    }

    fn list(&mut self, depth: usize) -> Step<(Vec<Node>, usize)> {
        let (mut items, mut deepest) = (Vec::new(), 0);
        let path = self.path.len();
        loop {
            let (event, at) = self.next()?;
            if matches!(event, Event::SequenceEnd) {
                return Ok((items, deepest + 1));
            }
            if items.len() >= ITEMS_MAX {
                return stop(at, format!("more than {ITEMS_MAX} items"), "fewer");
            }
            self.path.push_str(&format!("[{}]", items.len()));
            let (node, inner) = self.node(event, at, depth + 1)?;
            self.path.truncate(path);
            deepest = deepest.max(inner);
            items.push(node);
        }
    }

    fn table(&mut self, depth: usize) -> Step<(Vec<Entry>, usize)> {
        let (mut entries, mut deepest) = (Vec::new(), 0);
        let mut keys = HashSet::new();
        let path = self.path.len();
        loop {
            let (event, at) = self.next()?;
            if matches!(event, Event::MappingEnd) {
                return Ok((entries, deepest + 1));
            }
            if entries.len() >= ITEMS_MAX {
                return stop(at, format!("more than {ITEMS_MAX} fields"), "fewer");
            }
            let key = self.key(event, at, depth)?;
            let shown = quoted(&key);
            if path > 0 {
                self.path.push('.');
            }
            // The names of overrides may be credentials, which no finding shows.
            let is_secret = self.path.trim_end_matches('.').ends_with(OVERRIDES);
            self.path.push_str(if is_secret { "..." } else { &shown });
            let (event, value_at) = self.next()?;
            let (node, inner) = self.node(event, value_at, depth + 1)?;
            deepest = deepest.max(inner);
            if keys.insert(key.clone()) {
                entries.push(Entry { key, at, node });
            } else {
                let problem = Problem::new("given twice", "each field once");
                self.report.error(at, &self.path, problem);
            }
            self.path.truncate(path);
        }
    }

    fn key(&mut self, event: Event<'t>, at: Position, depth: usize) -> Step<String> {
        match self.node(event, at, depth + 1)?.0.tree {
            Tree::Text(text) => Ok(text),
            Tree::Empty => stop(at, "a field without a name", "a name before the colon"),
            Tree::List(_) | Tree::Table(_) => stop(at, "a field's name is not text", "text"),
        }
    }
}

/// The number of nodes that a value counts as, out of [`NODES_MAX`].
fn weight(event: &Event<'_>) -> usize {
    match event {
        Event::Scalar(text, ..) => 1 + text.len() / 64,
        _ => 1,
    }
}

fn scalar(text: Cow<'_, str>, style: ScalarStyle, tag: Option<Cow<'_, Tag>>, at: Position) -> Step<Tree> {
    untagged(tag.as_deref(), at)?;
    if text.len() > TEXT_BYTES_MAX {
        let message = format!("a text of {} bytes", text.len());
        return stop(at, message, format!("at most {TEXT_BYTES_MAX}"));
    }
    let empty = style == ScalarStyle::Plain && matches!(&*text, "" | "~" | "null" | "Null" | "NULL");
    Ok(if empty { Tree::Empty } else { Tree::Text(text.into_owned()) })
}

fn untagged(tag: Option<&Tag>, at: Position) -> Step<()> {
    match tag {
        None => Ok(()),
        Some(tag) => {
            let tag = quoted(&tag.original());
            let value = tag.trim_start_matches('!');
            // `method: !GET` is a tag in YAML, but its author means a negation.
            let is_word = !tag.starts_with("!!") && !value.is_empty();
            let accepted = match is_word {
                true => format!("{{ not: {value} }} in a condition"),
                false => "values without tags".to_owned(),
            };
            stop(at, format!("{tag} is a tag of YAML"), accepted)
        }
    }
}

fn start(span: &Span) -> Position {
    place(span.start.line(), span.start.col() + 1)
}

/// The problem with text that is not YAML, in words that say what to change.
fn not_yaml(kind: &ErrorKind, cause: &str) -> Problem {
    let (message, accepted) = match kind {
        ErrorKind::UnknownAnchor => (
            "*name repeats a value, and none before it has &name".to_owned(),
            "the value itself; or text in quotation marks, such as '*x'",
        ),
        ErrorKind::UnexpectedCharacter { character } => {
            (format!("{character} begins no value"), "text in quotation marks, such as '@x'")
        }
        ErrorKind::MappingValueNotAllowed => {
            ("a colon inside a value".to_owned(), "text in quotation marks, such as 'a: b'")
        }
        ErrorKind::SimpleKeyExpected => ("a line without a colon".to_owned(), "name: value"),
        ErrorKind::UnknownQuotedScalarEscape
        | ErrorKind::InvalidQuotedScalarHexEscape
        | ErrorKind::InvalidLowSurrogateHexEscape => (
            "an unknown escape after a backslash".to_owned(),
            "\\\\ for a backslash; or single quotation marks, in which it has no meaning",
        ),
        ErrorKind::UnclosedQuotedScalar | ErrorKind::InvalidQuotedScalarIndent => {
            ("a quotation mark is not closed".to_owned(), "text between two quotation marks")
        }
        ErrorKind::MisplacedFlowCollectionEnd => {
            ("a bracket is closed that none opens".to_owned(), "[a, b] or {name: value}")
        }
        _ => (quoted(&plain_grammar(cause)), "YAML 1.2"),
    };
    Problem::new(format!("not YAML: {message}"), accepted)
}

/// The parser's cause without what it was doing, such as "while parsing a node, did not find expected X".
fn plain_grammar(cause: &str) -> String {
    let cause = match cause.split_once(", ") {
        Some((doing, cause)) if doing.starts_with("while ") => cause,
        _ => cause,
    };
    match cause.strip_prefix("did not find expected ") {
        Some(missing) => format!("missing here: {missing}"),
        None => cause.trim_start_matches("found ").to_owned(),
    }
}

/// The problem of a line that is indented like none of the lines above to which it may belong.
fn misindented(text: &str, line: usize) -> Option<Problem> {
    let above = line.checked_sub(1)?;
    let wrong = text.lines().nth(above)?;
    let mut levels: Vec<usize> = Vec::new();
    for line in text.lines().take(above) {
        let content = line.trim_start_matches(' ');
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        let indent = line.len() - content.len();
        levels.retain(|level| *level < indent);
        levels.push(indent);
        if let Some(item) = content.strip_prefix("- ") {
            levels.push(line.len() - item.trim_start_matches(' ').len());
        }
    }
    let indent = wrong.len() - wrong.trim_start_matches(' ').len();
    if levels.contains(&indent) {
        return None;
    }
    let last = levels.pop()?;
    let others: Vec<String> = levels.iter().map(ToString::to_string).collect();
    let known = if others.is_empty() { last.to_string() } else { format!("{} or {last}", others.join(", ")) };
    Some(Problem::new(format!("this line is indented by {indent}, and no line above it is"), known))
}

fn place(line: usize, column: usize) -> Position {
    Position {
        line: u32::try_from(line).unwrap_or(u32::MAX),
        column: u32::try_from(column).unwrap_or(u32::MAX),
    }
}
