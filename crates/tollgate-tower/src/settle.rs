//! Settling the cost of a request by its response.

use std::sync::Arc;

use http::header::{HeaderMap, HeaderName};
use http::response;
use tollgate::policy::Ended;

use crate::grpc;

/// The settlement of a request's charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settle {
    /// It stays charged.
    Keep,
    /// It is refunded.
    Refund,
    /// It becomes this cost: the difference is refunded or charged.
    Cost(u64),
}

/// In the extensions of a response: the service did not serve the request, for example for lack of capacity, so
/// [`crate::RateLimitLayer::refund_unserved`] refunds it. [`crate::shed::ShedLayer`] adds it to its refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unserved;

/// In the extensions of a response: the service received the request, but the response is not its own, as when the
/// upstream of a proxy does not answer. Limits that count only failures count it with any status.
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
    /// By the head of a response. Returns `None` for a gRPC call whose status is in its trailers.
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

    /// By the status of a gRPC call, in the trailers or in the head of a response without a body.
    fn of_call(headers: &HeaderMap) -> Option<Self> {
        Some(match grpc::status(headers)? {
            0 => Ending::Success,
            code if grpc::is_server_error(code) => Ending::ServerError,
            _ => Ending::ClientError,
        })
    }
}

/// How a request ended by the head of its response. Returns `None` for a gRPC call whose status is in its trailers.
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

/// The function that decides what happens to a charge.
#[derive(Clone)]
enum Judge {
    Response(Arc<ByResponse>),
    Ending(fn(Ending) -> Settle),
}

/// How costs are settled.
#[derive(Clone, Default)]
pub(crate) struct Settling {
    judge: Option<Judge>,
    /// The header or trailer with the cost of a request.
    cost_header: Option<HeaderName>,
    /// Whether [`Unserved`] requests are refunded.
    pub(crate) refunds_unserved: bool,
}

impl Settling {
    pub(crate) fn by_response(&mut self, by: impl Fn(&response::Parts) -> Settle + Send + Sync + 'static) {
        self.judge = Some(Judge::Response(Arc::new(by)));
    }

    pub(crate) fn by_ending(&mut self, by: fn(Ending) -> Settle) {
        self.judge = Some(Judge::Ending(by));
    }

    pub(crate) fn cost_header(&mut self, name: HeaderName) {
        self.cost_header = Some(name);
    }

    /// Whether responses settle the cost.
    pub(crate) const fn is_any(&self) -> bool {
        self.judge.is_some() || self.cost_header.is_some()
    }

    /// Settles by the head of a response. Returns `None` if the trailers decide.
    pub(crate) fn by_head(&self, head: &response::Parts) -> Option<Settle> {
        if self.refunds_unserved && head.extensions.get::<Unserved>().is_some() {
            return Some(Settle::Refund);
        }
        let stated = self.stated_cost(&head.headers);
        let judged = match &self.judge {
            None => None,
            Some(Judge::Response(by)) => Some(by(head)),
            // A gRPC call has its status in the trailers.
            Some(Judge::Ending(by)) => match Ending::of_head(head) {
                Some(ending) => Some(by(ending)),
                None => return stated,
            },
        };
        match stated.or(judged) {
            None | Some(Settle::Keep) if stated.is_none() && self.cost_header.is_some() => None,
            settle => settle.or(Some(Settle::Keep)),
        }
    }

    /// Settles by the trailers of a response.
    pub(crate) fn by_trailers(&self, trailers: &HeaderMap) -> Option<Settle> {
        self.stated_cost(trailers).or_else(|| match &self.judge {
            Some(Judge::Ending(by)) => Ending::of_call(trailers).map(by),
            _ => None,
        })
    }

    /// The cost in the header or trailer.
    fn stated_cost(&self, headers: &HeaderMap) -> Option<Settle> {
        let cost = headers.get(self.cost_header.as_ref()?)?.to_str().ok()?.trim().parse();
        cost.ok().map(Settle::Cost)
    }
}
