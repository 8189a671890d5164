//! The source of a request's body: the bytes read ahead, and then the client, which must keep the minimum rate.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

use crate::body_budget::BodyReservation;
use crate::listen::{Allowance, Pace};
use crate::request_body::RequestBody;

/// Bodies of known length up to this size are read completely before they take a slot of an upstream.
pub(super) const SMALL_BYTES_MAX: u64 = 64 << 10;

/// Why a request's body is incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    TooSlow,
    CutOff,
}

/// Whether a request has its answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerState {
    Answered,
    Unanswered,
}

/// The source of a body: the frames read ahead, and then the client.
pub(super) struct Source {
    ahead: VecDeque<Frame<Bytes>>,
    ahead_bytes: usize,
    /// The memory that they take while the rest is still to come, and whether the budget refused a part of it.
    stay: Option<Arc<BodyReservation>>,
    is_cramped: bool,
    body: RequestBody,
    is_over: bool,
    /// A fault that was found while the body was read ahead of an attempt, and was not reported to that attempt yet.
    fault: Option<Fault>,
    allowance: Allowance,
    /// Since when the gateway waits for the client.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Source {
    pub(super) fn new(mut body: RequestBody, pace: Pace) -> Self {
        let held = if let RequestBody::Held(held) = &mut body { held.take() } else { None };
        Self {
            ahead_bytes: held.as_ref().map_or(0, Bytes::len),
            ahead: held.into_iter().map(Frame::data).collect(),
            stay: None,
            is_cramped: false,
            body,
            is_over: false,
            fault: None,
            allowance: Allowance::new(pace),
            waiting: None,
        }
    }

    /// Copies the body for one attempt, if it is complete, so that another attempt remains possible. It first reads
    /// what the client has sent meanwhile, because a small body is often complete though its length was not announced.
    pub(super) fn copy(&mut self, context: &mut Context<'_>) -> Option<Self> {
        while !self.is_complete()
            && u64::try_from(self.ahead_bytes).is_ok_and(|bytes| bytes < SMALL_BYTES_MAX)
        {
            match self.poll_client(context, AnswerState::Answered) {
                Poll::Ready(Some(Ok(frame))) => self.hold(frame),
                Poll::Ready(Some(Err(fault))) => {
                    self.fault = Some(fault);
                    return None;
                }
                Poll::Ready(None) => {}
                Poll::Pending => return None,
            }
        }
        if !self.is_complete() {
            return None;
        }
        self.stay = None; // Its rest is no longer awaited.
        Some(Self {
            ahead: self.ahead.iter().filter_map(copy).collect(),
            ahead_bytes: self.ahead_bytes,
            stay: None,
            is_cramped: false,
            body: RequestBody::Held(None),
            is_over: true,
            fault: None,
            allowance: self.allowance,
            waiting: None,
        })
    }

    /// Whether the whole body was read ahead.
    fn is_complete(&self) -> bool {
        self.is_over || self.body.is_end_stream()
    }

    /// Whether a body of this length has something to send.
    pub(super) fn has_begun(&self, length: Option<u64>) -> bool {
        let wanted = length.filter(|length| *length <= SMALL_BYTES_MAX && !self.is_cramped).unwrap_or(1);
        self.is_over || u64::try_from(self.ahead_bytes).unwrap_or(u64::MAX) >= wanted
    }

    /// From now on the bytes that are read ahead count towards the memory budget.
    pub(super) fn stay_in(&mut self, stay: Arc<BodyReservation>) {
        self.is_cramped = !stay.take(self.ahead_bytes);
        self.stay = Some(stay);
    }

    pub(super) fn hold(&mut self, frame: Frame<Bytes>) {
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        self.ahead_bytes = self.ahead_bytes.saturating_add(bytes);
        if let Some(stay) = &self.stay {
            self.is_cramped |= !stay.take(bytes);
        }
        self.ahead.push_back(frame);
    }

    /// The next frame for an upstream.
    pub(super) fn poll_next(
        &mut self,
        context: &mut Context<'_>,
        asked: AnswerState,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        if let Some(frame) = self.ahead.pop_front() {
            return Poll::Ready(Some(Ok(frame)));
        }
        self.stay = None;
        self.poll_client(context, asked)
    }

    /// The next frame of the client. Until the request has its answer, a wait for the client uses up the client's
    /// allowance.
    pub(super) fn poll_client(
        &mut self,
        context: &mut Context<'_>,
        asked: AnswerState,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        if let Some(fault) = self.fault.take() {
            return Poll::Ready(Some(Err(fault)));
        }
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
            let left = self.allowance.left();
            let (_, timer) = self.waiting.get_or_insert_with(|| (Instant::now(), Box::pin(sleep(left))));
            return match timer.as_mut().poll(context) {
                Poll::Ready(()) if asked == AnswerState::Unanswered => Poll::Ready(Some(Err(Fault::TooSlow))),
                _ => Poll::Pending,
            };
        };
        if let Some((since, _)) = self.waiting.take() {
            self.allowance.spend(since.elapsed());
        }
        Poll::Ready(match frame {
            Some(Ok(frame)) => {
                self.allowance.earn(frame.data_ref().map_or(0, Bytes::len));
                Some(Ok(frame))
            }
            Some(Err(_)) => Some(Err(Fault::CutOff)),
            None => {
                self.is_over = true;
                None
            }
        })
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.ahead.is_empty() && self.is_complete()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        let ahead = self.ahead.iter().filter_map(Frame::data_ref).map(Bytes::len).sum::<usize>();
        let rest = if self.is_over { Some(0) } else { self.body.size_hint().exact() };
        let exact = rest.and_then(|rest| rest.checked_add(u64::try_from(ahead).ok()?));
        exact.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

fn copy(frame: &Frame<Bytes>) -> Option<Frame<Bytes>> {
    let bytes = frame.data_ref().cloned().map(Frame::data);
    bytes.or_else(|| frame.trailers_ref().cloned().map(Frame::trailers))
}
