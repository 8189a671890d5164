//! CEL expressions over attributes. A compiled expression parses and calls only existing functions.

mod demands;
mod outcomes;
mod pattern;
mod presence;
mod reading;
pub(crate) mod descriptor_values;
mod seal;
mod analysis;
mod types;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, LazyLock};

use cel::common::ast::IdedExpr;
use cel::common::types::{CelBool, CelInt, CelString};
use cel::common::value::CowVal;
use cel::context::VariableResolver;
use cel::{Context, Env, Program};
use smallvec::SmallVec;

pub(crate) use self::demands::{Demands, Parts};
use self::pattern::Patterns;
use self::reading::ReadAs;
pub(crate) use self::types::Wanted;
use crate::address::{Prefixes, Text};
use crate::credential::CredentialAttributes;
use crate::policy::finding::{Problem, Severity, quoted};
use crate::policy::vocabulary::Vocabulary;
use crate::request::{COST_MAX, Descriptor, SPELLING_TEXTS_MAX, SPELLINGS_MAX, Spelling, Value};

/// Longest expression, in bytes.
pub(crate) const EXPRESSION_BYTES_MAX: usize = 4096;

/// Deepest nesting of operators and calls. An expression is evaluated on the stack of the caller.
pub(crate) const EXPRESSION_DEPTH_MAX: usize = 48;
/// Enough for the deepest expression of [`EXPRESSION_BYTES_MAX`]; untouched pages cost nothing.
const PARSER_STACK_BYTES: usize = 64 << 20;
const ACCEPTED: &str =
    "a CEL expression over attributes, such as method == 'POST' && path.startsWith('/v1/')";

static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut environment = Env::stdlib();
    let added = environment.add_macro(presence::expansion());
    let declared = pattern::declare(&mut environment);
    debug_assert!(added.is_ok() && declared.is_ok(), "the standard library has no such name");
    Arc::new(environment)
});

/// A compiled CEL expression.
pub struct Expression {
    source: String,
    tree: IdedExpr,
    patterns: Patterns,
    attributes: BTreeSet<String>,
    needed: BTreeSet<String>,
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Expression").field(&self.source).finish()
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)
    }
}

impl Expression {
    /// Compiles an expression.
    ///
    /// # Errors
    /// It does not parse, calls an unknown function, has an invalid pattern, or is too long.
    pub fn new(source: &str) -> Result<Self, Problem> {
        if source.len() > EXPRESSION_BYTES_MAX {
            let message = format!("an expression of {} bytes", source.len());
            return Err(Problem::new(message, format!("at most {EXPRESSION_BYTES_MAX}")));
        }
        let program = parse(source)?;
        let attributes = analysis::attributes(program.expression())?;
        let needed = &analysis::needed(program.expression()) & &attributes;
        let patterns = Patterns::of(program.expression())?;
        let tree = program.expression().clone();
        Ok(Self { source: source.trim().to_owned(), attributes, needed, patterns, tree })
    }

    /// Resolves how it reads its attributes. Returns the problems with the texts that it compares them with, and why no
    /// request gives it a value that its field can use.
    pub(crate) fn settle(&mut self, vocabulary: &Vocabulary, wanted: Wanted) -> Vec<(Severity, Problem)> {
        let mut found = reading::settle(&mut self.tree, vocabulary);
        found
            .extend(types::problem(&self.tree, vocabulary, wanted).map(|problem| (Severity::Error, problem)));
        found
    }

    /// Replaces the credentials that it names by their digests, also in its text.
    ///
    /// # Errors
    /// It uses a credential for more than its presence or its identity.
    pub(crate) fn seal(&mut self, credentials: &CredentialAttributes) -> Result<(), Problem> {
        if !self.attributes.iter().any(|name| credentials.contains(name)) {
            return Ok(());
        }
        let sealed = seal::seal(&mut self.tree, credentials);
        if sealed.is_err() {
            // No finding may show the credential that it names.
            self.source = "an expression about a credential".to_owned();
        }
        for (text, digest) in sealed? {
            let before = std::mem::take(&mut self.source);
            self.source = before.replace(&format!("'{text}'"), &format!("'{digest}'"));
            self.source = self.source.replace(&format!("\"{text}\""), &format!("\"{digest}\""));
            // The text of a literal with escapes differs from its value.
            if text != digest && !self.source.contains(digest.as_str()) {
                self.source = format!("an expression about {digest}");
            }
        }
        Ok(())
    }

    /// Every attribute that it mentions.
    pub fn attributes(&self) -> impl Iterator<Item = &str> {
        self.attributes.iter().map(String::as_str)
    }

    /// The attributes without which it cannot be true.
    pub fn needed(&self) -> impl Iterator<Item = &str> {
        self.needed.iter().map(String::as_str)
    }

    /// Whether it holds for a request, in any spelling of its values. An absent attribute makes it false. Where another
    /// error leaves open whether it is true, it holds, so that a client cannot escape a limit.
    #[must_use]
    pub fn holds(&self, request: &Descriptor<'_>) -> bool {
        self.holds_by(request, |_| true)
    }

    /// The same without the loose forms of paths.
    pub(crate) fn holds_exactly(&self, request: &Descriptor<'_>) -> bool {
        self.holds_by(request, |spelling| matches!(spelling, Spelling::AsIs(_)))
    }

    fn holds_by(&self, request: &Descriptor<'_>, is_read: impl Fn(&Spelling<'_>) -> bool) -> bool {
        let mut others = Others::new();
        for (position, spelling) in request.spellings().iter().filter(|(_, spelling)| is_read(spelling)) {
            let Some(attribute) = request.attributes().get(usize::from(*position)) else { continue };
            if self.attributes.contains(attribute.name) {
                let texts = spelling.texts().filter(|text| attribute.value != Value::Text(text));
                texts.for_each(|text| others.push((*position, text)));
            }
        }
        others.dedup();
        // Every combination of other spellings; there are rarely any.
        let choices = 0_u16..1 << others.len();
        choices.filter(|choice| is_choice(&others, *choice)).any(|choice| {
            let chosen = others.iter().enumerate().filter(|(number, _)| choice >> number & 1 == 1);
            self.holds_spelled(request, &chosen.map(|(_, other)| *other).collect::<Others<'_>>())
        })
    }

    fn holds_spelled(&self, request: &Descriptor<'_>, chosen: &[(u8, &str)]) -> bool {
        self.within(request, TextReading::Spelled(chosen), |context| {
            outcomes::of(&self.tree, context).may_be_true()
        })
    }

    /// The cost that it computes. Decimal texts are read as numbers, because some protocols carry only text.
    ///
    /// # Errors
    /// The result is not a whole number from 0 to [`COST_MAX`]. The message says why.
    pub fn cost(&self, request: &Descriptor<'_>) -> Result<u64, String> {
        let value = match self.evaluate(request, TextReading::Numbers) {
            Ok(cel::Value::Int(number)) => u64::try_from(number).ok(),
            Ok(cel::Value::UInt(number)) => Some(number),
            Ok(other) => return Err(format!("{} is not a whole number", outcomes::shown(&other))),
            Err(Failure::Absent(name)) => return Err(format!("the attribute {name} is missing")),
            Err(Failure::Other(error)) => return Err(error),
        };
        match value {
            Some(cost) if cost <= COST_MAX => Ok(cost),
            _ => Err(format!("it is out of range; accepted: 0 to {COST_MAX}")),
        }
    }

    /// The value of an expression that mentions no attribute.
    pub(crate) fn constant(&self) -> Option<bool> {
        if !self.attributes.is_empty() {
            return None;
        }
        match self.evaluate(&Descriptor::new(), TextReading::Spelled(&[])) {
            Ok(cel::Value::Bool(held)) => Some(held),
            _ => None,
        }
    }

    /// The attributes whose values it only excludes, without a check for their presence.
    pub(crate) fn unguarded(&self) -> impl Iterator<Item = String> {
        analysis::unguarded(&self.tree).into_iter()
    }

    /// Whether it is one comparison, with nothing beside it.
    pub(crate) fn is_comparison(&self) -> bool {
        analysis::is_comparison(&self.tree)
    }

    /// The requirement on each attribute for it to be true.
    pub(crate) fn demands(&self) -> BTreeMap<String, Demands> {
        demands::of(&self.tree)
    }

    /// A name that stands alone, when the expression is nothing else.
    pub(crate) fn as_name(&self) -> Option<String> {
        analysis::dotted(&self.tree)
    }

    fn evaluate(&self, request: &Descriptor<'_>, reading: TextReading<'_>) -> Result<cel::Value, Failure> {
        self.within(request, reading, |context| outcomes::value(&self.tree, context))
    }

    /// Does something with what a request says. It must not panic.
    fn within<T>(
        &self,
        request: &Descriptor<'_>,
        reading: TextReading<'_>,
        work: impl FnOnce(&Context<'_, '_>) -> T,
    ) -> T {
        let attributes = RequestVariables { request, reading };
        let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
        context.set_variable_resolver(&attributes);
        self.patterns.during(|| work(&context))
    }
}

/// Why an expression has no value.
enum Failure {
    Absent(String),
    Other(String),
}

/// Other texts of attributes, each with the position of its attribute.
type Others<'t> = SmallVec<[(u8, &'t str); FORMS_MAX]>;

/// Most other texts of the attributes of one request.
const FORMS_MAX: usize = SPELLING_TEXTS_MAX * SPELLINGS_MAX;
const _: () = assert!(FORMS_MAX < 16, "one bit for each text");

/// Whether no two of the chosen texts belong to the same attribute.
fn is_choice(others: &[(u8, &str)], choice: u16) -> bool {
    let chosen = |number: usize| choice >> number & 1 == 1;
    let is_alone = |(number, (position, _)): (usize, &(u8, &str))| {
        !chosen(number)
            || !others
                .iter()
                .take(number)
                .enumerate()
                .any(|(before, (other, _))| chosen(before) && other == position)
    };
    others.iter().enumerate().all(is_alone)
}

/// How texts are read.
#[derive(Clone, Copy)]
enum TextReading<'r> {
    /// These replace the values at their positions.
    Spelled(&'r [(u8, &'r str)]),
    /// Decimal texts are read as numbers.
    Numbers,
}

/// The attributes of a request as CEL variables.
struct RequestVariables<'r, 'a> {
    request: &'r Descriptor<'a>,
    reading: TextReading<'r>,
}

impl VariableResolver for RequestVariables<'_, '_> {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        let attributes = self.request.attributes();
        let find = |name: &str| attributes.iter().position(|known| known.name == name);
        if let Some(name) = presence::of_variable(variable) {
            return Some(CowVal::owned(CelBool::from(find(name).is_some())));
        }
        let (name, read) =
            reading::of_variable(variable).map_or((variable, None), |(name, read)| (name, Some(read)));
        let position = find(name)?;
        let value = match (attributes[position].value, self.reading) {
            (Value::Text(text), TextReading::Spelled(chosen)) => {
                let chosen = chosen.iter().find(|(of, _)| usize::from(*of) == position);
                Value::Text(chosen.map_or(text, |(_, other)| other))
            }
            (value, _) => value,
        };
        let read = read.or(matches!(self.reading, TextReading::Numbers).then_some(ReadAs::Number));
        Some(read_value(value, read))
    }
}

/// A value as an expression reads it.
fn read_value<'b>(value: Value<'b>, read: Option<ReadAs>) -> CowVal<'b, 'b> {
    match (value, read) {
        (Value::Number(number), Some(ReadAs::Text | ReadAs::Client)) => {
            CowVal::owned(CelString::from(number.to_string()))
        }
        (Value::Number(number), _) => CowVal::owned(CelInt::from(number)),
        (Value::Text(text), Some(ReadAs::Number)) => match text.parse::<i64>() {
            Ok(number) => CowVal::owned(CelInt::from(number)),
            Err(_) => CowVal::owned(CelString::from(text)),
        },
        (Value::Text(text), Some(ReadAs::Client)) => {
            let mut room = Text::EMPTY;
            CowVal::owned(CelString::from(Prefixes::Default.counted(text, &mut room).to_owned()))
        }
        (Value::Text(text), _) => CowVal::owned(CelString::from(text)),
    }
}

/// Parses on a stack of its own: the parser takes up to 100 kB for each bracket, and a stack overflow would end the process.
fn parse(source: &str) -> Result<Program, Problem> {
    roomy(|| parse_here(&ENVIRONMENT, &presence::spell(source), ACCEPTED), ACCEPTED)
}

/// Runs a closure where the parser cannot exhaust the stack.
fn roomy(work: impl FnOnce() -> Result<Program, Problem> + Send, accepted: &str) -> Result<Program, Problem> {
    if ROOMY.get() {
        return work();
    }
    with_room(work).unwrap_or_else(|| Err(Problem::new("not CEL", accepted)))
}

thread_local! {
    /// Whether this thread has a stack that the parser cannot exhaust.
    static ROOMY: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Runs a closure on a thread with a stack that the parser cannot exhaust. A whole policy is compiled on one such thread,
/// because a thread for each of ten thousand expressions would take seconds. Returns `None` if no thread could be started,
/// or it panicked.
#[doc(hidden)]
pub fn with_room<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let roomy = std::thread::Builder::new().stack_size(PARSER_STACK_BYTES);
        let roomy = roomy.spawn_scoped(scope, || {
            ROOMY.set(true);
            work()
        });
        roomy.ok()?.join().ok()
    })
}

/// The parser's message without the names of its tokens. It quotes the text at which it stopped.
fn cause(message: &str) -> String {
    let Some(rest) = message.strip_prefix("Syntax error: ") else {
        let is_torn = message.starts_with("Incomplete ");
        return if is_torn { "the expression ends too early".to_owned() } else { message.to_owned() };
    };
    match rest.split('\'').nth(1).unwrap_or_default() {
        "and" => "`and` is written &&".to_owned(),
        "or" => "`or` is written ||".to_owned(),
        "not" => "`not` is written !".to_owned(),
        "=" => "a comparison is written ==".to_owned(),
        "" | "<EOF>" => "the expression ends too early".to_owned(),
        near => format!("{near} is not expected here"),
    }
}

fn parse_here(environment: &Env, source: &str, accepted: &str) -> Result<Program, Problem> {
    let program = environment.compile(source).map_err(|errors| {
        let why = errors.errors.first().map_or(String::new(), |error| {
            let message = cause(&error.msg.replace(presence::SPELLED, "has"));
            format!(" at character {}: {}", error.pos.1.max(1), quoted(&message))
        });
        Problem::new(format!("not CEL{why}"), accepted)
    })?;
    let depth = analysis::depth(program.expression());
    if depth > EXPRESSION_DEPTH_MAX {
        let message = format!("an expression of {depth} levels");
        return Err(Problem::new(message, format!("at most {EXPRESSION_DEPTH_MAX} levels")));
    }
    Ok(program)
}
