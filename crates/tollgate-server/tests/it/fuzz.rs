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

/// No path has two spellings, and a stranger is nobody else.
#[test]
fn held_request() {
    stable::run("held_request", &HELD_WORDS, 5_000, bodies::held_request);
}
