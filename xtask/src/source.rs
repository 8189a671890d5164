//! Reads the repository: its text files, and its crates as modules without their tests.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use syn::Item;

use crate::collect::{Facts, collect, is_test};

/// Directories that hold no source of ours.
const SKIPPED: &[&str] = &["target", "node_modules", "corpus"];
/// Files whose text a rule reads.
const ENDINGS: &[&str] = &[".rs", ".md", ".lua", ".json", ".txt", ".yaml", ".cfg", ".conf"];

/// The text files by their path from the root, and the crates parsed from them.
pub(crate) struct Repository {
    pub(crate) files: BTreeMap<String, String>,
    pub(crate) crates: Vec<Crate>,
}

/// One library or program: what `crates/NAME/src/lib.rs` or `main.rs` declares.
pub(crate) struct Crate {
    /// The name of its directory; a program beside a library has ` (main)` after it.
    pub(crate) name: String,
    /// Files of product code, with the lines that do not belong to tests.
    pub(crate) files: Vec<(String, usize)>,
    /// The root comes first.
    pub(crate) modules: Vec<Module>,
}

/// A module, in a file of its own or inline, without its tests and its children.
pub(crate) struct Module {
    pub(crate) file: String,
    /// Empty for the root of the crate.
    pub(crate) path: Vec<String>,
    pub(crate) facts: Facts,
}

impl Repository {
    /// Reads everything below a directory.
    pub(crate) fn read(root: &Path) -> Result<Self, String> {
        let mut files = BTreeMap::new();
        read_directory(root, "", &mut files)?;
        Self::parse(files)
    }

    /// Parses the crates among the files.
    fn parse(files: BTreeMap<String, String>) -> Result<Self, String> {
        let mut crates = Vec::new();
        for path in files.keys() {
            let parts: Vec<&str> = path.split('/').collect();
            let ["crates", name, "src", root @ ("lib.rs" | "main.rs")] = parts[..] else { continue };
            let directory = format!("crates/{name}/src");
            let is_second = root == "main.rs" && files.contains_key(&format!("{directory}/lib.rs"));
            let name = if is_second { format!("{name} (main)") } else { name.to_owned() };
            let mut parsed = Crate { name, files: Vec::new(), modules: Vec::new() };
            parsed.add_file(&files, path, &directory, Vec::new())?;
            crates.push(parsed);
        }
        Ok(Self { files, crates })
    }

    /// A repository made of these files.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
        Self::parse(files.collect()).unwrap()
    }

    /// Every module of every crate.
    pub(crate) fn modules(&self) -> impl Iterator<Item = &Module> {
        self.crates.iter().flat_map(|parsed| &parsed.modules)
    }
}

type Files = BTreeMap<String, String>;

impl Crate {
    /// Adds a file and those that it declares, which are in `directory`.
    fn add_file(
        &mut self,
        files: &Files,
        file: &str,
        directory: &str,
        path: Vec<String>,
    ) -> Result<(), String> {
        let text = files.get(file).ok_or_else(|| format!("there is no file {file}"))?;
        let parsed = syn::parse_file(text)
            .map_err(|error| format!("{file}:{}: {error}", error.span().start().line))?;
        if is_test(&parsed.attrs) {
            return Ok(());
        }
        let index = self.files.len();
        self.files.push((file.to_owned(), text.lines().count()));
        self.files[index].1 -= self.add_module(files, file, directory, path, &parsed.items)?;
        Ok(())
    }

    /// Adds a module and its children. Returns how many lines of the file are tests.
    fn add_module(
        &mut self,
        files: &Files,
        file: &str,
        directory: &str,
        path: Vec<String>,
        items: &[Item],
    ) -> Result<usize, String> {
        let facts = collect(items);
        let mut test_lines = facts.test_lines;
        self.modules.push(Module { file: file.to_owned(), path: path.clone(), facts });
        for item in items {
            let Item::Mod(child) = item else { continue };
            if is_test(&child.attrs) {
                continue;
            }
            let below = format!("{directory}/{}", child.ident);
            let child_path = [path.as_slice(), &[child.ident.to_string()]].concat();
            if let Some((_, items)) = &child.content {
                test_lines += self.add_module(files, file, &below, child_path, items)?;
            } else {
                let beside = format!("{below}.rs");
                let child_file = if files.contains_key(&beside) { beside } else { format!("{below}/mod.rs") };
                self.add_file(files, &child_file, &below, child_path)?;
            }
        }
        Ok(test_lines)
    }
}

fn read_directory(root: &Path, below: &str, files: &mut Files) -> Result<(), String> {
    let directory = root.join(below);
    let failed = |error| format!("cannot read {}: {error}", directory.display());
    for entry in fs::read_dir(&directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if below.is_empty() { name.clone() } else { format!("{below}/{name}") };
        if name.starts_with('.') || SKIPPED.contains(&name.as_str()) {
            continue;
        }
        // A symbolic link is neither: what it leads to is read where it is.
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_dir() {
            read_directory(root, &path, files)?;
        } else if kind.is_file() && ENDINGS.iter().any(|ending| name.ends_with(ending)) {
            let text =
                fs::read_to_string(entry.path()).map_err(|error| format!("cannot read {path}: {error}"))?;
            files.insert(path, text);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests count neither as modules nor as lines, wherever they are.
    #[test]
    fn tests_are_left_out() {
        let root =
            "mod a;\n#[cfg(test)]\nmod tests;\n#[cfg(all(test, loom))]\nmod inline {\n    fn f() {}\n}\n";
        let module =
            "struct A;\nimpl A {\n    #[cfg(test)]\n    fn f() {}\n    fn g() {}\n}\n#[test]\nfn t() {}\n";
        let repository = Repository::of(&[
            ("crates/c/src/lib.rs", root),
            ("crates/c/src/a.rs", module),
            ("crates/c/src/tests.rs", "not Rust"),
        ]);
        let parsed = &repository.crates[0];
        let files: Vec<_> = parsed.files.iter().map(|(path, lines)| (path.as_str(), *lines)).collect();
        assert_eq!(files, [("crates/c/src/lib.rs", 1), ("crates/c/src/a.rs", 4)]);
        assert_eq!(parsed.modules.len(), 2);
    }

    /// Code that a feature or a test needs is product code: it is compiled without tests too.
    #[test]
    fn code_of_a_feature_stays() {
        let text = "#[cfg(any(test, feature = \"fuzzing\"))]\nmod a {\n    mod b {}\n}\n#[cfg(not(test))]\nmod c {}\n";
        let repository = Repository::of(&[("crates/c/src/lib.rs", text)]);
        let paths: Vec<_> = repository.modules().map(|module| module.path.join("::")).collect();
        assert_eq!(paths, ["", "a", "a::b", "c"]);
    }

    #[test]
    fn a_declared_file_must_exist() {
        let files = BTreeMap::from([("crates/c/src/lib.rs".to_owned(), "mod a;".to_owned())]);
        let error = Repository::parse(files).err().unwrap();
        assert_eq!(error, "there is no file crates/c/src/a/mod.rs");
    }
}
