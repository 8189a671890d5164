//! Looks at the disk on a separate thread, one at a time, each with a deadline. A file system that hangs, as a network
//! mount may, blocks only that thread: the caller gets [`Looked::Late`], and the server can stop without it.

use std::time::Duration;

use tokio::sync::oneshot;

/// How long a look may take before it counts as late.
pub(crate) const LOOK_TIMEOUT: Duration = Duration::from_secs(5);

/// The look in progress, if the last one did not end in time.
pub(crate) struct Looks<T> {
    thread: &'static str,
    late: Option<oneshot::Receiver<T>>,
}

/// The result of a look.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Looked<T> {
    /// It ended.
    Done(T),
    /// It failed, with the reason.
    Broken(&'static str),
    /// It has not ended. No further look begins until it has, because that would wait for the same disk.
    Late,
}

impl<T: Send + 'static> Looks<T> {
    /// Looks on threads with this name.
    pub(crate) const fn new(thread: &'static str) -> Self {
        Self { thread, late: None }
    }

    /// Looks, unless an earlier look is still in progress. Then it reports whether that one has ended.
    pub(crate) async fn look(&mut self, work: impl FnOnce() -> T + Send + 'static) -> Looked<T> {
        let (mut under_way, patience) = match self.late.take() {
            Some(late) => (late, Duration::ZERO),
            None => {
                let (sender, receiver) = oneshot::channel();
                let named = std::thread::Builder::new().name(self.thread.to_owned());
                // Not a thread of the runtime, which would wait for it when the server stops.
                let started = named.spawn(move || drop(sender.send(work())));
                if started.is_err() {
                    return Looked::Broken("the system gives no thread");
                }
                (receiver, LOOK_TIMEOUT)
            }
        };
        match tokio::time::timeout(patience, &mut under_way).await {
            Ok(Ok(done)) => Looked::Done(done),
            Ok(Err(_)) => Looked::Broken("its thread ended"),
            Err(_) => {
                self.late = Some(under_way);
                Looked::Late
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
    async fn end_of(looks: &mut Looks<&'static str>, word: &'static str) -> Looked<&'static str> {
        loop {
            match looks.look(move || word).await {
                Looked::Late => tokio::task::yield_now().await,
                ended => return ended,
            }
        }
    }

    /// A look at a disk that hangs is reported as late, again and again, and no second look begins. When the disk
    /// answers, it is done, and further looks begin.
    #[tokio::test(start_paused = true)]
    async fn a_look_that_hangs_is_late_until_it_ends() {
        let mut looks = Looks::new("test");
        let (answers, disk) = mpsc::channel::<&str>();
        assert_eq!(looks.look(move || disk.recv().unwrap_or("gone")).await, Looked::Late);
        for _ in 0..3 {
            assert_eq!(looks.look(|| "a second look").await, Looked::Late);
        }
        answers.send("answered").unwrap();
        assert_eq!(end_of(&mut looks, "a second look").await, Looked::Done("answered"));
        assert_eq!(end_of(&mut looks, "next").await, Looked::Done("next"));
    }

    /// A look that fails does not affect later ones.
    #[tokio::test(start_paused = true)]
    async fn a_look_that_breaks_is_told() {
        let mut looks = Looks::new("test");
        let broken = match looks.look(|| panic!("as tested")).await {
            Looked::Late => end_of(&mut looks, "a second look").await,
            ended => ended,
        };
        assert_eq!(broken, Looked::Broken("its thread ended"));
        assert_eq!(end_of(&mut looks, "next").await, Looked::Done("next"));
    }
}
