//! The JSON schemas of policy, test and config files, which editors use to complete and check them. A test holds them against
//! the readers of the files.

use crate::SUCCESS;
use crate::console::Console;

/// The schema of policy files.
pub(crate) const POLICY: &str = include_str!("schema/policy.json");
/// The schema of the test files of `policy test`.
pub(crate) const TEST: &str = include_str!("schema/test.json");
/// The schema of config files.
pub(crate) const CONFIG: &str = include_str!("schema/config.json");

/// Prints a schema.
pub(crate) fn print(schema: &str, console: &mut Console) -> u8 {
    console.line(schema.trim_end());
    SUCCESS
}
