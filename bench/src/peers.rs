//! The peers, each used as its documentation recommends.

pub mod governor;
pub mod throttlecrab;
pub mod limitador;
pub mod pingora;
