//! Runs the example: each receiver gets its webhooks in order and evenly spaced.

use tollgate_testkit::example;

/// Less than the 200 ms between two webhooks, by what a busy machine may delay the first of them.
const GAP_MS_MIN: u64 = 100;

#[test]
fn webhooks_are_evenly_spaced() {
    let printed = example::run(env!("CARGO_BIN_EXE_example-webhooks"), env!("CARGO_MANIFEST_DIR"));
    for customer in ["acme", "globex"] {
        let mut times = Vec::new();
        for line in printed.lines().filter(|line| line.contains(customer)) {
            let (time, rest) = line.trim_start().split_once(" ms  ").unwrap();
            times.push(time.parse::<u64>().unwrap());
            assert_eq!(rest, format!("{customer}: event {}, 200 OK", times.len()), "{printed}");
        }
        assert_eq!(times.len(), 4, "{printed}");
        assert!(times[3] >= 600, "{printed}");
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= GAP_MS_MIN), "{printed}");
    }
}
