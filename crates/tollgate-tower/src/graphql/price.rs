//! The price of an operation: each field has a weight, and what stands below a list counts once for each of its entries. Fragments
//! are priced once, however often they are spread, so that a small text cannot take long.

use std::collections::{BTreeMap, HashMap};

use apollo_parser::cst::{self, CstNode, Definition, Selection, Value};
use apollo_parser::{Parser, SyntaxKind};
use serde_json::{Map, Value as Json};

use super::Unpriced;

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
    /// The arguments that say how many entries a field has.
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
    variables: &'p Map<String, Json>,
    defaults: HashMap<String, Option<u64>>,
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
        let defaults = defaults(chosen);
        let mut pricer = Pricer { pricing: self, variables, defaults, fragments };
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

/// What variables have where the request gives nothing: a number, or what is none.
fn defaults(operation: &cst::OperationDefinition) -> HashMap<String, Option<u64>> {
    let definitions = operation.variable_definitions().into_iter().flat_map(|all| all.variable_definitions());
    let mut defaults = HashMap::new();
    for definition in definitions {
        let Some(name) = definition.variable().and_then(|variable| variable.name()) else { continue };
        let number = match definition.default_value().and_then(|default| default.value()) {
            None | Some(Value::NullValue(_)) => continue,
            Some(Value::IntValue(value)) => whole(&value),
            Some(_) => None,
        };
        // Which of two a server takes is its own affair, so they are no number.
        let known = defaults.entry(name.text().to_string()).or_insert(number);
        if *known != number {
            *known = None;
        }
    }
    defaults
}

/// A number that is written out.
fn whole(value: &cst::IntValue) -> Option<u64> {
    let token = value.syntax().first_token()?;
    (token.kind() == SyntaxKind::INT).then(|| token.text().parse().ok())?
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
    fn entries(&self, name: &str, field: &cst::Field) -> Result<u64, Unpriced> {
        let usual = self.pricing.lists.get(name).copied().unwrap_or(1);
        let mut entries = None;
        for argument in field.arguments().into_iter().flat_map(|all| all.arguments()) {
            let Some(own) = argument.name().map(|name| name.text().to_string()) else { continue };
            if !self.pricing.sizes.contains(&own) {
                continue;
            }
            let size = match argument.value() {
                Some(Value::IntValue(value)) => whole(&value).map(Some),
                Some(Value::Variable(variable)) => {
                    self.variable(variable.name().map(|name| name.text().to_string()).unwrap_or_default())
                }
                Some(Value::NullValue(_)) => Some(None),
                _ => None,
            };
            let Some(size) = size else {
                let message = format!("{name:.64}: {own:.64} is no number of entries; accepted: 0 and above");
                return Err(Unpriced::new("BAD_USER_INPUT", message));
            };
            entries = entries.max(size);
        }
        // To some servers none means all: whoever asks for none pays for one, or for as many as there usually are.
        Ok(entries.filter(|&entries| entries > 0).unwrap_or(usual))
    }

    /// The number of a variable: none if it has no value, and nothing if that is no number.
    #[allow(clippy::option_option, reason = "no value and a wrong one are two answers")]
    fn variable(&self, name: String) -> Option<Option<u64>> {
        match self.variables.get(&name) {
            None => match self.defaults.get(&name) {
                None => Some(None),
                Some(number) => number.map(Some),
            },
            Some(Json::Null) => Some(None),
            Some(value) => value.as_u64().map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn price(text: &str) -> Result<Price, Unpriced> {
        Pricing::default().price(text, None, &Map::new())
    }

    fn points(text: &str) -> u64 {
        price(text).unwrap().points
    }

    /// Fields cost their weight, and lists as often as they have entries.
    #[test]
    fn lists_multiply() {
        assert_eq!(points("{ viewer }"), 1);
        assert_eq!(points("{ viewer { login name __typename } }"), 3);
        assert_eq!(points("{ posts(first: 10) { title } }"), 11);
        // GitHub's own example of nodes: 50 repositories with 10 issues each.
        assert_eq!(
            points(
                "{ repositories(first: 50) { edges { repository: node { issues(first: 10) { title } } } } }"
            ),
            651
        );
        assert_eq!(points("{ posts(first: 2, last: 5) { title } }"), 6);
        assert_eq!(points("mutation { close { id } }"), 12);
        assert_eq!(points("query($n: Int = 7) { posts(first: $n) { id } }"), 8);
    }

    /// Variables of the request count before their defaults; what is no number is refused.
    #[test]
    fn variables() {
        let text = "query($n: Int = 7) { posts(first: $n) { id } }";
        let with = |value: Json| {
            let variables = Map::from_iter([("n".to_owned(), value)]);
            Pricing::default().price(text, None, &variables).map(|price| price.points)
        };
        assert_eq!(with(Json::from(100)), Ok(101));
        assert_eq!(with(Json::Null), Ok(2));
        for wrong in [Json::from(-1), Json::from("9"), Json::from(1.5)] {
            assert_eq!(with(wrong).unwrap_err().code, "BAD_USER_INPUT");
        }
        assert_eq!(price("{ posts(first: -3) { id } }").unwrap_err().code, "BAD_USER_INPUT");
        // A default that is no number is none that a server may not read as one, and of two it takes either.
        for wrong in ["$n: ID = \"1000\"", "$n: Float = 1e3", "$n: Int = -1", "$n: Int = 1000, $n: Int = 1"] {
            let text = format!("query({wrong}) {{ posts(first: $n) {{ id }} }}");
            assert_eq!(price(&text).unwrap_err().code, "BAD_USER_INPUT", "{wrong}");
        }
        assert_eq!(points("query($n: Int) { posts(first: $n) { id } }"), 2);
        assert_eq!(points("query($n: Int = null) { posts(first: $n) { id } }"), 2);
        // None may mean all.
        assert_eq!(points("{ posts(first: 0) { id } }"), 2);
    }

    /// Names of one's own: weights and lists.
    #[test]
    fn weights() {
        let pricing = Pricing {
            weights: BTreeMap::from([("search".to_owned(), 50), ("id".to_owned(), 0)]),
            lists: BTreeMap::from([("tags".to_owned(), 20)]),
            ..Pricing::default()
        };
        let points = |text| pricing.price(text, None, &Map::new()).unwrap().points;
        assert_eq!(points("{ search { id } }"), 50);
        assert_eq!(points("{ tags { name id } }"), 21);
        assert_eq!(points("{ tags(first: 3) { name } }"), 4);
    }

    /// A fragment counts wherever it is spread; one that spreads itself, or that is not there, is refused.
    #[test]
    fn fragments() {
        let text = "{ a { ...F } b(first: 3) { ...F } ... on Query { c } } fragment F on T { x y }";
        assert_eq!(points(text), 3 + 7 + 1);
        let cycle = "{ ...A } fragment A on T { ...B } fragment B on T { ...A }";
        assert_eq!(price(cycle).unwrap_err().code, "GRAPHQL_VALIDATION_FAILED");
        assert_eq!(price("{ ...A }").unwrap_err().code, "GRAPHQL_VALIDATION_FAILED");
        let twice = "{ ...A } fragment A on T { b { c { d } } } fragment A on T { b }";
        assert_eq!(price(twice).unwrap_err().code, "GRAPHQL_VALIDATION_FAILED");
    }

    /// A small text of fragments that doubles at each step is known to be too large at once.
    #[test]
    fn bombs() {
        let mut text = String::from("{ ...F0 }");
        for step in 0..60 {
            text.push_str(&format!(
                " fragment F{step} on T {{ a: x {{ ...F{} }} b: x {{ ...F{} }} }}",
                step + 1,
                step + 1
            ));
        }
        text.push_str(" fragment F60 on T { x }");
        assert_eq!(price(&text).unwrap_err().code, "GRAPHQL_TOO_COMPLEX");
        let deep = format!("{}x{}", "{ a ".repeat(5_000), "}".repeat(5_000));
        assert!(price(&deep).is_err());
        let wide = format!("{{ {} }}", "x ".repeat(20_000));
        assert!(price(&wide).is_err());
        assert_eq!(
            price("{ a(first: 999999999999) { b(first: 999999999999) { c } } }").unwrap_err().code,
            "GRAPHQL_TOO_COMPLEX"
        );
    }

    /// The parser bounds how deep one definition is, not how deep fragments that spread one another are: a text of 14 KB once took all of
    /// the stack, and the process with it. Whatever the caps are, a thread of the usual size prices it or refuses it.
    #[test]
    fn chains_of_fragments() {
        let chain = |fragments: usize, inline: usize| {
            let (open, close) = ("...{".repeat(inline), "}".repeat(inline));
            let link = |number| format!("fragment F{number} on T{{{open}...F{}{close}}}", number + 1);
            let links: String = (0..fragments).map(link).collect();
            format!("{{...F0}}{links}fragment F{fragments} on T{{x}}")
        };
        let wide = Pricing { caps: Caps { tokens: 100_000, ..Caps::default() }, ..Pricing::default() };
        let beyond = [chain(50, 50), chain(2_000, 0), chain(199, 0), chain(8_000, 0)];
        let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(move || {
            for text in beyond {
                let refused = wide.price(&text, None, &Map::new()).unwrap_err();
                assert!(refused.message.starts_with("nesting:"), "{refused}");
            }
            assert_eq!(wide.price(&chain(198, 0), None, &Map::new()).unwrap().points, 1);
        });
        thread.unwrap().join().unwrap();
    }

    /// A fragment that was priced where it stands high is as deep where it stands low, in whichever order they come.
    #[test]
    fn nesting_is_one_in_any_order() {
        let below = format!("fragment Low on T {{ {}x{} }}", "... {".repeat(50), "}".repeat(50));
        let middle = |number: u32| {
            let spread = if number == 3 { "Low".to_owned() } else { format!("M{}", number + 1) };
            format!("fragment M{number} on T {{ {}...{spread}{} }}", "... {".repeat(50), "}".repeat(50))
        };
        let fragments = format!("{below} {} {} {} {}", middle(0), middle(1), middle(2), middle(3));
        for order in ["...Low ...M3 ...M2 ...M1 ...M0", "...M0 ...M1 ...M2 ...M3 ...Low"] {
            let refused = price(&format!("{{ {order} }} {fragments}")).unwrap_err();
            assert!(refused.message.starts_with("nesting:"), "{refused}");
        }
        assert_eq!(points(&format!("{{ ...Low ...M3 ...M2 }} {fragments}")), 3);
    }

    /// Caps hold, each by its own name.
    #[test]
    fn caps() {
        let deep = format!("{}x{}", "{ a ".repeat(16), "}".repeat(16));
        assert!(price(&deep).unwrap_err().message.starts_with("depth: the operation has 16"));
        let aliases = format!("{{ {} }}", (0..51).map(|number| format!("a{number}: x ")).collect::<String>());
        assert!(price(&aliases).unwrap_err().message.starts_with("aliases:"));
        let fields = format!("{{ {} }}", "x ".repeat(1_001));
        assert!(price(&fields).unwrap_err().message.starts_with("fields:"));
    }

    /// Of several operations the named one is priced; without a name none is.
    #[test]
    fn operations() {
        let text = "query A { a } query B { b { c } }";
        let named = |name| Pricing::default().price(text, name, &Map::new()).map(|price| price.points);
        assert_eq!(named(Some("A")), Ok(1));
        assert_eq!(named(Some("B")), Ok(2));
        assert_eq!(named(None).unwrap_err().code, "OPERATION_RESOLUTION_FAILURE");
        assert_eq!(named(Some("C")).unwrap_err().code, "OPERATION_RESOLUTION_FAILURE");
        assert_eq!(price("fragment F on T { x }").unwrap_err().code, "OPERATION_RESOLUTION_FAILURE");
        assert_eq!(price("type Query { a: Int }").unwrap_err().code, "GRAPHQL_VALIDATION_FAILED");
        assert_eq!(price("{").unwrap_err().code, "GRAPHQL_PARSE_FAILED");
    }
}
