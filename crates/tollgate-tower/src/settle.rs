//! What a request cost, once its response is known.

use std::sync::Arc;

use http::header::{HeaderMap, HeaderName};
use http::response;

/// What becomes of what a request was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settle {
    /// It stays charged.
    Keep,
    /// All of it is given back.
    Refund,
    /// This is what it cost: the rest is given back, or what is missing charged.
    Cost(u64),
}

type ByResponse = dyn Fn(&response::Parts) -> Settle + Send + Sync;

/// How costs are settled.
#[derive(Clone, Default)]
pub(crate) struct Settling {
    by_response: Option<Arc<ByResponse>>,
    /// The header or trailer that tells what a request cost.
    told_by: Option<HeaderName>,
}

impl Settling {
    pub(crate) fn by_response(&mut self, by: impl Fn(&response::Parts) -> Settle + Send + Sync + 'static) {
        self.by_response = Some(Arc::new(by));
    }

    pub(crate) fn told_by(&mut self, name: HeaderName) {
        self.told_by = Some(name);
    }

    /// Whether a response says anything about what its request cost.
    pub(crate) const fn is_any(&self) -> bool {
        self.by_response.is_some() || self.told_by.is_some()
    }

    /// What the head of a response says; none if that is left to its trailers.
    pub(crate) fn by_head(&self, head: &response::Parts) -> Option<Settle> {
        let told = self.told(&head.headers);
        let judged = || self.by_response.as_ref().map(|by| by(head));
        match told.or_else(judged) {
            None | Some(Settle::Keep) if told.is_none() && self.told_by.is_some() => None,
            settle => settle.or(Some(Settle::Keep)),
        }
    }

    /// What a header or trailer says.
    pub(crate) fn told(&self, headers: &HeaderMap) -> Option<Settle> {
        let cost = headers.get(self.told_by.as_ref()?)?.to_str().ok()?.trim().parse();
        cost.ok().map(Settle::Cost)
    }
}
