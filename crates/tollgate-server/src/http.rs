//! The HTTP wire. The way of a request: `listener` (connections and their patience) → `route` (what is asked) → `body` (bytes,
//! bounded) → `question` (JSON) → `service` (the engine) → `reply` (the one place where answers and problems become HTTP).

mod listener;
mod patience;
mod route;
mod body;
mod question;
mod service;
mod holds;
mod problem;
mod reply;

pub(crate) use listener::{bind, serve};
pub(crate) use service::Service;
