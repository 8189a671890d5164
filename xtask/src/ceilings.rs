//! The most that each rule may count today, and its goal: the file `house.toml`.

use crate::rules::{RULES, Rule};

/// The most that a rule may count. The ceiling is lowered until it is at the goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ceiling {
    pub(crate) ceiling: usize,
    pub(crate) goal: usize,
}

/// The lines of the file: comments as they are, and rules with their ceilings.
#[derive(Debug)]
pub(crate) struct Ceilings(Vec<Result<(&'static Rule, Ceiling), String>>);

impl Ceilings {
    /// Reads lines such as `cycles = { ceiling = 3, goal = 0 }`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut lines = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let words: Vec<&str> =
                line.split([' ', ',', '=', '{', '}']).filter(|word| !word.is_empty()).collect();
            let numbers = |ceiling: &str, goal: &str| {
                Some(Ceiling { ceiling: ceiling.parse().ok()?, goal: goal.parse().ok()? })
            };
            lines.push(match words[..] {
                [] | ["#", ..] => Err(line.to_owned()),
                [name, "ceiling", ceiling, "goal", goal] => {
                    let rule = RULES
                        .iter()
                        .find(|rule| rule.name == name && rule.has_ceiling)
                        .zip(numbers(ceiling, goal));
                    Ok(rule.ok_or_else(|| {
                        format!("xtask/house.toml:{}: no such rule or no number: {line}", index + 1)
                    })?)
                }
                _ => {
                    return Err(format!(
                        "xtask/house.toml:{}: expected RULE = {{ ceiling = N, goal = N }}",
                        index + 1
                    ));
                }
            });
        }
        Ok(Self(lines))
    }

    /// The ceiling of a rule; none if the rule only reports.
    pub(crate) fn of(&self, rule: &Rule) -> Result<Option<Ceiling>, String> {
        let found =
            self.0.iter().flatten().find(|(other, _)| other.name == rule.name).map(|(_, ceiling)| *ceiling);
        if found.is_none() && rule.has_ceiling {
            return Err(format!("xtask/house.toml has no ceiling for {}", rule.name));
        }
        Ok(found)
    }

    /// Lowers a ceiling to the count if it is above.
    pub(crate) fn lower(&mut self, rule: &Rule, count: usize) {
        for (_, ceiling) in self.0.iter_mut().flatten().filter(|(other, _)| other.name == rule.name) {
            ceiling.ceiling = ceiling.ceiling.min(count);
        }
    }

    pub(crate) fn text(&self) -> String {
        let lines = self.0.iter().map(|line| match line {
            Ok((rule, Ceiling { ceiling, goal })) => {
                format!("{:<15} = {{ ceiling = {ceiling}, goal = {goal} }}\n", rule.name)
            }
            Err(comment) => format!("{comment}\n"),
        });
        lines.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# Ceilings.

told            = { ceiling = 9, goal = 5 }
nobody          = { ceiling = 3, goal = 0 }
";

    /// A ceiling goes down with the count and never up; the rest of the file stays.
    #[test]
    fn ceilings_are_only_lowered() {
        let mut ceilings = Ceilings::parse(TEXT).unwrap();
        for rule in RULES.iter().filter(|rule| ["told", "nobody"].contains(&rule.name)) {
            ceilings.lower(rule, 7);
        }
        assert_eq!(ceilings.text(), TEXT.replace('9', "7"));
    }

    #[test]
    fn mistakes_name_their_line() {
        for line in ["tolled = { ceiling = 1, goal = 1 }", "told = { ceiling = many, goal = 1 }", "told = 3"]
        {
            let error = Ceilings::parse(&format!("# First.\n{line}\n")).unwrap_err();
            assert!(error.starts_with("xtask/house.toml:2: "), "{error}");
        }
    }

    #[test]
    fn a_rule_without_its_ceiling_is_an_error() {
        let ceilings = Ceilings::parse(TEXT).unwrap();
        assert!(RULES.iter().any(|rule| rule.name == "cycles" && ceilings.of(rule).is_err()));
    }
}
