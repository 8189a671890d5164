//! Tests of the controllers one by one. How they do in front of a server is for the simulation to tell.

mod line;
mod worker;
mod fleet;
mod limit;
mod rate;
mod answers;
mod files;
mod controllers;

use crate::time::Timestamp;

/// When tests begin.
const T0: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);
