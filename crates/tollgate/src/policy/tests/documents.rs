//! The policies of the documentation compile, and mean what the pages say.

use std::fs;
use std::path::{Path, PathBuf};

use super::{findings, policy, warnings};
use crate::policy::compile;

/// One fenced block: its language with what else its first line says, and its text.
struct Block {
    label: String,
    text: String,
}

/// One page: where it lies, its name and its text.
struct Page {
    folder: PathBuf,
    name: String,
    text: String,
}

/// Every page at the root and under `docs`.
fn pages() -> Vec<Page> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = Vec::new();
    for folder in [root.join("docs"), root] {
        let paths = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        for path in paths.filter(|path| path.extension().is_some_and(|end| end == "md")) {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let text = fs::read_to_string(&path).unwrap();
            pages.push(Page { folder: folder.clone(), name, text });
        }
    }
    pages
}

/// The output of `tollgate policy check` for a good file.
fn checked(file: &str) -> String {
    let sentences = policy(file).sentences();
    let limits = if sentences.len() == 1 { "limit" } else { "limits" };
    format!("policy.yaml: {} {limits}\n  {}\n", sentences.len(), sentences.join("\n  "))
}

fn blocks(page: &str) -> Vec<Block> {
    let (mut blocks, mut open): (Vec<Block>, Option<Block>) = (Vec::new(), None);
    for line in page.lines() {
        match (line.strip_prefix("```"), open.take()) {
            (Some(_), Some(block)) => blocks.push(block),
            (Some(label), None) => open = Some(Block { label: label.trim().to_owned(), text: String::new() }),
            (None, Some(mut block)) => {
                block.text.push_str(line);
                block.text.push('\n');
                open = Some(block);
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block that does not end");
    blocks
}

/// A block is a whole policy, or a list of limits without the line before it.
fn whole(text: &str) -> String {
    if text.lines().any(|line| line.starts_with("limits:")) {
        text.to_owned()
    } else {
        format!("limits:\n{text}")
    }
}

/// Every `yaml` block compiles without a warning. A block `yaml warned` or `yaml refused` gets exactly the findings of the block
/// after it, and where the block after a good policy is the output of `policy check`, it is exactly that.
#[test]
fn policies_in_the_documentation_are_true() {
    let mut seen = 0;
    for page in pages() {
        let blocks = blocks(&page.text);
        for (position, block) in blocks.iter().enumerate() {
            let next = blocks.get(position + 1).map_or("", |next| next.text.as_str());
            let file = whole(&block.text);
            let context = format!("{}:\n{file}", page.name);
            match block.label.as_str() {
                "yaml" => {
                    assert_eq!(warnings(&file).to_string(), "", "{context}");
                    assert!(
                        !next.starts_with("policy.yaml: ") || next == checked(&file),
                        "{context}{}",
                        checked(&file)
                    );
                }
                "yaml warned" => assert_eq!(format!("{}\n", warnings(&file)), next, "{context}"),
                "yaml refused" => assert_eq!(format!("{}\n", findings(&file)), next, "{context}"),
                _ => continue,
            }
            seen += 1;
        }
    }
    assert!(seen >= 10, "only {seen} policies were found");
}

/// A page with Rust examples is one whose examples are run.
#[test]
fn pages_with_rust_examples_are_run() {
    let own = include_str!("../../documents.rs");
    let middleware = include_str!("../../../../tollgate-tower/src/lib.rs");
    let outbound = include_str!("../../../../tollgate-outbound/src/lib.rs");
    for page in pages() {
        let has_rust = blocks(&page.text).iter().any(|block| block.label.starts_with("rust"));
        assert!(
            !has_rust || [own, middleware, outbound].iter().any(|source| source.contains(&page.name)),
            "{} has Rust examples, and neither documents.rs nor the middleware nor the outbound client runs them",
            page.name
        );
    }
}

/// A block says what it holds: without a language, rustdoc would take it for Rust.
#[test]
fn blocks_have_a_language() {
    for page in pages() {
        for block in blocks(&page.text) {
            assert!(!block.label.is_empty(), "{}: a block without a language:\n{}", page.name, block.text);
        }
    }
}

/// The index links all other pages, or the README does, which links the index.
#[test]
fn every_page_is_linked() {
    let pages = pages();
    let is_index = |page: &&Page| page.name == "README.md" && page.folder.ends_with("docs");
    let index = pages.iter().find(is_index).unwrap();
    let readme = pages.iter().find(|page| page.name == "README.md" && !is_index(page)).unwrap();
    assert!(readme.text.contains("](docs/README.md)"), "README.md does not link the index");
    for page in pages.iter().filter(|page| page.folder.ends_with("docs") && !is_index(page)) {
        let [near, far] = [format!("]({})", page.name), format!("](docs/{})", page.name)];
        let is_linked = index.text.contains(&near) || readme.text.contains(&far);
        assert!(is_linked, "neither docs/README.md nor README.md links {}", page.name);
    }
}

/// Each field that the compiler knows is on the reference page.
#[test]
fn every_field_is_on_the_reference_page() {
    let pages = pages();
    let policy = pages.iter().find(|page| page.name == "policy.md").unwrap();
    for field in compile::FIELDS.iter().chain(&compile::limit::FIELDS) {
        assert!(policy.text.contains(&format!("`{field}`")), "docs/policy.md lacks `{field}`");
    }
}

/// Maximum number of words of a page, without its code.
const WORDS_MAX: usize = 2_000;
/// References: readers look things up in them.
const REFERENCES: [&str; 5] = ["accuracy.md", "admin.md", "config.md", "faults.md", "metrics.md"];

/// A page is read in ten minutes, unless it is a reference.
#[test]
fn pages_are_short() {
    let is_page = |page: &Page| page.folder.ends_with("docs") || page.name == "README.md";
    for page in pages().iter().filter(|page| is_page(page) && !REFERENCES.contains(&page.name.as_str())) {
        let code: usize = blocks(&page.text).iter().map(|block| block.text.split_whitespace().count()).sum();
        let words = page.text.split_whitespace().count() - code;
        assert!(words <= WORDS_MAX, "{} has {words} words", page.name);
    }
}

/// Links inside the repository lead to files that exist.
#[test]
fn links_lead_somewhere() {
    for page in pages() {
        for link in page.text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or_default();
            let is_elsewhere = link.starts_with("http") || target.is_empty();
            assert!(is_elsewhere || page.folder.join(target).exists(), "{} links to {link}", page.name);
        }
    }
}
