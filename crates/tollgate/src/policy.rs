//! The policy: limits compiled from a file, and which of them a request matches.
//!
//! The path of a policy: text → `document` (a tree with positions) → `compile` (pure, reports every problem at once) →
//! [`Policy`], immutable. `policy check`, start-up and live reload all call the same [`Policy::compile`].

mod finding;
mod document;
mod fields;
mod positions;
pub(crate) mod text;
mod vocabulary;
pub mod glob;
pub(crate) mod pattern;
pub(crate) mod exact;
pub mod expression;
pub mod condition;
pub(crate) mod by;
mod fault;
mod error;
pub mod limit;
mod on_store_failure;
mod penalty;
mod failures;
mod builder;
pub(crate) mod compile;
pub(crate) mod check;
pub(crate) mod seal;
pub(crate) mod compared;
mod index;
mod matching;
mod sentence;
mod unmet;
mod possible;
mod difference;
#[cfg(test)]
mod tests;

pub use builder::LimitBuilder;
pub use by::By;
pub use condition::{Choices, Condition, Negation};
pub(crate) use difference::differing;
pub use difference::{Change, Difference, FieldChange};
pub(crate) use document::TEXT_BYTES_MAX;
pub use document::{DEPTH_MAX, FILE_BYTES_MAX, ITEMS_MAX, NODES_MAX};
pub use error::PolicyError;
pub use expression::Expression;
pub use failures::{Ended, Failures};
pub use fault::Fault;
pub use finding::{Finding, Findings, Problem, Severity};
pub(crate) use limit::{BY_MAX, QUOTAS_MAX, TIER_BY_MAX};
pub use limit::{
    Consistency, Cost, ExtraAttributes, Grant, LIMIT_NAME_BYTES_MAX, Limit, MATCHED_MAX, Mode, QuotaIndex,
    Quotas,
};
pub use matching::{Match, Matches};
pub(crate) use on_store_failure::{OPEN_BUDGET, OPEN_WINDOW};
pub use on_store_failure::{OnStoreFailure, Stages};
pub use penalty::Penalty;
pub use unmet::{Choice, Unmet};
pub(crate) use vocabulary::Vocabulary;

/// Readers for other formats than our own, so that their findings look the same. Not part of the crate's public API.
#[doc(hidden)]
pub mod source {
    pub use super::compile::lease::percentage;
    pub use super::document::{Entry, Node, Outline, Reading, SecondDocument, Tree, outline, read};
    pub use super::expression::descriptor_values::{Cel, DescriptorValues, Evaluated};
    pub use super::expression::with_room;
    pub use super::fields::{Fields, count, text};
    pub use super::finding::{Position, Report, nearest, quoted};
    pub use super::sentence::grouped;
    use super::{Condition, Problem, Vocabulary};
    pub use crate::problem::{explained, plain_cause};
    pub use crate::rate_text::RATES;
    use crate::time::Ticks;

    /// The conditions in the field `when` of a table, checked as those of a limit.
    pub fn conditions(fields: Fields<'_>, report: &mut Report) -> Vec<Condition> {
        let vocabulary = Vocabulary::default();
        let when = super::compile::when::read(fields, &vocabulary, report);
        for condition in &when {
            super::check::condition(condition, &vocabulary, &|field| fields.place(field), report);
        }
        when
    }

    /// A length of time such as `100ms` or `1h`.
    ///
    /// # Errors
    /// With what would be accepted.
    pub fn duration(text: &str) -> Result<Ticks, Problem> {
        crate::rate_text::period(text).map(crate::rate_text::Period::ticks)
    }

    /// The attributes that a policy must declare as texts to compare them as this expression does: the expression names
    /// values that no attribute of their kind has, such as a path in another spelling.
    #[must_use]
    pub fn must_be_text(expression: &str) -> Vec<String> {
        use super::vocabulary::Kind;
        let Ok(mut expression) = super::Expression::new(expression) else { return Vec::new() };
        let is_special = |name: &&str| Kind::of(name) != Kind::Text;
        let names = expression.attributes().filter(is_special).map(str::to_owned).collect();
        let doubts = expression.settle(&super::Vocabulary::default(), super::expression::Wanted::Truth);
        let is_wrong = doubts.iter().any(|(severity, _)| *severity == super::Severity::Error);
        if is_wrong { names } else { Vec::new() }
    }

    /// How a policy compares the values of an attribute by more than their text.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Comparison {
        /// As addresses, which also count by their bits.
        Address,
        /// As paths, hosts or methods.
        Other,
    }

    /// How a policy that does not declare this attribute compares its values. `None` for texts.
    #[must_use]
    pub fn comparison(name: &str) -> Option<Comparison> {
        use super::vocabulary::Kind;
        match Kind::of(name) {
            Kind::Address => Some(Comparison::Address),
            Kind::Path | Kind::Host | Kind::Method => Some(Comparison::Other),
            Kind::Text => None,
        }
    }

    /// Whether a policy must declare a name to mention it, because it looks like something else.
    #[must_use]
    pub fn must_be_declared(name: &str) -> bool {
        let vocabulary = super::Vocabulary::default();
        let is_list = name.contains([',', ' ', '|', '+']);
        is_list || vocabulary.problem(name).is_some() || super::By::read(name, &vocabulary).is_err()
    }
}

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::str::FromStr;

use crate::address::Network;
use crate::credential::CredentialAttributes;
use crate::quota::Quota;
use crate::request::{Attribute, CheckRequest, Descriptor, Value};
use compared::ComparedAs;
use finding::{Position, Report, quoted};
use index::LimitIndex;
use positions::LimitPositions;
use vocabulary::Kind;

/// Maximum number of limits in a policy.
pub const LIMITS_MAX: usize = 100_000;

/// A policy that shows every kind of limit. A server without a policy of its own starts with it by default.
pub const EXAMPLE: &str = include_str!("policy/example.yaml");

/// Reads a policy file, up to one byte more than the compiler accepts, so that it reports a file that is too large.
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>, PolicyError> {
    let unreadable = |source| PolicyError::Unreadable { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

/// The limits of one domain, compiled and indexed.
#[derive(Debug)]
pub struct Policy {
    domain: Option<String>,
    shard_by: Option<String>,
    vocabulary: Vocabulary,
    limits: Vec<Limit>,
    /// Attributes that limits compare in a normalized form.
    compared: Vec<(String, ComparedAs)>,
    /// Which attributes hold credentials.
    credentials: CredentialAttributes,
    index: LimitIndex,
    /// By the index of the limit; empty for a policy made in Rust.
    positions: Vec<LimitPositions>,
    warnings: Findings,
}

/// Compiles the text of a policy.
///
/// ```
/// use tollgate::Policy;
/// let policy: Policy = "limits: [{name: all, rate: 100/s}]".parse()?;
/// assert!(policy.warnings().is_empty());
/// # Ok::<(), tollgate::PolicyError>(())
/// ```
impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        Ok(Self::compile("policy", text.as_bytes())?)
    }
}

impl Policy {
    /// Reads and compiles a policy file.
    ///
    /// # Errors
    /// The file cannot be read, or is not a policy.
    pub fn open(path: impl AsRef<Path>) -> Result<Policy, PolicyError> {
        let path = path.as_ref();
        Ok(Self::compile(&path.display().to_string(), &read_file(path)?)?)
    }

    /// Compiles the bytes of a policy file; `source_name` is its name in findings.
    ///
    /// ```
    /// use tollgate::Policy;
    /// let findings = Policy::compile("policy.yaml", b"limits: [{name: all, rate: s/100}]").unwrap_err();
    /// assert_eq!(
    ///     findings.to_string(),
    ///     "policy.yaml:1:28: limits[0] \"all\".rate: s/100 is upside down: the count comes first; \
    ///      accepted: 100/s, if that is what was meant"
    /// );
    /// ```
    ///
    /// # Errors
    /// Every problem at once, warnings among them.
    pub fn compile(source_name: &str, bytes: &[u8]) -> Result<Policy, Findings> {
        Self::compile_for(source_name, bytes, &CredentialAttributes::default())
    }

    /// As [`Policy::compile`], where more attributes than [`CREDENTIAL`](crate::credential::CREDENTIAL) hold
    /// credentials.
    ///
    /// # Errors
    /// As [`Policy::compile`].
    pub fn compile_for(
        source_name: &str,
        bytes: &[u8],
        credentials: &CredentialAttributes,
    ) -> Result<Policy, Findings> {
        compile::compile(source_name, bytes, credentials)
    }

    /// The position of a field of the limit with this index, such as `rate`, `by[0]` or `when.method`: for warnings of
    /// programs that know more than the compiler. Line 0 for a policy that was not read from text.
    #[must_use]
    pub fn position(&self, limit: usize, field: &str) -> Position {
        self.positions.get(limit).map_or_else(Position::default, |positions| positions.of_field(field))
    }

    /// Warnings of the compiler: the policy can be used, but probably does not mean what its author intended.
    #[must_use]
    pub const fn warnings(&self) -> &Findings {
        &self.warnings
    }

    /// A policy of limits made in Rust, checked like those of a file.
    ///
    /// # Errors
    /// Every problem at once, warnings among them.
    pub fn new(limits: Vec<LimitBuilder>) -> Result<Policy, Findings> {
        let (mut report, vocabulary) = (Report::new("policy"), Vocabulary::default());
        let mut limits: Vec<Limit> = limits.into_iter().map(LimitBuilder::into_limit).collect();
        let mut places = Vec::with_capacity(limits.len());
        for (position, limit) in limits.iter_mut().enumerate() {
            report.enter_limit(position, Some(&limit.name));
            check::name(&limit.name, Position::default(), &mut report);
            for condition in &mut limit.when {
                let doubts = condition.settle(&vocabulary);
                doubts.into_iter().for_each(|doubt| report.say(Position::default(), "when", doubt));
                if let Err(fault) = condition.seal(report.credentials()) {
                    report.error(Position::default(), "when", fault);
                }
            }
            let doubts = limit.settle(&vocabulary);
            doubts.into_iter().for_each(|doubt| report.say(Position::default(), "cost", doubt));
            for (field, fault) in limit.seal(report.credentials()) {
                report.error(Position::default(), &field, fault);
            }
            check::alone(limit, &vocabulary, &|_| Position::default(), &mut report);
            places.push((position, Position::default()));
        }
        check::together(&limits, &places, &mut report);
        if limits.len() > LIMITS_MAX {
            let problem = Problem::new(format!("{} limits", limits.len()), format!("at most {LIMITS_MAX}"));
            report.error(Position::default(), "limits", problem);
        }
        let policy = match LimitIndex::new(&limits) {
            Ok(index) => {
                let credentials = report.credentials().clone();
                let compared = compared::names(&limits, &credentials, &vocabulary);
                Some(Policy {
                    domain: None,
                    shard_by: None,
                    vocabulary,
                    limits,
                    compared,
                    credentials,
                    index,
                    positions: Vec::new(),
                    warnings: Findings::default(),
                })
            }
            Err(problem) => {
                report.error(Position::default(), "limits", problem);
                None
            }
        };
        compile::finish(policy, report)
    }

    /// The RLS domain that it serves; without one it serves every domain.
    #[must_use]
    pub fn domain(&self) -> Option<&str> {
        self.domain.as_deref()
    }

    /// The attribute that groups keys into a slot.
    #[must_use]
    pub fn shard_by(&self) -> Option<&str> {
        self.shard_by.as_deref()
    }

    /// Its limits, in the file's order.
    #[must_use]
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// Whether any limit makes requests wait.
    #[must_use]
    pub fn shapes(&self) -> bool {
        let mut quotas = self.limits.iter().flat_map(Limit::quotas);
        quotas.any(|quota| matches!(quota, Quota::LeakyBucket(bucket) if bucket.queue() > 0))
    }

    /// The attributes of a request that the policy does not declare; empty if it declares no names.
    pub fn undeclared<'r>(&'r self, request: &'r CheckRequest<'_>) -> impl Iterator<Item = &'r str> {
        let given = request.descriptors().flat_map(Descriptor::attributes);
        let names = given.map(|given| given.name);
        names.filter(|_| self.vocabulary.is_declared()).filter(|name| !self.vocabulary.knows(name))
    }

    /// Whether the policy declares an attribute of this name.
    #[must_use]
    pub fn declares(&self, attribute: &str) -> bool {
        self.vocabulary.is_declared() && self.vocabulary.knows(attribute)
    }

    /// The attributes that the policy declares; none if it declares no names.
    pub fn attributes_declared(&self) -> impl Iterator<Item = &str> {
        self.vocabulary.declared_names()
    }

    /// Whether the values of an attribute are addresses, which compare and count by their bits.
    #[must_use]
    pub fn is_address(&self, attribute: &str) -> bool {
        self.vocabulary.kind(attribute) == Kind::Address
    }

    /// The problem with the first value of a request that should be an address and is none, such as `1.2.3`. Limits count
    /// it as it is, so a protocol whose callers are programs may refuse it.
    #[must_use]
    pub fn address_problem(&self, request: &CheckRequest<'_>) -> Option<Problem> {
        let is_none = |given: &&Attribute<'_>| {
            self.is_address(given.name)
                && !self.credentials.contains(given.name)
                && match given.value {
                    Value::Text(text) => text != pattern::NO_ADDRESS && Network::given(text).is_none(),
                    Value::Number(_) => true,
                }
        };
        let given = request.descriptors().flat_map(Descriptor::attributes).find(is_none)?;
        let (name, value) = (quoted(given.name), given.value);
        let message = format!("{name}: {:?} is not an address", quoted(&value.to_string()));
        let accepted = format!(
            "an address or a network, such as 203.0.113.7 or 2001:db8::/64; none, for a caller that has no address; any text, \
             if the policy says `attributes: [{{{name}: text}}]`"
        );
        Some(Problem::new(message, accepted))
    }

    /// The problem with a single value of an attribute, where a pattern or a spelling that no request has would match
    /// nothing. `None` if nothing is wrong.
    pub(crate) fn value_problem(&self, attribute: &str, value: &str) -> Option<Problem> {
        if self.credentials.is_address(attribute, value) {
            return None;
        }
        exact::problem(self.vocabulary.kind(attribute), attribute, value)
    }

    /// Why no request has an attribute of this name, if that is known: the policy declares others, or it is the
    /// spelling of another product.
    #[must_use]
    pub fn attribute_problem(&self, name: &str) -> Option<Problem> {
        self.vocabulary.problem(name)
    }

    /// Why no request has this single value of an attribute, if that is known: it is empty, or looks like a pattern.
    /// Conditions and overrides reject the same texts. Addresses are left to the code that knows networks.
    #[must_use]
    pub fn single_problem(&self, attribute: &str, value: &str) -> Option<Problem> {
        match self.vocabulary.kind(attribute) {
            Kind::Address => None,
            _ if value.is_empty() => {
                Some(Problem::new("an empty text", format!("the {attribute} of a request")))
            }
            kind => exact::name_problem(kind, attribute, value),
        }
    }

    /// Whether a text is a pattern for paths, hosts or methods, where a request has a single value. Addresses are never
    /// patterns here.
    #[must_use]
    pub fn is_pattern(&self, attribute: &str, value: &str) -> bool {
        let kind = self.vocabulary.kind(attribute);
        kind != Kind::Text && kind != Kind::Address && exact::is_pattern(kind, value)
    }

    /// Whether any decision by this policy depends on an attribute of this name.
    #[must_use]
    pub fn uses(&self, attribute: &str) -> bool {
        self.names(attribute) || self.limits().iter().any(|limit| limit.uses(attribute))
    }

    /// Whether the policy names this attribute. A decision may also depend on one that it does not name, with
    /// [`ExtraAttributes::None`].
    #[must_use]
    pub fn names(&self, attribute: &str) -> bool {
        self.attributes_used().any(|name| name == attribute)
    }

    /// An attribute of a request that the policy does not name, with the one that it names and that the request lacks: the two
    /// differ in case alone, which is a mistake of the caller.
    #[must_use]
    pub fn miscased<'p, 'r>(&'p self, request: &CheckRequest<'r>) -> Option<(&'r str, &'p str)> {
        request.descriptors().find_map(|descriptor| {
            let given = || descriptor.attributes().iter().map(|given| given.name);
            given().find_map(|name| {
                let named = self.index.in_other_case(name).filter(|_| !self.declares(name))?;
                (!given().any(|other| other == named)).then_some((name, named))
            })
        })
    }

    /// The attributes that decisions by this policy depend on. One may come more than once.
    pub fn attributes_used(&self) -> impl Iterator<Item = &str> {
        self.shard_by().into_iter().chain(self.limits().iter().flat_map(Limit::attributes))
    }

    /// The meaning of each limit, in a sentence.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        self.limits.iter().map(Limit::sentence).collect()
    }
}

impl Policy {
    /// A policy of these limits that no request matches: for limits that are only remembered, and for tests that need
    /// no file.
    pub(crate) fn of_limits(limits: Vec<Limit>) -> Self {
        Self {
            limits,
            domain: None,
            shard_by: None,
            vocabulary: Vocabulary::default(),
            compared: Vec::new(),
            credentials: CredentialAttributes::default(),
            index: LimitIndex::default(),
            positions: Vec::new(),
            warnings: Findings::default(),
        }
    }
}
