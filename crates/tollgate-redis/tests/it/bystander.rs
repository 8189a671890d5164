//! A server that nothing is done to, asked all the time: when even that answers late, the machine was busy with something else, and a
//! decision that missed its deadline then says nothing about the store.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::time::Instant;

use crate::record::{Mode, Recorder, Seen};
use crate::scratch::rest;
use crate::server::Server;

/// How often it is asked.
const EVERY: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(crate) struct Bystander {
    stalls: Arc<Mutex<Vec<(Instant, Instant)>>>,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    _server: Server,
}

impl Bystander {
    /// Asks from now on; an answer later than `patience` is a stall.
    pub(crate) fn watch(patience: Duration) -> Self {
        let server = Server::redis();
        let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
        let (stalls, stopped) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (writes, ends) = (Arc::clone(&stalls), Arc::clone(&stopped));
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                let began = Instant::now();
                rest(EVERY);
                redis::cmd("PING").query::<String>(&mut connection).unwrap();
                if began.elapsed() > EVERY + patience {
                    writes.lock().unwrap_or_else(PoisonError::into_inner).push((began, Instant::now()));
                }
            }
        });
        Self { stalls, stopped, thread: Some(thread), _server: server }
    }

    /// Leaves out decisions that were late or made without the store although nothing but the machine was to blame: it stood still
    /// meanwhile, or up to `slack` before.
    pub(crate) fn excuse(&self, recorder: &Recorder, seen: &mut Vec<Seen>, slack: Duration) {
        let stalls = self.stalls.lock().unwrap_or_else(PoisonError::into_inner).clone();
        seen.retain(|seen| {
            let (from, to) = (recorder.instant(seen.sent), recorder.instant(seen.replied));
            let busy = || stalls.iter().any(|&(began, ended)| began <= to && from <= ended + slack);
            seen.mode == Mode::Exact && !seen.late || !busy()
        });
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
