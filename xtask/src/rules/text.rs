//! `told`, `nobody` and `long-lines`: rules about the text of files, code or not.

use super::{Finding, Report};
use crate::source::Repository;

/// Most characters in a line of a document.
const CHARACTERS_MAX: usize = 120;

pub(super) fn told(repository: &Repository) -> Report {
    whole_words(repository, &["told"])
}

pub(super) fn nobody(repository: &Repository) -> Report {
    whole_words(repository, &["whoever", "nobody", "somebody"])
}

/// Whole words in what is below `crates/*/src`, tests too. A name with an underscore is one word.
fn whole_words(repository: &Repository, words: &[&str]) -> Report {
    let mut findings = Vec::new();
    let sources = repository.files.iter().filter(|(file, _)| {
        let mut parts = file.split('/');
        parts.next() == Some("crates") && parts.nth(1) == Some("src")
    });
    for (file, text) in sources {
        for (index, line) in text.lines().enumerate() {
            let parts = line.split(|character: char| !character.is_alphanumeric() && character != '_');
            let found = parts.filter(|part| words.iter().any(|word| word.eq_ignore_ascii_case(part)));
            findings.extend(found.map(|_| Finding {
                file: file.clone(),
                line: index + 1,
                text: line.trim().to_owned(),
            }));
        }
    }
    Report::of(findings)
}

/// Long lines of Markdown. A row of a table, a line of a code block and a lone link cannot be broken, and may be long.
pub(super) fn long_lines(repository: &Repository) -> Report {
    let mut findings = Vec::new();
    for (file, text) in repository.files.iter().filter(|(file, _)| file.ends_with(".md")) {
        let mut fence: Option<String> = None;
        for (index, line) in text.lines().enumerate() {
            let content = line.trim_start();
            let marks: String = content.chars().take_while(|mark| ['`', '~'].contains(mark)).collect();
            if marks.len() >= 3 {
                fence = match fence {
                    Some(open) if marks.starts_with(&open) => None,
                    Some(open) => Some(open),
                    None => Some(marks),
                };
                continue;
            }
            let characters = line.chars().count();
            if characters > CHARACTERS_MAX
                && fence.is_none()
                && !content.starts_with('|')
                && !is_link(content)
            {
                findings.push(Finding {
                    file: file.clone(),
                    line: index + 1,
                    text: format!("{characters} characters"),
                });
            }
        }
    }
    Report::of(findings)
}

/// Whether a line is nothing but an address or a link: in a list, or as the definition of a reference, too.
fn is_link(line: &str) -> bool {
    let line = line.trim_start_matches(['-', '*', '>', ' ']).trim_end_matches(['.', ',', ' ']);
    let is_address = |text: &str| !text.contains(' ') && text.contains("://");
    let is_definition =
        line.starts_with('[') && line.split_once("]: ").is_some_and(|(_, rest)| !rest.contains(' '));
    let text = line.strip_prefix('!').unwrap_or(line);
    let is_inline = text.starts_with('[')
        && text.ends_with(')')
        && text.matches("](").count() == 1
        && text.split_once("](").is_some_and(|(_, rest)| !rest.contains(' '));
    is_address(line) || is_definition || is_inline
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_words_are_counted_wherever_they_are() {
        let repository = Repository::of(&[
            ("crates/c/src/lib.rs", "// Told what it is told.\nfn is_told() { untold(told) }\nmod tests;"),
            ("crates/c/src/tests.rs", "// Nobody was told, and whoever."),
            ("crates/c/src/a.lua", "-- somebody"),
            ("crates/c/tests/it.rs", "// told nobody"),
            ("docs/a.md", "told"),
        ]);
        assert_eq!(told(&repository).count, 4);
        assert_eq!(nobody(&repository).count, 3);
        assert_eq!(told(&repository).findings[2].line, 2);
    }

    #[test]
    fn a_long_line_is_found() {
        let words = "word ".repeat(25);
        for (text, count) in [
            (words.clone(), 1),
            ("é".repeat(120), 0),
            ("é".repeat(121), 1),
            (format!("- {words}"), 1),
            (format!("[{words}](a.md) and [another](b.md)"), 1),
            (format!("| {words} |"), 0),
            (format!("```\n{words}\n```"), 0),
            (format!("````\n```\n{words}\n````\n{words}"), 1),
            (format!("- https://host/{}", "x".repeat(120)), 0),
            (format!("[name]: {}", "x".repeat(120)), 0),
            (format!("![{words}](a.svg)"), 0),
        ] {
            assert_eq!(long_lines(&Repository::of(&[("docs/a.md", &text)])).count, count, "{text}");
        }
    }
}
