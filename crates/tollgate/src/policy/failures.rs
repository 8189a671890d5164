//! `count: failures`: which responses count against a limit.

use std::fmt;

/// How a request ended, as the caller that saw its response reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With this HTTP status.
    Status(u16),
    /// Successfully, without a status.
    Succeeded,
    /// With a failure, without a status.
    Failed,
}

/// The HTTP statuses that count as failures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failures {
    /// Single statuses.
    statuses: Vec<u16>,
    /// First digits, for all statuses that begin with one.
    classes: Vec<u16>,
}

impl Default for Failures {
    /// All errors, of the client and of the server.
    fn default() -> Self {
        Self { statuses: Vec::new(), classes: vec![4, 5] }
    }
}

impl Failures {
    /// Reads statuses such as `401` and classes such as `5xx`.
    ///
    /// # Errors
    /// One of them is neither. The error is the first such text.
    pub fn read<'t>(texts: impl IntoIterator<Item = &'t str>) -> Result<Self, &'t str> {
        let mut failures = Self { statuses: Vec::new(), classes: Vec::new() };
        for text in texts {
            let (list, number, accepted) = match text.strip_suffix("xx") {
                Some(class) => (&mut failures.classes, class.parse(), 1..=5),
                None => (&mut failures.statuses, text.parse(), 100..=599),
            };
            let number = number.ok().filter(|number: &u16| accepted.contains(number)).ok_or(text)?;
            if !list.contains(&number) {
                list.push(number);
            }
        }
        // Their order means nothing, so two lists of the same statuses are equal.
        failures.statuses.sort_unstable();
        failures.classes.sort_unstable();
        Ok(failures)
    }

    /// Whether a request that ended so counts.
    #[must_use]
    pub fn count(&self, ended: Ended) -> bool {
        match ended {
            Ended::Status(status) => {
                self.statuses.contains(&status) || self.classes.contains(&(status / 100))
            }
            Ended::Succeeded => false,
            Ended::Failed => true,
        }
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let statuses = self.statuses.iter().map(ToString::to_string);
        let classes = self.classes.iter().map(|class| format!("{class}xx"));
        f.write_str(&statuses.chain(classes).collect::<Vec<_>>().join(", "))
    }
}
