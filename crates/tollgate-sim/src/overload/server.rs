//! The server: so many workers, and a queue inside, first come, first served.

use std::collections::VecDeque;

use tollgate::Ticks;

/// A request inside.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) id: usize,
    pub(super) time: Ticks,
}

/// The server.
#[derive(Debug)]
pub(super) struct Server {
    idle: usize,
    waiting: VecDeque<Job>,
}

impl Server {
    pub(super) const fn new(workers: usize) -> Self {
        Self { idle: workers, waiting: VecDeque::new() }
    }

    /// Takes a request; one that a worker begins at once comes back.
    pub(super) fn take(&mut self, job: Job) -> Option<Job> {
        if self.idle == 0 {
            self.waiting.push_back(job);
            return None;
        }
        self.idle -= 1;
        Some(job)
    }

    /// A worker is done; it may begin another request, of those that still wait.
    pub(super) fn done(&mut self, is_gone: impl Fn(usize) -> bool) -> Option<Job> {
        while let Some(job) = self.waiting.pop_front() {
            if !is_gone(job.id) {
                return Some(job);
            }
        }
        self.idle += 1;
        None
    }
}
