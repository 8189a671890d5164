//! `count: failures`: which responses count against a limit.

use std::fmt;

/// How a request ended, as whoever saw its response reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With this HTTP status.
    Status(u16),
    /// Well, where there is no status.
    Succeeded,
    /// Not well, where there is no status.
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
    /// Reads statuses such as `401` and classes such as `5xx`; the first that is neither is given back.
    ///
    /// # Errors
    /// When one of them is no status.
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
