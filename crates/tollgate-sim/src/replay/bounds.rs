//! The fewest and the most denials of a bucket that a log with stamps of whole seconds leaves open, at every size. A stamp
//! hides up to a second. Where a duration was subtracted from it, the arrival is no whole second, and the request came in
//! that second or in the next: its width is two seconds. `window_bounds` does the same for windows.
//!
//! The most: time between two stamps counts for the width less, but never twice. What passes then passes wherever within
//! its width each request came. The fewest: the bucket has what comes within one width on top, less one tick, since the
//! width ends before the next second begins. Whatever the instants, no more passes. A bucket that is never empty shows in
//! the same way which burst denies no request.
//!
//! All are sound for requests of one unit and one limit.

use tollgate::time::TICKS_PER_SECOND;

/// The sizes of a limit: the others, and last its own.
pub(super) const SIZES_AND_OWN: usize = SIZES + 1;
/// How many other sizes there are.
pub(super) const SIZES: usize = 5;
/// The index of the limit's own size.
pub(super) const OWN: usize = SIZES;

/// Which sizes deny a request, one bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Denials(u8);

impl Denials {
    pub(super) const fn add(&mut self, size: usize) {
        self.0 |= 1 << size;
    }

    pub(super) const fn add_all(&mut self, other: Self) {
        self.0 |= other.0;
    }

    pub(super) const fn has(self, size: usize) -> bool {
        self.0 >> size & 1 == 1
    }
}

/// The sizes that deny a request at both extremes: with the fewest denials, and with the most.
pub(super) type Extremes = [Denials; 2];

/// When a request came, as far as a log with stamps of whole seconds says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Within {
    /// The second in which it came at the earliest, since 1970.
    pub(super) second: u64,
    /// In which of the seconds from that one on it came: 1, or 2.
    pub(super) width: u64,
}

impl Within {
    /// The first tick in which the request can have come, and the last.
    pub(super) const fn ticks(self) -> [u64; 2] {
        let start = self.second.saturating_mul(TICKS_PER_SECOND);
        [start, start.saturating_add(self.width.saturating_mul(TICKS_PER_SECOND)) - 1]
    }
}

/// A bucket, in credits: `gain` for each tick, `capacity` in all.
#[derive(Clone, Copy, Debug)]
pub(super) struct CreditBucket {
    pub(super) gain: u64,
    pub(super) capacity: u64,
}

impl CreditBucket {
    const fn gained(self, seconds: u64) -> u64 {
        self.gain.saturating_mul(seconds.saturating_mul(TICKS_PER_SECOND))
    }

    /// The credits that come between the first and the last instant of a width.
    const fn gained_within(self, width: u64) -> u64 {
        self.gained(width).saturating_sub(self.gain)
    }
}

/// The burst that denies no request, in credits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BurstNeed {
    /// With less at least one request is denied, whatever the instants.
    pub(super) least: u64,
    /// With this none is denied, whatever the instants.
    pub(super) most: u64,
}

/// The credits that the buckets of one key lack at both extremes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bounds {
    second: u64,
    levels: [BucketLevels; SIZES_AND_OWN],
    /// The bucket of the limit's own rate, if it denied nothing.
    unbounded: BucketLevels,
    pub(super) need: BurstNeed,
}

/// The credits that one bucket lacks.
#[derive(Clone, Copy, Debug, Default)]
struct BucketLevels {
    /// With the most denials: lacking two seconds before this one, with what was taken then.
    settled: u64,
    /// With the most denials: taken in the second before this one, and in this one.
    taken: [u64; 2],
    /// With the fewest denials: lacking now.
    fewest: u64,
}

impl Bounds {
    /// Charges a request. Seconds never go back.
    pub(super) fn charge(
        &mut self,
        bucket: impl Fn(usize) -> CreditBucket,
        at: Within,
        credits: u64,
    ) -> Extremes {
        let elapsed = at.second.saturating_sub(self.second);
        self.second = self.second.max(at.second);
        let mut denied = Extremes::default();
        let own = CreditBucket { capacity: u64::MAX, ..bucket(OWN) };
        self.unbounded.pass(own, elapsed);
        let [fewest, most] = self.unbounded.after(own, at.width, credits);
        let least = fewest.saturating_sub(own.gained_within(at.width)).max(credits);
        self.need.least = self.need.least.max(least);
        self.need.most = self.need.most.max(most);
        self.unbounded.charge(own, at.width, credits);
        for (size, levels) in self.levels.iter_mut().enumerate() {
            let bucket = bucket(size);
            levels.pass(bucket, elapsed);
            for (denied, is_denied) in denied.iter_mut().zip(levels.charge(bucket, at.width, credits)) {
                if is_denied {
                    denied.add(size);
                }
            }
        }
        denied
    }

    /// Takes back the charge of a request that another limit denied. It needed its units all the same.
    pub(super) fn restore(&mut self, before: Self) {
        *self = Self { need: self.need, ..before };
    }
}

impl BucketLevels {
    /// Lets this many seconds pass.
    fn pass(&mut self, bucket: CreditBucket, seconds: u64) {
        for _ in 0..seconds.min(2) {
            self.settled = self.settled_next(bucket);
            self.taken = [self.taken[1], 0];
        }
        self.settled = self.settled.saturating_sub(bucket.gained(seconds.saturating_sub(2)));
        self.fewest = self.fewest.saturating_sub(bucket.gained(seconds));
    }

    /// Lacking one second before this one, with what was taken then.
    const fn settled_next(&self, bucket: CreditBucket) -> u64 {
        self.settled.saturating_sub(bucket.gained(1)).saturating_add(self.taken[0])
    }

    /// Lacking after a request, with the fewest denials and with the most.
    fn after(&self, bucket: CreditBucket, width: u64, credits: u64) -> [u64; 2] {
        let before =
            if width > 1 { self.settled.saturating_add(self.taken[0]) } else { self.settled_next(bucket) };
        let most = before.saturating_add(self.taken[1]).saturating_add(credits);
        [self.fewest.saturating_add(credits), most]
    }

    /// Charges a request. Returns whether it is denied with the fewest denials, and with the most.
    fn charge(&mut self, bucket: CreditBucket, width: u64, credits: u64) -> [bool; 2] {
        let [fewest, most] = self.after(bucket, width, credits);
        let is_denied =
            [fewest > bucket.capacity.saturating_add(bucket.gained_within(width)), most > bucket.capacity];
        if !is_denied[0] {
            self.fewest = fewest;
        }
        if !is_denied[1] {
            self.taken[1] = self.taken[1].saturating_add(credits);
        }
        is_denied
    }
}
