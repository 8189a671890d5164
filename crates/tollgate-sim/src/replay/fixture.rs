//! Records for tests.

use tollgate::Timestamp;

use crate::log::{Precision, Record};

/// A record at this microsecond, and nothing else.
pub(super) fn record(micros: u64) -> Record<'static> {
    Record::at(Timestamp::from_unix_micros(micros), Precision::Exact)
}
