//! How properties run: first with a fixed list of seeds, so that every machine sees the same failures, then with fresh
//! ones. Fresh seeds that fail are saved in `proptest-regressions`, and later runs replay them first.

use proptest::strategy::Strategy;
use proptest::test_runner::{
    Config, FileFailurePersistence, RngAlgorithm, TestCaseResult, TestRng, TestRunner,
};

/// The fixed seeds. Add seeds that failed.
const SEEDS: [u8; 4] = [1, 2, 3, 5];
/// Traces of each fixed seed.
const CASES_OF_A_SEED: u32 = 32;
/// Traces of fresh seeds; `PROPTEST_CASES` sets another number.
const FRESH_CASES: u32 = 64;

/// Checks a property with random cases. `saved` is the file, below the crate, with the seeds of earlier failures.
pub(crate) fn hold<S: Strategy>(
    saved: &'static str,
    cases: S,
    property: impl Fn(S::Value) -> TestCaseResult,
) {
    for seed in SEEDS {
        let config = Config { cases: CASES_OF_A_SEED, failure_persistence: None, ..Config::default() };
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
        let mut runner = TestRunner::new_with_rng(config, rng);
        if let Err(failure) = runner.run(&cases, &property) {
            panic!("seed {seed}: {failure}");
        }
    }
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok());
    let config = Config {
        cases: asked.unwrap_or(FRESH_CASES),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(saved))),
        ..Config::default()
    };
    if let Err(failure) = TestRunner::new(config).run(&cases, &property) {
        panic!("{failure}");
    }
}
