//! One condition of `when`: what an attribute must be, or must not be.

use crate::address::Network;
use crate::path::{is_with_format, loose_path};
use crate::policy::expression::{Expression, Wanted};
use crate::policy::finding::{Problem, Severity};
use crate::policy::glob::Glob;
use crate::policy::text::{Digits, as_text};
use crate::policy::vocabulary::{Kind, Vocabulary};
use crate::request::{Descriptor, Spelling};

/// One condition of `when`. A limit applies when all of them hold.
#[derive(Debug)]
pub enum Condition {
    /// The attribute is one of these choices, or none of them.
    OneOf {
        /// Which attribute.
        name: String,
        /// The values that it is compared with.
        choices: Choices,
        /// Whether it must be one of them.
        sense: Negation,
    },
    /// A CEL expression is true.
    Holds(Expression),
}

/// Whether an attribute must be one of the choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Negation {
    /// It must. A request without the attribute does not satisfy the condition.
    Is,
    /// It must not. A request without the attribute satisfies the condition, so that a client cannot escape a limit by
    /// leaving an attribute out.
    IsNot,
}

/// The values and patterns that an attribute is compared with.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    /// As the policy writes them.
    written: Vec<String>,
    /// Those that are compared as text.
    values: Vec<String>,
    globs: Vec<Glob>,
    networks: Vec<Network>,
}

impl PartialEq for Choices {
    /// Their order means nothing.
    fn eq(&self, other: &Self) -> bool {
        let has_all =
            |one: &Self, other: &Self| one.written.iter().all(|choice| other.written.contains(choice));
        has_all(self, other) && has_all(other, self)
    }
}

impl Choices {
    /// Choices for an attribute of this kind. [`super::pattern`] finds problems with them.
    pub(crate) fn new<'c>(kind: Kind, written: impl IntoIterator<Item = &'c str>) -> Self {
        let mut choices = Self::default();
        for choice in written {
            choices.written.push(choice.to_owned());
            match (kind, choice.parse(), Glob::new(choice)) {
                (Kind::Address, Ok(network), _) => choices.networks.push(network),
                (_, _, Some(glob)) => choices.globs.push(glob),
                _ => choices.values.push(choice.to_owned()),
            }
        }
        choices
    }

    /// Replaces the choices that are compared as text.
    pub(crate) fn replace_values(&mut self, with: impl Fn(&str) -> String) {
        for value in self.written.iter_mut().filter(|written| self.values.contains(written)) {
            *value = with(value);
        }
        self.values.iter_mut().for_each(|value| *value = with(value));
    }

    /// As the policy writes them.
    #[must_use]
    pub fn written(&self) -> &[String] {
        &self.written
    }

    /// Those that are compared as text.
    #[must_use]
    pub fn values(&self) -> &[String] {
        &self.values
    }

    /// Those with `*` or `{name}`.
    #[must_use]
    pub fn globs(&self) -> &[Glob] {
        &self.globs
    }

    /// Addresses and networks.
    #[must_use]
    pub fn networks(&self) -> &[Network] {
        &self.networks
    }

    /// Whether all of them are compared as text, so that an index finds them.
    pub(crate) fn are_plain(&self) -> bool {
        self.globs.is_empty() && self.networks.is_empty()
    }

    fn fits(&self, text: &str) -> bool {
        self.values.iter().any(|value| value == text) || self.globs.iter().any(|glob| glob.matches(text))
    }

    fn fits_loosely(&self, path: &str) -> bool {
        self.values.iter().any(|value| is_with_format(path, &loose_path(value)))
            || self.globs.iter().any(|glob| glob.matches_loosely(path))
    }

    /// Whether the attribute at a position is one of them in any spelling. A network that is only partly one of them is.
    fn may_be(&self, request: &Descriptor<'_>, position: usize, text: &str) -> bool {
        self.fits(text)
            || self.has_network(text, Network::overlaps)
            || request.spellings_of(position).any(|spelling| match spelling {
                Spelling::AsIs(text) => self.fits(text),
                Spelling::LoosePath(path) => self.fits_loosely(path),
            })
    }

    /// Whether the attribute at a position is one of them beyond doubt. The loose form of a path is a doubt.
    fn must_be(&self, request: &Descriptor<'_>, position: usize, text: &str) -> bool {
        self.fits(text)
            || self.has_network(text, Network::contains)
            || request
                .spellings_of(position)
                .any(|spelling| matches!(spelling, Spelling::AsIs(text) if self.fits(text)))
    }

    fn has_network(&self, text: &str, holds: fn(&Network, &Network) -> bool) -> bool {
        if self.networks.is_empty() {
            return false;
        }
        Network::given(text).is_some_and(|given| self.networks.iter().any(|network| holds(network, &given)))
    }
}

impl Condition {
    /// The attribute is one of `choices`: values, patterns with `*`, templates of paths, addresses and networks.
    #[must_use]
    pub fn one_of<'c>(name: &str, choices: impl IntoIterator<Item = &'c str>) -> Self {
        Self::read(name, choices, Negation::Is, &Vocabulary::default())
    }

    /// The attribute is none of `choices`, or is missing.
    #[must_use]
    pub fn none_of<'c>(name: &str, choices: impl IntoIterator<Item = &'c str>) -> Self {
        Self::read(name, choices, Negation::IsNot, &Vocabulary::default())
    }

    pub(crate) fn read<'c>(
        name: &str,
        choices: impl IntoIterator<Item = &'c str>,
        sense: Negation,
        vocabulary: &Vocabulary,
    ) -> Self {
        let choices = Choices::new(vocabulary.kind(name), choices);
        Condition::OneOf { name: name.to_owned(), choices, sense }
    }

    /// Whether it holds for a request.
    #[must_use]
    pub fn holds(&self, request: &Descriptor<'_>) -> bool {
        match self {
            Condition::OneOf { name, choices, sense } => {
                let position = request.attributes().iter().position(|attribute| attribute.name == name);
                sense.holds(choices, request, position)
            }
            Condition::Holds(expression) => expression.holds(request),
        }
    }

    /// Whether it holds without the loose form of a path, for what a client gains by. The loose form never helps a client: a condition
    /// that it fits does not hold by it, and `not` does not hold where it fits.
    #[must_use]
    pub fn holds_exactly(&self, request: &Descriptor<'_>) -> bool {
        match self {
            Condition::OneOf { name, choices, sense } => {
                let mut given = request.attributes().iter().enumerate();
                let Some((position, attribute)) = given.find(|(_, attribute)| attribute.name == name) else {
                    return *sense == Negation::IsNot;
                };
                let mut digits = Digits::new();
                let text = as_text(attribute.value, &mut digits);
                match sense {
                    Negation::Is => choices.must_be(request, position, text),
                    Negation::IsNot => !choices.may_be(request, position, text),
                }
            }
            Condition::Holds(expression) => expression.holds_exactly(request),
        }
    }

    /// Resolves how an expression reads its attributes. Returns the problems with the texts that it compares them with. The
    /// texts of tables are checked with the whole limit.
    pub(crate) fn settle(&mut self, vocabulary: &Vocabulary) -> Vec<(Severity, Problem)> {
        match self {
            Condition::OneOf { .. } => Vec::new(),
            Condition::Holds(expression) => expression.settle(vocabulary, Wanted::Truth),
        }
    }

    /// The attributes without which it cannot hold.
    pub(crate) fn required(&self) -> impl Iterator<Item = &str> {
        let (one, many) = match self {
            Condition::OneOf { name, sense: Negation::Is, .. } => (Some(name.as_str()), None),
            Condition::OneOf { sense: Negation::IsNot, .. } => (None, None),
            Condition::Holds(expression) => (None, Some(expression.needed())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// Every attribute that it mentions.
    pub fn mentioned(&self) -> impl Iterator<Item = &str> {
        let (one, many) = match self {
            Condition::OneOf { name, .. } => (Some(name.as_str()), None),
            Condition::Holds(expression) => (None, Some(expression.attributes())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

impl Negation {
    /// Whether a condition holds for the attribute at a position, if the request has it.
    #[inline]
    pub(crate) fn holds(self, choices: &Choices, request: &Descriptor<'_>, position: Option<usize>) -> bool {
        let given = position.and_then(|position| Some((position, request.attributes().get(position)?)));
        let Some((position, attribute)) = given else { return self == Negation::IsNot };
        let mut digits = Digits::new();
        let text = as_text(attribute.value, &mut digits);
        match self {
            Negation::Is => choices.may_be(request, position, text),
            Negation::IsNot => !choices.must_be(request, position, text),
        }
    }
}
