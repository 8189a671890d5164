//! The outbound proxy: programs in other languages send their calls to other people's APIs through it, and it keeps the
//! calls within the limits of those APIs. `document` is its section of the config, `provider` one API and its calls,
//! `proxy` finds the provider of a request, `answer` writes what it answers itself, and `connection` serves clients.

mod document;
mod answer;
mod provider;
mod proxy;
mod connection;

pub(crate) use connection::connection;
pub(crate) use document::{OutboundDocument, OutboundPlan};
pub(crate) use proxy::OutboundProxy;
