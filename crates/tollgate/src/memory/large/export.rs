//! Exports and imports the large states of a store in use, for snapshots.

use std::io;

use super::{Large, LargeEntry, LargeMap, SHARDS};
use crate::key::Fingerprint;
use crate::memory::table::Full;
use crate::time::Timestamp;

impl LargeMap {
    /// Exports every state that is not idle at `now`, one at a time and under no lock.
    ///
    /// The keys of a shard are listed under its lock, and each state is copied under it later. A state is
    /// seen as of some time after the start. A state that is new since then may be missing, and so may an
    /// evicted one, which was idle.
    pub(crate) fn export(
        &self,
        now: Timestamp,
        mut one: impl FnMut(Fingerprint, &LargeEntry) -> io::Result<()>,
    ) -> io::Result<()> {
        for shard in 0..SHARDS {
            let keys: Vec<Fingerprint> = self.lock(shard).keys().copied().collect();
            for key in keys {
                let copy = self.lock(shard).get(&key).filter(|entry| !self.is_idle(entry, now)).cloned();
                if let Some(entry) = copy {
                    one(key, &entry)?;
                }
            }
        }
        Ok(())
    }

    /// Imports a state in place of the key's own. Returns false if it is idle.
    pub(crate) fn put_back(
        &self,
        key: Fingerprint,
        mut entry: LargeEntry,
        now: Timestamp,
    ) -> Result<bool, Full> {
        if self.is_idle(&entry, now) {
            return Ok(false);
        }
        entry.bytes = match entry.state {
            Large::Permits(_) => entry.state.bytes(),
            Large::Window(_) | Large::Log(_) => entry.bytes.max(entry.state.bytes()),
        };
        let mut shard = self.lock(Self::shard_of(key));
        self.remove(&mut shard, key);
        self.put(&mut shard, key, now, entry).map(|()| true)
    }
}
