//! The fuzz targets of the core on stable: every seed of the corpus, and mutations of them that know a little about what they
//! mutate. `cargo fuzz` searches further.

#[allow(unreachable_pub, reason = "the functions are public in the crate that this file belongs to")]
#[path = "../../../../fuzz/src/lib.rs"]
mod bodies;
#[path = "../../../../fuzz/src/stable.rs"]
mod stable;

use std::fs;
use std::path::Path;

use stable::run;

/// Pieces that the formats are made of, so that mutations say something.
const POLICY_WORDS: [&str; 39] = [
    "limits:",
    "- name: ",
    "rate: ",
    "by: [",
    "when: ",
    "burst: ",
    "algorithm: ",
    "gcra",
    "fixed-window",
    "sliding-log",
    "leaky-bucket",
    "queue: ",
    "concurrency: ",
    "tier_by: ",
    "tiers: {",
    "overrides: {",
    "cost: ",
    "mode: shadow",
    "enforce_percent: ",
    "extra_attributes: none",
    "align: calendar",
    "timezone: ",
    "precision: ",
    "18446744073709551615",
    "-1",
    "0",
    "1e309",
    "100/s burst 200",
    "path.startsWith('/v1')",
    "size(path) > ",
    " && ",
    " || ",
    "!",
    "&a ",
    "*a",
    "<<: ",
    "\n",
    "{}",
    "\u{202e}",
];
const RATE_WORDS: [&str; 18] = [
    "/",
    " per ",
    "s",
    "min",
    "µs",
    "month",
    "year",
    "burst",
    "k",
    "M",
    "_",
    "0",
    "1",
    "18446744073709551615",
    "9999999",
    "-",
    ".",
    " ",
];
const BYTE_WORDS: [&str; 8] = ["\0", "\u{1}", "\u{6}", "\u{7}", "\r\n", "\"", "\\", "\u{7f}"];

/// No bytes make the policy compiler panic.
#[test]
fn policy_file() {
    run("policy_file", &POLICY_WORDS, 2_500, bodies::policy_file);
}

/// No text makes a rate panic, and what it reads counts rightly.
#[test]
fn rate_parser() {
    run("rate_parser", &RATE_WORDS, 4_000, bodies::rate_parser);
}

/// No two lists of parts are one key.
#[test]
fn key_encoding() {
    run("key_encoding", &BYTE_WORDS, 600, bodies::key_encoding);
}

/// No bytes make the reader of snapshots panic. The seeds are what this version writes, so that the corpus follows the format.
#[test]
fn snapshot() {
    for (name, changed) in [("plain", false), ("changed", true)] {
        let seed = bodies::snapshot_seed(changed);
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/snapshot").join(name);
        let committed = fs::read(&file).unwrap_or_default();
        if committed.get(..12) != seed.get(..12) {
            fs::write(&file, &seed).expect("it can be written");
            panic!("the format has changed: {} was written anew, commit it", file.display());
        }
    }
    run("snapshot", &BYTE_WORDS, 1_500, bodies::snapshot);
}

/// Every header can be sent.
#[test]
fn header_list() {
    run("header_list", &BYTE_WORDS, 2_500, bodies::header_list);
}
