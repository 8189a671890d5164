//! What the system tells about this process.

use std::fs;

use tollgate::Timestamp;
use tollgate::time::TICKS_PER_SECOND;

use super::Sample;
use super::names::{LOG_LINES, PROCESS_FILES, PROCESS_FILES_MAX, PROCESS_MEMORY, PROCESS_START};
use crate::listen::descriptors;
use crate::serve::log;

/// The numbers of a process that started then. Where the system does not tell, a number is left out.
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

fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1_024)
}

fn open_files() -> Option<u64> {
    u64::try_from(fs::read_dir("/proc/self/fd").ok()?.count()).ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// A process that runs has memory and open files.
    #[test]
    fn a_process_has_memory_and_files() {
        assert!(resident_bytes().is_some_and(|bytes| bytes > 1 << 20));
        assert!(open_files().is_some_and(|files| files > 2));
        assert!(descriptors().is_some_and(|most| most > 2));
    }
}
