//! The cost of a GraphQL request, computed from its text before it runs. A [`GraphqlLayer`] stands outside of a
//! [`crate::RateLimitLayer`]. It reads the body of the request up to a bound, refuses operations beyond hard caps, and puts
//! the cost into the extensions of the request, where [`points`] finds it.
//!
//! ```
//! use tollgate::Engine;
//! use tollgate_tower::RateLimitLayer;
//! use tollgate_tower::graphql::{GraphqlLayer, CostModel, points};
//! let engine = Engine::builder().policy("limits: [{name: points, by: [api_key], rate: 5000/h}]".parse()?).build();
//! let model = GraphqlLayer::new(CostModel::default());
//! // Settled at the cost that the service states in a header, if it does.
//! let limits = RateLimitLayer::new(engine).cost(points).cost_from("x-graphql-cost")?;
//! # let _ = (model, limits);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod persisted;
mod size;
mod cost;
mod request;
mod layer;

use http::request::Parts;

pub use cost::{Caps, CostModel, OperationCost};
pub use layer::{BODY_BYTES_MAX, Graphql, GraphqlFuture, GraphqlLayer};
pub use persisted::Persisted;

/// Why a request has no cost, or one that is too high. The text says what would be accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct GraphqlProblem {
    /// A name for programs.
    pub code: &'static str,
    /// The problem, with the accepted values.
    pub message: String,
}

impl GraphqlProblem {
    fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// The cost of a request in points, as a [`GraphqlLayer`] computed it; 1 for any other request.
#[must_use]
pub fn points(request: &Parts) -> u64 {
    request.extensions.get::<OperationCost>().map_or(1, |cost| cost.points)
}
