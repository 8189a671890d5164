//! Why a limit does not match a request, and which of its quotas applies: the decisions of [`super::matching`] with their
//! reasons. It is slower and complete; a test compares the two.

use crate::policy::condition::{Condition, Negation};
use crate::policy::expression::Expression;
use crate::policy::limit::{
    Chosen, Cost, ExtraAttributes, Limit, Mode, QuotaIndex, Role, TIER_BY_MAX, TIER_SEPARATOR, stricter,
};
use crate::request::Descriptor;

/// Most values that a reason lists; a condition may have more.
const ACCEPTED_SHOWN: usize = 8;

/// One reason why a limit does not apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unmet {
    /// It is off by its policy.
    Off,
    /// The request lacks an attribute that it counts by, or that a condition needs.
    Missing {
        /// Which one.
        attribute: String,
    },
    /// An attribute has another value than the condition asks for.
    Differs {
        /// Which one.
        attribute: String,
        /// The request's value, as text.
        given: String,
        /// The first few values and patterns that the condition accepts.
        accepted: Vec<String>,
    },
    /// An attribute has a value that the condition excludes.
    Excluded {
        /// Which one.
        attribute: String,
        /// The request's value, as text.
        given: String,
        /// The first few values and patterns that the condition excludes.
        excluded: Vec<String>,
    },
    /// The request has attributes that the limit does not name, and it applies only without any.
    Extra {
        /// Which ones.
        attributes: Vec<String>,
    },
    /// An expression is not true.
    False {
        /// As the policy writes it.
        expression: String,
    },
}

/// How a limit's quota was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// It has only one.
    Only,
    /// The key has one of its own.
    Override {
        /// The attribute that it is by.
        attribute: String,
        /// Its value.
        value: String,
    },
    /// By the tier that one attribute or two name.
    Tier {
        /// Each attribute with its value, or `*` where the tier is for any.
        by: Vec<(String, String)>,
    },
    /// The attributes name no tier that the limit knows, or are missing.
    Otherwise {
        /// The attributes.
        attributes: Vec<String>,
    },
}

impl Limit {
    /// Every reason why it does not apply to a request; none if it does.
    #[must_use]
    pub fn unmet(&self, request: &Descriptor<'_>) -> Vec<Unmet> {
        let mut unmet = Vec::new();
        if self.mode == Mode::Off {
            unmet.push(Unmet::Off);
        }
        for by in &self.by {
            missing(by.name(), request, &mut unmet);
        }
        for condition in &self.when {
            match condition {
                Condition::OneOf { sense: Negation::IsNot, .. } if condition.holds(request) => {}
                Condition::OneOf { name, .. } if missing(name, request, &mut unmet) => {}
                Condition::OneOf { name, choices, sense } => {
                    let Some(given) = text_of(name, request) else { continue };
                    if condition.holds(request) {
                        continue;
                    }
                    let attribute = name.clone();
                    let shown = choices.written().iter().take(ACCEPTED_SHOWN).cloned().collect();
                    unmet.push(match sense {
                        Negation::Is => Unmet::Differs { attribute, given, accepted: shown },
                        Negation::IsNot => Unmet::Excluded { attribute, given, excluded: shown },
                    });
                }
                Condition::Holds(expression) => {
                    let lacking =
                        expression.needed().filter(|name| missing(name, request, &mut unmet)).count();
                    if lacking == 0 && !expression.holds(request) {
                        unmet.push(Unmet::False { expression: expression.to_string() });
                    }
                }
            }
        }
        let attributes: Vec<String> = self.unnamed(request).map(str::to_owned).collect();
        if !attributes.is_empty() {
            unmet.push(Unmet::Extra { attributes });
        }
        unmet
    }

    /// Whether it is relevant for a request: it mentions one of its attributes, or requires none.
    #[must_use]
    pub fn mentions(&self, request: &Descriptor<'_>) -> bool {
        let asks_for_none = self.by.is_empty() && self.when.is_empty();
        asks_for_none || request.attributes().iter().any(|given| self.mentions_name(given.name))
    }

    /// Whether what it does depends on an attribute of this name.
    #[must_use]
    pub fn uses(&self, attribute: &str) -> bool {
        self.extra_attributes == ExtraAttributes::None || self.mentions_name(attribute)
    }

    pub(crate) fn mentions_name(&self, attribute: &str) -> bool {
        self.attributes().any(|name| name == attribute)
    }

    /// The attributes that it names, which what it does depends on. One may come more than once.
    pub fn attributes(&self) -> impl Iterator<Item = &str> {
        let (named, computed) = match &self.cost {
            Cost::Asked | Cost::Units(_) => (None, None),
            Cost::Attribute(name) => (Some(name.as_str()), None),
            Cost::Computed(expression) => (None, Some(expression)),
        };
        let in_cost = named.into_iter().chain(computed.into_iter().flat_map(Expression::attributes));
        in_cost
            .chain(self.by.iter().map(|by| by.name()))
            .chain(self.when.iter().flat_map(|condition| condition.mentioned()))
            .chain(self.tier_by().iter().map(String::as_str))
    }

    /// How its quota for a request is chosen.
    #[must_use]
    pub fn choice(&self, request: &Descriptor<'_>) -> Choice {
        let position = |name: &str| request.attributes().iter().position(|given| given.name == name);
        let mut tier = [None; TIER_BY_MAX];
        for (place, name) in tier.iter_mut().zip(self.tier_by()) {
            *place = position(name);
        }
        let first = self.by.first().and_then(|by| position(by.name()));
        match (self.choose(request, first, tier), self.by.first()) {
            (Some(Chosen { role: Role::Override, name, .. }), Some(by)) => {
                Choice::Override { attribute: by.name().to_owned(), value: name.to_owned() }
            }
            (Some(chosen), _) => Choice::Tier { by: self.by_tier(chosen.name) },
            (None, _) if self.quotas.tier_by.is_empty() => Choice::Only,
            (None, _) => Choice::Otherwise { attributes: self.quotas.tier_by.clone() },
        }
    }

    /// Each attribute of a tier with its value.
    pub(crate) fn by_tier(&self, tier: &str) -> Vec<(String, String)> {
        let values = match self.tier_by() {
            [_] => vec![tier],
            _ => tier.split(TIER_SEPARATOR).collect(),
        };
        self.tier_by().iter().cloned().zip(values.into_iter().map(str::to_owned)).collect()
    }

    /// The tiers that admit more than one of its quotas does, the next one first.
    pub(crate) fn larger_tiers(&self, than: QuotaIndex) -> Vec<(&str, QuotaIndex)> {
        let mut tiers: Vec<_> =
            self.tiers().filter(|&(_, index)| stricter(self.grant(than), self.grant(index))).collect();
        tiers.sort_by(|(one, a), (other, b)| {
            let (a, b) = (self.grant(*a), self.grant(*b));
            stricter(b, a).cmp(&stricter(a, b)).then_with(|| one.cmp(other))
        });
        tiers
    }

    /// The quota of a key without a tier and without an override.
    #[must_use]
    pub const fn default_quota(&self) -> QuotaIndex {
        self.quotas.default_index()
    }
}

/// Whether an attribute is missing. Adds the reason once.
fn missing(name: &str, request: &Descriptor<'_>, unmet: &mut Vec<Unmet>) -> bool {
    if request.attributes().iter().any(|given| given.name == name) {
        return false;
    }
    let reason = Unmet::Missing { attribute: name.to_owned() };
    if !unmet.contains(&reason) {
        unmet.push(reason);
    }
    true
}

fn text_of(name: &str, request: &Descriptor<'_>) -> Option<String> {
    let given = request.attributes().iter().find(|given| given.name == name)?;
    Some(given.value.to_string())
}
