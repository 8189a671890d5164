//! The cost of an operation: each field has a weight, and the fields below a list count once for each of its entries. The
//! cost of a fragment is computed once, however often it is spread, so that a small text cannot take long.

use std::collections::{BTreeMap, HashMap};

use apollo_parser::Parser;
use apollo_parser::cst::{self, Definition, Selection};
use serde_json::{Map, Value as Json};

use super::GraphqlProblem;
use super::size::{NoNumber, Sizes};

/// Most nested selection sets, with all fragments spread. The parser bounds the nesting of a single definition; this bounds
/// definitions that spread one another.
const NESTING_MAX: u32 = 200;

/// Hard caps. An operation beyond one of them is refused before any limit is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Most nested fields.
    pub depth: u32,
    /// Most fields of an operation, with its fragments spread.
    pub fields: u64,
    /// Most aliases, which request the same field many times.
    pub aliases: u64,
    /// Highest cost of an operation.
    pub points: u64,
    /// Most tokens of the text.
    pub tokens: usize,
    /// Most operations of one request.
    pub operations: usize,
}

impl Default for Caps {
    fn default() -> Self {
        Self { depth: 15, fields: 1_000, aliases: 50, points: 100_000, tokens: 10_000, operations: 10 }
    }
}

/// How the cost of an operation is computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostModel {
    /// Cost of a field without a weight.
    pub field: u64,
    /// Cost of a mutation in addition to its fields.
    pub mutation: u64,
    /// Cost of a subscription in addition to its fields.
    pub subscription: u64,
    /// Cost of single fields, by their names.
    pub weights: BTreeMap<String, u64>,
    /// Names of arguments, or of values inside of arguments at any depth, that give the number of entries of a field.
    pub sizes: Vec<String>,
    /// Number of entries of fields without such an argument, by their names.
    pub lists: BTreeMap<String, u64>,
    /// Hard caps.
    pub caps: Caps,
}

impl Default for CostModel {
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

/// The cost of an operation, and its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationCost {
    /// The cost; at least 1.
    pub points: u64,
    /// Number of nested fields.
    pub depth: u32,
    /// Number of fields.
    pub fields: u64,
    /// Number of aliases.
    pub aliases: u64,
}

impl OperationCost {
    /// The cost of two parts side by side.
    fn and(self, other: Self) -> Self {
        Self {
            points: self.points.saturating_add(other.points),
            depth: self.depth.max(other.depth),
            fields: self.fields.saturating_add(other.fields),
            aliases: self.aliases.saturating_add(other.aliases),
        }
    }

    /// The cost of all operations of a request.
    pub(super) fn sum(costs: impl IntoIterator<Item = Self>) -> Self {
        costs.into_iter().fold(Self::default(), Self::and)
    }
}

/// The cost of a selection set, and the number of nested sets, itself included.
#[derive(Clone, Copy, Default)]
struct SelectionCost {
    cost: OperationCost,
    nesting: u32,
}

/// A fragment, before and after its cost was computed.
enum Fragment {
    Text(cst::SelectionSet),
    /// Its cost is being computed. A spread of it now is inside of itself.
    Open,
    Computed(SelectionCost),
}

/// Computes the cost of one document.
struct CostVisitor<'p> {
    model: &'p CostModel,
    sizes: Sizes<'p>,
    fragments: HashMap<String, Fragment>,
}

impl CostModel {
    /// Computes the cost of an operation of a document: the only one, or the one with this name.
    ///
    /// # Errors
    /// The text is not a document, has no such operation, or exceeds a cap.
    pub fn cost(
        &self,
        text: &str,
        operation: Option<&str>,
        variables: &Map<String, Json>,
    ) -> Result<OperationCost, GraphqlProblem> {
        // Fields, their arguments and the values of these nest, so each level of fields takes a few levels of the parser.
        let nesting = usize::try_from(self.caps.depth).unwrap_or(usize::MAX).saturating_mul(4).clamp(32, 400);
        let parser = Parser::new(text).recursion_limit(nesting).token_limit(self.caps.tokens);
        let tree = parser.parse();
        if let Some(error) = tree.errors().next() {
            let what = format!("the text is not a GraphQL document: {}", error.message());
            let accepted = format!(
                "accepted: at most {} tokens, fields at most {} deep",
                self.caps.tokens, self.caps.depth
            );
            return Err(GraphqlProblem::new("GRAPHQL_PARSE_FAILED", format!("{what}; {accepted}")));
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
                            return Err(GraphqlProblem::new("GRAPHQL_VALIDATION_FAILED", message));
                        }
                        fragments.insert(name, Fragment::Text(set));
                    }
                }
                _ => {
                    return Err(GraphqlProblem::new(
                        "GRAPHQL_VALIDATION_FAILED",
                        "type definitions; accepted: operations and fragments",
                    ));
                }
            }
        }
        let chosen = choose(&operations, operation)?;
        let sizes = Sizes::new(&self.sizes, variables, chosen);
        let mut visitor = CostVisitor { model: self, sizes, fragments };
        let set = chosen.selection_set();
        let mut cost = set.map_or(Ok(SelectionCost::default()), |set| visitor.set(&set, 0))?.cost;
        let kind = chosen.operation_type();
        let is = |token: fn(&cst::OperationType) -> bool| kind.as_ref().is_some_and(token);
        if is(|kind| kind.mutation_token().is_some()) {
            cost.points = cost.points.saturating_add(self.mutation);
        } else if is(|kind| kind.subscription_token().is_some()) {
            cost.points = cost.points.saturating_add(self.subscription);
        }
        cost.points = cost.points.max(1);
        self.caps.accept(&cost)?;
        Ok(cost)
    }
}

impl Caps {
    fn accept(&self, cost: &OperationCost) -> Result<(), GraphqlProblem> {
        let caps = [
            ("depth", u64::from(cost.depth), u64::from(self.depth)),
            ("fields", cost.fields, self.fields),
            ("aliases", cost.aliases, self.aliases),
            ("points", cost.points, self.points),
        ];
        match caps.into_iter().find(|(_, has, most)| has > most) {
            None => Ok(()),
            Some((what, has, most)) => {
                let message = format!("{what}: the operation has {has}; accepted: at most {most}");
                Err(GraphqlProblem::new("GRAPHQL_TOO_COMPLEX", message))
            }
        }
    }
}

/// Selects the requested operation.
fn choose<'o>(
    operations: &'o [cst::OperationDefinition],
    name: Option<&str>,
) -> Result<&'o cst::OperationDefinition, GraphqlProblem> {
    let failed = |message: String| GraphqlProblem::new("OPERATION_RESOLUTION_FAILURE", message);
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

/// Checks the number of nested selection sets.
fn check_nesting(nesting: u32) -> Result<(), GraphqlProblem> {
    if nesting <= NESTING_MAX {
        return Ok(());
    }
    let message = format!(
        "nesting: the operation has more than {NESTING_MAX} nested sets of fields, with its fragments spread; accepted: at most {NESTING_MAX}"
    );
    Err(GraphqlProblem::new("GRAPHQL_TOO_COMPLEX", message))
}

impl CostVisitor<'_> {
    /// Computes the cost of a selection set inside of `above` others.
    fn set(&mut self, set: &cst::SelectionSet, above: u32) -> Result<SelectionCost, GraphqlProblem> {
        let inside = above.saturating_add(1);
        check_nesting(inside)?;
        let mut whole = SelectionCost { nesting: 1, ..SelectionCost::default() };
        for selection in set.selections() {
            let next = match selection {
                Selection::Field(field) => self.field(&field, inside)?,
                Selection::InlineFragment(fragment) => fragment
                    .selection_set()
                    .map_or(Ok(SelectionCost::default()), |set| self.set(&set, inside))?,
                Selection::FragmentSpread(named) => {
                    let name = named.fragment_name().and_then(|name| name.name());
                    name.map_or(Ok(SelectionCost::default()), |name| {
                        self.fragment(name.text().as_str(), inside)
                    })?
                }
            };
            whole.cost = whole.cost.and(next.cost);
            whole.nesting = whole.nesting.max(next.nesting.saturating_add(1));
            // An operation beyond the cap of fields is refused early.
            if whole.cost.fields > self.model.caps.fields {
                self.model.caps.accept(&whole.cost)?;
            }
        }
        Ok(whole)
    }

    fn fragment(&mut self, name: &str, above: u32) -> Result<SelectionCost, GraphqlProblem> {
        let failed = |message: &str| {
            GraphqlProblem::new("GRAPHQL_VALIDATION_FAILED", format!("fragment {name:.64}: {message}"))
        };
        let Some(fragment) = self.fragments.get_mut(name) else { return Err(failed("is not defined")) };
        match std::mem::replace(fragment, Fragment::Open) {
            Fragment::Open => Err(failed("spreads itself")),
            Fragment::Computed(set) => {
                *fragment = Fragment::Computed(set);
                // It may be nested deeper here than where its cost was computed.
                check_nesting(above.saturating_add(set.nesting))?;
                Ok(set)
            }
            Fragment::Text(set) => {
                let set = self.set(&set, above)?;
                self.fragments.insert(name.to_owned(), Fragment::Computed(set));
                Ok(set)
            }
        }
    }

    fn field(&mut self, field: &cst::Field, above: u32) -> Result<SelectionCost, GraphqlProblem> {
        let name = field.name().map(|name| name.text().to_string()).unwrap_or_default();
        let set = field.selection_set().map_or(Ok(SelectionCost::default()), |set| self.set(&set, above))?;
        let below = set.cost;
        let entries = self.entries(&name, field)?;
        // The type name of an object is free.
        let own = if name == "__typename" { 0 } else { self.weight(&name) };
        let cost = OperationCost {
            points: own.saturating_add(entries.saturating_mul(below.points)),
            depth: below.depth.saturating_add(1),
            fields: below.fields.saturating_add(1),
            aliases: below.aliases.saturating_add(u64::from(field.alias().is_some())),
        };
        Ok(SelectionCost { cost, nesting: set.nesting })
    }

    fn weight(&self, name: &str) -> u64 {
        self.model.weights.get(name).copied().unwrap_or(self.model.field)
    }

    /// The number of entries of a field.
    fn entries(&mut self, name: &str, field: &cst::Field) -> Result<u64, GraphqlProblem> {
        let usual = self.model.lists.get(name).copied().unwrap_or(1);
        let entries = self.sizes.of(field).map_err(|NoNumber(size)| {
            let message = format!("{name:.64}: {size:.64} is not a number of entries; accepted: 0 and above");
            GraphqlProblem::new("BAD_USER_INPUT", message)
        })?;
        // Some servers take 0 as unlimited, so it counts as the usual number of entries, or as 1.
        Ok(entries.filter(|&entries| entries > 0).unwrap_or(usual))
    }
}

#[cfg(test)]
mod tests;
