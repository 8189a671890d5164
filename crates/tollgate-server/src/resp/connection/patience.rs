//! How long a connection waits for its client: one timer, which is moved when it rings and not with every command.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

/// How long a connection may rest between commands. Clients keep connections in pools, so it is long.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// How long a command may take to arrive once it has begun, however slowly it drips, and the first byte of a connection. The
/// timer rings this often while the client is busy.
const FRAME_TIMEOUT: Duration = Duration::from_secs(10);

/// What a ring means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ring {
    /// The client may be resting.
    Rest,
    /// The client took too long.
    Lost,
}

#[derive(Debug)]
pub(super) struct Patience {
    timer: Pin<Box<Sleep>>,
    /// When the client is given up.
    until: Instant,
    /// The timer rang, and now only rings when the client is to be given up.
    rested: bool,
    /// A command has begun to arrive.
    begun: bool,
}

impl Patience {
    /// For a connection that was just opened; whoever opens one has something to say.
    pub(super) fn new() -> Self {
        let timer = Box::pin(sleep(FRAME_TIMEOUT));
        Self { until: timer.deadline(), timer, rested: false, begun: true }
    }

    /// The client said something: whether a command became complete, and whether nothing of another has come.
    pub(super) fn moved(&mut self, progress: bool, complete: bool) {
        let now = Instant::now();
        if complete {
            self.until = now + IDLE_TIMEOUT;
        } else if progress || !self.begun {
            self.until = now + FRAME_TIMEOUT;
        }
        self.begun = !complete;
        if self.rested {
            self.rested = false;
            self.timer.as_mut().reset(self.until.min(now + FRAME_TIMEOUT));
        }
    }

    /// Waits for the timer.
    pub(super) async fn ring(&mut self) -> Ring {
        self.timer.as_mut().await;
        if self.timer.deadline() >= self.until {
            return Ring::Lost;
        }
        self.rested = true;
        self.timer.as_mut().reset(self.until);
        Ring::Rest
    }
}
