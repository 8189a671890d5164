//! `unnamed-public`, `root-exports` and `handle-methods`: what users of the library crate can name.

use std::collections::{BTreeMap, BTreeSet};

use super::cycles::absolute;
use super::{Finding, Report};
use crate::collect::{Kind, Name};
use crate::source::{Module, Repository};

/// The crate that these rules are about.
const LIBRARY: &str = "tollgate";
/// The engine, and what it hands out for one capability each.
const HANDLES: &[&str] = &[
    "Engine",
    "Operator",
    "Reservations",
    "Ledger",
    "Snapshots",
    "Maintenance",
    "Siblings",
    "EngineBuilder",
];
/// Maximum number of public methods of one of them.
const METHODS_MAX: usize = 12;
/// How the paths of files begin that name what users need, besides other crates.
const PAGES: &[&str] = &["docs/", "README.md", "ARCHITECTURE.md"];
const CALLERS: &[&str] = &["crates/", "e2e/", "bench/", "fuzz/", "examples/"];
/// The library's own source and its tests do not show that users need an item.
const OWN: &[&str] = &["crates/tollgate/src/", "crates/tollgate/tests/"];

/// Public items and methods that no page and no other crate names.
pub(super) fn unnamed(repository: &Repository) -> Report {
    let named = named(repository);
    let modules = modules(repository);
    let public = reachable(modules, &[], Depth::All);
    // A module that declares the type itself may mean another one of the same name.
    let is_reachable = |module: &Module, owner: &str| {
        let is_own = items(module).any(|item| item.text == owner);
        public.iter().any(|item| item.name == owner && (!is_own || item.module.path == module.path))
    };
    let mut findings: Vec<Finding> = public.iter().map(Public::finding).collect();
    for module in modules {
        for name in module.facts.names.iter().filter(|name| name.is_public) {
            if name.owner.as_ref().is_some_and(|owner| is_reachable(module, owner)) {
                findings.push(finding(module, name));
            }
        }
    }
    findings.retain(|finding| !named.contains(finding.text.rsplit("::").next().unwrap_or_default()));
    findings.sort_by(|left, right| left.text.cmp(&right.text));
    findings.dedup_by(|left, right| left.text == right.text);
    findings.iter_mut().for_each(|finding| finding.text.push_str(" is named nowhere"));
    Report::of(findings)
}

/// Names that the root of the library exports, modules apart.
pub(super) fn root_exports(repository: &Repository) -> Report {
    let modules = modules(repository);
    let found = reachable(modules, &[], Depth::Root);
    let names: BTreeSet<&str> = found.iter().map(|item| item.name).collect();
    let finding = |name: &str| Finding { file: modules[0].file.clone(), line: 0, text: name.to_owned() };
    Report::of(names.into_iter().map(finding).collect())
}

/// Public methods of the engine and of each of its handles, beyond [`METHODS_MAX`] for each.
pub(super) fn handle_methods(repository: &Repository) -> Report {
    let mut methods: BTreeMap<&str, Vec<Finding>> = BTreeMap::new();
    for module in modules(repository) {
        for name in module.facts.names.iter().filter(|name| name.is_public) {
            if let Some(owner) = HANDLES.iter().find(|handle| name.owner.as_deref() == Some(*handle)) {
                methods.entry(owner).or_default().push(finding(module, name));
            }
        }
    }
    let details = methods.iter().map(|(owner, found)| format!("{owner}: {} public methods", found.len()));
    let details = details.collect();
    let beyond = methods.into_values().flat_map(|found| found.into_iter().skip(METHODS_MAX));
    Report { details, ..Report::of(beyond.collect()) }
}

fn modules(repository: &Repository) -> &[Module] {
    repository.crates.iter().find(|parsed| parsed.name == LIBRARY).map_or(&[], |parsed| &parsed.modules)
}

fn finding(module: &Module, name: &Name) -> Finding {
    let owner = name.owner.as_ref().map_or(String::new(), |owner| format!("{owner}::"));
    Finding { file: module.file.clone(), line: name.line, text: format!("{owner}{}", name.text) }
}

/// Words that pages, the library's front page and other crates use.
fn named(repository: &Repository) -> BTreeSet<&str> {
    let begins = |file: &str, with: &[&str]| with.iter().any(|start| file.starts_with(start));
    let words = |text| str::split(text, |character: char| !character.is_alphanumeric() && character != '_');
    let mut named = BTreeSet::new();
    for (file, text) in &repository.files {
        let is_page = file.ends_with(".md") && begins(file, PAGES);
        let is_caller = file.ends_with(".rs") && begins(file, CALLERS) && !begins(file, OWN);
        if is_page || is_caller {
            named.extend(words(text));
        }
    }
    let front = repository.files.get("crates/tollgate/src/lib.rs").map_or("", String::as_str);
    named.extend(front.lines().filter(|line| line.starts_with("//!")).flat_map(words));
    named
}

/// The items of a module, children apart.
fn items(module: &Module) -> impl Iterator<Item = &Name> {
    let kinds = [Kind::Constant, Kind::Function, Kind::Type];
    module.facts.names.iter().filter(move |name| name.owner.is_none() && kinds.contains(&name.kind))
}

/// How far the search for public items goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    /// The exports of the root itself.
    Root,
    /// Also what is in its public modules.
    All,
}

/// An item under the name that users know it by, and where it is declared.
struct Public<'a> {
    module: &'a Module,
    name: &'a str,
    line: usize,
}

impl Public<'_> {
    fn finding(&self) -> Finding {
        Finding { file: self.module.file.clone(), line: self.line, text: self.name.to_owned() }
    }
}

/// The items that are public in a module.
fn reachable<'a>(modules: &'a [Module], path: &[String], depth: Depth) -> Vec<Public<'a>> {
    let at = |path: &[String]| modules.iter().find(|module| module.path == path);
    let child = |name: &str| [path, &[name.to_owned()]].concat();
    let public = |module: &'a Module, item: &'a Name| Public { module, name: &item.text, line: item.line };
    let Some(module) = at(path) else { return Vec::new() };
    let mut found: Vec<_> =
        items(module).filter(|item| item.is_public).map(|item| public(module, item)).collect();
    if depth == Depth::All {
        for name in module.facts.names.iter().filter(|name| name.is_public && name.kind == Kind::Module) {
            found.extend(reachable(modules, &child(&name.text), depth));
        }
    }
    for used in module.facts.uses.iter().filter(|used| used.is_public) {
        let inside = || at(&child(&used.path[0])).map(|_| [path, &used.path].concat());
        let Some(target) = absolute(path, &used.path).or_else(inside) else { continue };
        // A module that exports one around it would be searched for ever.
        if path.starts_with(&target) {
            continue;
        }
        match &used.name {
            None => found.extend(reachable(modules, &target, depth)),
            Some(_) if at(&target).is_some() => {
                if depth == Depth::All {
                    found.extend(reachable(modules, &target, depth));
                }
            }
            // The module that declares it, or the nearest one from which it is exported in turn.
            Some(name) => {
                let parent = &target[..target.len() - 1];
                let all = modules.iter().flat_map(|module| items(module).map(move |item| (module, item)));
                let same = all.filter(|(_, item)| target.last() == Some(&item.text));
                let nearest =
                    same.min_by_key(|(module, _)| (!module.path.starts_with(parent), module.path.len()));
                let (module, line) = nearest.map_or((module, 0), |(module, item)| (module, item.line));
                found.push(Public { module, name, line });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "\
        //! See `Front`.
        mod a;
        pub mod b { pub struct InB; pub(crate) struct Hidden; pub use super::a::deep::*; }
        pub use a::{A, Renamed};
        pub struct Front;
        #[cfg(test)] pub struct Tested;";
    const A: &str = "\
        mod inner { pub struct Inner; }
        pub mod deep { pub fn deep_function() {} }
        pub use inner::Inner as Renamed;
        pub struct A;
        pub struct NotExported;
        mod other { struct A; impl A { pub fn other_method() {} } }
        impl A { pub fn used(&self) {} pub fn unused(&self) {} fn private(&self) {} }
        impl NotExported { pub fn method(&self) {} }
        impl Clone for A { fn clone(&self) -> Self { A } }";

    fn texts(report: Report) -> Vec<String> {
        report.findings.into_iter().map(|finding| finding.text).collect()
    }

    /// An item that can be named from outside must be named somewhere outside.
    #[test]
    fn public_items_that_nothing_names_are_found() {
        let mut files = vec![("crates/tollgate/src/lib.rs", ROOT), ("crates/tollgate/src/a.rs", A)];
        files.extend([
            ("crates/tollgate/tests/it.rs", "use tollgate::b::InB;"),
            ("docs/a.md", "`A::used` is `A`."),
        ]);
        let unnamed = |files: &[_]| texts(super::unnamed(&Repository::of(files)));
        let expected =
            ["A::unused", "InB", "Renamed", "deep_function"].map(|name| format!("{name} is named nowhere"));
        assert_eq!(unnamed(&files), expected);
        files.push((
            "crates/other/src/lib.rs",
            "fn f(x: tollgate::Renamed) { x.unused(); deep_function(InB) }",
        ));
        assert!(unnamed(&files).is_empty());
    }

    #[test]
    fn names_at_the_root_are_counted() {
        let files = [("crates/tollgate/src/lib.rs", ROOT), ("crates/tollgate/src/a.rs", A)];
        assert_eq!(texts(root_exports(&Repository::of(&files))), ["A", "Front", "Renamed"]);
        let glob = format!("{ROOT} pub use a::*;");
        let files = [("crates/tollgate/src/lib.rs", glob.as_str()), ("crates/tollgate/src/a.rs", A)];
        assert_eq!(root_exports(&Repository::of(&files)).count, 4);
    }

    #[test]
    fn methods_of_a_handle_are_counted_in_every_file() {
        let methods: String = (0..12).map(|number| format!("pub fn m{number}() {{}} ")).collect();
        let root = format!("mod a; pub struct Engine; impl Engine {{ {methods} fn b() {{}} }}");
        let more = "impl crate::Engine { pub fn c() {} } impl Drop for Engine { fn drop() {} }";
        let files = [("crates/tollgate/src/lib.rs", root.as_str()), ("crates/tollgate/src/a.rs", more)];
        let report = handle_methods(&Repository::of(&files));
        assert_eq!(report.details, ["Engine: 13 public methods"]);
        assert_eq!(texts(report), ["Engine::c"]);
    }
}
