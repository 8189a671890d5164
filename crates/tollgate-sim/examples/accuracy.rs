//! Prints `docs/accuracy.md`: `cargo run --release -p tollgate-sim --example accuracy > docs/accuracy.md`.

use std::error::Error;
use std::io::Write;

use it::accuracy;

#[path = "../tests/it"]
#[allow(dead_code, reason = "the tests use the rest")]
mod it {
    pub(crate) mod accuracy;
    pub(crate) mod workload;
}

fn main() -> Result<(), Box<dyn Error>> {
    let text = include_str!("accuracy.md")
        .replace("{incident}", &accuracy::incident_table()?)
        .replace("{tables}", accuracy::tables()?.trim_end());
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}
