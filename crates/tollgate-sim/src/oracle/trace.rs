//! What was admitted and kept: the trace that every definition counts in.

use super::Wide;

/// One admission. It is named by how many came before it.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    name: usize,
    /// When it counts: its instant, or where its definition puts it.
    pub at: Wide,
    /// The units that were kept.
    pub units: Wide,
}

/// Admissions in their order, without those that can never count again.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    admissions: Vec<Admission>,
    next: usize,
}

impl Trace {
    /// Adds an admission.
    pub fn admit(&mut self, at: Wide, units: Wide) {
        self.admissions.push(Admission { name: self.next, at, units });
        self.next += 1;
    }

    /// Takes back units of one admission: they were never admitted. More than it kept are all of it, and what can no longer count
    /// has nothing to take back.
    pub fn take_back(&mut self, name: usize, units: Wide) {
        if let Some(admission) = self.admissions.iter_mut().find(|admission| admission.name == name) {
            admission.units = (admission.units - units).max(0);
        }
    }

    /// Forgets those that can never count again.
    pub fn retain(&mut self, counts: impl Fn(&Admission) -> bool) {
        self.admissions.retain(counts);
    }

    /// Puts one in the place of all.
    pub fn replace(&mut self, at: Wide, units: Wide) {
        self.admissions = vec![Admission { name: usize::MAX, at, units }];
    }

    /// The admissions, the oldest first.
    pub fn iter(&self) -> std::slice::Iter<'_, Admission> {
        self.admissions.iter()
    }

    /// The same, to be moved in time.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, Admission> {
        self.admissions.iter_mut()
    }

    /// Where the latest counts; at the epoch if there is none.
    #[must_use]
    pub fn latest(&self) -> Wide {
        self.admissions.last().map_or(0, |admission| admission.at)
    }
}
