//! The fuzz targets of the log readers on stable: every seed of the corpus, and mutations of them. `cargo fuzz` searches
//! further.

#[allow(unreachable_pub, reason = "the functions are public in the targets that this file belongs to")]
#[path = "../../../../fuzz/src/logs.rs"]
mod bodies;
#[path = "../../../../fuzz/src/stable.rs"]
mod stable;

use stable::run;

/// Pieces that logs are made of, so that mutations say something.
const WORDS: [&str; 30] = [
    "\n",
    "\r\n",
    "\"",
    "\\\"",
    "\\x22",
    "\\ud83d",
    " - ",
    "[01/Mar/2024:12:00:00 +0000]",
    "[01/Mar/2024:12:00:00 CEST]",
    "2024-03-01T12:00:00.123Z",
    "1709294400.250",
    "99999999999999999999",
    "-1",
    "5e-05",
    "12ms",
    "[2001:db8::1]:443",
    "::ffff:192.0.2.1",
    "fe80::1%eth0",
    "429",
    ",",
    ";",
    "\t",
    "{",
    "}",
    "[",
    "]",
    "null",
    "\"log\":{\"entries\":[{",
    "\u{feff}",
    "\0",
];

macro_rules! targets {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                run(stringify!($name), &WORDS, 500, bodies::$name);
            }
        )*
    };
}

targets! {
    log_any log_clf log_envoy log_alb log_caddy log_traefik log_haproxy log_csv log_ndjson log_har log_decisions
}
