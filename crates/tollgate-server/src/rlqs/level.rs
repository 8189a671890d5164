//! Dividing a limit by demand, so that nobody who asks for less than an equal part is kept short, and the others have the same.

use super::grant::Nano;

/// How much of a total each wish gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// There is enough for all: what is over is divided as the wishes are.
    Spread { total: u128, of: Nano },
    /// There is not: nobody gets more than this.
    Cap(Nano),
}

impl Level {
    /// Divides `of` among these wishes.
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

    /// What one of the wishes gets.
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

/// A wish with head room: an eighth more, and then up to the next of eight steps in each doubling, so that a demand that hardly changes
/// asks for the same.
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

    /// Small wishes are granted, large ones share the rest equally, and what nobody asks for goes to those who ask for most.
    #[test]
    fn small_wishes_come_first() {
        assert_eq!(shares(100, &[10, 500, 300]), [10, 45, 45]);
        assert_eq!(shares(100, &[50, 50]), [50, 50]);
        assert_eq!(shares(100, &[10, 40]), [20, 80]);
        assert_eq!(shares(100, &[0, 0]), [0, 0]);
        assert_eq!(shares(0, &[3, 4]), [0, 0]);
        assert!(shares(100, &[]).is_empty());
    }

    /// A wish is a little more than the demand, and the same for demands that are nearly the same.
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
        /// Never more than there is; nobody gets less than an equal part unless that is all it wished for; and nothing much is left over.
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
