//! The server's fuzz targets on stable. Seeded, so a failure repeats; `cargo fuzz` searches further.

#[allow(unreachable_pub, reason = "the functions are public to the tests of another crate, too")]
#[path = "../../../../fuzz/src/mutation.rs"]
mod mutation;

use mutation::run;
use tollgate_server::fuzzing;

const ENVOY_WORDS: [&str; 22] = [
    "domain: d\n",
    "descriptors:\n",
    "- key: ",
    "value: ",
    "rate_limit: {",
    "unit: ",
    "second",
    "month",
    "requests_per_unit: ",
    "unlimited: true",
    "shadow_mode: true",
    "share_threshold: true",
    "replaces: [{name: x}]",
    "*",
    "_",
    "4294967295",
    "-1",
    "0",
    "{}",
    "[]",
    "\u{202e}",
    "\n---\n",
];
const LIMITADOR_WORDS: [&str; 20] = [
    "- namespace: n\n",
    "max_value: ",
    "seconds: ",
    "conditions: [",
    "variables: [",
    "descriptors[0]",
    "['user']",
    ".path",
    "limit.name",
    "int(",
    "size(",
    "startsWith('/a')",
    " == ",
    " && ",
    "!",
    "18446744073709551615",
    "-1",
    "0",
    "[]",
    "\u{202e}",
];
const JSON_WORDS: [&str; 14] = [
    "\"domain\":",
    "\"descriptors\":[",
    "\"entries\":[",
    "\"limit\":{",
    "\"unit\":",
    "\"UNKNOWN\"",
    "99",
    "-1",
    "1e309",
    "null",
    "{}",
    "\"hitsAddend\":",
    "18446744073709551616",
    "\\u0000",
];

/// No bytes make the reader of envoyproxy/ratelimit's files panic.
#[test]
fn envoy_file() {
    run("envoy_file", &ENVOY_WORDS, 1_000, fuzzing::envoy_file);
}

/// No bytes make the reader of Limitador's files panic.
#[test]
fn limitador_file() {
    run("limitador_file", &LIMITADOR_WORDS, 400, fuzzing::limitador_file);
}

/// No body of `/json` makes it panic.
#[test]
fn rls_json() {
    run("rls_json", &JSON_WORDS, 2_000, fuzzing::rls_json);
}
