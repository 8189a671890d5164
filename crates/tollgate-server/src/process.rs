//! The system's report about this process.

use std::fs;

/// The resident memory, in bytes.
pub(crate) fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1_024)
}

/// The number of open files.
pub(crate) fn open_files() -> Option<u64> {
    u64::try_from(fs::read_dir("/proc/self/fd").ok()?.count()).ok()
}

/// The limit on file descriptors, if the system reports it. Without it, the server depends on the pause after a refused
/// accept.
pub(crate) fn descriptors() -> Option<usize> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// A running process has memory and open files.
    #[test]
    fn a_process_has_memory_and_files() {
        assert!(resident_bytes().is_some_and(|bytes| bytes > 1 << 20));
        assert!(open_files().is_some_and(|files| files > 2));
        assert!(descriptors().is_some_and(|most| most > 2));
    }
}
