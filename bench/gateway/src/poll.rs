//! Waiting for many sockets at once. The load and the upstream share a core, so both do as little as they can: no runtime, no parser.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};

/// Most events that are taken at once.
const EVENTS_MAX: usize = 256;

/// A set of sockets, each known by a number.
pub(crate) struct Poll {
    set: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Poll {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { set: epoll::create(epoll::CreateFlags::CLOEXEC)?, events: Vec::with_capacity(EVENTS_MAX) })
    }

    /// Wakes up for this socket, as long as there is something to read.
    pub(crate) fn add(&self, socket: impl AsFd, number: usize) -> std::io::Result<()> {
        let data = epoll::EventData::new_u64(number as u64);
        Ok(epoll::add(&self.set, socket, data, epoll::EventFlags::IN)?)
    }

    /// The numbers of the sockets that have something to read, after at most this time.
    pub(crate) fn wait(&mut self, patience: Option<Duration>) -> std::io::Result<Vec<usize>> {
        let patience = patience.map(|patience| Timespec {
            tv_sec: patience.as_secs() as i64,
            tv_nsec: patience.subsec_nanos().into(),
        });
        self.events.clear();
        match epoll::wait(&self.set, rustix::buffer::spare_capacity(&mut self.events), patience.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self.events.iter().map(|event| event.data.u64() as usize).collect())
    }
}
