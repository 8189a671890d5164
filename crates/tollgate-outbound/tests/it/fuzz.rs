//! The fuzz target of the dialects on stable: every seed of the corpus, and mutations of them. `cargo fuzz` searches
//! further.

#[allow(unreachable_pub, reason = "the function is public in the target that this file belongs to")]
#[path = "../../../../fuzz/src/outbound.rs"]
mod bodies;
#[allow(clippy::expect_used, reason = "a corpus that cannot be read fails the test")]
#[path = "../../../../fuzz/src/stable.rs"]
mod stable;

/// Pieces that responses are made of, so that mutations say something.
const WORDS: [&str; 44] = [
    "\n",
    "\n\n",
    ": ",
    ", ",
    ";w=60",
    ";q=10;w=1",
    ";pk=:cHsdsRa89w==:",
    "\"default\";r=1;t=2",
    "limit=1, remaining=2, reset=3",
    "HTTP/1.1 429 Too Many Requests\n",
    "HTTP/1.1 403 Forbidden\n",
    "HTTP/1.1 301 Moved\n",
    "X-RateLimit-Remaining: ",
    "X-RateLimit-Limit: ",
    "X-RateLimit-Reset: ",
    "x-ratelimit-remaining-tokens: ",
    "anthropic-ratelimit-requests-limit: ",
    "RateLimit: ",
    "RateLimit-Policy: ",
    "Retry-After: ",
    "Retry-After-Ms: ",
    "Date: ",
    "Age: ",
    "grpc-status: 8\n",
    "grpc-status-details-bin: ",
    "X-GitHub-Request-Id: 1\n",
    "Wed, 18 Nov 2026 20:00:00 GMT",
    "Sunday, 06-Nov-94 08:49:37 GMT",
    "2026-11-18T20:00:00Z",
    "-9999-01-01T00:00:00Z",
    "99999999999999999999999999999999",
    "0.0000000000000000000000001",
    "-1",
    "1e309",
    "6m0s",
    "2562047788015215h",
    "12ms",
    "\"retry_after\": ",
    "\"retryDelay\": \"34s\"",
    "{\"error\": {\"code\": ",
    "\"throttleStatus\": {\"maximumAvailable\": 0, \"currentlyAvailable\": 5, \"restoreRate\": 0}",
    "32/40",
    "20:1,100:120",
    "0:0",
];

#[test]
fn no_response_makes_the_readers_of_dialects_panic() {
    stable::run("response_dialects", &WORDS, 10_000, bodies::response_dialects);
}
