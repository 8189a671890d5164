//! `told`, `nobody`, `document-words`, `doc-openings`, `test-names`, `long-lines` and `long-paragraphs`: rules about the
//! text of files, code or not.

use super::{Finding, Report};
use crate::source::Repository;

/// Maximum lines of a paragraph.
const PARAGRAPH_LINES_MAX: usize = 6;
/// Most characters in a line of a document.
const CHARACTERS_MAX: usize = 120;

const TOLD: &[&str] = &["told"];
const NOBODY: &[&str] = &["whoever", "nobody", "somebody"];
/// Words and phrases that documents and files of `deploy` do not use.
const DOCUMENT_WORDS: &[&str] = &["told", "whoever", "nobody", "somebody", "unless said", "in force"];
/// Doc comments that open so are no statement about their item.
const OPENINGS: &[&str] = &["What ", "Who ", "Whom ", "The same,"];
/// How the name of a test does not begin.
const TEST_OPENINGS: &[&str] = &["what_", "who_", "whoever_", "nobody_", "somebody_"];

pub(super) fn told(repository: &Repository) -> Report {
    phrases(repository, is_source, TOLD)
}

pub(super) fn nobody(repository: &Repository) -> Report {
    phrases(repository, is_source, NOBODY)
}

pub(super) fn told_in_tests(repository: &Repository) -> Report {
    phrases(repository, is_test_file, TOLD)
}

pub(super) fn nobody_in_tests(repository: &Repository) -> Report {
    phrases(repository, is_test_file, NOBODY)
}

pub(super) fn document_words(repository: &Repository) -> Report {
    phrases(repository, is_document, DOCUMENT_WORDS)
}

/// Doc comments that open with a question word. Comments of items and of modules count, tests too.
pub(super) fn doc_openings(repository: &Repository) -> Report {
    lines(repository, is_rust, |line| {
        let text = line.trim_start();
        let text = text.strip_prefix("/// ").or_else(|| text.strip_prefix("//! "));
        usize::from(text.is_some_and(|text| OPENINGS.iter().any(|opening| text.starts_with(opening))))
    })
}

/// Functions whose name says "told", or opens with a question word or with an actor without a name.
pub(super) fn test_names(repository: &Repository) -> Report {
    lines(repository, is_rust, |line| {
        let text = line.trim_start();
        let text = text.strip_prefix("async ").unwrap_or(text);
        let name = text.strip_prefix("fn ").and_then(|rest| rest.split(['(', '<']).next());
        usize::from(name.is_some_and(|name| {
            name.split('_').any(|part| part == "told")
                || TEST_OPENINGS.iter().any(|opening| name.starts_with(opening))
        }))
    })
}

/// Files below `crates/*/src`, tests too.
fn is_source(file: &str) -> bool {
    let mut parts = file.split('/');
    parts.next() == Some("crates") && parts.nth(1) == Some("src")
}

/// Tests that stand beside the source of their crate, and those that run programs of others.
fn is_test_file(file: &str) -> bool {
    let mut parts = file.split('/');
    match parts.next() {
        Some("crates") => parts.nth(1) == Some("tests"),
        first => first == Some("e2e"),
    }
}

fn is_rust(file: &str) -> bool {
    (is_source(file) || is_test_file(file)) && file.ends_with(".rs")
}

fn is_document(file: &str) -> bool {
    let is_page = file.ends_with(".md") && file.starts_with("docs/");
    is_page || file.starts_with("deploy/") || file == "compose.yaml"
}

/// Words and phrases in the lines of files. A name with an underscore is one word.
fn phrases(repository: &Repository, is_read: fn(&str) -> bool, phrases: &[&str]) -> Report {
    lines(repository, is_read, |line| {
        let parts = line.split(|character: char| !character.is_alphanumeric() && character != '_');
        let text = parts.filter(|part| !part.is_empty()).map(str::to_lowercase).collect::<Vec<_>>().join(" ");
        let text = format!(" {} ", text.replace(' ', "  "));
        let occurrences = |phrase: &&str| text.matches(&format!(" {} ", phrase.replace(' ', "  "))).count();
        phrases.iter().map(occurrences).sum()
    })
}

/// A finding for each occurrence that `count` finds in a line.
fn lines(repository: &Repository, is_read: fn(&str) -> bool, count: impl Fn(&str) -> usize) -> Report {
    let mut findings = Vec::new();
    for (file, text) in repository.files.iter().filter(|(file, _)| is_read(file)) {
        for (index, line) in text.lines().enumerate() {
            findings.extend((0..count(line)).map(|_| Finding {
                file: file.clone(),
                line: index + 1,
                text: line.trim().to_owned(),
            }));
        }
    }
    Report::of(findings)
}

/// The lines of Markdown outside of code blocks, each with its index.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut fence: Option<String> = None;
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let marks: String = line.trim_start().chars().take_while(|mark| ['`', '~'].contains(mark)).collect();
        if marks.len() >= 3 {
            fence = match fence {
                Some(open) if marks.starts_with(&open) => None,
                Some(open) => Some(open),
                None => Some(marks),
            };
        } else if fence.is_none() {
            found.push((index, line));
        }
    }
    found
}

/// Long lines of Markdown. A row of a table, a line of a code block and a lone link cannot be broken, and may be long.
pub(super) fn long_lines(repository: &Repository) -> Report {
    let mut findings = Vec::new();
    for (file, text) in repository.files.iter().filter(|(file, _)| file.ends_with(".md")) {
        for (index, line) in prose(text) {
            let (content, characters) = (line.trim_start(), line.chars().count());
            if characters > CHARACTERS_MAX && !content.starts_with('|') && !is_link(content) {
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

/// Paragraphs of Markdown that are walls of text. An item of a list is a paragraph.
pub(super) fn long_paragraphs(repository: &Repository) -> Report {
    let mut findings = Vec::new();
    let is_page = |file: &str| file.ends_with(".md") && file != "CHANGELOG.md";
    for (file, text) in repository.files.iter().filter(|(file, _)| is_page(file)) {
        // The index after the paragraph's last line, and how many lines it has.
        let (mut next, mut length) = (0, 0);
        for (index, line) in prose(text) {
            let content = line.trim_start();
            let is_none = content.is_empty() || content.starts_with(['#', '|']);
            let item = content.trim_start_matches(|digit: char| digit.is_ascii_digit());
            let begins = index != next || ["- ", "* ", ". "].iter().any(|mark| item.starts_with(mark));
            length = if is_none {
                0
            } else if begins {
                1
            } else {
                length + 1
            };
            next = index + 1;
            if length == PARAGRAPH_LINES_MAX + 1 {
                findings.push(Finding { file: file.clone(), line: index + 1, text: content.to_owned() });
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
        assert_eq!((told_in_tests(&repository).count, nobody_in_tests(&repository).count), (1, 1));
    }

    #[test]
    fn phrases_are_counted_in_documents() {
        let repository = Repository::of(&[
            ("docs/design/a.md", "5 ms *unless said*, in\nforce; in-force, Told"),
            ("deploy/nginx/a.conf", "# nobody told nobody"),
            ("CHANGELOG.md", "told"),
            ("docs/b.md", "in force in force"),
            ("bench/README.md", "told"),
        ]);
        assert_eq!(document_words(&repository).count, 8);
    }

    #[test]
    fn openings_and_names_are_counted() {
        let text = "//! What a.\n/// Who b.\n    /// The same, c.\n/// Whatever.\n/// The same d.\n// What e.\n\
                    async fn what_f() {}\nfn is_told() {}\nfn what() {}\nfn untold_g() {}\n";
        let repository =
            Repository::of(&[("crates/c/src/lib.rs", text), ("e2e/tests/a.rs", "fn nobody_h() {}")]);
        assert_eq!((doc_openings(&repository).count, test_names(&repository).count), (3, 3));
    }

    #[test]
    fn a_long_paragraph_is_found() {
        let lines = |count: usize| "a line\n".repeat(count);
        for (text, count) in [
            (lines(6), 0),
            (lines(7), 1),
            (lines(20), 1),
            (format!("{}\n{}", lines(6), lines(6)), 0),
            (format!("{}- {}", lines(6), lines(6)), 0),
            (format!("- {}", lines(7)), 1),
            (format!("{}```\n{}```\n{}", lines(6), lines(20), lines(6)), 0),
            (format!("# Title\n{}| a |\n{}", lines(6), lines(6)), 0),
        ] {
            assert_eq!(long_paragraphs(&Repository::of(&[("docs/a.md", &text)])).count, count, "{text}");
        }
        assert_eq!(long_paragraphs(&Repository::of(&[("CHANGELOG.md", &lines(9))])).count, 0);
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
