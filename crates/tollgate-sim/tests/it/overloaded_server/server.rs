//! The server: a number of workers and a FIFO queue.

use std::collections::VecDeque;

use tollgate::Ticks;

/// A request inside the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) id: usize,
    pub(super) time: Ticks,
}

/// The idle workers and the queue.
#[derive(Debug)]
pub(super) struct Server {
    idle: usize,
    waiting: VecDeque<Job>,
}

impl Server {
    pub(super) const fn new(workers: usize) -> Self {
        Self { idle: workers, waiting: VecDeque::new() }
    }

    /// Accepts a request. Returns it if a worker begins with it now, and queues it otherwise.
    pub(super) fn take(&mut self, job: Job) -> Option<Job> {
        if self.idle == 0 {
            self.waiting.push_back(job);
            return None;
        }
        self.idle -= 1;
        Some(job)
    }

    /// Frees a worker. Returns the request that it begins with next, skipping those whose caller is gone.
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
