//! The HTTP wire. The way of a request: `connection` (its patience) → `route` (what is asked) → `body` (bytes, bounded) →
//! `question` (JSON) → `answer` (the service) → `reply` (the one place where answers and problems become HTTP).

mod connection;
mod patience;
mod route;
mod body;
mod question;
mod answer;
mod rls_json;
mod limitador;
mod problem;
mod reply;

pub(crate) use connection::connection;
pub(crate) use rls_json::{document as rls_document, question as rls_question};
