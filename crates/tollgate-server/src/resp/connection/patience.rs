//! The timeouts of a connection: one timer, which is moved when it fires and not with every command.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

/// How long a connection may be idle between commands. Clients keep connections in pools, so it is long.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// How long a command may take to arrive once it has begun, however slowly it drips, and how long the first byte of a
/// connection may take. The timer fires this often while the client is busy.
const FRAME_TIMEOUT: Duration = Duration::from_secs(10);

/// What a firing timer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ring {
    /// The client may be idle.
    Rest,
    /// The client took too long.
    Lost,
}

#[derive(Debug)]
pub(super) struct Patience {
    timer: Pin<Box<Sleep>>,
    /// When the connection is given up.
    until: Instant,
    /// The timer has fired, and fires again only to give up the connection.
    rested: bool,
    /// A command has started to arrive.
    begun: bool,
}

impl Patience {
    /// Timeouts for a new connection, whose client is expected to send a command.
    pub(super) fn new() -> Self {
        let timer = Box::pin(sleep(FRAME_TIMEOUT));
        Self { until: timer.deadline(), timer, rested: false, begun: true }
    }

    /// Records received bytes: whether a command became complete, and whether no part of another one has arrived.
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
