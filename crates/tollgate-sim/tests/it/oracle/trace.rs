//! The trace of admissions that every definition counts.

use super::Wide;

/// One admission. Its id is the number of admissions before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admission {
    id: usize,
    /// When it counts: its instant, or what its definition uses instead.
    pub(crate) at: Wide,
    /// The units that were not refunded.
    pub(crate) units: Wide,
}

/// Admissions in order, without those that can never count again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {
    admissions: Vec<Admission>,
    next: usize,
}

impl Trace {
    /// Adds an admission.
    pub(crate) fn admit(&mut self, at: Wide, units: Wide) {
        self.admissions.push(Admission { id: self.next, at, units });
        self.next += 1;
    }

    /// Refunds units of one admission, at most all of them. An admission that no longer counts has nothing to refund.
    pub(crate) fn refund(&mut self, id: usize, units: Wide) {
        if let Some(admission) = self.admissions.iter_mut().find(|admission| admission.id == id) {
            admission.units = (admission.units - units).max(0);
        }
    }

    /// Removes admissions that can never count again.
    pub(crate) fn retain(&mut self, counts: impl Fn(&Admission) -> bool) {
        self.admissions.retain(counts);
    }

    /// Replaces all admissions by one.
    pub(crate) fn replace(&mut self, at: Wide, units: Wide) {
        self.admissions = vec![Admission { id: usize::MAX, at, units }];
    }

    /// The admissions, the oldest first.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Admission> {
        self.admissions.iter()
    }

    /// The admissions, the oldest first, to move them in time.
    pub(crate) fn iter_mut(&mut self) -> std::slice::IterMut<'_, Admission> {
        self.admissions.iter_mut()
    }

    /// When the latest admission counts; the epoch if there is none.
    #[must_use]
    pub(crate) fn latest(&self) -> Wide {
        self.admissions.last().map_or(0, |admission| admission.at)
    }
}
