//! The timeouts of a connection: one timer, which is moved when it fires and not with every command.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

/// How long a connection may be idle between commands. Clients keep connections in pools, so it is long.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// How long a command may take to arrive once it has begun, however slowly it drips, and how long the first byte of a
/// connection may take. The timer fires this often while the client is busy.
const FRAME_TIMEOUT: Duration = Duration::from_secs(10);

/// The meaning of a firing timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimerEvent {
    /// The client may be idle.
    Idle,
    /// The client took too long.
    TimedOut,
}

/// The content of the received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceivedCommands {
    /// Whole commands, and nothing else.
    Complete,
    /// At least one whole command, and a part of the next one.
    NextBegun,
    /// Only a part of a command.
    Partial,
}

#[derive(Debug)]
pub(super) struct ClientTimeouts {
    timer: Pin<Box<Sleep>>,
    /// When the connection is given up.
    until: Instant,
    /// The timer has fired, and fires again only to give up the connection.
    rested: bool,
    /// A command has started to arrive.
    begun: bool,
}

impl ClientTimeouts {
    /// Timeouts for a new connection, whose client is expected to send a command.
    pub(super) fn new() -> Self {
        let timer = Box::pin(sleep(FRAME_TIMEOUT));
        Self { until: timer.deadline(), timer, rested: false, begun: true }
    }

    /// Records received bytes.
    pub(super) fn moved(&mut self, arrival: ReceivedCommands) {
        let now = Instant::now();
        match arrival {
            ReceivedCommands::Complete => self.until = now + IDLE_TIMEOUT,
            ReceivedCommands::NextBegun => self.until = now + FRAME_TIMEOUT,
            ReceivedCommands::Partial if !self.begun => self.until = now + FRAME_TIMEOUT,
            ReceivedCommands::Partial => {}
        }
        self.begun = arrival != ReceivedCommands::Complete;
        if self.rested {
            self.rested = false;
            self.timer.as_mut().reset(self.until.min(now + FRAME_TIMEOUT));
        }
    }

    /// Waits for the timer.
    pub(super) async fn fired(&mut self) -> TimerEvent {
        self.timer.as_mut().await;
        if self.timer.deadline() >= self.until {
            return TimerEvent::TimedOut;
        }
        self.rested = true;
        self.timer.as_mut().reset(self.until);
        TimerEvent::Idle
    }
}
