//! One connection of the generator: closed loop with several requests in flight, or open loop with each request when it
//! is due.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::connect::{ANSWER_TIMEOUT, connected};
use crate::details::{self, Details};
use crate::error::LoadError;
use crate::grpc::Connection;
use crate::plan::{Pace, Plan};
use crate::reply::{self, Reply};
use crate::request::{LoadRequest, Protocol};
use crate::summary::Summary;

/// How much earlier than due a timer wakes: timers have a resolution of a millisecond, and the rest of the wait is
/// polled.
const EARLY: Duration = Duration::from_millis(2);
/// Maximum bytes of unread answers: a thousand of the longest are less.
const INPUT_BYTES_MAX: usize = 64 << 20;

/// The span of time that is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) start: Instant,
    pub(crate) end: Instant,
}

/// One of a plan's connections.
pub(crate) struct Asker {
    plan: Plan,
    index: usize,
    /// How many keys it has drawn, counted from a start that no other connection uses.
    drawn: u64,
    channels: Channels,
}

enum Channels {
    Stream { stream: TcpStream, input: BytesMut, output: BytesMut },
    Calls { connection: Box<Connection> },
}

impl Asker {
    pub(crate) async fn connect(plan: &Plan, index: usize) -> Result<Self, LoadError> {
        let channels = if plan.question.protocol() == Protocol::Grpc {
            Channels::Calls { connection: Box::new(Connection::open(plan.target, &plan.question).await?) }
        } else {
            let stream = connected(plan.target).await?;
            let (input, output) = (BytesMut::with_capacity(1 << 16), BytesMut::with_capacity(1 << 16));
            Channels::Stream { stream, input, output }
        };
        Ok(Self { plan: plan.clone(), index, drawn: (index as u64) << 32, channels })
    }

    /// Sends requests until the span is over. Counts the decisions that were answered within it, and the latency of
    /// every request that was due within it: one that comes too late to count is the slowest of all.
    pub(crate) async fn ask(mut self, span: Span) -> Result<Summary, LoadError> {
        let mut summary = Summary::new().map_err(|_| LoadError::Histogram)?;
        let mut turn = 0;
        loop {
            let due = match self.plan.pace {
                Pace::Closed => Instant::now(),
                Pace::Open { per_second } => self.due(span, turn, per_second),
            };
            turn += 1;
            if due >= span.end {
                summary.details.is_memory_full = self.is_memory_full().await?;
                return Ok(summary);
            }
            self.until(due).await?;
            let answers = tokio::time::timeout(ANSWER_TIMEOUT, self.turn(turn)).await;
            let now = Instant::now();
            let (answers, details) =
                answers.map_err(|_| LoadError::Slow { seconds: ANSWER_TIMEOUT.as_secs() })??;
            if due < span.start {
                continue;
            }
            if now <= span.end {
                summary.details.add(&details);
            }
            for answer in answers {
                summary.latency(now.duration_since(due));
                if !answer.answered {
                    summary.errors += 1;
                } else if now <= span.end {
                    summary.decisions += self.plan.question.decisions();
                    summary.allowed += answer.allowed;
                }
            }
        }
    }

    /// Whether the server reports that its memory is full. Used for RESP, whose answers do not name the source of their
    /// count.
    async fn is_memory_full(&mut self) -> Result<bool, LoadError> {
        let (Channels::Stream { stream, input, .. }, LoadRequest::Resp { .. }) =
            (&mut self.channels, &self.plan.question)
        else {
            return Ok(false);
        };
        stream.write_all(b"*2\r\n$4\r\nINFO\r\n$6\r\nmemory\r\n").await.map_err(lost)?;
        let mut is_full = false;
        let mut read = |input: &[u8]| {
            let reply = reply::resp(input, b"", &mut Details::default())?;
            is_full = details::find(&input[..reply.length], b"tollgate_memory_full:1").is_some();
            Some(reply)
        };
        let answered = tokio::time::timeout(ANSWER_TIMEOUT, replies(stream, input, 1, &mut read)).await;
        answered.map_err(|_| LoadError::Slow { seconds: ANSWER_TIMEOUT.as_secs() })??;
        Ok(is_full)
    }

    /// When a request of an open loop is due: the connections take turns.
    fn due(&self, span: Span, turn: u64, per_second: u64) -> Instant {
        let position = turn * self.plan.connections as u64 + self.index as u64;
        let nanos = u128::from(position) * 1_000_000_000 / u128::from(per_second.max(1));
        // The warm-up is part of the schedule, so it begins before the span does.
        let begin = span.start.checked_sub(self.plan.warmup).unwrap_or(span.start);
        begin + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Sends all requests that are to be in flight at once, and waits for their answers.
    async fn turn(&mut self, turn: u64) -> Result<(Vec<Reply>, Details), LoadError> {
        let mut details = Details::default();
        let requests = match self.plan.pace {
            Pace::Closed => self.plan.pipeline.max(1),
            Pace::Open { .. } => 1,
        };
        let (keys, drawn) = (self.plan.keys.max(1), &mut self.drawn);
        let mut key = || {
            *drawn = drawn.wrapping_add(1);
            BuildHasherDefault::<DefaultHasher>::default().hash_one(*drawn) % keys
        };
        match &mut self.channels {
            Channels::Stream { stream, input, output } => {
                output.clear();
                for _ in 0..requests {
                    self.plan.question.write(output, &mut key);
                }
                stream.write_all(output).await.map_err(lost)?;
                let mut read = |input: &[u8]| first_reply(input, &self.plan.question, &mut details, turn);
                Ok((replies(stream, input, requests, &mut read).await?, details))
            }
            Channels::Calls { connection } => {
                let question = &self.plan.question;
                let answers =
                    connection.exchange(requests, question, |out| question.write(out, &mut key)).await?;
                Ok((answers, connection.details()))
            }
        }
    }

    /// Waits until an instant, with a precision well below a millisecond.
    async fn until(&mut self, due: Instant) -> Result<(), LoadError> {
        if let Some(early) = due.checked_sub(EARLY)
            && early > Instant::now()
        {
            match &mut self.channels {
                Channels::Stream { .. } => tokio::time::sleep_until(early).await,
                Channels::Calls { connection } => connection.rest(early).await?,
            }
        }
        while Instant::now() < due {
            tokio::task::yield_now().await;
        }
        Ok(())
    }
}

fn lost(error: std::io::Error) -> LoadError {
    LoadError::Lost { reason: error.to_string() }
}

/// Waits for the answers to this many requests.
async fn replies(
    stream: &mut TcpStream,
    input: &mut BytesMut,
    requests: usize,
    read: &mut impl FnMut(&[u8]) -> Option<Reply>,
) -> Result<Vec<Reply>, LoadError> {
    let mut answers = Vec::with_capacity(requests);
    while answers.len() < requests {
        match read(input) {
            Some(answer) => {
                input.advance(answer.length);
                answers.push(answer);
            }
            None => {
                if input.len() > INPUT_BYTES_MAX {
                    return Err(LoadError::Lost { reason: "an answer does not end".to_owned() });
                }
                if stream.read_buf(input).await.map_err(lost)? == 0 {
                    return Err(LoadError::Lost { reason: "the server closed the connection".to_owned() });
                }
            }
        }
    }
    Ok(answers)
}

fn first_reply(input: &[u8], question: &LoadRequest, details: &mut Details, turn: u64) -> Option<Reply> {
    match question {
        // redis-cell answers 0 for yes; all others answer 1.
        LoadRequest::Resp { words } if words.first().is_some_and(|word| word.starts_with("CL.")) => {
            reply::resp(input, b":0\r", details)
        }
        LoadRequest::Resp { .. } => reply::resp(input, b":1\r", details),
        _ => reply::http(input, details, turn),
    }
}
