//! `words`: names that hold a word which the glossary replaces by the field's own.
//!
//! A name counts where it is declared, so that a count is about the work of renaming it. The methods of a trait count
//! in the trait; fields of Protocol Buffers belong to their protocol.

mod table;

use std::collections::HashMap;

use super::{Finding, Report};
use crate::collect::{Kind, Name};
use crate::source::Repository;
use table::{ALLOWED, Allowed, Scope, WORDS, Word};

/// Words listed with their counts.
const TOP: usize = 20;

pub(super) fn check(repository: &Repository) -> Report {
    let mut findings = Vec::new();
    let mut counts: HashMap<&str, usize> = HashMap::new();
    let mut kept = vec![0; ALLOWED.len()];
    let words = Words::new();
    for module in repository.modules() {
        for name in &module.facts.names {
            let Some(word) = words.find(name) else { continue };
            if let Some(index) = allowed_index(&name.text, &module.file) {
                kept[index] += 1;
                continue;
            }
            *counts.entry(word.word).or_default() += 1;
            let text = format!(
                "{:?} {}: not {}, but {}",
                name.kind,
                name.text,
                word.word.replace('_', " "),
                word.instead
            );
            findings.push(Finding { file: module.file.clone(), line: name.line, text });
        }
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(word, count)| (usize::MAX - count, *word));
    let top: Vec<_> = counts.iter().take(TOP).map(|(word, count)| format!("{word} {count}")).collect();
    let mut details = vec![format!("most often: {}", top.join(", "))];
    for (allowed, count) in ALLOWED.iter().zip(kept) {
        let Allowed { name, below, reason } = allowed;
        details.push(format!("allowed {count} times: {name} in {below}, {reason}"));
    }
    Report { details, ..Report::of(findings) }
}

fn allowed_index(name: &str, file: &str) -> Option<usize> {
    ALLOWED.iter().position(|allowed| allowed.name == name && file.starts_with(allowed.below))
}

/// The table by the first part of each word.
struct Words {
    by_first: HashMap<&'static str, Vec<(Vec<&'static str>, &'static Word)>>,
}

impl Words {
    fn new() -> Self {
        let mut by_first: HashMap<_, Vec<_>> = HashMap::new();
        for word in WORDS {
            let parts: Vec<_> = word.word.split('_').collect();
            by_first.entry(parts[0]).or_default().push((parts, word));
        }
        Self { by_first }
    }

    /// The first word of the table that the name holds, alone or as a plural.
    fn find(&self, name: &Name) -> Option<&'static Word> {
        let parts = split(&name.text);
        (0..parts.len()).find_map(|start| {
            let singular = parts[start].strip_suffix('s');
            let candidates = [Some(parts[start].as_str()), singular].into_iter().flatten();
            let mut known = candidates.filter_map(|first| self.by_first.get(first)).flatten();
            known
                .find(|(word, entry)| entry.scope.covers(name.kind) && begins_with(&parts[start..], word))
                .map(|it| it.1)
        })
    }
}

fn begins_with(parts: &[String], word: &[&str]) -> bool {
    let same = |(index, part): (usize, &&str)| {
        let is_last = index + 1 == word.len();
        parts[index] == **part || (is_last && parts[index].strip_suffix('s') == Some(*part))
    };
    parts.len() >= word.len() && word.iter().enumerate().all(same)
}

/// The parts of a name in small letters: `TokenBucket` and `token_bucket` have two.
fn split(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut after_small = false;
    for character in name.trim_start_matches("r#").chars() {
        if character == '_' || (character.is_uppercase() && after_small) {
            parts.push(String::new());
        }
        if character != '_'
            && let Some(part) = parts.last_mut()
        {
            part.extend(character.to_lowercase());
        }
        after_small = character.is_lowercase() || character.is_numeric();
    }
    parts.retain(|part| !part.is_empty());
    parts
}

impl Scope {
    fn covers(self, kind: Kind) -> bool {
        self == Scope::Everywhere || [Kind::Type, Kind::Module].contains(&kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let report = check(&Repository::of(&[("crates/c/src/lib.rs", text)]));
        report.findings.into_iter().map(|it| it.text.split(':').next().unwrap().to_owned()).collect()
    }

    #[test]
    fn every_kind_of_name_is_checked() {
        let text = "
            mod desk {}
            struct DeskState { shelf: u8 }
            enum E { Luck }
            trait Keeper { fn tend(&self); type Parcel; }
            const PATIENCE_MAX: u8 = 1;
            static SELDOM: u8 = 1;
            fn at_once(crowd: u8) { let halls = |seat| assert!({ let told = 1; true }); }
            impl E { fn check_views(&self) {} const HOUSE: u8 = 1; }
            pin! { struct Door { wire: u8 } }";
        let expected = [
            "Module desk",
            "Type DeskState",
            "Field shelf",
            "Variant Luck",
            "Type Keeper",
            "Function tend",
            "Type Parcel",
            "Constant PATIENCE_MAX",
            "Constant SELDOM",
            "Function at_once",
            "Variable crowd",
            "Variable halls",
            "Variable seat",
            "Variable told",
            "Function check_views",
            "Constant HOUSE",
            "Type Door",
            "Field wire",
        ];
        assert_eq!(found(text), expected);
    }

    /// Names of others, and uses of a name, do not count.
    #[test]
    fn a_name_counts_where_we_declare_it() {
        assert!(found("impl Other for X { fn told(&self) {} type Wire = u8; }").is_empty());
        assert!(found("fn f(x: Desk) { let Desk { told, .. } = x; other::at_once(told); }").is_empty());
        assert!(found("struct M { #[prost(string)] data: String }").is_empty());
        assert!(found("#[cfg(test)] mod tests { fn told() {} }").is_empty());
        assert_eq!(found("impl Other for X { fn f(told: u8) {} }"), ["Variable told"]);
    }

    /// Words that the field uses too are wrong only as the name of a type or a module.
    #[test]
    fn ambiguous_words_are_checked_in_types_and_modules() {
        assert!(found("fn f(line: u8, turn: u8) { let place = 1; } struct X { known: u8 }").is_empty());
        assert_eq!(found("struct Line; mod turn {} struct WithPlace;").len(), 3);
    }

    /// A word is a whole part of a name.
    #[test]
    fn parts_of_words_do_not_count() {
        assert!(
            found("fn stranded(deadline: u8, metadata: u8, once: u8, at: u8) {} struct Outlined;").is_empty()
        );
        assert_eq!(split("HTTPServer2Line_MAX r#type"), ["httpserver2", "line", "max r#type"]);
    }

    /// A name is allowed in its own files only.
    #[test]
    fn allowed_names_are_kept() {
        let report = |file: &str| {
            let root = format!("crates/{file}/src/lib.rs");
            let module = format!("crates/{file}/src/grpc.rs");
            check(&Repository::of(&[(&root, "mod grpc;"), (&module, "struct RetryInfo;")]))
        };
        assert_eq!(report("tollgate").count, 1);
        let kept = report("tollgate-tower");
        assert_eq!(kept.count, 0);
        assert!(kept.details.iter().any(|line| line.starts_with("allowed 1 times: RetryInfo")));
    }

    /// An allowed name must be one that would count, or the entry is in vain.
    #[test]
    fn the_table_is_sound() {
        let words = Words::new();
        for allowed in ALLOWED {
            let name = Name {
                kind: Kind::Type,
                text: allowed.name.to_owned(),
                line: 1,
                is_public: false,
                owner: None,
            };
            assert!(words.find(&name).is_some(), "{}", allowed.name);
            assert!(!allowed.reason.is_empty());
        }
        for (index, word) in WORDS.iter().enumerate() {
            assert!(
                !WORDS[..index].iter().any(|other| other.word == word.word),
                "{} is there twice",
                word.word
            );
        }
    }
}
