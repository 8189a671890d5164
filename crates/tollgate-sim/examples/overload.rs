//! Prints `docs/overload-measured.md`: `cargo run --release -p tollgate-sim --example overload > docs/overload-measured.md`.

use std::error::Error;
use std::io::Write;

use it::overloaded_server::limiters::LimiterKind;
use it::overloaded_server::table;

#[path = "../tests/it"]
#[allow(dead_code, reason = "the tests use the rest")]
mod it {
    pub(crate) mod overloaded_server;
}

/// The seed of every number on the page.
const SEED: u64 = 1;

fn main() -> Result<(), Box<dyn Error>> {
    let text = include_str!("overload.md")
        .replace("{scenarios}", table::table(SEED).trim_end())
        .replace("{priorities}", table::priorities(SEED).trim_end())
        .replace("{chart}", table::chart(SEED, LimiterKind::Tollgate).trim_end())
        .replace("{unlimited_chart}", table::chart(SEED, LimiterKind::Unlimited).trim_end());
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}
