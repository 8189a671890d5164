//! One run of a plan: connects, warms up, measures, and reports progress.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::connection::{Asker, Span};
use crate::error::LoadError;
use crate::plan::Plan;
use crate::summary::Summary;

/// Runs a plan. `progress` is called once a second with the elapsed part of the time, in per cent.
///
/// # Errors
/// When connections cannot be made, or break.
pub async fn run(plan: &Plan, mut progress: impl FnMut(u64)) -> Result<Summary, LoadError> {
    let mut askers = Vec::with_capacity(plan.connections);
    for index in 0..plan.connections {
        askers.push(Asker::connect(plan, index).await?);
    }
    let begin = Instant::now();
    let start = begin + plan.warmup;
    let span = Span { start, end: start + plan.duration };
    let mut tasks = JoinSet::new();
    for asker in askers {
        tasks.spawn(asker.ask(span));
    }
    let mut all = Summary::new().map_err(|_| LoadError::Histogram)?;
    all.elapsed = plan.duration;
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            ended = tasks.join_next() => match ended {
                None => return Ok(all),
                Some(Ok(summary)) => all.add(&summary?),
                Some(Err(error)) => return Err(LoadError::Ended(error.to_string())),
            },
            now = ticks.tick() => progress(share(now.duration_since(begin), plan.warmup + plan.duration)),
        }
    }
}

fn share(part: Duration, whole: Duration) -> u64 {
    u64::try_from(part.as_millis() * 100 / whole.as_millis().max(1)).unwrap_or(100).min(100)
}
