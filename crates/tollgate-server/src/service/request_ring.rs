//! The requests of the last hour, so that a candidate policy can decide about them. Of each request it keeps the instant
//! and what the active policy reads, with credentials as digests. Its memory is bounded by [`BYTES_MAX`]. What does not
//! fit is left out by client, so that those that are kept are kept with all their requests: a limit that counts by client
//! decides about them as it would have done live.
//!
//! Threads keep requests in stripes, one segment for each minute. A request of a client that is left out costs a hash.

mod past;
mod shape;

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use serde::{Deserialize, Serialize};
use tollgate::policy::{By, ExtraAttributes, Limit};
use tollgate::time::{TICKS_PER_SECOND, WallOffset};
use tollgate::{CheckRequest, Policy, Timestamp};

use crate::telemetry::striped::{STRIPES, stripe};
pub(crate) use past::{KeptPart, PastRequests};
use shape::Shape;

/// The memory of all kept requests, in bytes.
pub(crate) const BYTES_MAX: usize = 16 << 20;
/// The part of it that one minute may take.
const MINUTE_BYTES_MAX: usize = 1 << 20;
/// How many minutes are kept.
const MINUTES_KEPT: u64 = 60;
const MICROS_PER_MINUTE: u64 = 60 * TICKS_PER_SECOND;
/// Clients are left out only while there are so many. With fewer, the rest of the minute, or the oldest minute, is left
/// out.
const CLIENTS_MIN: usize = 64;
/// Of at least one client in so many (two to the power of this) the requests are kept.
const LEVEL_MAX: u8 = 20;
/// Bytes that a kept request takes, and a shape beside its text.
const REQUEST_BYTES: usize = 16;
const SHAPE_BYTES: usize = 96;

/// The parts of a request that are kept: those that the active policy reads.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    names: Vec<String>,
    /// Whether a limit asks for requests without other attributes, so that all of them are kept.
    reads_all: bool,
    /// The attributes that identify a client: those that most limits count by.
    client: Option<By>,
}

impl Reading {
    fn of(policy: &Policy) -> Self {
        let mut names: Vec<String> = policy.attributes_used().map(str::to_owned).collect();
        names.sort_unstable();
        names.dedup();
        let counts_by = |by: &By| policy.limits().iter().filter(|limit| limit.by().contains(by)).count();
        let each = policy.limits().iter().flat_map(Limit::by);
        // The first one of those that as many limits count by.
        let client = each.rev().max_by_key(|by| counts_by(by)).cloned();
        let reads_all = policy.limits().iter().any(|limit| limit.extra_attributes() == ExtraAttributes::None);
        Self { names, reads_all, client }
    }

    fn reads(&self, name: &str) -> bool {
        self.reads_all || self.names.iter().any(|read| read == name)
    }

    /// A hash of the client. Equal on all nodes of a fleet.
    fn client_of(&self, request: &CheckRequest<'_>) -> u32 {
        let Some(by) = &self.client else { return 0 };
        let attributes = || request.descriptors().flat_map(|descriptor| descriptor.attributes());
        let Some(client) = attributes().find(|attribute| attribute.name == by.name()) else { return 0 };
        let mut hasher = DefaultHasher::new();
        by.with_key_text(client.value, |text| text.hash(&mut hasher));
        (hasher.finish() >> 32) as u32
    }
}

/// Whether the requests of a client are kept.
const fn is_kept(client: u32, level: u8) -> bool {
    client.leading_zeros() >= level as u32
}

/// The kept requests of one minute, as nodes exchange them.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct KeptMinute {
    /// The start of the minute, in microseconds of the wall clock.
    from: u64,
    /// How far into the minute requests were kept, if not to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    full_at: Option<u32>,
    /// One client in two to the power of this is kept.
    level: u8,
    /// The attributes that identify a client, as a policy writes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client: Option<String>,
    /// The attributes that are kept.
    names: Vec<String>,
    /// The shapes of requests, and the hash of the client of each.
    shapes: Vec<(String, u32)>,
    /// The index of the shape, and the microseconds since the start.
    requests: Vec<(u32, u32)>,
}

/// A minute that is being filled.
#[derive(Debug)]
struct Segment {
    minute: u64,
    level: u8,
    full_at: Option<u32>,
    reading: Arc<Reading>,
    index: HashMap<Box<str>, u32>,
    clients: Vec<u32>,
    requests: Vec<(u32, u32)>,
}

impl Segment {
    fn bytes(&self) -> usize {
        let texts: usize = self.index.keys().map(|text| text.len() + SHAPE_BYTES).sum();
        texts + self.requests.len() * REQUEST_BYTES
    }

    /// Leaves out clients.
    fn thin(&mut self, level: u8) {
        if level <= self.level {
            return;
        }
        self.level = level;
        let (mut clients, mut numbers) = (Vec::new(), vec![None; self.clients.len()]);
        let before = std::mem::take(&mut self.clients);
        self.index.retain(|_, number| {
            let client = before.get(*number as usize).copied().unwrap_or_default();
            let is_kept = is_kept(client, level);
            if is_kept && let Some(renumbered) = numbers.get_mut(*number as usize) {
                // As many as before at most.
                *number = u32::try_from(clients.len()).unwrap_or(u32::MAX);
                *renumbered = Some(*number);
                clients.push(client);
            }
            is_kept
        });
        self.clients = clients;
        self.requests.retain_mut(|(shape, _)| match numbers.get(*shape as usize) {
            Some(Some(number)) => {
                *shape = *number;
                true
            }
            _ => false,
        });
        self.requests.shrink_to_fit();
    }

    fn exported(&self, wall: WallOffset) -> KeptMinute {
        let mut shapes = vec![(String::new(), 0); self.clients.len()];
        for (text, number) in &self.index {
            if let (Some(shape), Some(client)) =
                (shapes.get_mut(*number as usize), self.clients.get(*number as usize))
            {
                *shape = (text.to_string(), *client);
            }
        }
        KeptMinute {
            from: Timestamp::from_unix_micros(self.minute * MICROS_PER_MINUTE).on_wall(wall).unix_micros(),
            full_at: self.full_at,
            level: self.level,
            client: self.reading.client.as_ref().map(ToString::to_string),
            names: self.reading.names.clone(),
            shapes,
            requests: self.requests.clone(),
        }
    }
}

/// The segments of the threads of one stripe, oldest first.
#[derive(Debug, Default)]
struct Stripe {
    segments: VecDeque<Segment>,
    scratch: Vec<u8>,
}

impl Stripe {
    /// Keeps a request, and returns the bytes that it takes.
    fn keep(
        &mut self,
        request: &CheckRequest<'_>,
        client: u32,
        reading: &Arc<Reading>,
        place: RingSlot,
    ) -> usize {
        let is_same = |segment: &Segment| {
            // A request that was decided a moment late belongs to the minute before.
            segment.minute >= place.minute && Arc::ptr_eq(&segment.reading, reading)
        };
        if !self.segments.back().is_some_and(is_same) {
            self.segments.push_back(Segment {
                minute: place.minute,
                level: place.level,
                full_at: None,
                reading: Arc::clone(reading),
                index: HashMap::new(),
                clients: Vec::new(),
                requests: Vec::new(),
            });
        }
        let Some(segment) = self.segments.back_mut() else { return 0 };
        // Another thread may have left out this client meanwhile.
        if !is_kept(client, segment.level) || segment.full_at.is_some() {
            return 0;
        }
        self.scratch.clear();
        // Writing to memory does not fail, and JSON is UTF-8.
        if serde_json::to_writer(&mut self.scratch, &Shape { request, reading }).is_err() {
            return 0;
        }
        let Ok(text) = std::str::from_utf8(&self.scratch) else { return 0 };
        let (number, mut bytes) = match segment.index.get(text) {
            Some(number) => (*number, 0),
            None => {
                let number = u32::try_from(segment.clients.len()).unwrap_or(u32::MAX);
                segment.index.insert(text.into(), number);
                segment.clients.push(client);
                (number, text.len() + SHAPE_BYTES)
            }
        };
        let offset = if segment.minute == place.minute { place.offset } else { 0 };
        segment.requests.push((number, offset));
        bytes += REQUEST_BYTES;
        bytes
    }
}

/// Where in the ring a request is kept.
#[derive(Clone, Copy)]
struct RingSlot {
    minute: u64,
    offset: u32,
    level: u8,
}

/// The requests of the last hour.
pub(crate) struct RequestRing {
    reading: ArcSwap<Reading>,
    stripes: [Mutex<Stripe>; STRIPES],
    level: AtomicU8,
    minute: AtomicU64,
    /// A minute of which no more is kept.
    closed: AtomicU64,
    bytes: AtomicUsize,
    minute_bytes: AtomicUsize,
    /// Held while something is left out, so that one thread does it.
    resizing: Mutex<()>,
}

impl Default for RequestRing {
    fn default() -> Self {
        Self {
            reading: ArcSwap::default(),
            stripes: Default::default(),
            level: AtomicU8::new(0),
            minute: AtomicU64::new(0),
            closed: AtomicU64::new(u64::MAX),
            bytes: AtomicUsize::new(0),
            minute_bytes: AtomicUsize::new(0),
            resizing: Mutex::default(),
        }
    }
}

impl RequestRing {
    /// Keeps what this policy reads from now on.
    pub(crate) fn follow(&self, policy: &Policy) {
        self.reading.store(Arc::new(Reading::of(policy)));
    }

    fn stripe(&self, index: usize) -> MutexGuard<'_, Stripe> {
        // A panic while it was locked cost a request.
        self.stripes[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a request, if its client is not left out.
    #[inline]
    pub(crate) fn keep(&self, request: &CheckRequest<'_>, now: Timestamp) {
        let minute = now.unix_micros() / MICROS_PER_MINUTE;
        // Relaxed, here and below: the numbers guard no other memory. A request that is kept or left out by an old
        // number is corrected when the segment is thinned.
        if self.closed.load(Ordering::Relaxed) == minute {
            return;
        }
        if self.minute.load(Ordering::Relaxed) < minute {
            self.turn(minute);
        }
        let reading = self.reading.load();
        let (level, client) = (self.level.load(Ordering::Relaxed), reading.client_of(request));
        if is_kept(client, level) {
            let offset = u32::try_from(now.unix_micros() % MICROS_PER_MINUTE).unwrap_or_default();
            self.keep_at(request, client, &reading, RingSlot { minute, offset, level });
        }
    }

    fn keep_at(&self, request: &CheckRequest<'_>, client: u32, reading: &Arc<Reading>, place: RingSlot) {
        let bytes = self.stripe(stripe()).keep(request, client, reading, place);
        let of_minute = self.minute_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let all = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if of_minute > MINUTE_BYTES_MAX || all > BYTES_MAX {
            self.make_room(place);
        }
    }

    /// Begins a minute: what is older than an hour goes, and where there is room, more clients are kept.
    #[cold]
    fn turn(&self, minute: u64) {
        let _one = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.minute.load(Ordering::Relaxed) >= minute {
            return;
        }
        self.minute.store(minute, Ordering::Relaxed);
        self.drop_before(minute.saturating_sub(MINUTES_KEPT));
        let of_minute = self.minute_bytes.swap(0, Ordering::Relaxed);
        let level = self.level.load(Ordering::Relaxed);
        let has_room = self.bytes.load(Ordering::Relaxed) < BYTES_MAX / 4 && of_minute < MINUTE_BYTES_MAX / 4;
        if level > 0 && has_room {
            self.level.store(level - 1, Ordering::Relaxed);
        }
    }

    /// Leaves out half of the clients. With few of them, the rest of the minute or the oldest minute goes instead.
    #[cold]
    fn make_room(&self, place: RingSlot) {
        let Ok(_one) = self.resizing.try_lock() else { return };
        let level = self.level.load(Ordering::Relaxed);
        let can_thin = level < LEVEL_MAX && self.clients(place.minute) >= CLIENTS_MIN;
        if self.minute_bytes.load(Ordering::Relaxed) > MINUTE_BYTES_MAX {
            if can_thin {
                self.level.store(level + 1, Ordering::Relaxed);
                self.thin(level + 1, place.minute);
            } else {
                self.close(place);
            }
        }
        if self.bytes.load(Ordering::Relaxed) <= BYTES_MAX {
            return;
        }
        let level = self.level.load(Ordering::Relaxed);
        self.thin(level, 0);
        if self.bytes.load(Ordering::Relaxed) <= BYTES_MAX {
            return;
        }
        if can_thin {
            self.level.store(level + 1, Ordering::Relaxed);
            self.thin(level + 1, 0);
            return;
        }
        let oldest =
            (0..STRIPES).filter_map(|index| self.stripe(index).segments.front().map(|first| first.minute));
        let oldest = oldest.min().unwrap_or_default();
        self.drop_before(oldest + 1);
    }

    /// How many clients a minute has.
    fn clients(&self, minute: u64) -> usize {
        let mut clients: HashSet<u32> = HashSet::new();
        for index in 0..STRIPES {
            let stripe = self.stripe(index);
            let segments = stripe.segments.iter().filter(|segment| segment.minute == minute);
            clients.extend(segments.flat_map(|segment| &segment.clients));
        }
        clients.len()
    }

    /// Leaves out clients of the minutes from this one on.
    fn thin(&self, level: u8, from: u64) {
        for index in 0..STRIPES {
            let mut stripe = self.stripe(index);
            stripe
                .segments
                .iter_mut()
                .filter(|segment| segment.minute >= from)
                .for_each(|segment| segment.thin(level));
        }
        self.weigh();
    }

    fn drop_before(&self, minute: u64) {
        for index in 0..STRIPES {
            self.stripe(index).segments.retain(|segment| segment.minute >= minute);
        }
        self.weigh();
    }

    fn close(&self, place: RingSlot) {
        self.closed.store(place.minute, Ordering::Relaxed);
        for index in 0..STRIPES {
            let mut stripe = self.stripe(index);
            for segment in stripe.segments.iter_mut().filter(|segment| segment.minute == place.minute) {
                segment.full_at = Some(place.offset);
            }
        }
    }

    /// Counts the bytes again.
    fn weigh(&self) {
        let (mut all, mut of_minute) = (0, 0);
        let minute = self.minute.load(Ordering::Relaxed);
        for index in 0..STRIPES {
            for segment in &self.stripe(index).segments {
                let bytes = segment.bytes();
                all += bytes;
                of_minute += if segment.minute == minute { bytes } else { 0 };
            }
        }
        self.bytes.store(all, Ordering::Relaxed);
        self.minute_bytes.store(of_minute, Ordering::Relaxed);
    }

    /// The kept minutes that end after an instant, of all stripes.
    pub(crate) fn since(&self, at: Timestamp, wall: WallOffset) -> Vec<KeptMinute> {
        let mut kept = Vec::new();
        for index in 0..STRIPES {
            let stripe = self.stripe(index);
            let ends_after = |segment: &&Segment| (segment.minute + 1) * MICROS_PER_MINUTE > at.unix_micros();
            kept.extend(stripe.segments.iter().filter(ends_after).map(|segment| segment.exported(wall)));
        }
        kept
    }
}

#[cfg(test)]
mod tests;
