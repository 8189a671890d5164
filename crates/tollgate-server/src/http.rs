//! The HTTP wire. The way of a request: `connection` (its patience) → `route` (what is asked) → `body` (bytes, bounded) →
//! `question` (JSON) → `answer` (the service) → `reply` (the one place where answers and problems become HTTP).

mod connection;
mod patience;
mod route;
mod body;
mod question;
mod answer;
mod problem;
mod reply;

pub(crate) use body::{BATCH_BYTES_MAX, BODY_BYTES_MAX, read as read_json, read_any};
pub(crate) use connection::connection;
pub(crate) use problem::{Kind, Problem};
pub(crate) use question::{Named, Question};
pub(crate) use reply::problem_details;
