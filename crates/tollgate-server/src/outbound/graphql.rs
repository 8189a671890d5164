//! The operation of a GraphQL call, by its body: APIs count mutations and queries differently.

use serde::Deserialize;
use serde_json::Map;
use tollgate::RequestError;
use tollgate_outbound::Call;
use tollgate_tower::graphql::{Caps, CostModel};

/// The attribute that has it.
const OPERATION: &str = "operation";
/// How the paths of such calls end.
const PATHS: [&str; 2] = ["/graphql", "/graphql.json"];

#[derive(Deserialize)]
struct Body {
    query: String,
    #[serde(rename = "operationName")]
    name: Option<String>,
}

/// Adds the operation to a call that has none. A body that cannot be understood adds nothing: the API will refuse it.
pub(super) fn with_operation(call: Call, path: &str, body: &[u8]) -> Result<Call, RequestError> {
    if call.text(OPERATION).is_some() || !PATHS.iter().any(|end| path.ends_with(end)) {
        return Ok(call);
    }
    match operation(body) {
        Some(operation) => call.with(OPERATION, operation),
        None => Ok(call),
    }
}

fn operation(body: &[u8]) -> Option<&'static str> {
    const MUTATION: u64 = 5;
    const SUBSCRIPTION: u64 = 3;
    let body: Body = serde_json::from_slice(body).ok()?;
    // Only the kind of the operation costs anything.
    let caps = Caps { depth: 100, fields: u64::MAX, aliases: u64::MAX, points: u64::MAX, ..Caps::default() };
    let model = CostModel {
        field: 0,
        mutation: MUTATION,
        subscription: SUBSCRIPTION,
        sizes: Vec::new(),
        caps,
        ..CostModel::default()
    };
    Some(match model.cost(&body.query, body.name.as_deref(), &Map::new()).ok()?.points {
        MUTATION => "mutation",
        SUBSCRIPTION => "subscription",
        _ => "query",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation_of(query: &str, name: &str) -> Option<&'static str> {
        operation(
            serde_json::json!({"query": query, "operationName": name, "variables": {"n": 1}})
                .to_string()
                .as_bytes(),
        )
    }

    /// The operation that is executed counts, whatever else the document has.
    #[test]
    fn the_body_names_the_operation() {
        let anonymous = |query: &str| operation(serde_json::json!({"query": query}).to_string().as_bytes());
        assert_eq!(anonymous("{ viewer { login } }"), Some("query"));
        assert_eq!(anonymous("mutation { addStar(input: {id: 1}) { id } }"), Some("mutation"));
        assert_eq!(anonymous("# mutation\nquery mutation { a(text: \"mutation {}\") }"), Some("query"));
        assert_eq!(anonymous("subscription { a }"), Some("subscription"));
        let several = "query Q { a } mutation M { b(first: 100) { c } }";
        assert_eq!(
            (operation_of(several, "Q"), operation_of(several, "M")),
            (Some("query"), Some("mutation"))
        );
    }

    /// Other bodies, and calls that have an operation of their own, are left alone.
    #[test]
    fn other_bodies_name_none() {
        for body in ["", "[]", "{}", r#"{"query": 1}"#, r#"{"query": "mutation {"}"#] {
            assert_eq!(operation(body.as_bytes()), None, "{body}");
        }
        let mutation = br#"{"query": "mutation { a }"}"#;
        let added = |call: Call, path: &str| {
            let call = with_operation(call, path, mutation).unwrap();
            call.text(OPERATION).map(str::to_owned)
        };
        assert_eq!(added(Call::new(), "/graphql").as_deref(), Some("mutation"));
        assert_eq!(added(Call::new(), "/admin/api/2026-01/graphql.json").as_deref(), Some("mutation"));
        assert_eq!(added(Call::new(), "/repos"), None);
        let own = Call::new().with(OPERATION, "query").unwrap();
        assert_eq!(added(own, "/graphql").as_deref(), Some("query"));
    }
}
