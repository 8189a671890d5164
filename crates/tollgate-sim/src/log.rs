//! Access logs: what a line says about one request.

mod record;

pub use record::{Precision, Record};
