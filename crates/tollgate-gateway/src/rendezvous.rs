//! Chooses one of several upstreams for a request: at random by weight, or always the same one for a key. It uses
//! rendezvous hashing: each upstream computes a number for the key, and the highest wins. If an upstream is lost, only
//! its own keys move, and it gets exactly those back. The choice has no state, so every node of a fleet chooses alike.

use crate::random;

/// The weight of one upstream.
#[derive(Debug)]
pub(crate) struct UpstreamWeight {
    /// One number for each unit of weight.
    seeds: Vec<u64>,
}

impl UpstreamWeight {
    /// The share of an upstream. Its numbers depend on its name only.
    pub(crate) fn new(name: &str, weight: u32) -> Self {
        let seed = hash(name.as_bytes());
        Self {
            seeds: (0..u64::from(weight))
                .map(|unit| random::scrambled(seed ^ random::scrambled(unit)))
                .collect(),
        }
    }

    fn weight(&self) -> u64 {
        u64::try_from(self.seeds.len()).unwrap_or(u64::MAX)
    }

    /// The highest of its numbers for a key.
    fn hash_of(&self, key: u64) -> u64 {
        self.seeds.iter().map(|hash_of| random::scrambled(hash_of ^ key)).max().unwrap_or(0)
    }
}

/// Hashes a key, to the same number on every machine. A client can find keys that collide, but gains no more than a
/// choice of upstream.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    // FNV-1a, with a finaliser that mixes its weak last steps.
    let folded = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    random::scrambled(folded)
}

/// The index of the share that wins a key.
pub(crate) fn of_key<'s>(
    key: u64,
    shares: impl Iterator<Item = (usize, &'s UpstreamWeight)>,
) -> Option<usize> {
    shares.max_by_key(|(_, share)| share.hash_of(key)).map(|(index, _)| index)
}

/// The index of a random share, by weight.
pub(crate) fn any<'s>(shares: impl Iterator<Item = (usize, &'s UpstreamWeight)> + Clone) -> Option<usize> {
    let total: u64 = shares.clone().map(|(_, share)| share.weight()).sum();
    let mut drawn = random::next().checked_rem(total)?;
    shares.into_iter().find_map(|(index, share)| {
        if drawn < share.weight() {
            return Some(index);
        }
        drawn -= share.weight();
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: u64 = 20_000;

    fn shares(weights: &[u32]) -> Vec<UpstreamWeight> {
        let name = |index| format!("http://10.0.0.{index}:3000");
        weights.iter().enumerate().map(|(index, weight)| UpstreamWeight::new(&name(index), *weight)).collect()
    }

    fn chosen(shares: &[UpstreamWeight], lost: Option<usize>) -> Vec<usize> {
        let keys = (0..KEYS).map(|key| hash(format!("client-{key}").as_bytes()));
        keys.map(|key| {
            of_key(key, shares.iter().enumerate().filter(|(index, _)| Some(*index) != lost)).unwrap()
        })
        .collect()
    }

    fn per_cent(chosen: &[usize], index: usize) -> u64 {
        chosen.iter().filter(|chosen| **chosen == index).count() as u64 * 100 / KEYS
    }

    /// A lost upstream moves only its own keys, evenly to the others. When it returns, it has exactly its own.
    #[test]
    fn a_lost_upstream_moves_only_its_keys() {
        let shares = shares(&[1, 1, 1, 1, 1]);
        let before = chosen(&shares, None);
        assert!((0..5).all(|index| (18..=22).contains(&per_cent(&before, index))));
        for lost in 0..5 {
            let without = chosen(&shares, Some(lost));
            let moved = before.iter().zip(&without).filter(|(old, new)| old != new);
            assert!(moved.clone().all(|(old, _)| *old == lost));
            assert_eq!(moved.count(), before.iter().filter(|index| **index == lost).count());
            assert!(
                (0..5)
                    .filter(|index| *index != lost)
                    .all(|index| (22..=28).contains(&per_cent(&without, index)))
            );
        }
        assert_eq!(chosen(&shares, None), before);
    }

    /// A new upstream takes its part from all others, and no key moves between those.
    #[test]
    fn another_upstream_takes_only_its_part() {
        let (four, five) = (chosen(&shares(&[1; 4]), None), chosen(&shares(&[1; 5]), None));
        assert!(four.iter().zip(&five).all(|(old, new)| old == new || *new == 4));
    }

    /// Weights hold with and without keys.
    #[test]
    fn weights() {
        let shares = shares(&[1, 2, 7]);
        let sticky = chosen(&shares, None);
        let free: Vec<usize> = (0..KEYS).map(|_| any(shares.iter().enumerate()).unwrap()).collect();
        for chosen in [sticky, free] {
            for (index, (least, most)) in [(8, 12), (18, 22), (67, 73)].into_iter().enumerate() {
                assert!(
                    (least..=most).contains(&per_cent(&chosen, index)),
                    "{index}: {}",
                    per_cent(&chosen, index)
                );
            }
        }
        assert_eq!(any(std::iter::empty()), None);
    }

    /// The choice never changes, because the nodes of a fleet are not restarted at one instant.
    #[test]
    fn the_choice_is_the_same_for_ever() {
        assert_eq!(hash(b"client-1"), hash(b"client-1"));
        let first: Vec<usize> = chosen(&shares(&[1; 5]), None).into_iter().take(16).collect();
        assert_eq!(first, GOLDEN);
    }

    const GOLDEN: [usize; 16] = [4, 3, 1, 0, 3, 4, 4, 1, 2, 3, 2, 3, 0, 1, 0, 2];
}
