//! A route's `graphql` section: its paths, the cost of operations, and the caps beyond which operations are refused.
//! Compiling is pure; `priced` reads the file of known operations.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use http::HeaderName;
use serde::{Deserialize, Deserializer};
use tollgate_tower::graphql::{BODY_BYTES_MAX, Caps, CostModel};

use crate::paths::{OneOrMore, Paths};

/// Maximum paths of one route, and maximum fields that have their own weight or size.
const PATHS_MAX: usize = 16;
const NAMES_MAX: usize = 10_000;
/// Accepted ranges of the numbers.
const DEPTHS: RangeInclusive<u64> = 1..=100;
const COUNTS: RangeInclusive<u64> = 1..=100_000;
const OPERATIONS: RangeInclusive<u64> = 1..=100;
const POINTS: RangeInclusive<u64> = 1..=1_000_000_000;
const WEIGHTS: RangeInclusive<u64> = 0..=1_000_000_000;
const ENTRIES: RangeInclusive<u64> = 0..=1_000_000;
/// Accepted maximum size of a body that is held to compute its cost.
const BODY_BYTES: RangeInclusive<u64> = 1_024..=1 << 20;

/// The section as the config writes it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GraphqlDocument {
    path: Option<OneOrMore>,
    body_bytes: Option<u64>,
    #[serde(default)]
    caps: CapsDocument,
    field: Option<u64>,
    mutation: Option<u64>,
    subscription: Option<u64>,
    #[serde(default)]
    weights: BTreeMap<String, u64>,
    sizes: Option<Vec<String>>,
    #[serde(default)]
    lists: BTreeMap<String, u64>,
    persisted: Option<PersistedDocument>,
    cost_from: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct CapsDocument {
    depth: Option<u64>,
    fields: Option<u64>,
    aliases: Option<u64>,
    points: Option<u64>,
    tokens: Option<u64>,
    operations: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PersistedDocument {
    file: PathBuf,
    only: Option<bool>,
}

/// Reads a section that is present, even if it is empty, as `Some`.
pub(crate) fn present<'d, D: Deserializer<'d>>(from: D) -> Result<Option<GraphqlDocument>, D::Error> {
    Ok(Some(Option::deserialize(from)?.unwrap_or_default()))
}

/// The file of operations that are known by their hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PersistedPlan {
    pub(crate) file: PathBuf,
    /// Whether all other operations are refused.
    pub(crate) is_closed: bool,
}

/// The compiled GraphQL settings of a route. They are valid, except for the file that they name, which is read later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GraphqlPlan {
    /// These paths and all below them, in every spelling; without a slash at their end.
    pub(crate) paths: Vec<String>,
    pub(crate) body_bytes_max: usize,
    pub(crate) cost_model: CostModel,
    pub(crate) persisted: Option<PersistedPlan>,
    /// The response header that contains the cost of the request.
    pub(crate) cost_from: Option<HeaderName>,
}

/// Compiles the section of a route with these paths.
pub(crate) fn compile(document: GraphqlDocument, route: &Paths, problems: &mut Vec<String>) -> GraphqlPlan {
    let usual = CostModel::default();
    let mut number = |field: &str, given: Option<u64>, usual: u64, accepted: &RangeInclusive<u64>| {
        let number = given.unwrap_or(usual);
        if !accepted.contains(&number) {
            let (least, most) = (accepted.start(), accepted.end());
            problems.push(format!("graphql.{field}: {number} is not accepted; accepted: {least} to {most}"));
        }
        number
    };
    let caps = caps(&document.caps, usual.caps, &mut number);
    let body_bytes = number("body_bytes", document.body_bytes, long(BODY_BYTES_MAX), &BODY_BYTES);
    let field = number("field", document.field, usual.field, &WEIGHTS);
    let mutation = number("mutation", document.mutation, usual.mutation, &WEIGHTS);
    let subscription = number("subscription", document.subscription, usual.subscription, &WEIGHTS);
    for (name, weight) in document.weights.iter().take(NAMES_MAX) {
        number(&format!("weights.{name:.64}"), Some(*weight), 0, &WEIGHTS);
    }
    for (name, entries) in document.lists.iter().take(NAMES_MAX) {
        number(&format!("lists.{name:.64}"), Some(*entries), 0, &ENTRIES);
    }
    let sizes = document.sizes.unwrap_or(usual.sizes);
    names("weights", document.weights.keys(), problems);
    names("lists", document.lists.keys(), problems);
    names("sizes", sizes.iter(), problems);
    GraphqlPlan {
        paths: paths(document.path, route, problems),
        body_bytes_max: usize::try_from(body_bytes).unwrap_or(BODY_BYTES_MAX),
        cost_model: CostModel {
            field,
            mutation,
            subscription,
            weights: document.weights,
            sizes,
            lists: document.lists,
            caps,
        },
        persisted: document.persisted.map(|persisted| PersistedPlan {
            file: persisted.file,
            is_closed: persisted.only.unwrap_or(true),
        }),
        cost_from: document.cost_from.and_then(|name| cost_from(&name, problems)),
    }
}

fn caps(
    document: &CapsDocument,
    usual: Caps,
    number: &mut impl FnMut(&str, Option<u64>, u64, &RangeInclusive<u64>) -> u64,
) -> Caps {
    let short = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let depth = number("caps.depth", document.depth, u64::from(usual.depth), &DEPTHS);
    Caps {
        depth: u32::try_from(depth).unwrap_or(usual.depth),
        fields: number("caps.fields", document.fields, usual.fields, &COUNTS),
        aliases: number("caps.aliases", document.aliases, usual.aliases, &(0..=*COUNTS.end())),
        points: number("caps.points", document.points, usual.points, &POINTS),
        tokens: short(number("caps.tokens", document.tokens, long(usual.tokens), &COUNTS)),
        operations: short(number(
            "caps.operations",
            document.operations,
            long(usual.operations),
            &OPERATIONS,
        )),
    }
}

fn long(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Checks that names of fields and arguments are valid in GraphQL. Others could never be queried.
fn names<'n>(field: &str, names: impl ExactSizeIterator<Item = &'n String>, problems: &mut Vec<String>) {
    if names.len() > NAMES_MAX {
        problems.push(format!("graphql.{field}: more than {NAMES_MAX}; accepted: as many"));
    }
    let is_fine = |name: &str| {
        name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit())
    };
    for name in names.take(NAMES_MAX).filter(|name| !is_fine(name)) {
        problems.push(format!(
            "graphql.{field}: {name:?} is no name in GraphQL; accepted: letters, digits and _, such as searchPosts"
        ));
    }
}

fn paths(given: Option<OneOrMore>, route: &Paths, problems: &mut Vec<String>) -> Vec<String> {
    let given = given.map_or_else(|| vec!["/graphql".to_owned()], OneOrMore::list);
    if given.is_empty() || given.len() > PATHS_MAX {
        problems.push(format!("graphql.path: accepted: 1 to {PATHS_MAX}, such as /graphql"));
    }
    let mut read = Vec::new();
    for path in given.into_iter().take(PATHS_MAX) {
        let is_path =
            path.starts_with('/') && !path.contains(['?', '#', '{', '%', ';']) && !path.contains("//");
        if !is_path {
            problems.push(format!("graphql.path: {path:?} is no path; accepted: such as /graphql"));
        } else if !route.matches(&path) {
            problems.push(format!(
                "graphql.path: {path:?} is none of this route's; accepted: a path that the route is for"
            ));
        }
        read.push(path.trim_end_matches('/').to_owned());
    }
    read
}

fn cost_from(name: &str, problems: &mut Vec<String>) -> Option<HeaderName> {
    let read = name.parse().ok();
    if read.is_none() {
        problems.push(format!(
            "graphql.cost_from: {name:?} is no name of a header; accepted: such as X-GraphQL-Cost"
        ));
    }
    read
}

#[cfg(test)]
mod tests {
    use crate::plan::{RouteDocument, compile};

    use super::*;

    fn compiled(graphql: &str) -> (Option<GraphqlPlan>, Vec<String>) {
        let mut problems = Vec::new();
        let text = format!("- {{path: /api, upstreams: ['http://a'], graphql: {graphql}}}");
        let documents: Vec<RouteDocument> = serde_saphyr::from_str(&text).unwrap();
        (compile(documents, &[], &mut problems).remove(0).graphql, problems)
    }

    /// All fields of the section are read, and the defaults hold for the others.
    #[test]
    fn a_section_is_read() {
        let (plan, problems) = compiled(
            "{path: [/api/graphql/, /api/v2], body_bytes: 2048, caps: {depth: 7, fields: 8, aliases: 0, points: 10, tokens: 11, operations: 1},
              field: 2, mutation: 3, subscription: 4, weights: {search: 50}, sizes: [take], lists: {tags: 20},
              persisted: {file: known.json}, cost_from: X-Cost}",
        );
        assert_eq!(problems, Vec::<String>::new());
        let expected = GraphqlPlan {
            paths: vec!["/api/graphql".to_owned(), "/api/v2".to_owned()],
            body_bytes_max: 2_048,
            cost_model: CostModel {
                field: 2,
                mutation: 3,
                subscription: 4,
                weights: BTreeMap::from([("search".to_owned(), 50)]),
                sizes: vec!["take".to_owned()],
                lists: BTreeMap::from([("tags".to_owned(), 20)]),
                caps: Caps { depth: 7, fields: 8, aliases: 0, points: 10, tokens: 11, operations: 1 },
            },
            persisted: Some(PersistedPlan { file: "known.json".into(), is_closed: true }),
            cost_from: Some(HeaderName::from_static("x-cost")),
        };
        assert_eq!(plan, Some(expected));
        let (plan, problems) = compiled("{path: /api}");
        assert_eq!(problems, Vec::<String>::new());
        assert_eq!(plan.unwrap().cost_model, CostModel::default());
    }

    /// An empty section still prices operations: a route that looks limited is limited.
    #[test]
    fn an_empty_section_is_meant() {
        for empty in ["", "~", "{}"] {
            let text = format!("- {{upstreams: ['http://a'], graphql: {empty}}}");
            let documents: Vec<RouteDocument> = serde_saphyr::from_str(&text).unwrap();
            let plan = compile(documents, &[], &mut Vec::new()).remove(0).graphql;
            assert_eq!(plan.unwrap().paths, ["/graphql"], "{empty:?}");
        }
        let without: Vec<RouteDocument> = serde_saphyr::from_str("- {upstreams: ['http://a']}").unwrap();
        assert_eq!(compile(without, &[], &mut Vec::new()).remove(0).graphql, None);
    }

    /// All problems are reported at once, each with the accepted values.
    #[test]
    fn all_problems_are_reported_together() {
        let (_, problems) = compiled(
            "{path: [/graphql, api, /apix, /api/a?b], body_bytes: 1, caps: {depth: 0, points: 0, operations: 1000},
              field: 9999999999, weights: {'a b': 1, c: 9999999999}, lists: {d: 1000001}, sizes: [''], cost_from: 'x y'}",
        );
        let expected = [
            "caps.depth: 0 is not accepted; accepted: 1 to 100",
            "caps.points: 0 is not accepted; accepted: 1 to 1000000000",
            "caps.operations: 1000 is not accepted; accepted: 1 to 100",
            "body_bytes: 1 is not accepted; accepted: 1024 to 1048576",
            "field: 9999999999 is not accepted; accepted: 0 to 1000000000",
            "weights.c: 9999999999 is not accepted",
            "lists.d: 1000001 is not accepted; accepted: 0 to 1000000",
            "weights: \"a b\" is no name in GraphQL",
            "sizes: \"\" is no name in GraphQL",
            "path: \"/graphql\" is none of this route's",
            "path: \"api\" is no path",
            "path: \"/apix\" is none of this route's",
            "path: \"/api/a?b\" is no path",
            "cost_from: \"x y\" is no name of a header",
        ];
        assert_eq!(problems.len(), expected.len(), "{problems:#?}");
        for (problem, expected) in problems.iter().zip(expected) {
            assert!(problem.starts_with(&format!("routes[0].graphql.{expected}")), "{problem}");
        }
    }
}
