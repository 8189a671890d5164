//! Reading the shelf out while it is in use, and filling an empty one again: what a snapshot needs of it.

use std::io;

use super::{Large, SHARDS, Shelf, Shelved};
use crate::key::Fingerprint;
use crate::memory::table::Full;
use crate::time::Timestamp;

impl Shelf {
    /// Hands out every state that matters at `now`, one at a time and under no lock.
    ///
    /// The keys of a shard are listed under its lock, and each state is copied under it later. A state is seen as it is some time
    /// after the beginning; one that is new since then may be left out, and so is one that has been taken off the shelf, since
    /// that happens only to what no longer matters.
    pub(crate) fn walk(
        &self,
        now: Timestamp,
        mut one: impl FnMut(Fingerprint, &Shelved) -> io::Result<()>,
    ) -> io::Result<()> {
        for shard in 0..SHARDS {
            let keys: Vec<Fingerprint> = self.lock(shard).keys().copied().collect();
            for key in keys {
                let copy = self.lock(shard).get(&key).filter(|shelved| !self.is_idle(shelved, now)).cloned();
                if let Some(shelved) = copy {
                    one(key, &shelved)?;
                }
            }
        }
        Ok(())
    }

    /// Keeps a state as it was kept elsewhere, in place of the one that the key has. Tells whether it still matters; one that
    /// does not is left out.
    pub(crate) fn put_back(
        &self,
        key: Fingerprint,
        mut shelved: Shelved,
        now: Timestamp,
    ) -> Result<bool, Full> {
        if self.is_idle(&shelved, now) {
            return Ok(false);
        }
        shelved.bytes = match shelved.state {
            Large::Permits(_) => shelved.state.bytes(),
            Large::Window(_) | Large::Log(_) => shelved.bytes.max(shelved.state.bytes()),
        };
        let mut shard = self.lock(Self::shard_of(key));
        self.remove(&mut shard, key);
        self.put(&mut shard, key, now, shelved).map(|()| true)
    }
}
