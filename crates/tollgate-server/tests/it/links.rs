//! Every link between the guides leads to a file that is there, and to a heading that it has.

use std::fs;
use std::path::{Path, PathBuf};

use crate::proxy::file;

/// The guides, and what is beside them.
fn guides() -> Vec<PathBuf> {
    let mut guides: Vec<PathBuf> =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "bench/README.md"]
            .map(file)
            .to_vec();
    let docs = fs::read_dir(file("docs")).unwrap().map(|entry| entry.unwrap().path());
    guides.extend(docs.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    let examples = fs::read_dir(file("examples")).unwrap().map(|entry| entry.unwrap().path());
    guides.push(file("examples/README.md"));
    guides.extend(examples.filter(|path| path.is_dir()).map(|folder| folder.join("README.md")));
    guides
}

/// The text outside of fenced blocks.
fn prose(path: &Path) -> Vec<String> {
    let (text, mut is_code) = (fs::read_to_string(path).unwrap(), false);
    let lines = text.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    });
    lines.map(str::to_owned).collect()
}

/// The name by which a heading is linked: in lower case, with hyphens for spaces and without punctuation.
fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = heading.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

/// The targets of the links in a line.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

#[test]
fn links_lead_somewhere() {
    let mut followed = 0;
    for guide in guides() {
        for line in prose(&guide) {
            for target in targets(&line).filter(|target| !target.contains("://")) {
                let (path, heading) = target.split_once('#').unwrap_or((target, ""));
                let there = if path.is_empty() { guide.clone() } else { guide.parent().unwrap().join(path) };
                assert!(there.exists(), "{}: {target} is not there", guide.display());
                let headings = || prose(&there).into_iter().filter(|line| line.starts_with('#'));
                let is_found = heading.is_empty() || headings().any(|found| anchor(&found) == heading);
                assert!(is_found, "{}: {target} has no such heading", guide.display());
                followed += 1;
            }
        }
    }
    assert!(followed > 20, "only {followed} links were found");
}
