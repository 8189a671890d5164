//! The price of an operation: each field has a weight, and what stands below a list counts once for each of its entries. Fragments
//! are priced once, however often they are spread, so that a small text cannot take long.

use std::collections::{BTreeMap, HashMap};

use apollo_parser::Parser;
use apollo_parser::cst::{self, Definition, Selection};
use serde_json::{Map, Value as Json};

use super::Unpriced;
use super::size::{NoNumber, Sizes};

/// How deep sets of fields may stand in one another with all fragments spread, whether fields are between them or not. The parser bounds
/// each definition by itself; definitions that spread one another are bounded by this alone.
const NESTING_MAX: u32 = 200;

/// What is refused before anybody counts, whatever it would cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// How deep fields may stand in one another.
    pub depth: u32,
    /// How many fields an operation may ask for, with its fragments spread.
    pub fields: u64,
    /// How many of them under another name: the way to ask for the same thing many times.
    pub aliases: u64,
    /// The most that an operation may cost.
    pub points: u64,
    /// How many words and signs the text may have.
    pub tokens: usize,
    /// How many operations one request may hold.
    pub operations: usize,
}

impl Default for Caps {
    fn default() -> Self {
        Self { depth: 15, fields: 1_000, aliases: 50, points: 100_000, tokens: 10_000, operations: 10 }
    }
}

/// How operations are priced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pricing {
    /// What a field costs that is not among the weights.
    pub field: u64,
    /// What a mutation costs beside its fields.
    pub mutation: u64,
    /// What a subscription costs beside its fields.
    pub subscription: u64,
    /// What single fields cost, by their names.
    pub weights: BTreeMap<String, u64>,
    /// The arguments, and the names inside of arguments at any depth, that say how many entries a field has.
    pub sizes: Vec<String>,
    /// How many entries fields have that do not say so, by their names.
    pub lists: BTreeMap<String, u64>,
    /// What is refused in any case.
    pub caps: Caps,
}

impl Default for Pricing {
    fn default() -> Self {
        Self {
            field: 1,
            mutation: 10,
            subscription: 10,
            weights: BTreeMap::new(),
            sizes: ["first", "last", "limit"].map(str::to_owned).to_vec(),
            lists: BTreeMap::new(),
            caps: Caps::default(),
        }
    }
}

/// What an operation costs, and of what that is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Price {
    /// The cost; at least 1.
    pub points: u64,
    /// How deep its fields stand in one another.
    pub depth: u32,
    /// How many fields it asks for.
    pub fields: u64,
    /// How many of them under another name.
    pub aliases: u64,
}

impl Price {
    /// Beside another one.
    fn and(self, other: Self) -> Self {
        Self {
            points: self.points.saturating_add(other.points),
            depth: self.depth.max(other.depth),
            fields: self.fields.saturating_add(other.fields),
            aliases: self.aliases.saturating_add(other.aliases),
        }
    }

    /// All operations of a request together.
    pub(super) fn sum(prices: impl IntoIterator<Item = Self>) -> Self {
        prices.into_iter().fold(Self::default(), Self::and)
    }
}

/// What a set of fields costs, and how many sets stand in one another there, itself among them.
#[derive(Clone, Copy, Default)]
struct Set {
    price: Price,
    nesting: u32,
}

/// A fragment, before and after it was priced.
enum Fragment {
    Text(cst::SelectionSet),
    /// It is being priced: who meets it now is inside of it.
    Open,
    Priced(Set),
}

/// What a document needs to be priced.
struct Pricer<'p> {
    pricing: &'p Pricing,
    sizes: Sizes<'p>,
    fragments: HashMap<String, Fragment>,
}

impl Pricing {
    /// The price of an operation in a document: the only one, or the one of this name.
    ///
    /// # Errors
    /// When the text is no document, has no such operation, or is beyond a cap.
    pub fn price(
        &self,
        text: &str,
        operation: Option<&str>,
        variables: &Map<String, Json>,
    ) -> Result<Price, Unpriced> {
        // Fields, their arguments and the values in these nest: a few levels for each field that may stand in another.
        let nesting = usize::try_from(self.caps.depth).unwrap_or(usize::MAX).saturating_mul(4).clamp(32, 400);
        let parser = Parser::new(text).recursion_limit(nesting).token_limit(self.caps.tokens);
        let tree = parser.parse();
        if let Some(error) = tree.errors().next() {
            let what = format!("the text is no GraphQL document: {}", error.message());
            let accepted = format!(
                "accepted: at most {} words and signs, fields at most {} deep",
                self.caps.tokens, self.caps.depth
            );
            return Err(Unpriced::new("GRAPHQL_PARSE_FAILED", format!("{what}; {accepted}")));
        }
        let (mut operations, mut fragments) = (Vec::new(), HashMap::new());
        for definition in tree.document().definitions() {
            match definition {
                Definition::OperationDefinition(definition) => operations.push(definition),
                Definition::FragmentDefinition(definition) => {
                    let name = definition.fragment_name().and_then(|name| name.name());
                    if let (Some(name), Some(set)) = (name, definition.selection_set()) {
                        let name = name.text().to_string();
                        if fragments.contains_key(&name) {
                            let message = format!("fragment {name:.64}: is defined twice");
                            return Err(Unpriced::new("GRAPHQL_VALIDATION_FAILED", message));
                        }
                        fragments.insert(name, Fragment::Text(set));
                    }
                }
                _ => {
                    return Err(Unpriced::new(
                        "GRAPHQL_VALIDATION_FAILED",
                        "a request asks: it defines no types",
                    ));
                }
            }
        }
        let chosen = choose(&operations, operation)?;
        let sizes = Sizes::new(&self.sizes, variables, chosen);
        let mut pricer = Pricer { pricing: self, sizes, fragments };
        let set = chosen.selection_set();
        let mut price = set.map_or(Ok(Set::default()), |set| pricer.set(&set, 0))?.price;
        let kind = chosen.operation_type();
        let is = |token: fn(&cst::OperationType) -> bool| kind.as_ref().is_some_and(token);
        if is(|kind| kind.mutation_token().is_some()) {
            price.points = price.points.saturating_add(self.mutation);
        } else if is(|kind| kind.subscription_token().is_some()) {
            price.points = price.points.saturating_add(self.subscription);
        }
        price.points = price.points.max(1);
        self.caps.accept(&price)?;
        Ok(price)
    }
}

impl Caps {
    fn accept(&self, price: &Price) -> Result<(), Unpriced> {
        let caps = [
            ("depth", u64::from(price.depth), u64::from(self.depth)),
            ("fields", price.fields, self.fields),
            ("aliases", price.aliases, self.aliases),
            ("points", price.points, self.points),
        ];
        match caps.into_iter().find(|(_, has, most)| has > most) {
            None => Ok(()),
            Some((what, has, most)) => {
                let message = format!("{what}: the operation has {has}; accepted: at most {most}");
                Err(Unpriced::new("GRAPHQL_TOO_COMPLEX", message))
            }
        }
    }
}

/// The operation that is asked for.
fn choose<'o>(
    operations: &'o [cst::OperationDefinition],
    name: Option<&str>,
) -> Result<&'o cst::OperationDefinition, Unpriced> {
    let failed = |message: String| Unpriced::new("OPERATION_RESOLUTION_FAILURE", message);
    match (operations, name) {
        ([only], None) => Ok(only),
        ([], _) => Err(failed(
            "the document has no operation; accepted: a query, a mutation or a subscription".to_owned(),
        )),
        (_, None) => Err(failed("the document has several operations; name one in operationName".to_owned())),
        (several, Some(name)) => {
            let is_named = |operation: &&cst::OperationDefinition| {
                operation.name().is_some_and(|own| own.text().as_str() == name)
            };
            let mut named = several.iter().filter(is_named);
            match (named.next(), named.next()) {
                (Some(found), None) => Ok(found),
                _ => Err(failed(
                    "operationName: the document has not exactly one operation of that name".to_owned(),
                )),
            }
        }
    }
}

/// Whether sets may stand so deep in one another.
fn nested(nesting: u32) -> Result<(), Unpriced> {
    if nesting <= NESTING_MAX {
        return Ok(());
    }
    let message = format!(
        "nesting: the operation has more than {NESTING_MAX} sets of fields in one another, with its fragments spread; accepted: as many"
    );
    Err(Unpriced::new("GRAPHQL_TOO_COMPLEX", message))
}

impl Pricer<'_> {
    /// A set that stands in so many others.
    fn set(&mut self, set: &cst::SelectionSet, above: u32) -> Result<Set, Unpriced> {
        let inside = above.saturating_add(1);
        nested(inside)?;
        let mut whole = Set { nesting: 1, ..Set::default() };
        for selection in set.selections() {
            let next = match selection {
                Selection::Field(field) => self.field(&field, inside)?,
                Selection::InlineFragment(fragment) => {
                    fragment.selection_set().map_or(Ok(Set::default()), |set| self.set(&set, inside))?
                }
                Selection::FragmentSpread(spread) => {
                    let name = spread.fragment_name().and_then(|name| name.name());
                    name.map_or(Ok(Set::default()), |name| self.fragment(name.text().as_str(), inside))?
                }
            };
            whole.price = whole.price.and(next.price);
            whole.nesting = whole.nesting.max(next.nesting.saturating_add(1));
            // A text that grows beyond all caps need not be read to its end.
            if whole.price.fields > self.pricing.caps.fields {
                self.pricing.caps.accept(&whole.price)?;
            }
        }
        Ok(whole)
    }

    fn fragment(&mut self, name: &str, above: u32) -> Result<Set, Unpriced> {
        let failed = |message: &str| {
            Unpriced::new("GRAPHQL_VALIDATION_FAILED", format!("fragment {name:.64}: {message}"))
        };
        let Some(fragment) = self.fragments.get_mut(name) else { return Err(failed("is not defined")) };
        match std::mem::replace(fragment, Fragment::Open) {
            Fragment::Open => Err(failed("spreads itself")),
            Fragment::Priced(set) => {
                *fragment = Fragment::Priced(set);
                // It may stand deeper here than where it was priced.
                nested(above.saturating_add(set.nesting))?;
                Ok(set)
            }
            Fragment::Text(set) => {
                let set = self.set(&set, above)?;
                self.fragments.insert(name.to_owned(), Fragment::Priced(set));
                Ok(set)
            }
        }
    }

    fn field(&mut self, field: &cst::Field, above: u32) -> Result<Set, Unpriced> {
        let name = field.name().map(|name| name.text().to_string()).unwrap_or_default();
        let set = field.selection_set().map_or(Ok(Set::default()), |set| self.set(&set, above))?;
        let below = set.price;
        let entries = self.entries(&name, field)?;
        // What every object says of itself costs nobody anything.
        let own = if name == "__typename" { 0 } else { self.weight(&name) };
        let price = Price {
            points: own.saturating_add(entries.saturating_mul(below.points)),
            depth: below.depth.saturating_add(1),
            fields: below.fields.saturating_add(1),
            aliases: below.aliases.saturating_add(u64::from(field.alias().is_some())),
        };
        Ok(Set { price, nesting: set.nesting })
    }

    fn weight(&self, name: &str) -> u64 {
        self.pricing.weights.get(name).copied().unwrap_or(self.pricing.field)
    }

    /// How many entries a field may have.
    fn entries(&mut self, name: &str, field: &cst::Field) -> Result<u64, Unpriced> {
        let usual = self.pricing.lists.get(name).copied().unwrap_or(1);
        let entries = self.sizes.of(field).map_err(|NoNumber(size)| {
            let message = format!("{name:.64}: {size:.64} is no number of entries; accepted: 0 and above");
            Unpriced::new("BAD_USER_INPUT", message)
        })?;
        // To some servers none means all: whoever asks for none pays for one, or for as many as there usually are.
        Ok(entries.filter(|&entries| entries > 0).unwrap_or(usual))
    }
}

#[cfg(test)]
mod tests;
