//! Tests of each controller by itself. The simulation tests them in front of a server.

mod queue;
mod worker;
mod fleet;
mod limit;
mod rate;
mod answers;
mod files;
mod controllers;

use tollgate::time::Timestamp;

const T0: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);
