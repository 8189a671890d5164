//! Divides a limit by demand: a wish for less than an equal part is granted in full, and the others get equal parts.

use super::grant::Nano;

/// How much of a total each wish receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// There is enough for all wishes. The surplus is divided in proportion to the wishes.
    Spread { total: u128, of: Nano },
    /// There is not enough: no wish receives more than this.
    Cap(Nano),
}

impl Level {
    /// Divides `of` among the wishes.
    pub(super) fn new(of: Nano, mut wishes: Vec<Nano>) -> Self {
        let total: u128 = wishes.iter().map(|&wish| u128::from(wish)).sum();
        if total <= u128::from(of) {
            return Level::Spread { total, of };
        }
        wishes.sort_unstable();
        let (mut rest, mut others) = (of, wishes.len() as u64);
        for wish in wishes {
            let equal = rest / others.max(1);
            if wish > equal {
                return Level::Cap(equal);
            }
            rest -= wish;
            others -= 1;
        }
        Level::Cap(of) // Not reached: wishes of more than there is do not all fit.
    }

    /// The share of one wish.
    pub(super) fn share(self, wish: Nano) -> Nano {
        match self {
            Level::Cap(most) => wish.min(most),
            Level::Spread { total: 0, .. } => 0,
            Level::Spread { total, of } => {
                u64::try_from(u128::from(wish) * u128::from(of) / total).unwrap_or(of).min(of)
            }
        }
    }
}

/// A wish with headroom: one eighth more than the demand, rounded up to the next of eight steps per doubling. Demands
/// that hardly change therefore produce the same wish.
pub(super) fn with_head_room(demand: Nano) -> Nano {
    let wish = demand.saturating_add(demand / 8);
    let step = 1u64 << wish.checked_ilog2().unwrap_or(0).saturating_sub(3);
    wish.checked_next_multiple_of(step).unwrap_or(wish)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shares(of: Nano, wishes: &[Nano]) -> Vec<Nano> {
        let level = Level::new(of, wishes.to_vec());
        wishes.iter().map(|&wish| level.share(wish)).collect()
    }

    /// Small wishes are granted in full, large ones share the rest equally, and any surplus goes to the largest wishes.
    #[test]
    fn small_wishes_come_first() {
        assert_eq!(shares(100, &[10, 500, 300]), [10, 45, 45]);
        assert_eq!(shares(100, &[50, 50]), [50, 50]);
        assert_eq!(shares(100, &[10, 40]), [20, 80]);
        assert_eq!(shares(100, &[0, 0]), [0, 0]);
        assert_eq!(shares(0, &[3, 4]), [0, 0]);
        assert!(shares(100, &[]).is_empty());
    }

    /// A wish is slightly above the demand, and equal for nearly equal demands.
    #[test]
    fn wishes_have_head_room() {
        assert_eq!(with_head_room(0), 0);
        assert_eq!(with_head_room(103_000), with_head_room(108_000));
        for demand in [1, 7, 100, 12_345, 1 << 40, u64::MAX] {
            let wish = with_head_room(demand);
            assert!(wish >= demand && wish / 4 <= demand / 2, "{demand}: {wish}");
        }
    }

    proptest! {
        /// The sum never exceeds the total, each wish gets an equal part or all it asked for, and little is left over.
        #[test]
        fn all_is_divided_and_no_more(
            of in 0u64..1 << 50,
            wishes in prop::collection::vec(0u64..1 << 50, 1..40),
        ) {
            let shares = shares(of, &wishes);
            let sum: u64 = shares.iter().sum();
            let count = wishes.len() as u64;
            prop_assert!(sum <= of);
            for (share, wish) in shares.iter().zip(&wishes) {
                prop_assert!(*share >= (*wish).min(of / count));
            }
            if wishes.iter().any(|wish| *wish > 0) {
                prop_assert!(sum + count >= of);
            }
        }
    }
}
