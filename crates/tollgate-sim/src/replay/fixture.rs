//! Records for tests.

use tollgate::Timestamp;

use crate::log::{Precision, Record};

/// A record at this microsecond, and nothing else.
pub(super) fn record(micros: u64) -> Record<'static> {
    Record {
        arrival: Timestamp::from_unix_micros(micros),
        precision: Precision::Exact,
        duration: None,
        client: None,
        user: None,
        method: None,
        target: None,
        host: None,
        user_agent: None,
        headers: Vec::new(),
        attributes: Vec::new(),
        status: None,
        bytes: None,
        cost: None,
        refused: false,
    }
}
