//! What a GraphQL request costs, told from its text before anybody runs it. A [`GraphqlLayer`] stands outside of a
//! [`crate::RateLimitLayer`]: it reads the request's body, which is bounded, refuses what is beyond hard caps, and leaves the price in
//! the request's extensions, where [`points`] finds it.
//!
//! ```
//! use tollgate::{Clock, Engine, Policy};
//! use tollgate_tower::RateLimitLayer;
//! use tollgate_tower::graphql::{GraphqlLayer, Pricing, points};
//! let (policy, _) = Policy::compile("policy.yaml", b"limits: [{name: points, by: [api_key], rate: 5000/h}]")?;
//! let pricing = GraphqlLayer::new(Pricing::default());
//! // Settled at what the service says that it cost, where it says so.
//! let limits = RateLimitLayer::new(Engine::new(policy, Clock::precise().now())).cost(points).cost_from("x-graphql-cost")?;
//! # let _ = (pricing, limits);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod layer;
mod once;
mod persisted;
mod size;
mod price;
mod question;

use http::request::Parts;

pub use layer::{BODY_BYTES_MAX, Graphql, GraphqlFuture, GraphqlLayer};
pub use persisted::Persisted;
pub use price::{Caps, Price, Pricing};

/// Why a request has no price, or one that is not accepted; the text says what would be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Unpriced {
    /// A name for programs.
    pub code: &'static str,
    /// What is wrong, and what would be accepted.
    pub message: String,
}

impl Unpriced {
    fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// The points of a request that a [`GraphqlLayer`] has priced; 1 for any other.
#[must_use]
pub fn points(request: &Parts) -> u64 {
    request.extensions.get::<Price>().map_or(1, |price| price.points)
}
