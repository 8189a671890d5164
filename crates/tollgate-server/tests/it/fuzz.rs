//! The fuzz targets of the server on stable. `cargo fuzz` searches further.

#[path = "../../../../fuzz/src/server.rs"]
mod bodies;
#[path = "../../../../fuzz/src/stable.rs"]
mod stable;

/// Pieces that commands are made of, so that mutations say something.
const RESP_WORDS: [&str; 26] = [
    "*1\r\n",
    "*5\r\n",
    "*-1\r\n",
    "$0\r\n\r\n",
    "$1\r\n0\r\n",
    "$2\r\n-1\r\n",
    "$19\r\n9223372036854775807\r\n",
    "$20\r\n-9223372036854775808\r\n",
    "$11\r\nCL.THROTTLE\r\n",
    "$8\r\nTHROTTLE\r\n",
    "$8\r\nTG.CHECK\r\n",
    "$4\r\nCOST\r\n",
    "$5\r\nHELLO\r\n",
    "$1\r\n3\r\n",
    "$6\r\nCLIENT\r\n",
    "$7\r\nCOMMAND\r\n",
    "$4\r\nINFO\r\n",
    "$5\r\nRESET\r\n",
    "PING\r\n",
    "ECHO ",
    "\"",
    "'",
    "\\x",
    "\r\n",
    "\0",
    "99999999999999999999",
];

/// No bytes make the RESP wire panic, and its replies are well formed.
#[test]
fn resp_frames() {
    stable::run("resp_frames", &RESP_WORDS, 500, bodies::resp_frames);
}

/// Pieces that requests are made of.
const FRAMING_WORDS: [&str; 14] = [
    "\r\n",
    "\n",
    "\r\n\r\n",
    "GET / HTTP/1.1\r\n",
    "Content-Length: 5\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Upgrade: x\r\n",
    "0\r\n\r\n",
    "5\r\n",
    ";a=b",
    ": ",
    " ",
    "ffffffffffffffff",
    "\0",
];

/// No bytes make the reader of framing panic, and it does not matter where they are cut.
#[test]
fn gateway_framing() {
    stable::run("gateway_framing", &FRAMING_WORDS, 3_000, bodies::gateway_framing);
}

/// Pieces that questions are made of.
const QUESTION_WORDS: [&str; 20] = [
    "{\"attributes\":{",
    "\"cost\":",
    "\"api_key\":\"k\"",
    "}",
    "]",
    "[",
    ",",
    "\"\\u0061\"",
    "\\ud800",
    "1e3",
    "5.0",
    "-0.0",
    "9007199254740991",
    "9007199254740993.0",
    "-9223372036854775808",
    "1e999",
    "null",
    "true",
    "\u{202e}",
    "\0",
];

/// No bytes make the reader of questions panic, and what it accepts it reads as anybody would.
#[test]
fn http_question() {
    stable::run("http_question", &QUESTION_WORDS, 5_000, bodies::http_question);
}

/// Pieces that proxied requests are made of.
const HELD_WORDS: [&str; 16] = [
    "%2e",
    "%2F",
    "%5c",
    "//",
    "/../",
    "/./",
    "%00",
    "%c3%a9",
    "\\",
    ", ",
    "::ffff:",
    "127.0.0.1",
    "[::1]:80",
    "http://",
    "?",
    "\n",
];

/// No path has two spellings, and an unknown client has no other client's identity.
#[test]
fn held_request() {
    stable::run("held_request", &HELD_WORDS, 5_000, bodies::held_request);
}

/// Pieces of names, numbers and tags, so that mutations say something.
const RLS_WORDS: [&str; 12] = [
    "\n\u{3}api",
    "\u{12}",
    "\u{1a}\u{0}",
    "\u{1a}\u{2}\u{8}\u{7f}",
    " \u{1}",
    "\u{18}\u{5}",
    "\n\u{7}api_key",
    "\n\u{6}tenant",
    "\n\u{6}tokens",
    "\u{12}\u{2}40",
    "\u{0}",
    "\u{7f}",
];

/// No bytes make the gRPC wire panic, and every question gets an answer that fits it.
#[test]
fn rls_message() {
    stable::run("rls_message", &RLS_WORDS, 1_500, tollgate_server::fuzzing::rls_message);
}

/// No bytes make the quota service panic, and every bucket gets an assignment.
#[test]
fn rlqs_message() {
    stable::run("rlqs_message", &RLS_WORDS, 500, tollgate_server::fuzzing::rlqs_message);
}

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
    stable::run("envoy_file", &ENVOY_WORDS, 1_000, tollgate_server::fuzzing::envoy_file);
}

/// No bytes make the reader of Limitador's files panic.
#[test]
fn limitador_file() {
    stable::run("limitador_file", &LIMITADOR_WORDS, 400, tollgate_server::fuzzing::limitador_file);
}

/// No body of `/json` makes it panic.
#[test]
fn rls_json() {
    stable::run("rls_json", &JSON_WORDS, 2_000, tollgate_server::fuzzing::rls_json);
}
