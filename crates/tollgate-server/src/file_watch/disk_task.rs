//! Looks at the disk on a separate thread, one at a time, each with a deadline. A file system that hangs, as a network
//! mount may, blocks only that thread: the caller gets [`DiskTaskOutcome::TimedOut`], and the server can stop without it.

use std::time::Duration;

use tokio::sync::oneshot;

/// How long a look may take before it counts as late.
pub(crate) const DISK_TIMEOUT: Duration = Duration::from_secs(5);

/// The look in progress, if the last one did not end in time.
pub(crate) struct DiskTask<T> {
    thread: &'static str,
    late: Option<oneshot::Receiver<T>>,
}

/// The result of a look.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DiskTaskOutcome<T> {
    /// It ended.
    Done(T),
    /// It failed, with the reason.
    Failed(&'static str),
    /// It has not ended. No further look begins until it has, because that would wait for the same disk.
    TimedOut,
}

impl<T: Send + 'static> DiskTask<T> {
    /// Looks on threads with this name.
    pub(crate) const fn new(thread: &'static str) -> Self {
        Self { thread, late: None }
    }

    /// Looks, unless an earlier look is still in progress. Then it reports whether that one has ended.
    pub(crate) async fn run(&mut self, work: impl FnOnce() -> T + Send + 'static) -> DiskTaskOutcome<T> {
        let (mut under_way, timeout) = match self.late.take() {
            Some(late) => (late, Duration::ZERO),
            None => {
                let (sender, receiver) = oneshot::channel();
                let named = std::thread::Builder::new().name(self.thread.to_owned());
                // Not a thread of the runtime, which would wait for it when the server stops.
                let started = named.spawn(move || drop(sender.send(work())));
                if started.is_err() {
                    return DiskTaskOutcome::Failed("the system gives no thread");
                }
                (receiver, DISK_TIMEOUT)
            }
        };
        match tokio::time::timeout(timeout, &mut under_way).await {
            Ok(Ok(done)) => DiskTaskOutcome::Done(done),
            Ok(Err(_)) => DiskTaskOutcome::Failed("its thread ended"),
            Err(_) => {
                self.late = Some(under_way);
                DiskTaskOutcome::TimedOut
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// The result of the look in progress, or of this one if there is none. Paused time passes faster than a thread
    /// starts, so any look may be late at first.
    async fn end_of(looks: &mut DiskTask<&'static str>, word: &'static str) -> DiskTaskOutcome<&'static str> {
        loop {
            match looks.run(move || word).await {
                DiskTaskOutcome::TimedOut => tokio::task::yield_now().await,
                ended => return ended,
            }
        }
    }

    /// A look at a disk that hangs is reported as late, again and again, and no second look begins. When the disk
    /// answers, it is done, and further looks begin.
    #[tokio::test(start_paused = true)]
    async fn a_look_that_hangs_is_late_until_it_ends() {
        let mut looks = DiskTask::new("test");
        let (answers, disk) = mpsc::channel::<&str>();
        assert_eq!(looks.run(move || disk.recv().unwrap_or("gone")).await, DiskTaskOutcome::TimedOut);
        for _ in 0..3 {
            assert_eq!(looks.run(|| "a second look").await, DiskTaskOutcome::TimedOut);
        }
        answers.send("answered").unwrap();
        assert_eq!(end_of(&mut looks, "a second look").await, DiskTaskOutcome::Done("answered"));
        assert_eq!(end_of(&mut looks, "next").await, DiskTaskOutcome::Done("next"));
    }

    /// A look that fails does not affect later ones.
    #[tokio::test(start_paused = true)]
    async fn a_disk_task_that_panics_is_reported() {
        let mut looks = DiskTask::new("test");
        let broken = match looks.run(|| panic!("as tested")).await {
            DiskTaskOutcome::TimedOut => end_of(&mut looks, "a second look").await,
            ended => ended,
        };
        assert_eq!(broken, DiskTaskOutcome::Failed("its thread ended"));
        assert_eq!(end_of(&mut looks, "next").await, DiskTaskOutcome::Done("next"));
    }
}
