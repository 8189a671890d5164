//! The rules: each counts what it finds in the repository.

mod cycles;
mod pages;
mod public;
mod shapes;
mod text;
mod words;

use crate::source::Repository;

/// A rule that the source keeps.
#[derive(Debug)]
pub(crate) struct Rule {
    pub name: &'static str,
    pub about: &'static str,
    /// Whether a count can be too high; if not, the rule only reports.
    pub has_ceiling: bool,
    pub check: fn(&Repository) -> Report,
}

/// The count of a rule, and its findings.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub count: usize,
    pub findings: Vec<Finding>,
    /// Further lines for the reader.
    pub details: Vec<String>,
}

/// One thing that a rule found.
#[derive(Debug)]
pub(crate) struct Finding {
    pub file: String,
    /// Counted from one; zero for the whole file.
    pub line: usize,
    pub text: String,
}

impl Report {
    /// A report that counts its findings.
    fn of(findings: Vec<Finding>) -> Self {
        Self { count: findings.len(), findings, details: Vec::new() }
    }
}

/// Every rule, in the order in which they are printed.
pub(crate) const RULES: &[Rule] = &[
    rule("cycles", "modules of a crate that use each other in a circle", cycles::check),
    rule("duplicate-types", "type names defined more than once in a crate", shapes::duplicate_types),
    rule("words", "names that hold a word which the glossary replaces", words::check),
    rule("told", "\"told\" in the source", text::told),
    rule("nobody", "\"whoever\", \"nobody\" and \"somebody\" in the source", text::nobody),
    rule("told-in-tests", "\"told\" in crates/*/tests and e2e", text::told_in_tests),
    rule("nobody-in-tests", "\"whoever\", \"nobody\" and \"somebody\" there", text::nobody_in_tests),
    rule(
        "document-words",
        "these words, \"unless said\" and \"in force\" in documents",
        text::document_words,
    ),
    rule("doc-openings", "doc comments that open with What, Who, Whom or \"The same,\"", text::doc_openings),
    rule("test-names", "functions named told, or what_, who_ or nobody_ something", text::test_names),
    rule("long-functions", "functions of more than 70 lines", shapes::long_functions),
    rule("long-files", "files of more than 600 lines, tests apart", shapes::long_files),
    rule(
        "long-lines",
        "lines of documents over 120 characters, not in tables, code or links",
        text::long_lines,
    ),
    rule("long-paragraphs", "paragraphs of pages over six lines", text::long_paragraphs),
    rule("unnamed-public", "public items of tollgate that no page and no other crate names", public::unnamed),
    rule("bool-parameters", "parameters of type bool", shapes::bool_parameters),
    rule("root-exports", "names at the root of tollgate, modules apart", public::root_exports),
    rule(
        "handle-methods",
        "public methods of the engine or a handle of it beyond 12",
        public::handle_methods,
    ),
    rule("long-pages", "pages of the design with too many words or without a drawing", pages::long_pages),
    rule("unmapped-modules", "modules that CONTRIBUTING.md does not name", pages::unmapped_modules),
    report("lines", "lines of product source, tests apart", shapes::lines),
];

const fn rule(name: &'static str, about: &'static str, check: fn(&Repository) -> Report) -> Rule {
    Rule { name, about, has_ceiling: true, check }
}

const fn report(name: &'static str, about: &'static str, check: fn(&Repository) -> Report) -> Rule {
    Rule { name, about, has_ceiling: false, check }
}
