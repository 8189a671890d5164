//! A server that nothing is done to, asked all the time from the runtime that also decides: when even that takes long, the machine was
//! busy with something else, and a decision that missed its deadline then says nothing about the store.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use crate::record::{Mode, Recorder, Seen};
use crate::server::Server;

/// How often it is asked.
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
    /// Asks from now on; an answer later than `patience` is a stall.
    pub(crate) fn watch(runtime: &Runtime, patience: Duration) -> Self {
        let server = Server::redis();
        let stalls = Stalls::default();
        let task = runtime.spawn(ask(server.port, patience, Arc::clone(&stalls)));
        Self { stalls, task: task.abort_handle(), _server: server }
    }

    /// Takes out decisions that were late or made without the store although nothing but the machine was to blame: it stood still
    /// meanwhile, or up to `slack` before.
    pub(crate) fn excuse(&self, recorder: &Recorder, seen: &mut Vec<Seen>, slack: Duration) -> Vec<Seen> {
        let stalls = self.stalls.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let is_excused = |seen: &mut Seen| {
            let (from, to) = (recorder.instant(seen.sent), recorder.instant(seen.replied));
            let busy = || stalls.iter().any(|&(began, ended)| began <= to && from <= ended + slack);
            (seen.mode != Mode::Exact || seen.late) && busy()
        };
        seen.extract_if(.., is_excused).collect()
    }
}

async fn ask(port: u16, patience: Duration, stalls: Stalls) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.set_nodelay(true).unwrap();
    loop {
        let began = Instant::now();
        sleep(EVERY).await;
        stream.write_all(b"PING\r\n").await.unwrap();
        stream.read_exact(&mut [0; PONG_BYTES]).await.unwrap();
        // A timer is right to the millisecond.
        if began.elapsed() > EVERY + patience {
            stalls.lock().unwrap_or_else(PoisonError::into_inner).push((began, Instant::now()));
        }
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        self.task.abort();
    }
}
