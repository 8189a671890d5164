//! The calls of one connection, from bytes to bytes: which are in flight, and how each ended.

use bytes::{Buf, BufMut, BytesMut};
use prost::Message;

use super::cause::{cause, is_shared};
use super::fields::{Field, Fields};
use super::frame::{ACK, Broken, END_HEADERS, END_STREAM, Frame, HIGHEST, Kind, put_head};
use super::permits::Permits;
use super::request::{PREFIX_BYTES, put_window};
use crate::details::Details;
use crate::reply::Reply;

/// Largest answer, and largest header block.
const ANSWER_BYTES_MAX: usize = 1 << 20;
const BLOCK_BYTES_MAX: usize = 64 << 10;
/// Bytes of a ping.
const PING_BYTES: usize = 8;
/// How much of the connection's window is used before it is widened again: half of it, so it never runs out.
const WINDOW_USED_MAX: u32 = HIGHEST / 2;

/// Reads a decision from the number in an answer's first field: whether it allows, if it is a decision.
pub(super) type Verdict = fn(u64) -> Option<bool>;

/// The calls of one connection.
#[derive(Debug)]
pub(super) struct Calls {
    verdict: Verdict,
    /// The streams of the calls of this turn: the first, and the one after the last.
    first: u32,
    next: u32,
    /// The calls of this turn, in order. The entries after them are kept for their buffers.
    calls: Vec<Call>,
    /// How many of them are not over.
    open: usize,
    permits: Permits,
    fields: Fields,
    /// A header block that continues in the next frame.
    block: Option<(Block, Vec<u8>)>,
    /// Bytes of the connection's window that answers have used.
    used: u32,
    /// Why calls were refused.
    pub(super) details: Details,
}

#[derive(Debug, Default)]
struct Call {
    answer: Vec<u8>,
    is_over: bool,
}

/// The stream of a header block.
#[derive(Clone, Copy, Debug)]
struct Block {
    stream: u32,
    /// Whether it ends the call.
    is_last: bool,
}

impl Calls {
    pub(super) fn new(verdict: Verdict) -> Self {
        Self {
            verdict,
            first: 1,
            next: 1,
            calls: Vec::new(),
            open: 0,
            permits: Permits::new(),
            fields: Fields::default(),
            block: None,
            used: 0,
            details: Details::default(),
        }
    }

    /// Whether the server's settings have come. No call should be made before.
    pub(super) const fn is_settled(&self) -> bool {
        self.permits.is_settled
    }

    /// Whether another connection must take over: this one is closing, or has used up its streams.
    pub(super) const fn is_spent(&self) -> bool {
        self.permits.is_leaving || self.next > HIGHEST
    }

    /// Whether every call was answered, or ended otherwise.
    pub(super) const fn is_idle(&self) -> bool {
        self.open == 0
    }

    /// Begins another call with a message of this many bytes, if one is allowed now. Returns its stream.
    pub(super) fn begin(&mut self, message_bytes: usize) -> Result<Option<u32>, Broken> {
        let bytes = u32::try_from(PREFIX_BYTES + message_bytes).unwrap_or(u32::MAX);
        if self.is_spent() || !self.permits.spend(self.open, bytes)? {
            return Ok(None);
        }
        if self.open == 0 {
            self.first = self.next;
        }
        let stream = self.next;
        self.next += 2;
        self.open += 1;
        let index = self.index(stream);
        match self.calls.get_mut(index) {
            Some(call) => {
                call.answer.clear();
                call.is_over = false;
            }
            None => self.calls.push(Call::default()),
        }
        Ok(Some(stream))
    }

    const fn index(&self, stream: u32) -> usize {
        ((stream - self.first) / 2) as usize
    }

    /// Consumes every complete frame. Frames to send in return are added to `output`, and calls that ended to
    /// `replies`.
    pub(super) fn take(
        &mut self,
        input: &mut BytesMut,
        output: &mut BytesMut,
        replies: &mut Vec<Reply>,
    ) -> Result<(), Broken> {
        let mut taken = 0;
        while let Some(frame) = Frame::first(&input[taken..])? {
            taken += frame.length();
            self.take_frame(&frame, output, replies)?;
        }
        input.advance(taken);
        Ok(())
    }

    fn take_frame(
        &mut self,
        frame: &Frame<'_>,
        output: &mut BytesMut,
        replies: &mut Vec<Reply>,
    ) -> Result<(), Broken> {
        if self.block.is_some() != (frame.kind == Kind::Continuation) {
            return Err(Broken::Ill("a block of fields that is not continued, or one that never began"));
        }
        if !self.permits.is_settled && frame.kind != Kind::Settings {
            return Err(Broken::Ill("it does not begin with settings"));
        }
        match frame.kind {
            Kind::Data => self.data(frame, output, replies)?,
            Kind::Headers => {
                let block = Block { stream: frame.stream, is_last: frame.has(END_STREAM) };
                if frame.has(END_HEADERS) {
                    self.fields(block, frame.content()?, replies)?;
                } else {
                    self.block = Some((block, frame.content()?.to_vec()));
                }
            }
            Kind::Continuation => self.continuation(frame, replies)?,
            Kind::Reset => self.end(frame.stream, Field::Other, replies)?,
            Kind::Settings if !frame.has(ACK) => {
                self.permits.settle(frame.payload)?;
                put_head(output, 0, Kind::Settings, ACK, 0);
            }
            Kind::Ping if !frame.has(ACK) => {
                if frame.payload.len() != PING_BYTES {
                    return Err(Broken::Ill("a ping that is not eight bytes"));
                }
                put_head(output, frame.payload.len(), Kind::Ping, ACK, 0);
                output.put_slice(frame.payload);
            }
            Kind::GoAway => self.leave(frame, replies)?,
            // A call is sent in one piece, so only the connection's window matters.
            Kind::Window if frame.stream == 0 => self.permits.widen(frame.number(0)? & HIGHEST),
            Kind::Push => return Err(Broken::Ill("a push, which was declined")),
            Kind::Settings | Kind::Ping | Kind::Window | Kind::Other => {}
        }
        Ok(())
    }

    fn data(
        &mut self,
        frame: &Frame<'_>,
        output: &mut BytesMut,
        replies: &mut Vec<Reply>,
    ) -> Result<(), Broken> {
        // A frame is far shorter than the half of the window that is left.
        self.used += u32::try_from(frame.payload.len()).unwrap_or(0);
        if self.used > WINDOW_USED_MAX {
            put_window(output, std::mem::take(&mut self.used));
        }
        if let Some(call) = self.call(frame.stream)? {
            call.answer.extend_from_slice(frame.content()?);
            if call.answer.len() > ANSWER_BYTES_MAX {
                return Err(Broken::Ill("an answer of more than a mebibyte"));
            }
        }
        if frame.has(END_STREAM) {
            // It contains no status of the call.
            self.end(frame.stream, Field::Other, replies)?;
        }
        Ok(())
    }

    fn continuation(&mut self, frame: &Frame<'_>, replies: &mut Vec<Reply>) -> Result<(), Broken> {
        let Some((block, mut bytes)) = self.block.take() else { return Ok(()) };
        bytes.extend_from_slice(frame.payload);
        if block.stream != frame.stream || bytes.len() > BLOCK_BYTES_MAX {
            return Err(Broken::Ill("a block of fields of more than 64 KiB, or of two streams"));
        }
        if frame.has(END_HEADERS) {
            return self.fields(block, &bytes, replies);
        }
        self.block = Some((block, bytes));
        Ok(())
    }

    fn fields(&mut self, block: Block, bytes: &[u8], replies: &mut Vec<Reply>) -> Result<(), Broken> {
        // Also for a call that is over, because later blocks may refer to the fields of this one.
        let status = self.fields.read(bytes)?;
        if block.is_last {
            self.end(block.stream, status, replies)
        } else {
            self.call(block.stream).map(|_| ())
        }
    }

    /// The server closes the connection, and names the last call that it answers.
    fn leave(&mut self, frame: &Frame<'_>, replies: &mut Vec<Reply>) -> Result<(), Broken> {
        let last = frame.number(0)? & HIGHEST;
        let error = frame.number(4)?;
        if error != 0 {
            return Err(Broken::Left(error));
        }
        self.permits.is_leaving = true;
        for stream in (self.first..self.next).step_by(2).filter(|&stream| stream > last) {
            self.end(stream, Field::Other, replies)?;
        }
        Ok(())
    }

    /// A call in flight; `None` if it is over. A frame for a call that never began is an error.
    fn call(&mut self, stream: u32) -> Result<Option<&mut Call>, Broken> {
        if stream >= self.next || stream.is_multiple_of(2) {
            return Err(Broken::Ill("an answer to no request"));
        }
        if stream < self.first {
            return Ok(None);
        }
        let index = self.index(stream);
        Ok(self.calls.get_mut(index).filter(|call| !call.is_over))
    }

    /// Ends a call, if it is not over. It counts as answered only if its status is OK and its one message is complete
    /// and a decision.
    fn end(&mut self, stream: u32, status: Field, replies: &mut Vec<Reply>) -> Result<(), Broken> {
        let verdict = self.verdict;
        let Some(call) = self.call(stream)? else { return Ok(()) };
        call.is_over = true;
        let decided = if status == Field::Fine { message(&call.answer).and_then(verdict) } else { None };
        let name = call.answer.get(PREFIX_BYTES..).filter(|_| decided == Some(false)).and_then(cause);
        let name = name.map(<[u8]>::to_vec);
        let is_shared = call.answer.get(PREFIX_BYTES..).is_some_and(is_shared);
        if let Some(name) = name {
            self.details.deny(&name);
        }
        if decided.is_some() {
            self.details.examined += 1;
            self.details.shared += u64::from(is_shared);
        }
        replies.push(Reply {
            length: 0,
            allowed: u64::from(decided == Some(true)),
            answered: decided.is_some(),
        });
        self.open -= 1;
        Ok(())
    }

    /// Acts as if all streams but these last ones had been used.
    #[cfg(test)]
    pub(super) fn skip_to(&mut self, stream: u32) {
        self.next = stream;
    }
}

/// The number in the first field of an answer's only message; a missing field is zero. Its meaning depends on the
/// question.
fn message(answer: &[u8]) -> Option<u64> {
    let (&[compressed, a, b, c, d], message) = answer.split_first_chunk()?;
    let is_whole = u32::from_be_bytes([a, b, c, d]) as usize == message.len();
    // A single number is decoded as a message with one field; unknown fields are checked and skipped.
    (compressed == 0 && is_whole).then(|| u64::decode(message).ok()).flatten()
}
