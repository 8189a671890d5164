//! How properties run: on a fixed list of seeds, so that a failure is everybody's; then on fresh ones, whose failures are
//! saved in `proptest-regressions` and tried first ever after.

use proptest::strategy::Strategy;
use proptest::test_runner::{
    Config, FileFailurePersistence, RngAlgorithm, TestCaseResult, TestRng, TestRunner,
};

/// Seeds that everybody tries. One that ever failed stays here.
const SEEDS: [u8; 4] = [1, 2, 3, 5];
/// Traces of each fixed seed.
const CASES_OF_A_SEED: u32 = 32;
/// Traces of fresh seeds; `PROPTEST_CASES` asks for more.
const FRESH_CASES: u32 = 64;

/// Holds a property against random cases. `saved` is the file, below the crate, that keeps the seeds of failures.
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
