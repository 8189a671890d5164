//! Runs the example: each receiver gets all of its webhooks, evenly spaced. Tasks may join a queue in any order.

use tollgate_testkit::example;

/// Less than the 200 ms between two webhooks, by what a busy machine may delay the first of them.
const GAP_MS_MIN: u64 = 100;

#[test]
fn webhooks_are_evenly_spaced() {
    let printed = example::run(env!("CARGO_BIN_EXE_example-webhooks"), env!("CARGO_MANIFEST_DIR"));
    for customer in ["acme", "globex"] {
        let (mut times, mut events) = (Vec::new(), Vec::new());
        for line in printed.lines().filter(|line| line.contains(customer)) {
            let (time, rest) = line.trim_start().split_once(" ms  ").unwrap();
            times.push(time.parse::<u64>().unwrap());
            events.push(rest.to_owned());
        }
        events.sort();
        assert_eq!(
            events,
            [1, 2, 3, 4].map(|event| format!("{customer}: event {event}, 200 OK")),
            "{printed}"
        );
        assert!(times[3] >= 600, "{printed}");
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= GAP_MS_MIN), "{printed}");
    }
}
