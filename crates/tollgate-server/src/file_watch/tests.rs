use std::os::unix::fs::symlink;

use tollgate_testkit::Scratch;

use super::*;

fn version(text: &str) -> Seen {
    Seen::Version(Version::of(text.as_bytes()))
}

/// A change is acted on when it was seen twice in a row, and only once.
#[test]
fn a_change_must_hold_still() {
    let mut watch = Debounce::default();
    watch.acted(version("a"));
    assert!(!watch.saw(&version("a")));
    // A file that grows while it is written differs at each look.
    for torn in ["", "l", "li", "lim"] {
        assert!(!watch.saw(&version(torn)), "{torn:?}");
    }
    assert!(!watch.saw(&version("b")));
    assert!(watch.saw(&version("b")));
    assert!(!watch.saw(&version("b")));
    // A change that is reverted between two looks is no change.
    assert!(!watch.saw(&version("c")));
    assert!(!watch.saw(&version("b")));
    assert!(!watch.saw(&version("c")));
    // A missing file is a change, too, once it stays away.
    let gone = Seen::Unreadable("gone".to_owned());
    assert!(!watch.saw(&gone));
    assert!(watch.saw(&gone));
}

/// The version of a file is its SHA-256, as `sha256sum` prints it.
#[test]
fn the_version_of_a_file_is_its_sha256() {
    let scratch = Scratch::new();
    let path = scratch.write("p.yaml", "abc");
    let version = capture(&path).unwrap().version;
    assert_eq!(version.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_eq!(version.short(), "ba7816bf8f01cfea");
}

/// A directory's version covers the names and contents of its visible files, and no hidden ones.
#[test]
fn a_directory_is_its_visible_files() {
    let scratch = Scratch::new();
    let path = scratch.path("policies");
    fs::create_dir_all(path.join("deep")).unwrap();
    fs::write(path.join("a.yaml"), "1").unwrap();
    fs::write(path.join("deep/b.yaml"), "2").unwrap();
    let first = capture(&path).unwrap();
    let names: Vec<_> = first.files.iter().map(|(name, _)| name.display().to_string()).collect();
    assert_eq!(names, ["a.yaml", "deep/b.yaml"]);
    fs::write(path.join(".a.yaml.swp"), "draft").unwrap();
    assert_eq!(capture(&path).unwrap().version, first.version);
    fs::rename(path.join("deep/b.yaml"), path.join("deep/c.yaml")).unwrap();
    assert_ne!(capture(&path).unwrap().version, first.version);
}

/// A circular link or an endless tree is refused.
#[test]
fn a_tree_without_end_is_refused() {
    let scratch = Scratch::new();
    let path = scratch.path("policies");
    fs::create_dir_all(&path).unwrap();
    symlink(&path, path.join("again")).unwrap();
    assert!(capture(&path).unwrap_err().contains("at most 10000 files"));
}

/// Kubernetes swaps a ConfigMap by renaming a link over `..data`; the path of the file itself stays the same.
#[test]
fn a_swapped_link_is_seen() {
    let scratch = Scratch::new();
    let root = scratch.folder();
    for (version, text) in [("..v1", "one"), ("..v2", "two")] {
        fs::create_dir(root.join(version)).unwrap();
        fs::write(root.join(version).join("policy.yaml"), text).unwrap();
    }
    symlink("..v1", root.join("..data")).unwrap();
    symlink("..data/policy.yaml", root.join("policy.yaml")).unwrap();
    for path in [root.join("policy.yaml"), root.to_owned()] {
        let mut watcher = FileWatcher::new(vec![path]);
        let before = watcher.scan();
        symlink("..v2", root.join("..data_tmp")).unwrap();
        fs::rename(root.join("..data_tmp"), root.join("..data")).unwrap();
        let after = watcher.scan();
        assert_ne!(before, after);
        assert_eq!(watcher.scan(), after);
        symlink("..v1", root.join("..data_tmp")).unwrap();
        fs::rename(root.join("..data_tmp"), root.join("..data")).unwrap();
        assert_eq!(watcher.scan(), before);
    }
}

/// A change of contents that leaves the metadata the same is found a little later.
#[test]
fn metadata_is_not_believed_for_ever() {
    let scratch = Scratch::new();
    let path = scratch.write("p.yaml", "aaa");
    let mut watcher = FileWatcher::new(vec![path]);
    let before = watcher.scan();
    watcher.seen = version("something else"); // As if the contents had changed since.
    watcher.looks = DISTRUST;
    let looks = (1..=DISTRUST_EVERY).find(|_| watcher.scan() == before);
    assert!(looks.is_some_and(|looks| looks > 1), "{looks:?}");
}

/// A missing file is reported, and may appear later; a pipe is not watched.
#[test]
fn files_and_directories_can_be_watched() {
    let scratch = Scratch::new();
    let missing = scratch.path("none.yaml");
    assert!(
        matches!(FileWatcher::new(vec![missing.clone()]).scan(), Seen::Unreadable(why) if why.contains("no such file"))
    );
    assert!(is_watchable(&missing));
    assert!(is_watchable(scratch.folder()));
    assert!(!is_watchable(Path::new("-")));
    assert!(!is_watchable(Path::new("/dev/null")));
}
