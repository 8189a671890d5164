//! One limit for each user, as a program has it that needs no policy: it builds with `default-features = false`.

use std::time::Duration;

use tollgate::{Gate, ManualClock, Ticks, Verdict};

fn main() -> Result<(), tollgate::QuotaError> {
    let time = ManualClock::new();
    let gate = Gate::builder("2/min".parse()?).clock(time.clock()).keyed();

    assert!(gate.check("user-42").is_allowed());
    assert!(gate.check("user-42").is_allowed());
    assert_eq!(gate.check("user-42"), Verdict::Deny { retry_after: Ticks::from_secs(30) });
    assert!(gate.check("user-43").is_allowed());

    time.advance(Duration::from_secs(30));
    assert!(gate.check("user-42").is_allowed());
    Ok(())
}
