//! An untouched server, queried all the time from the runtime that also decides. When even that takes long, the machine
//! was busy, and a decision that missed its deadline then says nothing about the store.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use crate::record::{Mode, RecordedDecision, Recorder};
use crate::server::Server;

/// How often it is queried.
const EVERY: Duration = Duration::from_millis(2);
const PONG_BYTES: usize = "+PONG\r\n".len();

type Stalls = Arc<Mutex<Vec<(Instant, Instant)>>>;

#[derive(Debug)]
pub(crate) struct Bystander {
    stalls: Stalls,
    task: AbortHandle,
    _server: Server,
}

impl Bystander {
    /// Starts to query. An answer later than `timeout` is a stall.
    pub(crate) fn watch(runtime: &Runtime, timeout: Duration) -> Self {
        let server = Server::redis();
        let stalls = Stalls::default();
        let task = runtime.spawn(ask(server.port, timeout, Arc::clone(&stalls)));
        Self { stalls, task: task.abort_handle(), _server: server }
    }

    /// Removes decisions that were late or made without the store because of the machine: it stalled during the
    /// decision, or up to `slack` before.
    pub(crate) fn excuse(
        &self,
        recorder: &Recorder,
        seen: &mut Vec<RecordedDecision>,
        slack: Duration,
    ) -> Vec<RecordedDecision> {
        let stalls = self.stalls.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let is_excused = |seen: &mut RecordedDecision| {
            let (from, to) = (recorder.instant(seen.sent), recorder.instant(seen.replied));
            let busy = || stalls.iter().any(|&(began, ended)| began <= to && from <= ended + slack);
            (seen.mode != Mode::Exact || seen.late) && busy()
        };
        seen.extract_if(.., is_excused).collect()
    }
}

async fn ask(port: u16, timeout: Duration, stalls: Stalls) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.set_nodelay(true).unwrap();
    loop {
        let began = Instant::now();
        sleep(EVERY).await;
        stream.write_all(b"PING\r\n").await.unwrap();
        stream.read_exact(&mut [0; PONG_BYTES]).await.unwrap();
        // A timer is accurate to the millisecond.
        if began.elapsed() > EVERY + timeout {
            stalls.lock().unwrap_or_else(PoisonError::into_inner).push((began, Instant::now()));
        }
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        self.task.abort();
    }
}
