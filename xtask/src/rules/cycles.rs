//! `cycles`: top-level modules of a crate that use each other in a circle.
//!
//! A module uses another if a path in it or below it leads there: in a `use`, inline, in the arguments of a macro or
//! of an attribute. A path through the root leads to the module that the root takes the name from.

use std::collections::BTreeMap;

use super::{Finding, Report};
use crate::collect::Kind;
use crate::graph::Graph;
use crate::source::{Crate, Module, Repository};

/// Places listed for an edge that should go.
const PLACES_LISTED: usize = 3;

pub(super) fn check(repository: &Repository) -> Report {
    let mut report = Report::default();
    for parsed in &repository.crates {
        check_crate(parsed, &mut report);
    }
    report.count = report.findings.len();
    report
}

/// References from one top-level module to another: file and line of each.
type References = BTreeMap<(usize, usize), Vec<String>>;

fn check_crate(parsed: &Crate, report: &mut Report) {
    let tops: Vec<&Module> = parsed.modules.iter().filter(|module| module.path.len() == 1).collect();
    let references = references(parsed, &tops);
    let edges = references.iter().map(|(edge, places)| (*edge, places.len())).collect();
    let graph = Graph { nodes: tops.len(), edges };
    for component in graph.components() {
        let name = |node: usize| tops[node].path[0].as_str();
        let names =
            |nodes: &[usize], between| nodes.iter().map(|node| name(*node)).collect::<Vec<_>>().join(between);
        for node in &component {
            let text = format!("module {} of {} is in a cycle", name(*node), parsed.name);
            report.findings.push(Finding { file: tops[*node].file.clone(), line: 0, text });
        }
        let cycle = graph.shortest_cycle(&component);
        let cuts = graph.cuts(&component);
        let total: usize = cuts.iter().map(|edge| graph.edges[edge]).sum();
        let inner =
            graph.edges.iter().filter(|((from, to), _)| component.contains(from) && component.contains(to));
        let edges: Vec<_> =
            inner.map(|((from, to), count)| format!("{} -> {} {count}", name(*from), name(*to))).collect();
        report.details.extend([
            format!("{}: {} modules in a cycle: {}", parsed.name, component.len(), names(&component, ", ")),
            format!("  shortest: {} -> {}", names(&cycle, " -> "), names(&cycle[..1], "")),
            format!("  edges with their references: {}", edges.join(", ")),
            format!("  {total} references that could go, in {} edges:", cuts.len()),
        ]);
        for (from, to) in cuts {
            let places = &references[&(from, to)];
            let listed = places.iter().take(PLACES_LISTED).map(String::as_str).collect::<Vec<_>>().join(", ");
            let more = if places.len() > PLACES_LISTED { ", …" } else { "" };
            report.details.push(format!(
                "    {} -> {} ({}): {listed}{more}",
                name(from),
                name(to),
                places.len()
            ));
        }
    }
}

fn references(parsed: &Crate, tops: &[&Module]) -> References {
    let index: BTreeMap<&str, usize> =
        tops.iter().enumerate().map(|(at, top)| (top.path[0].as_str(), at)).collect();
    let mut references = References::new();
    for module in &parsed.modules {
        let Some(from) = module.path.first().map(|from| index[from.as_str()]) else { continue };
        for (path, line) in &module.facts.paths {
            let to = absolute(&module.path, path).and_then(|path| top_level(parsed, &index, &path, 0));
            if let Some(to) = to.filter(|to| *to != from) {
                references.entry((from, to)).or_default().push(format!("{}:{line}", module.file));
            }
        }
    }
    references
}

/// The path from the root of the crate, if it is written as one inside the crate.
pub(super) fn absolute(module: &[String], path: &[String]) -> Option<Vec<String>> {
    let base = match path.first()?.as_str() {
        "crate" => &[],
        "self" | "super" => module,
        _ => return None,
    };
    let words = path.iter().take_while(|part| ["crate", "self", "super"].contains(&part.as_str())).count();
    let supers = path[..words].iter().filter(|part| *part == "super").count();
    let base = &base[..base.len().checked_sub(supers)?];
    Some([base, &path[words..]].concat())
}

/// The top-level module that a path from the root leads to, also through a name that the root takes from it. The
/// depth ends circles of such names.
fn top_level(parsed: &Crate, tops: &BTreeMap<&str, usize>, path: &[String], depth: usize) -> Option<usize> {
    let first = path.first().filter(|_| depth < 8)?;
    if let Some(top) = tops.get(first.as_str()) {
        return Some(*top);
    }
    let declares = |path: &[String]| {
        let module = parsed.modules.iter().find(|module| module.path == path);
        module.is_some_and(|module| {
            module.facts.names.iter().any(|name| name.text == *first && name.kind != Kind::Variable)
        })
    };
    let taken = parsed.modules[0].facts.uses.iter().find_map(|used| {
        let path = absolute(&[], &used.path).unwrap_or_else(|| used.path.clone());
        let is_it = used.name.as_ref().map_or_else(|| declares(&path), |name| name == first);
        is_it.then_some(path)
    });
    top_level(parsed, tops, &taken?, depth + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_modules(root: &str, a: &str, b: &str) -> Report {
        check(&Repository::of(&[
            ("crates/c/src/lib.rs", root),
            ("crates/c/src/a.rs", a),
            ("crates/c/src/b.rs", b),
        ]))
    }

    /// Every way to write a path counts.
    #[test]
    fn modules_that_use_each_other_are_found() {
        for b in [
            "use crate::a::A;",
            "use super::a;",
            "use crate::{a::{A as Other}};",
            "use crate::a::*;",
            "use crate::A;",
            "fn f() { crate::a::f() }",
            "fn f() { assert!(true, \"{}\", [crate::a::N]) }",
            "mod inner { use super::super::a; }",
            "mod inner { fn f(x: super::super::a::A) {} }",
            "#[with(crate::a::f)] struct B;",
            "struct B { #[serde(with = \"crate::a\")] x: u8 }",
        ] {
            let report = check_modules("mod a;\nmod b;\npub use a::A;", "pub struct A;\nuse crate::b;", b);
            assert_eq!(report.count, 2, "{b}");
            assert_eq!(report.details[1], "  shortest: a -> b -> a", "{b}");
        }
    }

    #[test]
    fn a_glob_at_the_root_is_followed() {
        assert_eq!(
            check_modules("mod a; mod b; use a::*;", "pub struct A; use crate::b;", "use crate::A;").count,
            2
        );
        assert_eq!(
            check_modules("mod a; mod b; use a::*;", "pub struct A; use crate::b;", "use crate::X;").count,
            0
        );
    }

    /// One direction is no cycle; neither is a parent with its child, a visibility or another crate.
    #[test]
    fn what_is_no_cycle_is_not_found() {
        for b in [
            "pub(in crate::a) struct B;",
            "use std::a; fn f() { a::f() }",
            "use ::a::A;",
            "mod inner { use super::B; }\nuse inner::C;",
            "#[cfg(test)] mod tests { use crate::a; }",
        ] {
            assert_eq!(check_modules("mod a; mod b;", "use crate::b;", b).count, 0, "{b}");
        }
    }

    #[test]
    fn edges_to_cut_are_listed_with_their_places() {
        let report = check_modules("mod a; mod b;", "use crate::b::{X, Y};", "\nuse crate::a;");
        assert_eq!(report.details[3], "  1 references that could go, in 1 edges:");
        assert_eq!(report.details[4], "    b -> a (1): crates/c/src/b.rs:2");
    }
}
