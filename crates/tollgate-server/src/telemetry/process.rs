//! Metrics about this process.

use tollgate::Timestamp;
use tollgate::time::TICKS_PER_SECOND;

use super::Sample;
use super::names::{LOG_LINES, PROCESS_FILES, PROCESS_FILES_MAX, PROCESS_MEMORY, PROCESS_START};
use crate::log;
use crate::process::{descriptors, open_files, resident_bytes};

/// The numbers of a process with this start time. A number that the system does not provide is left out.
pub(crate) fn samples(started: Timestamp) -> Vec<Sample> {
    let mut samples = vec![
        Sample::new(&PROCESS_START, started.unix_micros() / TICKS_PER_SECOND),
        Sample::new(&LOG_LINES, log::lost()),
    ];
    samples.extend(resident_bytes().map(|bytes| Sample::new(&PROCESS_MEMORY, bytes)));
    samples.extend(open_files().map(|files| Sample::new(&PROCESS_FILES, files)));
    let most = descriptors().and_then(|most| u64::try_from(most).ok());
    samples.extend(most.map(|most| Sample::new(&PROCESS_FILES_MAX, most)));
    samples
}
