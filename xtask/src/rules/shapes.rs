//! Rules about types, functions and files: `duplicate-types`, `long-functions`, `bool-parameters`, `long-files` and
//! `lines`.

use std::collections::BTreeMap;

use super::{Finding, Report};
use crate::collect::{Function, Kind};
use crate::source::Repository;

/// Most lines of a function.
const FUNCTION_LINES_MAX: usize = 70;
/// Most lines of a file, tests apart.
const FILE_LINES_MAX: usize = 600;

/// Names of types that a crate defines more than once. Each algorithm has a `State` of its own.
pub(super) fn duplicate_types(repository: &Repository) -> Report {
    let mut findings = Vec::new();
    for parsed in &repository.crates {
        let mut places: BTreeMap<&str, BTreeMap<&[String], (&str, usize)>> = BTreeMap::new();
        for module in &parsed.modules {
            let is_algorithm = module.path.iter().any(|part| part == "algorithm");
            for name in
                module.facts.names.iter().filter(|name| name.kind == Kind::Type && name.owner.is_none())
            {
                if !(is_algorithm && name.text == "State") {
                    // A second one in the same module is for another platform.
                    let places = places.entry(&name.text).or_default();
                    places.entry(&module.path).or_insert((&module.file, name.line));
                }
            }
        }
        for (name, places) in places.into_iter().filter(|(_, places)| places.len() > 1) {
            let all: Vec<_> = places.values().map(|(file, line)| format!("{file}:{line}")).collect();
            let text = format!("{name} is defined {} times: {}", all.len(), all.join(", "));
            let first = places.into_values().next();
            findings.extend(first.map(|(file, line)| Finding { file: file.to_owned(), line, text }));
        }
    }
    Report::of(findings)
}

/// Functions with too many lines.
pub(super) fn long_functions(repository: &Repository) -> Report {
    functions(repository, |function| {
        let long = function.lines.filter(|lines| *lines > FUNCTION_LINES_MAX);
        long.map(|lines| format!("{} has {lines} lines", function.name)).into_iter().collect()
    })
}

/// Parameters that are a bare `bool`.
pub(super) fn bool_parameters(repository: &Repository) -> Report {
    functions(repository, |function| {
        let texts = function.bools.iter().map(|name| format!("{} takes the bool {name}", function.name));
        texts.collect()
    })
}

fn functions(repository: &Repository, check: fn(&Function) -> Vec<String>) -> Report {
    let mut findings = Vec::new();
    for module in repository.modules() {
        for function in &module.facts.functions {
            let found = check(function).into_iter();
            findings.extend(found.map(|text| Finding {
                file: module.file.clone(),
                line: function.line,
                text,
            }));
        }
    }
    Report::of(findings)
}

/// Files with too many lines.
pub(super) fn long_files(repository: &Repository) -> Report {
    let files = repository.crates.iter().flat_map(|parsed| &parsed.files);
    let long = files.filter(|(_, lines)| *lines > FILE_LINES_MAX);
    Report::of(long.map(|(file, lines)| of_lines(file, *lines)).collect())
}

/// The lines of each crate.
pub(super) fn lines(repository: &Repository) -> Report {
    let mut report = Report::default();
    for parsed in &repository.crates {
        let lines = parsed.files.iter().map(|(_, lines)| lines).sum();
        report.count += lines;
        report.findings.push(of_lines(&parsed.name, lines));
    }
    report
}

fn of_lines(file: &str, lines: usize) -> Finding {
    Finding { file: file.to_owned(), line: 0, text: format!("{lines} lines") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn duplicates(text: &str) -> Vec<String> {
        let report = duplicate_types(&Repository::of(&[("crates/c/src/lib.rs", text)]));
        report.findings.into_iter().map(|finding| finding.text).collect()
    }

    #[test]
    fn a_name_defined_twice_is_found() {
        let found = duplicates("mod a {\n    struct X;\n}\nmod b {\n    enum X {}\n}\nstruct Y;");
        assert_eq!(found, ["X is defined 2 times: crates/c/src/lib.rs:2, crates/c/src/lib.rs:5"]);
        assert_eq!(duplicates("trait X {}\nmod a { pin! { struct X { a: u8 } } }").len(), 1);
        assert_eq!(duplicates("mod a { struct State; }\nmod b { struct State; }").len(), 1);
    }

    #[test]
    fn an_algorithm_has_its_own_state() {
        assert!(duplicates("mod algorithm { mod a { struct State; } mod b { struct State; } }").is_empty());
        assert!(duplicates("#[cfg(unix)] struct X;\n#[cfg(not(unix))] struct X;").is_empty());
        assert!(
            duplicates("struct X; impl T for X { type E = (); } impl T for Y { type E = (); }").is_empty()
        );
    }

    fn repository(text: &str) -> Repository {
        Repository::of(&[("crates/c/src/lib.rs", text)])
    }

    #[test]
    fn a_function_of_71_lines_is_long() {
        let of_lines = |lines: usize| format!("/// Doc.\nfn f() {{\n{}}}\n", "    g();\n".repeat(lines - 2));
        assert_eq!(long_functions(&repository(&of_lines(70))).count, 0);
        let report = long_functions(&repository(&of_lines(71)));
        assert_eq!(report.findings[0].text, "f has 71 lines");
        assert_eq!(report.findings[0].line, 2);
        assert_eq!(long_functions(&repository(&format!("impl T for X {{\n{}}}", of_lines(71)))).count, 1);
        assert_eq!(
            long_functions(&repository(&format!("#[cfg(test)] mod tests {{\n{}}}", of_lines(71)))).count,
            0
        );
    }

    #[test]
    fn bare_bools_are_counted() {
        let text =
            "fn f(a: bool, b: bool) {}\ntrait T { fn g(&self, c: bool); }\nimpl X { fn h(d: bool) {} }";
        let report = bool_parameters(&repository(text));
        assert_eq!(report.count, 4);
        assert_eq!(report.findings[1].text, "f takes the bool b");
    }

    #[test]
    fn other_parameters_are_not() {
        let text = "fn f(a: Option<bool>, g: fn(bool)) -> bool {}\nimpl T for X { fn g(&self, c: bool) {} }";
        assert_eq!(bool_parameters(&repository(text)).count, 0);
    }

    #[test]
    fn tests_do_not_make_a_file_long() {
        let tests = "#[cfg(test)]\nmod tests {\n    fn f() {}\n}\n";
        for (product, count) in [(600, 0), (601, 1)] {
            let text = format!("{}{tests}", "\n".repeat(product));
            let repository = Repository::of(&[("crates/c/src/lib.rs", &text)]);
            assert_eq!(long_files(&repository).count, count);
            assert_eq!(lines(&repository).count, product);
        }
    }
}
