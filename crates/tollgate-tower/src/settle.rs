//! What a request cost, once its response is known.

use std::sync::Arc;

use http::header::{HeaderMap, HeaderName};
use http::{request, response};
use tollgate::policy::Ended;

use crate::grpc;

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

/// In the extensions of a response: the service did nothing for this request, such as for want of capacity, and says so in time for
/// [`crate::RateLimitLayer::refund_unserved`] to give back what it was charged. [`crate::shed::ShedLayer`] puts it into its refusals.
#[derive(Clone, Debug)]
pub struct Unserved(pub(crate) Arc<request::Parts>);

impl Unserved {
    /// Of the request with this head, as it came from the layer that charged it.
    #[must_use]
    pub fn new(head: request::Parts) -> Self {
        Self(Arc::new(head))
    }
}

/// In the extensions of a response: the service saw the request, and the response is not its own, as that of a proxy whose upstream gave
/// no answer. Limits that count only failures count it, whatever its status is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unanswered;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Success,
    ClientError,
    ServerError,
}

impl Ending {
    /// As the head of a response tells; none where a gRPC call tells it in its trailers.
    fn of_head(head: &response::Parts) -> Option<Self> {
        if grpc::is_answer(head) {
            return Self::of_call(&head.headers);
        }
        Some(match head.status {
            status if status.is_server_error() => Ending::ServerError,
            status if status.is_client_error() => Ending::ClientError,
            _ => Ending::Success,
        })
    }

    /// As the status of a gRPC call tells, in the head of a response that has no body or in its trailers.
    fn of_call(headers: &HeaderMap) -> Option<Self> {
        Some(match grpc::status(headers)? {
            0 => Ending::Success,
            code if grpc::is_server_error(code) => Ending::ServerError,
            _ => Ending::ClientError,
        })
    }
}

/// What the head of a response says about how its request ended; none where a gRPC call tells it in its trailers.
pub(crate) fn ended(head: &response::Parts) -> Option<Ended> {
    if head.extensions.get::<Unanswered>().is_some() {
        return Some(Ended::Failed);
    }
    if grpc::is_answer(head) {
        return grpc::status(&head.headers).map(|code| Ended::Status(grpc::http_status(code)));
    }
    Some(Ended::Status(head.status.as_u16()))
}

type ByResponse = dyn Fn(&response::Parts) -> Settle + Send + Sync;

/// Who says what becomes of a charge.
#[derive(Clone)]
enum Judge {
    Response(Arc<ByResponse>),
    Ending(fn(Ending) -> Settle),
}

/// How costs are settled.
#[derive(Clone, Default)]
pub(crate) struct Settling {
    judge: Option<Judge>,
    /// The header or trailer that tells what a request cost.
    told_by: Option<HeaderName>,
    /// Whether what is [`Unserved`] is given back.
    pub(crate) refunds_unserved: bool,
}

impl Settling {
    pub(crate) fn by_response(&mut self, by: impl Fn(&response::Parts) -> Settle + Send + Sync + 'static) {
        self.judge = Some(Judge::Response(Arc::new(by)));
    }

    pub(crate) fn by_ending(&mut self, by: fn(Ending) -> Settle) {
        self.judge = Some(Judge::Ending(by));
    }

    pub(crate) fn told_by(&mut self, name: HeaderName) {
        self.told_by = Some(name);
    }

    /// Whether a response says anything about what its request cost.
    pub(crate) const fn is_any(&self) -> bool {
        self.judge.is_some() || self.told_by.is_some()
    }

    /// What the head of a response says; none if that is left to its trailers.
    pub(crate) fn by_head(&self, head: &response::Parts) -> Option<Settle> {
        if self.refunds_unserved && head.extensions.get::<Unserved>().is_some() {
            return Some(Settle::Refund);
        }
        let told = self.told(&head.headers);
        let judged = match &self.judge {
            None => None,
            Some(Judge::Response(by)) => Some(by(head)),
            // A call says at its end how it ended.
            Some(Judge::Ending(by)) => match Ending::of_head(head) {
                Some(ending) => Some(by(ending)),
                None => return told,
            },
        };
        match told.or(judged) {
            None | Some(Settle::Keep) if told.is_none() && self.told_by.is_some() => None,
            settle => settle.or(Some(Settle::Keep)),
        }
    }

    /// What the trailers of a response say.
    pub(crate) fn by_trailers(&self, trailers: &HeaderMap) -> Option<Settle> {
        self.told(trailers).or_else(|| match &self.judge {
            Some(Judge::Ending(by)) => Ending::of_call(trailers).map(by),
            _ => None,
        })
    }

    /// What a header or trailer says.
    fn told(&self, headers: &HeaderMap) -> Option<Settle> {
        let cost = headers.get(self.told_by.as_ref()?)?.to_str().ok()?.trim().parse();
        cost.ok().map(Settle::Cost)
    }
}
