//! `long-pages` and `unmapped-modules`: the pages for people who change the code.

use super::{Finding, Report};
use crate::source::Repository;

/// Maximum number of words of the architecture, and of one page of the design.
const ARCHITECTURE_WORDS_MAX: usize = 2_500;
const DESIGN_WORDS_MAX: usize = 1_200;
/// Strokes that join two things in a drawing.
const STROKES: &[&str] = &["->", "<-", "|--", " v\n", " v  ", "→", "│", "─"];
/// The page that maps the modules of each crate.
const MAP: &str = "CONTRIBUTING.md";

/// Pages with too many words, and pages of the design without a drawing.
pub(super) fn long_pages(repository: &Repository) -> Report {
    let mut findings = Vec::new();
    for (file, text) in &repository.files {
        let is_design = file.starts_with("docs/design/") && file.ends_with(".md");
        let most = match file.as_str() {
            "ARCHITECTURE.md" => ARCHITECTURE_WORDS_MAX,
            _ if is_design => DESIGN_WORDS_MAX,
            _ => continue,
        };
        let words = text.split_whitespace().count();
        if words > most {
            findings.push(whole(file, format!("{words} words, {most} at most")));
        }
        if is_design && !has_drawing(text) {
            findings.push(whole(file, "no drawing".to_owned()));
        }
    }
    Report::of(findings)
}

/// Whether a text block has a stroke that joins two things. Output of a command has none.
fn has_drawing(page: &str) -> bool {
    page.split("```text").skip(1).any(|rest| {
        let block = rest.split("```").next().unwrap_or_default();
        STROKES.iter().any(|stroke| block.contains(stroke))
    })
}

/// Modules at the root of a crate that the map does not name in the part about their crate.
pub(super) fn unmapped_modules(repository: &Repository) -> Report {
    let map = repository.files.get(MAP).map_or("", String::as_str);
    let mut findings = Vec::new();
    for parsed in &repository.crates {
        let name = parsed.name.trim_end_matches(" (main)");
        // A module inline in the root, such as one that holds the README as a test, needs no place on a map.
        let root = parsed.files.first().map_or("", |(file, _)| file.as_str());
        let part = part_of(map, name);
        for module in parsed.modules.iter().filter(|module| module.path.len() == 1 && module.file != root) {
            let is_named = part.contains(&format!("`{}`", module.path[0]));
            if !is_named {
                findings.push(whole(&module.file, format!("{MAP} does not name it under crates/{name}")));
            }
        }
    }
    Report::of(findings)
}

/// The part of the map about a crate: from its name in bold to the next line that begins in bold, or to a heading.
fn part_of<'m>(map: &'m str, name: &str) -> &'m str {
    let Some((_, rest)) = map.split_once(&format!("**`crates/{name}`**")) else { return "" };
    let end = ["\n**", "\n#"].iter().filter_map(|next| rest.find(next)).min();
    &rest[..end.unwrap_or(rest.len())]
}

fn whole(file: &str, text: String) -> Finding {
    Finding { file: file.to_owned(), line: 0, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_without_a_drawing_or_with_too_many_words_is_found() {
        let words = "word ".repeat(1_201);
        let drawn = "A page.\n```text\na -> b\n```\n";
        let printed = "A page -> another.\n```text\n$ tollgate --version\n```\n";
        let repository = Repository::of(&[
            ("docs/design/long.md", &words),
            ("docs/design/drawn.md", drawn),
            ("docs/design/printed.md", printed),
            ("docs/user.md", &words),
        ]);
        let texts: Vec<String> =
            long_pages(&repository).findings.into_iter().map(|finding| finding.text).collect();
        assert_eq!(texts, ["1201 words, 1200 at most", "no drawing", "no drawing"]);
    }

    #[test]
    fn a_module_is_named_in_the_part_of_its_own_crate() {
        let map = "**`crates/b`**: `two`.\n\n**`crates/a`**: `one`, `two_more`.\n\n**Elsewhere**: `two`.\n\n## `two`\n";
        let repository = Repository::of(&[
            ("CONTRIBUTING.md", map),
            ("crates/a/src/one.rs", ""),
            ("crates/a/src/two.rs", "mod deep {}"),
            ("crates/a/src/lib.rs", "mod one;\nmod two;\nmod inline {}"),
        ]);
        let report = unmapped_modules(&repository);
        assert_eq!(report.count, 1);
        assert_eq!(report.findings[0].text, "CONTRIBUTING.md does not name it under crates/a");
    }
}
