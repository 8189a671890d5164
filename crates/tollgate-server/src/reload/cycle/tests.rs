use std::fs;

use tollgate::{CheckRequest, Engine, ManualClock};
use tollgate_testkit::Scratch;

use super::*;
use crate::policy_spelling::Supply;
use crate::protocol::Protocol;
use crate::reload::{ReloadSettings, Reloader, start};

const FIVE: &str = "limits: [{name: a, rate: 5/h}]";
const SIX: &str = "limits: [{name: a, rate: 6/h}]";

/// A reload without a server: the test runs each cycle.
struct Bench {
    scratch: Scratch,
    policy: PathBuf,
    reload: PolicyReload<tollgate::MemoryStore>,
    reloader: Reloader,
}

impl Bench {
    fn new(scratch: Scratch, force_reload: bool) -> Self {
        Self::serving(scratch, force_reload, ServedRequests::default())
    }

    fn serving(scratch: Scratch, force_reload: bool, served: ServedRequests) -> Self {
        let policy = scratch.path("policy.yaml");
        let settings = ReloadSettings { state_dir: Some(scratch.path("state")), is_forced: force_reload };
        let mut start =
            start(Some(&policy), settings.state_dir.as_deref(), &CredentialAttributes::default()).unwrap();
        let time = ManualClock::new();
        let (reloader, watcher) = Watcher::new(&mut start, Some(&policy), &settings, served, time.now());
        let engine = Engine::builder().policy(start.loaded.rules.into_parts().0).clock(time.clock()).build();
        let (reload, _) = PolicyReload::new(watcher, Arc::new(Service::new(engine, time.clock())));
        Self { scratch, policy, reload, reloader }
    }

    fn started(text: &str) -> Self {
        let scratch = Scratch::new();
        scratch.write("policy.yaml", text);
        Self::new(scratch, false)
    }

    fn write(&self, text: &str) {
        self.scratch.write("policy.yaml", text);
    }

    /// The active limit, read without a charge.
    fn limit(&self) -> u64 {
        let request = CheckRequest::new().cost(0).unwrap();
        let asked = self.reload.service.check(&request, self.reload.now(), Protocol::Http);
        let decision = tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(asked);
        decision.limits().filter_map(|status| Some(status.quota?.capacity())).max().unwrap_or(0)
    }

    /// Looks as many times as a stable change needs.
    fn looks(&self) -> Result<PolicyOutcome, String> {
        self.reload.run_cycle(ReloadMode::OnChange, "a test")?;
        self.reload.run_cycle(ReloadMode::OnChange, "a test")
    }

    fn error(&self) -> String {
        self.reloader.status().error.as_ref().map(|error| error.text.clone()).unwrap_or_default()
    }
}

/// A change is loaded after two looks. An unchanged file is not loaded.
#[test]
fn a_change_is_taken_when_it_holds_still() {
    let bench = Bench::started(FIVE);
    assert_eq!(bench.looks(), Ok(PolicyOutcome::Nothing));
    bench.write(SIX);
    assert_eq!(
        (bench.reload.run_cycle(ReloadMode::OnChange, "a test"), bench.limit()),
        (Ok(PolicyOutcome::Nothing), 5)
    );
    assert!(
        matches!(bench.reload.run_cycle(ReloadMode::OnChange, "a test"), Ok(PolicyOutcome::Reloaded(report)) if report.changed == ["a"])
    );
    assert_eq!(bench.limit(), 6);
    let status = bench.reloader.status();
    assert_eq!((status.good, status.bad, status.is_degraded()), (1, 0, false));
    assert_eq!(status.loaded_by, "a test");
    assert_eq!(status.version, Some(file_watch::Version::of(SIX.as_bytes())));
}

/// The story: a limit by an attribute that nothing supplies was reported at the start, and not after a reload that brought it.
/// The status has the same words as at the start, for as long as the policy is active.
#[test]
fn a_reload_warns_as_the_start_does() {
    const WRONG: &str = "limits: [{name: a, by: [tenannt_id], rate: 6/h}]";
    let served = || ServedRequests { supply: Supply::Known, ..ServedRequests::default() };
    let written = |text: &str| {
        let scratch = Scratch::new();
        scratch.write("policy.yaml", text);
        scratch
    };
    let bench = Bench::serving(written(FIVE), false, served());
    assert!(bench.reloader.status().warnings.is_empty());
    bench.write(WRONG);
    bench.reload.run_cycle(ReloadMode::Now, "a test").unwrap();
    let warnings = bench.reloader.status().warnings.clone();
    assert!(matches!(&warnings[..], [one] if one.contains("the limit never applies")), "{warnings:?}");
    bench.reload.run_cycle(ReloadMode::Now, "a test").unwrap();
    assert_eq!(bench.reloader.status().warnings, warnings);
    let started = Bench::serving(written(WRONG), false, served());
    let without_file = |warnings: &[String]| {
        warnings.iter().map(|text| text.split_once("policy.yaml:").unwrap().1.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(without_file(&started.reloader.status().warnings), without_file(&warnings));
    bench.write(FIVE);
    bench.reload.run_cycle(ReloadMode::Now, "a test").unwrap();
    assert!(bench.reloader.status().warnings.is_empty());
}

/// An explicit reload does not wait for a stable file.
#[test]
fn now_means_now() {
    let bench = Bench::started(FIVE);
    bench.write(SIX);
    assert!(matches!(bench.reload.run_cycle(ReloadMode::Now, "a test"), Ok(PolicyOutcome::Reloaded(_))));
    assert_eq!(
        (bench.limit(), bench.reload.run_cycle(ReloadMode::Now, "a test")),
        (6, Ok(PolicyOutcome::Nothing))
    );
    assert_eq!(bench.reloader.status().good, 1);
}

/// A file cut off at any byte is either refused, or its content becomes active. Nothing panics.
#[test]
fn every_torn_write_is_survived() {
    let whole = "limits:\n  - {name: a, rate: 5/h}\n  - {name: b, rate: 7/h}\n";
    let bench = Bench::started(whole);
    for end in 0..whole.len() {
        bench.write(&whole[..end]);
        let _ = bench.looks();
        let status = bench.reloader.status();
        assert!(
            status.error.is_some()
                || status.version == Some(file_watch::Version::of(&whole.as_bytes()[..end])),
            "{end}: {status:?}"
        );
        assert!([5, 7].contains(&bench.limit()), "{end}");
    }
    bench.write(whole);
    bench.looks().unwrap();
    assert!(!bench.reloader.status().is_degraded());
}

/// A bad, empty or missing file keeps the last good policy, and the status shows it until the file is good again.
#[test]
fn the_last_good_policy_stays_in_force() {
    let bench = Bench::started(FIVE);
    let cases =
        [("limits: [{name: a, rate: s/5}]", "limits[0]"), ("", "policy.yaml"), ("\u{0}\u{1}", "policy.yaml")];
    for (count, (text, expected)) in (1..).zip(cases) {
        bench.write(text);
        assert!(bench.looks().unwrap_err().contains(expected), "{text:?}");
        assert!(bench.error().contains(expected), "{}", bench.error());
        assert_eq!((bench.limit(), bench.reloader.status().bad), (5, count));
    }
    fs::remove_file(&bench.policy).unwrap();
    assert!(bench.looks().unwrap_err().contains("no such file"));
    bench.write(FIVE);
    assert_eq!(bench.looks(), Ok(PolicyOutcome::Nothing));
    assert!(!bench.reloader.status().is_degraded(), "{}", bench.error());
}

/// A lasting failure is counted once, however many looks there are. An explicit request gets the error each time.
#[test]
fn a_lasting_failure_is_one() {
    let bench = Bench::started(FIVE);
    bench.write("limits: 5");
    for _ in 0..3 * RETRY_EVERY {
        let _ = bench.reload.run_cycle(ReloadMode::OnChange, "a test");
    }
    assert_eq!(bench.reloader.status().bad, 1);
    assert!(bench.reload.run_cycle(ReloadMode::Now, "a test").is_err());
    assert_eq!(bench.reloader.status().bad, 2);
}

/// A suspicious policy is refused with its reasons, and loaded if it is forced. A policy that does not compile cannot
/// be forced.
#[test]
fn the_guard_and_force() {
    let bench = Bench::started(FIVE);
    bench.write("limits: [{name: a, rate: 50/h}]");
    let refused = bench.looks().unwrap_err();
    assert!(refused.contains("limit \"a\", rate: 5/h becomes 50/h, 10 times as much"), "{refused}");
    assert!(refused.contains("--force-reload"), "{refused}");
    assert!(bench.reload.run_cycle(ReloadMode::Now, "a test").is_err());
    assert_eq!(bench.limit(), 5);
    assert!(matches!(bench.reload.run_cycle(ReloadMode::Force, "a test"), Ok(PolicyOutcome::Reloaded(_))));
    assert_eq!((bench.limit(), bench.error().as_str()), (50, ""));
    bench.write("limits: [");
    assert!(bench.reload.run_cycle(ReloadMode::Force, "a test").is_err());
    assert_eq!(bench.limit(), 50);
}

/// A server can be configured to accept every policy that compiles.
#[test]
fn a_server_without_a_guard() {
    let scratch = Scratch::new();
    scratch.write("policy.yaml", FIVE);
    let bench = Bench::new(scratch, true);
    bench.write("limits: []");
    assert!(matches!(bench.looks(), Ok(PolicyOutcome::Reloaded(report)) if report.removed == ["a"]));
}

/// After a restart with a bad or missing file the last good policy is active, the status shows it, and the next good
/// file replaces it.
#[test]
fn the_last_good_policy_survives_a_restart() {
    let mut bench = Bench::started(FIVE);
    bench.write(SIX);
    bench.looks().unwrap();
    for damage in [Some("limits: ["), None] {
        match damage {
            Some(text) => bench.write(text),
            None => fs::remove_file(&bench.policy).unwrap(),
        }
        bench = Bench::new(bench.scratch, false);
        let status = bench.reloader.status();
        assert_eq!((bench.limit(), status.origin, status.is_degraded()), (6, Origin::LastGood, true));
        assert_eq!(bench.looks(), Ok(PolicyOutcome::Nothing));
    }
    bench.write(SIX);
    bench.looks().unwrap();
    let status = bench.reloader.status();
    assert_eq!((status.origin, status.is_degraded()), (Origin::File, false));
}

/// Without a saved copy, a bad file prevents the start. A copy of another file does not help.
#[test]
fn no_start_without_a_policy() {
    let scratch = Scratch::new();
    let policy = scratch.write("policy.yaml", "limits: [");
    assert!(start(Some(&policy), None, &CredentialAttributes::default()).is_err());
    let error =
        start(Some(&policy), Some(&scratch.path("state")), &CredentialAttributes::default()).err().unwrap();
    assert!(error.contains("no last good policy to start with"), "{error}");
}

/// An unwritable state directory degrades the status and stops nothing. The status recovers when the directory is
/// writable again.
#[test]
fn an_unwritable_state_directory_stops_nothing() {
    let scratch = Scratch::new();
    scratch.write("policy.yaml", FIVE);
    let state = scratch.write("state", "a file, where a directory is needed");
    let bench = Bench::new(scratch, false);
    let _ = bench.reload.run_cycle(ReloadMode::OnChange, "a test");
    assert!(bench.reloader.status().keep_error.is_some());
    bench.write(SIX);
    bench.looks().unwrap();
    assert_eq!((bench.limit(), bench.reloader.status().is_degraded()), (6, true));
    fs::remove_file(state).unwrap();
    for _ in 0..RETRY_EVERY {
        bench.reload.run_cycle(ReloadMode::OnChange, "a test").unwrap();
    }
    assert!(!bench.reloader.status().is_degraded());
    assert!(bench.scratch.path("state/last-good.json").exists());
}

/// A policy from standard input cannot change, and an explicit reload gets that answer.
#[test]
fn nothing_to_reload_is_reported() {
    let time = ManualClock::new();
    let mut start = start(None, None, &CredentialAttributes::default()).unwrap();
    let settings = ReloadSettings::default();
    let (reloader, watcher) =
        Watcher::new(&mut start, None, &settings, ServedRequests::default(), time.now());
    let engine = Engine::builder().policy(start.loaded.rules.into_parts().0).clock(time.clock()).build();
    let (reload, _) = PolicyReload::new(watcher, Arc::new(Service::new(engine, time.clock())));
    assert_eq!(reload.run_cycle(ReloadMode::OnChange, "a test"), Ok(PolicyOutcome::Nothing));
    assert!(reload.run_cycle(ReloadMode::Now, "a test").unwrap_err().contains("--policy FILE"));
    assert_eq!((reloader.status().origin, reloader.status().version), (Origin::Fixed, None));
}

/// A cycle that panics is reported, and the next one works.
#[test]
fn a_cycle_that_panics_is_reported() {
    let bench = Bench::started(FIVE);
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _held = bench.reload.memory();
        panic!("as a defect would");
    }));
    bench.reload.broken("panic");
    assert!(bench.error().contains("please report this"));
    bench.write(SIX);
    bench.looks().unwrap();
    assert_eq!((bench.limit(), bench.error().as_str()), (6, ""));
}
