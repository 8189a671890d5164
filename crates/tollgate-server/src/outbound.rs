//! The outbound proxy: programs in other languages send their calls to other people's APIs through it, and it keeps the
//! calls within the limits of those APIs. `own_answer` writes its own answers, `estimate` and `usage` count the tokens of
//! calls to models, `graphql` tells mutations from queries, `document` is its section of the config, `response_urls`
//! rewrites the URLs in answers of APIs, `provider` is
//! one API and its calls, `freeze_news` tells the log of long freezes, `proxy` finds the provider of a request, and `connection` serves clients.

mod own_answer;
mod estimate;
mod usage;
mod graphql;
mod document;
mod response_urls;
mod provider;
mod freeze_news;
mod proxy;
mod connection;

pub(crate) use connection::connection;
pub(crate) use document::{OutboundDocument, OutboundPlan, ProviderPlan};
pub(crate) use proxy::OutboundProxy;
