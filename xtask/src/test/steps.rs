//! The steps: each runs commands, and may leave a note about itself.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use super::install;
use super::package::package;
use super::program::try_out;
use super::shell::Shell;
use super::totals::{Totals, thousands};
use super::version::is_at_least;

/// Most crates that a program with only a gate builds.
const GATE_CRATES_MAX: usize = 15;
/// Largest size of the program that users build.
const PROGRAM_BYTES_MAX: u64 = 25_000_000;
/// How many tests run at the same time for each core. Most tests wait for real servers more than they reckon.
const TESTS_PER_CORE: usize = 3;

type Done = Result<(), String>;

/// One check.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) needs: Needs,
    /// Runs first of all. The step goes on beside the others, except those that need what it makes ready.
    pub(crate) first: Option<fn(&mut Shell) -> Done>,
    pub(crate) run: fn(&mut Shell) -> Done,
}

/// The preparations that a step needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Needs {
    /// Rust alone.
    Toolchain,
    /// Everything that `tools` installs.
    Programs,
}

const fn step(name: &'static str, needs: Needs, run: fn(&mut Shell) -> Done) -> Step {
    Step { name, needs, first: None, run }
}

/// The steps that every commit must pass.
pub(crate) const STEPS: &[Step] = &[
    Step { name: "tools", needs: Needs::Toolchain, first: Some(toolchain), run: install::programs },
    step("fmt", Needs::Toolchain, fmt),
    step("clippy", Needs::Toolchain, clippy),
    step("test", Needs::Programs, test),
    step("doc", Needs::Toolchain, doc),
    step("loom", Needs::Toolchain, loom),
    step("deny", Needs::Programs, deny),
    step("smoke", Needs::Toolchain, smoke),
];

/// The steps that take minutes each.
pub(crate) const LONG_STEPS: &[Step] = &[
    step("fuzz", Needs::Programs, fuzz),
    step("release", Needs::Toolchain, release),
    step("package", Needs::Toolchain, package),
    step("drift", Needs::Toolchain, drift),
    step("accuracy", Needs::Toolchain, accuracy),
    step("flood", Needs::Toolchain, flood),
    step("twins", Needs::Programs, twins),
    step("faults", Needs::Programs, faults),
    step("bench", Needs::Toolchain, bench),
];

/// Rust, new enough and with the parts that other steps use, and a C compiler.
fn toolchain(shell: &mut Shell) -> Done {
    let manifest = read(&shell.directories.root.join("Cargo.toml"))?;
    let wanted = manifest.lines().find_map(|line| line.strip_prefix("rust-version = "));
    let wanted = wanted.ok_or("Cargo.toml names no rust-version")?.trim_matches('"').to_owned();
    let printed = shell.output("rustc --version")?;
    let have = printed.split(' ').nth(1).unwrap_or_default();
    if !is_at_least(have, &wanted) {
        return Err(format!(
            "rustc is {have}, and Tollgate needs {wanted} or newer: run `rustup update stable`."
        ));
    }
    if !shell.has("cc") && !shell.has("clang") {
        return Err("there is no C compiler to link with. Install gcc or clang, such as with \
                    `apt-get install gcc libc6-dev`."
            .to_owned());
    }
    for (command, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        if !shell.succeeds(&format!("cargo {command} --version")) {
            shell.run(&format!("rustup component add {component}"))?;
        }
    }
    shell.note = format!("rustc {have}");
    Ok(())
}

fn fmt(shell: &mut Shell) -> Done {
    shell
        .run("cargo fmt --all --check -- -l")
        .map_err(|_| "these files are not formatted; run `cargo fmt --all`".to_owned())
}

/// The library also builds alone without its features, on few crates: that is what a program with one limit gets.
fn clippy(shell: &mut Shell) -> Done {
    shell.run("cargo clippy --workspace --all-targets --all-features -- -D warnings")?;
    shell.run("cargo clippy -p tollgate --no-default-features --lib --example gate -- -D warnings")?;
    let tree = shell.output("cargo tree -p tollgate --no-default-features -e normal --prefix none")?;
    let crates: BTreeSet<&str> = tree.lines().map(|line| line.trim_end_matches(" (*)")).collect();
    if crates.len() <= GATE_CRATES_MAX {
        return Ok(());
    }
    Err(format!(
        "without features tollgate needs {} crates; at most {GATE_CRATES_MAX} are accepted",
        crates.len()
    ))
}

/// Every test, as `.config/nextest.toml` says, and the examples in the documentation, which only `cargo test` runs.
fn test(shell: &mut Shell) -> Done {
    install::nextest(shell)?;
    let threads = TESTS_PER_CORE * available_parallelism().map_or(1, usize::from);
    let tests = shell.run(&format!("cargo nextest run --workspace --profile ci --test-threads {threads}"));
    let examples = shell.run("cargo test --workspace --doc --no-fail-fast");
    count(shell)?;
    tests.and(examples)
}

/// Counts the tests of the step. A step that runs no test has tested nothing.
fn count(shell: &mut Shell) -> Done {
    let totals = Totals::of(&shell.log_text());
    shell.note = totals.note();
    if totals.passed == 0 { Err("no test ran".to_owned()) } else { Ok(()) }
}

fn doc(shell: &mut Shell) -> Done {
    let mut command = shell.command("cargo doc --workspace --no-deps");
    command.env("RUSTDOCFLAGS", "-D warnings");
    shell.run_command(command)
}

/// Every interleaving of the memory table's threads that loom can think of.
fn loom(shell: &mut Shell) -> Done {
    let mut command = shell.command("cargo test -p tollgate --no-default-features --release --lib loom_");
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    command.env("RUSTFLAGS", format!("{flags} --cfg loom").trim());
    command.env("CARGO_TARGET_DIR", shell.directories.target.join("loom"));
    shell.run_command(command)?;
    count(shell)
}

/// Licences, banned crates, and where crates come from. Advisories are left out: their database is fetched from the
/// network, which not every machine that tests has. Where there is one, run `cargo deny check advisories`.
fn deny(shell: &mut Shell) -> Done {
    install::deny(shell)?;
    shell.run("cargo deny --all-features check bans licenses sources")
}

/// The program that the tests were built with, since the one that users get takes minutes to build: [`release`] tries
/// that.
fn smoke(shell: &mut Shell) -> Done {
    shell.run("cargo test --workspace --no-run")?;
    let program = shell.directories.target.join("debug/tollgate");
    try_out(shell, &program)
}

/// The fuzz targets build, and each takes its committed corpus. The tests have already run them on mutations of it.
fn fuzz(shell: &mut Shell) -> Done {
    let mut build = shell.command("cargo build --manifest-path fuzz/Cargo.toml");
    // Beside the other builds, so that what they share is built once.
    build.env("CARGO_TARGET_DIR", &shell.directories.target);
    shell.run_command(build)?;
    let mut inputs = 0;
    for target in files_in(&shell.directories.root.join("fuzz/fuzz_targets"))? {
        let name = target.file_stem().unwrap_or_default();
        let corpus = files_in(&shell.directories.root.join("fuzz/corpus").join(name))?;
        if corpus.is_empty() {
            return Err(format!("{} has no corpus", name.display()));
        }
        let mut command = shell.command("env");
        command.arg(shell.directories.target.join("debug").join(name)).args(&corpus);
        shell.run_command(command)?;
        inputs += corpus.len();
    }
    shell.note = format!("{inputs} inputs");
    Ok(())
}

/// The program as users build it (`cargo run --release`) and as packages have it (`dist`). Both are stripped.
fn release(shell: &mut Shell) -> Done {
    let mut sizes = Vec::new();
    for profile in ["release", "dist"] {
        shell.run(&format!("cargo build --profile {profile} -p tollgate-server"))?;
        let program = shell.directories.target.join(profile).join("tollgate");
        try_out(shell, &program)?;
        let bytes = fs::metadata(&program).map_err(|error| error.to_string())?.len();
        if bytes > PROGRAM_BYTES_MAX {
            return Err(format!("{} has {bytes} bytes", program.display()));
        }
        sizes.push(format!("{profile} has {} MB", bytes / 1_000_000));
    }
    shell.note = sizes.join(", ");
    Ok(())
}

/// A thousand million requests at awkward rates, none off by a tick.
fn drift(shell: &mut Shell) -> Done {
    shell.run("cargo run --release -p tollgate-sim --example drift")
}

/// The accuracy page is what the code gives today.
fn accuracy(shell: &mut Shell) -> Done {
    let page = shell.directories.logs().join("accuracy.md");
    let command = shell.command("cargo run --release -p tollgate-sim --example accuracy");
    shell.run_into(command, &page)?;
    let mut compare = shell.command("diff -u docs/accuracy.md");
    compare.arg(page);
    shell.run_command(compare)
}

/// Ten million new keys: memory stays flat, known keys stay exact.
fn flood(shell: &mut Shell) -> Done {
    shell.run("cargo run --release -p tollgate --example flood -- 10000000")
}

/// The script in Redis beside the Rust functions: more than a million random steps, other ones each time.
fn twins(shell: &mut Shell) -> Done {
    let (seed, steps) = (RandomState::new().hash_one("seed") % 32_768, 200_000);
    shell.print(&format!("seed {seed}"));
    let mut command = shell.command(
        "cargo test --release -p tollgate-redis --features server-tests --lib -- script::tests::differential",
    );
    command.env("TOLLGATE_SEED", seed.to_string()).env("TOLLGATE_STEPS", steps.to_string());
    shell.run_command(command)?;
    count(shell)?;
    shell.note += &format!(", {} steps each, seed {seed}", thousands(steps));
    Ok(())
}

/// Every fault on real servers, with the promises beside what was measured; `test` has already run a few of them. In the
/// release build, since it asks 2,000 times a second.
fn faults(shell: &mut Shell) -> Done {
    let mut command =
        shell.command("cargo test --release -p e2e --test store faults:: -- --nocapture --test-threads 1");
    command.env("TOLLGATE_FAULTS", "all");
    let result = shell.run_command(command);
    let rows = shell.log_text().lines().filter(|line| line.starts_with("| F")).count();
    shell.note = format!("{rows} faults; the table is in {}", shell.log_path().display());
    result
}

/// Not to measure, only to see that the benchmarks still run.
fn bench(shell: &mut Shell) -> Done {
    let mut command =
        shell.command("cargo run --release --manifest-path bench/Cargo.toml --bin library -- --quick");
    command.env("CARGO_TARGET_DIR", shell.directories.target.join("bench"));
    shell.run_command(command)
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

/// The files in a directory, by name.
fn files_in(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let entries =
        fs::read_dir(directory).map_err(|error| format!("cannot read {}: {error}", directory.display()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.is_file());
    files.sort();
    Ok(files)
}
