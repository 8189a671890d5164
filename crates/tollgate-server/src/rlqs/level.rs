//! Divides a limit by demand: a claim for less than an equal part is granted in full, and the others get equal parts.

use super::grant::Nano;

/// How much of a total each claim receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// There is enough for all claims. The surplus is divided in proportion to the claims.
    Proportional { total: u128, of: Nano },
    /// There is not enough: no claim receives more than this.
    Cap(Nano),
}

impl Level {
    /// Divides `of` among the claims.
    pub(super) fn new(of: Nano, mut claims: Vec<Nano>) -> Self {
        let total: u128 = claims.iter().map(|&claim| u128::from(claim)).sum();
        if total <= u128::from(of) {
            return Level::Proportional { total, of };
        }
        claims.sort_unstable();
        let (mut rest, mut others) = (of, claims.len() as u64);
        for claim in claims {
            let equal = rest / others.max(1);
            if claim > equal {
                return Level::Cap(equal);
            }
            rest -= claim;
            others -= 1;
        }
        Level::Cap(of) // Not reached: claims of more than there is do not all fit.
    }

    /// The share of one claim.
    pub(super) fn share(self, claim: Nano) -> Nano {
        match self {
            Level::Cap(most) => claim.min(most),
            Level::Proportional { total: 0, .. } => 0,
            Level::Proportional { total, of } => {
                u64::try_from(u128::from(claim) * u128::from(of) / total).unwrap_or(of).min(of)
            }
        }
    }
}

/// A claim with headroom: one eighth more than the demand, rounded up to the next of eight steps per doubling. Demands
/// that hardly change therefore produce the same claim.
pub(super) fn with_head_room(demand: Nano) -> Nano {
    let claim = demand.saturating_add(demand / 8);
    let step = 1u64 << claim.checked_ilog2().unwrap_or(0).saturating_sub(3);
    claim.checked_next_multiple_of(step).unwrap_or(claim)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shares(of: Nano, claims: &[Nano]) -> Vec<Nano> {
        let level = Level::new(of, claims.to_vec());
        claims.iter().map(|&claim| level.share(claim)).collect()
    }

    /// Small claims are granted in full, large ones share the rest equally, and any surplus goes to the largest claims.
    #[test]
    fn small_claims_come_first() {
        assert_eq!(shares(100, &[10, 500, 300]), [10, 45, 45]);
        assert_eq!(shares(100, &[50, 50]), [50, 50]);
        assert_eq!(shares(100, &[10, 40]), [20, 80]);
        assert_eq!(shares(100, &[0, 0]), [0, 0]);
        assert_eq!(shares(0, &[3, 4]), [0, 0]);
        assert!(shares(100, &[]).is_empty());
    }

    /// A claim is slightly above the demand, and equal for nearly equal demands.
    #[test]
    fn claims_have_head_room() {
        assert_eq!(with_head_room(0), 0);
        assert_eq!(with_head_room(103_000), with_head_room(108_000));
        for demand in [1, 7, 100, 12_345, 1 << 40, u64::MAX] {
            let claim = with_head_room(demand);
            assert!(claim >= demand && claim / 4 <= demand / 2, "{demand}: {claim}");
        }
    }

    proptest! {
        /// The sum never exceeds the total, each claim gets an equal part or all it asked for, and little is left over.
        #[test]
        fn all_is_divided_and_no_more(
            of in 0u64..1 << 50,
            claims in prop::collection::vec(0u64..1 << 50, 1..40),
        ) {
            let shares = shares(of, &claims);
            let sum: u64 = shares.iter().sum();
            let count = claims.len() as u64;
            prop_assert!(sum <= of);
            for (share, claim) in shares.iter().zip(&claims) {
                prop_assert!(*share >= (*claim).min(of / count));
            }
            if claims.iter().any(|claim| *claim > 0) {
                prop_assert!(sum + count >= of);
            }
        }
    }
}
