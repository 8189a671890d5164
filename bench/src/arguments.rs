//! Reads `--flag` and `--name value` pairs. What the values mean is left to each program.

use std::collections::BTreeMap;

use crate::Failure;

/// The arguments of one program, all of them known to it.
#[derive(Debug, Default)]
pub struct Arguments {
    flags: Vec<String>,
    values: BTreeMap<String, String>,
}

impl Arguments {
    /// Reads the process's arguments.
    ///
    /// # Errors
    /// When an argument is not in `flags` or `names`, or a value is missing.
    pub fn read(flags: &[&str], names: &[&str]) -> Result<Self, Failure> {
        let mut arguments = Self::default();
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let name = word.strip_prefix("--").unwrap_or_default();
            if flags.contains(&name) {
                arguments.flags.push(name.to_owned());
            } else if names.contains(&name) {
                let value = words.next().ok_or_else(|| format!("--{name} needs a value"))?;
                arguments.values.insert(name.to_owned(), value);
            } else {
                let accepted: Vec<String> = flags
                    .iter()
                    .map(|flag| format!("--{flag}"))
                    .chain(names.iter().map(|n| format!("--{n} VALUE")))
                    .collect();
                return Err(format!("{word} is not accepted here; accepted: {}", accepted.join(", ")).into());
            }
        }
        Ok(arguments)
    }

    /// Whether a flag was given.
    #[must_use]
    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|given| given == flag)
    }

    /// A value as it was typed.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// A whole number, or `otherwise` when it was not given.
    ///
    /// # Errors
    /// When the value is not a whole number above zero.
    pub fn count(&self, name: &str, otherwise: usize) -> Result<usize, Failure> {
        self.text(name).map_or(Ok(otherwise), |text| count(name, text))
    }

    /// Whole numbers separated by commas, or `otherwise`.
    ///
    /// # Errors
    /// When one of them is not a whole number above zero.
    pub fn counts(&self, name: &str, otherwise: &[usize]) -> Result<Vec<usize>, Failure> {
        match self.text(name) {
            None => Ok(otherwise.to_vec()),
            Some(list) => list.split(',').map(|text| count(name, text)).collect(),
        }
    }

    /// Whether a comma-separated list of beginnings, if it was given, has one of `candidate`.
    #[must_use]
    pub fn selects(&self, name: &str, candidate: &str) -> bool {
        self.text(name).is_none_or(|list| list.split(',').any(|beginning| candidate.starts_with(beginning)))
    }
}

fn count(name: &str, text: &str) -> Result<usize, Failure> {
    match text.trim().parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("--{name} {text}: accepted: a whole number above zero").into()),
    }
}
