//! An engine that follows its policy file.

use std::fs;
use std::sync::{Arc, Mutex};

use tollgate::engine::Reload;
use tollgate::{CheckRequest, Clock, Engine, Ticks};

/// A changed file becomes active with its counters kept, and a broken one is reported while the last good policy stays.
#[test]
fn an_opened_engine_follows_its_file_and_keeps_the_last_good_policy() {
    let path = std::env::temp_dir().join(format!("tollgate-follow-{}.yaml", std::process::id()));
    let limit = |rate: &str| fs::write(&path, format!("limits: [{{name: all, rate: {rate}}}]")).unwrap();
    limit("5/h");
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hears = Arc::clone(&heard);
    let engine = Engine::builder().open(&path).unwrap().on_reload(move |reload| {
        hears.lock().unwrap().push(match reload {
            Reload::Active(report) => report.changed.join(" "),
            Reload::Refused(error) => error.to_string(),
            _ => String::new(),
        });
    });
    let engine = engine.build();
    let left = || {
        let decision = engine.try_check(&CheckRequest::new(), engine.now()).unwrap();
        decision.limits().next().unwrap().outcome.remaining
    };
    assert_eq!(left(), 4);

    limit("s/5");
    eventually(|| engine.maintenance().reload_refusal().is_some());
    assert!(engine.maintenance().reload_refusal().unwrap().contains("upside down"));
    assert_eq!(left(), 3);

    limit("100/h");
    eventually(|| {
        let _ = engine.now();
        engine.policy().sentences()[0].contains("100")
    });
    assert_eq!(engine.maintenance().reload_refusal(), None);
    assert_eq!(left(), 2, "a bucket keeps the units that it has");
    let heard = heard.lock().unwrap();
    assert_eq!(heard.len(), 2, "{heard:?}");
    assert!(heard[0].contains("upside down") && heard[1] == "all", "{heard:?}");
    fs::remove_file(&path).unwrap();
}

/// Waits for the thread that reads the file, for a minute at most.
fn eventually(is_so: impl Fn() -> bool) {
    let clock = Clock::precise();
    for _ in 0..1_200 {
        if is_so() {
            return;
        }
        pollster::block_on(clock.sleep_until(clock.now() + Ticks::from_millis(50)));
    }
    panic!("the file was not read within a minute");
}
