//! The load: connections that are kept, one request at a time on each. Closed, each asks as soon as it is answered; open, requests have
//! their instants, and wait for a free connection if there is none, so that the wait counts as well.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::Failure;
use crate::poll::Poll;

/// The request: like a browser's, but shorter.
const REQUEST: &[u8] =
    b"GET /hello?name=world HTTP/1.1\r\nHost: bench.example.com\r\nUser-Agent: bench/1.0\r\n\
Accept: */*\r\nAccept-Encoding: gzip, deflate\r\n\r\n";
/// How long an answer may take before the run is given up.
const PATIENCE: Duration = Duration::from_secs(10);

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Pace {
    Closed,
    Open { per_second: f64 },
}

/// The result of a run.
pub(crate) struct Outcome {
    /// Answers with 200, and with anything else, in the time that was measured.
    pub(crate) admitted: u64,
    pub(crate) refused: u64,
    pub(crate) took: Duration,
    /// Nanoseconds from the instant that a request had to the end of its answer.
    pub(crate) latency: Histogram<u64>,
}

impl Outcome {
    pub(crate) fn answers(&self) -> u64 {
        self.admitted + self.refused
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.answers() as f64 / self.took.as_secs_f64()
    }

    pub(crate) fn latency_us(&self, quantile: f64) -> f64 {
        self.latency.value_at_quantile(quantile) as f64 / 1_000.0
    }
}

/// A connection, and the request that is under way on it.
pub(crate) struct Connection {
    stream: TcpStream,
    answer: Vec<u8>,
    due: Option<Instant>,
}

impl Connection {
    pub(crate) fn open(target: SocketAddr) -> Result<Self, Failure> {
        let stream = TcpStream::connect(target)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream, answer: Vec::with_capacity(1_024), due: None })
    }

    fn ask(&mut self, due: Instant) -> Result<(), Failure> {
        self.due = Some(due);
        Ok(self.stream.write_all(REQUEST)?)
    }

    /// Asks once and waits, and says whether the answer is a 200.
    pub(crate) fn ask_once(&mut self) -> Result<bool, Failure> {
        self.ask(Instant::now())?;
        let mut bytes = [0; 4_096];
        loop {
            let read = self.stream.read(&mut bytes)?;
            if let Some(admitted) = self.take(&bytes[..read])? {
                return Ok(admitted);
            }
        }
    }

    /// Takes bytes of an answer; at its end, whether it is a 200.
    fn take(&mut self, bytes: &[u8]) -> Result<Option<bool>, Failure> {
        if bytes.is_empty() {
            return Err("a connection was closed".into());
        }
        self.answer.extend_from_slice(bytes);
        let Some(head) = self.answer.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
        let length = content_length(&self.answer[..head])?;
        match (head + 4 + length).cmp(&self.answer.len()) {
            std::cmp::Ordering::Greater => return Ok(None),
            std::cmp::Ordering::Less => return Err("more came than an answer".into()),
            std::cmp::Ordering::Equal => {}
        }
        let is_admitted = self.answer.starts_with(b"HTTP/1.1 200 ");
        self.answer.clear();
        Ok(Some(is_admitted))
    }
}

fn content_length(head: &[u8]) -> Result<usize, Failure> {
    const NAME: &[u8] = b"content-length:";
    let line = head
        .split(|&byte| byte == b'\n')
        .find(|line| line.get(..NAME.len()).is_some_and(|name| name.eq_ignore_ascii_case(NAME)));
    let value = line.and_then(|line| std::str::from_utf8(&line[NAME.len()..]).ok());
    let length = value.and_then(|value| value.trim().parse().ok());
    length.ok_or_else(|| format!("an answer without a length: {}", String::from_utf8_lossy(head)).into())
}

/// A run under way.
struct Run {
    poll: Poll,
    connections: Vec<Connection>,
    free: VecDeque<usize>,
    outcome: Outcome,
    measured_from: Instant,
}

/// Asks for so long, of which the warm-up is not counted. `at_start` is called when counting starts.
pub(crate) fn run(
    target: SocketAddr,
    connections: usize,
    pace: Pace,
    [warmup, duration]: [Duration; 2],
    at_start: impl FnOnce(),
) -> Result<Outcome, Failure> {
    let mut run = Run::open(target, connections)?;
    let begun = Instant::now();
    run.measured_from = begun + warmup;
    let ends = run.measured_from + duration;
    let mut at_start = Some(at_start);
    let (mut due, mut waiting) = (begun, VecDeque::new());
    if pace == Pace::Closed {
        while let Some(number) = run.free.pop_front() {
            run.connections[number].ask(begun)?;
        }
    }
    loop {
        let now = Instant::now();
        if now >= ends {
            break;
        }
        if now >= run.measured_from
            && let Some(at_start) = at_start.take()
        {
            at_start();
            run.measured_from = Instant::now();
        }
        let patience = match pace {
            Pace::Closed => PATIENCE,
            Pace::Open { per_second } => {
                while due <= now {
                    waiting.push_back(due);
                    due += Duration::from_secs_f64(1.0 / per_second);
                }
                run.ask_waiting(&mut waiting)?;
                due.saturating_duration_since(Instant::now())
            }
        };
        run.answered(patience, pace)?;
        run.ask_waiting(&mut waiting)?;
    }
    run.outcome.took = run.measured_from.elapsed();
    Ok(run.outcome)
}

impl Run {
    fn open(target: SocketAddr, connections: usize) -> Result<Self, Failure> {
        let poll = Poll::new()?;
        let connections =
            (0..connections).map(|_| Connection::open(target)).collect::<Result<Vec<_>, _>>()?;
        for (number, connection) in connections.iter().enumerate() {
            connection.stream.set_nonblocking(true)?;
            poll.add(&connection.stream, number)?;
        }
        let latency = Histogram::new_with_bounds(1_000, 60_000_000_000, 3)?;
        let outcome = Outcome { admitted: 0, refused: 0, took: Duration::ZERO, latency };
        let free = (0..connections.len()).collect();
        Ok(Self { poll, connections, free, outcome, measured_from: Instant::now() })
    }

    /// Sends what is due, as far as connections are free. They take turns.
    fn ask_waiting(&mut self, waiting: &mut VecDeque<Instant>) -> Result<(), Failure> {
        while !waiting.is_empty()
            && let Some(number) = self.free.pop_front()
        {
            if let Some(due) = waiting.pop_front() {
                self.connections[number].ask(due)?;
            }
        }
        Ok(())
    }

    /// Takes the answers that are there.
    fn answered(&mut self, patience: Duration, pace: Pace) -> Result<(), Failure> {
        let ready = self.poll.wait(Some(patience))?;
        if ready.is_empty() && pace == Pace::Closed {
            return Err("no answer in ten seconds".into());
        }
        let mut bytes = [0; 4_096];
        for number in ready {
            let connection = &mut self.connections[number];
            let read = match connection.stream.read(&mut bytes) {
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error.into()),
            };
            let Some(is_admitted) = connection.take(&bytes[..read])? else { continue };
            let due = connection.due.take().ok_or("an answer that nobody asked for")?;
            let now = Instant::now();
            if now >= self.measured_from && due >= self.measured_from - Duration::from_millis(1) {
                let count = if is_admitted { &mut self.outcome.admitted } else { &mut self.outcome.refused };
                *count += 1;
                self.outcome.latency.saturating_record((now - due).as_nanos() as u64);
            }
            match pace {
                Pace::Closed => connection.ask(now)?,
                Pace::Open { .. } => self.free.push_back(number),
            }
        }
        Ok(())
    }
}
