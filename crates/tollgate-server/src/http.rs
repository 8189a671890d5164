//! The HTTP wire. The way of a request: `connection` (its patience) → `route` (what is asked) → `access` (by whom) → `body` (bytes, bounded) →
//! `question` (JSON) → `answer` (the service) → `reply` (the one place where answers and problems become HTTP).

mod connection;
mod patience;
mod route;
mod access;
mod body;
mod question;
mod answer;
mod problem;
mod reply;

pub(crate) use connection::connection;
