//! The checks of one pipeline on a store that answers asynchronously: they are sent together in order, and answered in
//! order.

use bytes::BytesMut;
use tollgate::Timestamp;
use tollgate::store::Store;
use tollgate::store::{TOGETHER_MAX, together};

use super::frame::Frame;
use super::reply::{Reply, RespVersion};
use super::{Resp, check};

/// Checks that are not sent yet.
pub(super) struct Pipeline<'l, S> {
    resp: &'l Resp<S>,
    now: Timestamp,
    checks: Vec<Check<'l>>,
}

/// A command with the bytes it was read from.
struct Check<'l> {
    frame: Frame,
    bytes: &'l [u8],
    protocol: RespVersion,
}

impl<'l, S: Store> Pipeline<'l, S> {
    pub(super) const fn new(resp: &'l Resp<S>, now: Timestamp) -> Self {
        Self { resp, now, checks: Vec::new() }
    }

    /// Whether checks should be queued. If the store answers without waiting, each check is answered as it is read.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        !self.resp.service.engine.store().never_waits()
    }

    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.checks.is_empty()
    }

    #[inline]
    pub(super) const fn is_full(&self) -> bool {
        self.checks.len() >= TOGETHER_MAX
    }

    pub(super) fn push(&mut self, frame: Frame, bytes: &'l [u8], protocol: RespVersion) {
        self.checks.push(Check { frame, bytes, protocol });
    }

    /// Answers all of them. Separate from its caller, because the future of a wait is large, and a memory store never
    /// waits.
    pub(super) async fn answer(&mut self, output: &mut BytesMut) {
        let (resp, now) = (self.resp, self.now);
        let checks = std::mem::take(&mut self.checks);
        let asked = checks.iter().map(|check| check.answer(resp, now)).collect();
        for reply in Box::pin(together(resp.service.engine.store(), asked)).await {
            output.extend_from_slice(&reply);
        }
    }
}

impl Check<'_> {
    async fn answer<S: Store>(&self, resp: &Resp<S>, now: Timestamp) -> BytesMut {
        let mut output = BytesMut::new();
        let reply = &mut Reply::new(&mut output, self.protocol);
        check::answer(resp, self.frame.arguments(self.bytes), reply, now).await;
        output
    }
}
