//! Prints `docs/overload.md`: `cargo run --release -p tollgate-sim --example overload > docs/overload.md`.

use std::error::Error;
use std::io::Write;

use tollgate_sim::overload::contrast::Way;
use tollgate_sim::overload::table;

/// What the page's numbers follow from.
const SEED: u64 = 1;

fn main() -> Result<(), Box<dyn Error>> {
    let text = include_str!("overload.md")
        .replace("{scenarios}", table::table(SEED).trim_end())
        .replace("{priorities}", table::priorities(SEED).trim_end())
        .replace("{picture}", table::picture(SEED, Way::Ours).trim_end())
        .replace("{contrast}", table::picture(SEED, Way::Open).trim_end());
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}
