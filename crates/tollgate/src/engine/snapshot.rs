//! Snapshots: counters written to a file and read by another process, so that a restart does not give away a month's
//! quota.
//!
//! A snapshot holds the counters as they are in memory (hashes of keys, never keys), the secret of those hashes, and
//! every quota that one of them may have been counted under. The reader makes a policy active after the remembered one,
//! as a active swap does. So a policy that changed with the restart is no special case.
//!
//! *Guarantees.* Decisions go on while a snapshot is taken, so it is not of one instant. Each counter is copied once,
//! or twice and the later copy counts, at some instant after the beginning and under the lock that its decisions take.
//! So the copy holds everything that was admitted before the beginning (see [`Table::walk`](crate::memory)). A crash
//! loses, for each counter, at most what it admitted between its own copy and the crash. If a request matched several
//! limits, one counter may have been copied before it and another after it; both hold all that was admitted before the
//! beginning. Units refunded after the copy stay charged.
//!
//! *Time.* Instants are those of the clock that counted, which does not follow the wall clock when that is set. So a
//! snapshot records how far the wall clock is ahead ([`Snapshot::wall`]), and its reader continues the same clock
//! ([`Clock::resumed`]). The time that has passed is then that of the wall clock between the two, whatever steps came
//! before. If the reader's clock is behind, because it was set back or belongs to another machine, counters lie in the
//! future, and each algorithm pulls them back as it does when a clock steps back. That gives nothing away, and a wait
//! is at most one refill, or two windows and a sub-window. If the reader's clock is ahead, that much time has passed.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Engine, SwapError, SwapReport};
use crate::active::{ActivePolicy, Remembered};
use crate::clock::Clock;
use crate::key::Secret;
use crate::memory::{Full, KeptSettings, MemoryStore, Origin, Setting, WALL_SETTINGS_MAX, setting_of};
use crate::policy::Policy;
use crate::problem::plain_cause;
use crate::store::Store;
use crate::time::{Timestamp, WallOffset};
use counters::Counted;
use fields::{FrameFields, Unread};
use frame::{Block, Frames, Unframed};

mod counters;
mod fields;
mod frame;
mod limits;
mod quota;

pub use frame::BLOCK_BYTES_MAX as SNAPSHOT_PART_BYTES_MAX;
pub use frame::VERSION as SNAPSHOT_VERSION;
#[cfg(feature = "fuzzing")]
pub use frame::sealed;

/// Counts of a written snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotReport {
    /// Counters of keys.
    pub keys: u64,
    /// Counters that new keys shared because the store was full.
    pub overflow_keys: u64,
    /// Total bytes.
    pub bytes: u64,
}

/// Why a snapshot could not be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// It could not be written.
    #[error("the snapshot could not be written: {}", plain_cause(.0))]
    Io(#[from] io::Error),
    /// The written counters belong to two policies; take another snapshot.
    #[error("another policy became active while the snapshot was taken; throw it away and take another")]
    PolicyChanged,
    /// The written counters belong to two settings of the wall clock; take another snapshot.
    #[error("the wall clock was set while the snapshot was taken; throw it away and take another")]
    WallSet,
    /// The counters are not in memory but in a store that outlives this process.
    #[error("only counters in memory can be written to a snapshot")]
    NotInMemory,
}

/// Counts of a restored snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestoreReport {
    /// When the snapshot was begun, by the clock of the process that took it.
    pub taken_at: Timestamp,
    /// Counters of keys that were restored.
    pub keys: u64,
    /// Counters that new keys shared, restored.
    pub overflow_keys: u64,
    /// Counters that no longer matter, and were left out.
    pub idle: u64,
    /// Counters that this store had no room for: their keys are as if never seen. Zero unless the capacity is smaller
    /// than that of the store which was written, or hardly larger than its contents.
    pub dropped: u64,
}

/// Why a snapshot could not be read. Nothing of it is then active.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// It could not be read.
    #[error("the snapshot could not be read: {}", plain_cause(.0))]
    Io(#[from] io::Error),
    /// It is not a snapshot.
    #[error("this is not a snapshot of Tollgate")]
    NotASnapshot,
    /// It was written by a newer version.
    #[error(
        "the snapshot has format {found}, and this version reads formats up to {SNAPSHOT_VERSION}; read it with the version that wrote it"
    )]
    TooNew {
        /// Its format.
        found: u32,
    },
    /// Its end is missing.
    #[error(
        "the snapshot ends too early, after {bytes} bytes: it was not written to its end, or cut off since"
    )]
    Truncated {
        /// How many bytes there are.
        bytes: u64,
    },
    /// It is not what was written.
    #[error("the snapshot is damaged near byte {at}: {what}")]
    Damaged {
        /// The position of the damage.
        at: u64,
        /// The problem there.
        what: String,
    },
}

/// Snapshots of an engine's counters in memory.
pub struct Snapshots<'e, S> {
    pub(super) engine: &'e Engine<S>,
}

impl<S> Copy for Snapshots<'_, S> {}

impl<S> Clone for Snapshots<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: Store> Snapshots<'_, S> {
    /// As [`Snapshots::write`], with counts that the program keeps itself, in parts of at most
    /// [`SNAPSHOT_PART_BYTES_MAX`]. The parts are requested one by one, and [`Snapshot::read_with`] returns them
    /// unchanged and in this order. Hashes of an [`Ledger::key_family`](super::Ledger::key_family) mean the same there. `memory` finds the
    /// counters in the engine's store.
    ///
    /// # Errors
    /// As [`Snapshots::write`]; when a part is too large; and when `memory` finds no counters.
    pub fn write_with<P: AsRef<[u8]>>(
        &self,
        memory: impl FnOnce(&S) -> Option<&MemoryStore>,
        now: Timestamp,
        parts: impl IntoIterator<Item = P>,
        to: &mut impl Write,
    ) -> Result<SnapshotReport, SnapshotError> {
        let store = memory(&self.engine.store).ok_or(SnapshotError::NotInMemory)?;
        let (now, active) = (now.decidable(), self.engine.active.load_full());
        let mut frames = Frames::new(to)?;
        let settings = store.wall_settings();
        frames.write(Block::Head, |fields| {
            head(fields, &self.engine.active.load().secret, store.origin(), now)
        })?;
        frames.write(Block::Wall, |fields| wall(fields, &settings))?;
        limits::write(&mut frames, &active)?;
        frames.write(Block::Holds, |fields| holds(fields, &active, store, now))?;
        let counted = counters::write(&mut frames, store, &settings, now)?;
        for part in parts {
            frames.write(Block::CallerPart, |fields| fields.rest(part.as_ref()))?;
        }
        // The permits in the snapshot have lower ids, and a policy made active since then has another generation.
        let permits = self.engine.permits.load(Ordering::Relaxed);
        if self.engine.active.load().generation() != active.generation() {
            return Err(SnapshotError::PolicyChanged);
        }
        if !store.has_wall_settings(&settings) {
            return Err(SnapshotError::WallSet);
        }
        frames.write(Block::End, |fields| {
            fields.u64(permits);
            fields.u64(counted.keys);
            fields.u64(counted.overflow_keys);
        })?;
        let bytes = frames.finish()?;
        Ok(SnapshotReport { keys: counted.keys, overflow_keys: counted.overflow_keys, bytes })
    }
}

impl Snapshots<'_, MemoryStore> {
    /// Writes every counter that matters, while decisions go on. Pass a buffered writer. The output lets its reader
    /// target buckets of this process, so it is as private as a key.
    ///
    /// # Errors
    /// When it cannot be written, or another policy became active or the wall clock was set meanwhile; the output is
    /// then of no use.
    pub fn write(self, now: Timestamp, to: &mut impl Write) -> Result<SnapshotReport, SnapshotError> {
        self.write_with(|store| Some(store), now, std::iter::empty::<[u8; 0]>(), to)
    }
}

/// A snapshot that was read to its end and found intact.
///
/// ```
/// use tollgate::{CheckRequest, Engine, Policy, Snapshot};
/// let policy = || "limits: [{name: monthly, by: [tenant], rate: 2/month}]".parse::<Policy>();
/// let engine = Engine::builder().policy(policy()?).build();
/// let now = engine.now();
/// let request = CheckRequest::new().with("tenant", "acme")?.cost(2)?;
/// assert!(engine.try_check(&request, now)?.is_allowed());
/// let mut file = Vec::new();
/// engine.maintenance().snapshots().write(now, &mut file)?;
///
/// let snapshot = Snapshot::read(64 << 20, now, &mut file.as_slice())?;
/// assert_eq!(snapshot.report().keys, 1);
/// let (engine, _) = snapshot.restore(policy()?, |memory| memory, now)?;
/// assert!(!engine.try_check(&request, now)?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Snapshot(Box<SnapshotContent>);

impl Snapshot {
    /// How far the wall clock was ahead of the clock that counted when the snapshot in `from` was taken. Setting the
    /// wall clock of a machine does not set that clock, so the next process continues with
    /// [`Clock::resumed`](crate::Clock::resumed).
    ///
    /// ```
    /// use tollgate::time::WallOffset;
    /// use tollgate::{Clock, Engine, Policy, Snapshot};
    /// let policy: Policy = "limits: [{name: monthly, rate: 2/month}]".parse()?;
    /// let (clock, hour) = (Clock::precise(), WallOffset::from_micros(3_600_000_000));
    /// let engine = Engine::builder().policy(policy).clock(clock.clone()).build();
    /// engine.maintenance().follow_wall(hour, clock.now());
    /// let mut file = Vec::new();
    /// engine.maintenance().snapshots().write(clock.now(), &mut file)?;
    /// let clock = Clock::resumed(Snapshot::wall(&mut file.as_slice())?);
    /// let snapshot = Snapshot::read(64 << 20, clock.now(), &mut file.as_slice())?;
    /// # assert_eq!(clock.wall_offset(clock.now()), hour);
    /// # assert_eq!(snapshot.report().dropped, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When it is no snapshot, of a newer version, cut off or damaged, as far as it is read.
    pub fn wall(from: &mut impl Read) -> Result<WallOffset, RestoreError> {
        let mut frames = Unframed::new(from)?;
        frames.next()?;
        let (block, payload) = frames.next()?;
        if block != Block::Wall {
            return Ok(WallOffset::NONE); // Written before the wall clock was followed.
        }
        let settings = Unread::whole(&payload, read_wall).map_err(|what| frames.damaged(what))?;
        Ok(settings.last().map_or(WallOffset::NONE, |setting| setting.offset))
    }

    /// Reads a snapshot into a memory store of `capacity_bytes`, for decisions from `now` on. Pass a buffered reader.
    ///
    /// # Errors
    /// When it is no snapshot, of a newer version, cut off or damaged.
    pub fn read(capacity_bytes: u64, now: Timestamp, from: &mut impl Read) -> Result<Self, RestoreError> {
        Self::read_with(capacity_bytes, now, |_, _| Ok(()), from)
    }

    /// As [`Snapshot::read`], and passes on the parts that [`Snapshots::write_with`] wrote beside the engine's
    /// counters: each part unchanged, with the instant at which the snapshot was begun. Later blocks may still be
    /// damaged, and then no part is valid. A snapshot of an older version has no parts.
    ///
    /// # Errors
    /// As [`Snapshot::read`]; and when `part` returns an error for one.
    pub fn read_with(
        capacity_bytes: u64,
        now: Timestamp,
        mut part: impl FnMut(Timestamp, &[u8]) -> Result<(), String>,
        from: &mut impl Read,
    ) -> Result<Self, RestoreError> {
        let mut frames = Unframed::new(from)?;
        let mut reading = SnapshotContent::start(&mut frames, capacity_bytes, now.decidable())?;
        while !reading.block(&mut frames, &mut part)? {}
        frames.end()?;
        Ok(Self(Box::new(reading)))
    }

    /// An engine with the counters of the snapshot, under this policy from `now` on, an instant of the clock that counted
    /// ([`Snapshot::wall`]). The policy follows the one under which the snapshot was taken, as after [`Engine::swap`].
    /// Its clock continues that one. `store` makes the engine's store of the memory store, for a program whose stores are of one type.
    ///
    /// # Errors
    /// As [`Engine::swap`].
    pub fn restore<S: Store>(
        self,
        policy: Policy,
        store: impl FnOnce(MemoryStore) -> S,
        now: Timestamp,
    ) -> Result<(Engine<S>, SwapReport), SwapError> {
        let SnapshotContent { secret, store: memory, remembered, permits, .. } = *self.0;
        let active = ActivePolicy::recalled(remembered, Arc::new(secret));
        let wall = memory.wall();
        let engine = Engine::assemble(active, store(memory), Clock::resumed(wall));
        engine.permits.store(permits, Ordering::Relaxed);
        engine.wall.store(wall.as_micros(), Ordering::Relaxed);
        let report = engine.swap_counters(Arc::new(policy), now)?;
        Ok((engine, report))
    }

    /// Counts of the snapshot's content.
    #[must_use]
    pub fn report(&self) -> RestoreReport {
        let SnapshotContent { taken_at, counted, .. } = &*self.0;
        RestoreReport {
            taken_at: *taken_at,
            keys: counted.keys,
            overflow_keys: counted.overflow_keys,
            idle: counted.idle,
            dropped: counted.dropped,
        }
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Snapshot").field(&self.report()).finish()
    }
}

fn head(fields: &mut FrameFields, secret: &Secret, origin: Origin, now: Timestamp) {
    fields.instant(now);
    fields.instant(origin.0);
    secret.numbers().for_each(|number| fields.u64(number));
}

/// The settings of the wall clock that windows refer to by number.
fn wall(fields: &mut FrameFields, kept: &KeptSettings) {
    fields.list(&kept.settings, |fields, setting| {
        fields.instant(setting.since);
        fields.u64(setting.offset.as_micros().cast_unsigned());
    });
}

fn read_wall(fields: &mut Unread<'_>) -> Result<Vec<Setting>, String> {
    let length = fields.length()?;
    if length == 0 || length >= WALL_SETTINGS_MAX {
        return Err(format!("{length} settings of the wall clock"));
    }
    let setting = |fields: &mut Unread<'_>| {
        let (since, micros) = (fields.instant()?, fields.u64()?.cast_signed());
        let offset = WallOffset::from_micros(micros);
        let is_possible = offset.as_micros() == micros;
        is_possible
            .then_some(Setting { since, offset })
            .ok_or_else(|| "the wall clock is out of range".to_owned())
    };
    (0..length).map(|_| setting(fields)).collect()
}

fn holds(fields: &mut FrameFields, active: &ActivePolicy, store: &MemoryStore, now: Timestamp) {
    fields.u64(active.generation());
    fields.list(active.held(), |fields, (&number, &until)| {
        fields.u32(number);
        fields.instant(until);
    });
    fields.list(&store.active_holds(now), |fields, hold| {
        fields.u32(hold.number);
        fields.u64(hold.since);
        fields.u64(hold.until);
    });
}

/// A snapshot being read.
struct SnapshotContent {
    now: Timestamp,
    taken_at: Timestamp,
    origin: Origin,
    secret: Secret,
    store: MemoryStore,
    remembered: Remembered,
    counted: Counted,
    permits: u64,
    /// Settings of the wall clock that windows may refer to.
    settings: u64,
    /// Whether the holds are known: counters are restored only after that, because a hold may keep an idle one.
    is_ready: bool,
}

impl SnapshotContent {
    fn start<R: Read>(
        frames: &mut Unframed<'_, R>,
        capacity_bytes: u64,
        now: Timestamp,
    ) -> Result<Self, RestoreError> {
        let (block, payload) = frames.next()?;
        let head = |fields: &mut Unread<'_>| {
            let (taken_at, origin) = (fields.instant()?, Origin(fields.instant()?));
            let mut numbers = Vec::new();
            while !fields.is_empty() {
                numbers.push(fields.u64()?);
            }
            let secret = Secret::from_numbers(&numbers).ok_or("the secret has another length")?;
            Ok((taken_at, origin, secret))
        };
        if block != Block::Head {
            return Err(frames.damaged("it does not begin with its head"));
        }
        let (taken_at, origin, secret) =
            Unread::whole(&payload, head).map_err(|what| frames.damaged(what))?;
        let store = MemoryStore::new(capacity_bytes, now);
        let (remembered, counted) = (Remembered::default(), Counted::default());
        Ok(Self {
            now,
            taken_at,
            origin,
            secret,
            store,
            remembered,
            counted,
            permits: 1,
            settings: 1,
            is_ready: false,
        })
    }

    /// Reads the next block. Returns whether it was the last.
    fn block<R: Read>(
        &mut self,
        frames: &mut Unframed<'_, R>,
        part: &mut impl FnMut(Timestamp, &[u8]) -> Result<(), String>,
    ) -> Result<bool, RestoreError> {
        let (block, payload) = frames.next()?;
        let read = Unread::whole(&payload, |fields| match block {
            Block::Limit if !self.is_ready => limits::read_limit(fields, &mut self.remembered),
            Block::Gone if !self.is_ready => limits::read_gone(fields, &mut self.remembered),
            Block::Wall if !self.is_ready => self.wall(fields),
            Block::Holds if !self.is_ready => self.holds(fields),
            Block::Words | Block::Pairs | Block::Large if self.is_ready => self.counters(block, fields),
            Block::CallerPart if self.is_ready => part(self.taken_at, fields.rest()),
            Block::End if self.is_ready => self.end(fields),
            _ => Err("a part is not where it belongs".to_owned()),
        });
        read.map_err(|what| frames.damaged(what))?;
        Ok(block == Block::End)
    }

    fn wall(&mut self, fields: &mut Unread<'_>) -> Result<(), String> {
        let settings = read_wall(fields)?;
        self.settings = settings.len() as u64;
        self.store.resume_wall(settings);
        Ok(())
    }

    fn holds(&mut self, fields: &mut Unread<'_>) -> Result<(), String> {
        self.remembered.generation = fields.u64_to(GENERATION_MAX)?;
        for _ in 0..fields.length()? {
            let (number, until) = (fields.number()?, fields.instant()?);
            self.remembered.held.insert(number, until);
        }
        for _ in 0..fields.length()? {
            let (number, since, until) = (fields.number()?, fields.u64()?, fields.u64()?);
            self.store.hold_again(crate::memory::ActiveHold { number, since, until });
        }
        self.is_ready = true;
        Ok(())
    }

    fn counters(&mut self, block: Block, fields: &mut Unread<'_>) -> Result<(), String> {
        let partition = counters::read_partition(fields)?;
        while !fields.is_empty() {
            let put: Result<bool, Full> = match block {
                Block::Words => {
                    self.store.put_word(partition, counters::read_slot(fields)?, self.origin, self.now)
                }
                Block::Pairs => {
                    let slot = counters::read_slot(fields)?;
                    if setting_of(slot.entry.state) >= self.settings {
                        return Err("a window is of no known setting of the wall clock".to_owned());
                    }
                    self.store.put_pair(partition, slot, self.now)
                }
                _ => {
                    let (key, entry) = counters::read_large(fields)?;
                    self.store.put_large(partition, key, entry, self.now)
                }
            };
            self.counted.count_restored(partition, put);
        }
        Ok(())
    }

    fn end(&mut self, fields: &mut Unread<'_>) -> Result<(), String> {
        self.permits = fields.u64_to(PERMITS_MAX)?;
        let written = fields.u64()?.saturating_add(fields.u64()?);
        if written == self.counted.read { Ok(()) } else { Err("counters are missing".to_owned()) }
    }
}

/// Maximum number of policies that an engine can have had: more than any engine reaches, and small enough for exact
/// arithmetic.
const GENERATION_MAX: u64 = 1 << 52;
/// The maximum number of permits, likewise.
const PERMITS_MAX: u64 = 1 << 62;
