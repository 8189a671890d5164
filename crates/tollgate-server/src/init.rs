//! `tollgate init`: a commented policy, its tests and a config to start from, with the schemas for editors. Existing files
//! are never touched.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use crate::cli::{InitArguments, InitKind};
use crate::console::Console;
use crate::disk::plain_cause;
use crate::{FAILURE, SUCCESS, USAGE, schema};

/// The names of the files.
const POLICY: &str = "policy.yaml";
const TEST: &str = "policy.test.yaml";
const CONFIG: &str = "config.yaml";

/// The texts of the files of a kind.
macro_rules! texts_of {
    ($kind:literal) => {
        [
            (POLICY, include_str!(concat!("init/", $kind, ".policy.yaml"))),
            (TEST, include_str!(concat!("init/", $kind, ".test.yaml"))),
            (CONFIG, include_str!(concat!("init/", $kind, ".config.yaml"))),
        ]
    };
}

/// The files with their texts.
const fn texts(kind: InitKind) -> [(&'static str, &'static str); 3] {
    match kind {
        InitKind::Api => texts_of!("api"),
        InitKind::Login => texts_of!("login"),
        InitKind::Llm => texts_of!("llm"),
        InitKind::Gateway => texts_of!("gateway"),
    }
}

/// Writes all files, or none.
pub(crate) fn run(arguments: &InitArguments, console: &mut Console) -> u8 {
    let here = Path::new("");
    let directory = if arguments.dir == Path::new(".") { here } else { arguments.dir.as_path() };
    let texts = texts(arguments.kind);
    if let Some((name, _)) = texts.iter().find(|(name, _)| directory.join(name).symlink_metadata().is_ok()) {
        let path = directory.join(name);
        console.error(format_args!(
            "{}: is there already and is not overwritten; remove it, or name another directory with --dir",
            path.display()
        ));
        return FAILURE;
    }
    for (name, text) in texts {
        if let Err(error) = written(directory, name, text) {
            console.error(format_args!(
                "{}: {}; name a directory that can be written with --dir",
                directory.join(name).display(),
                plain_cause(&error)
            ));
            return USAGE;
        }
        console.line(format_args!("{} written", directory.join(name).display()));
    }
    for (name, text, command) in [
        ("policy.schema.json", schema::POLICY, "tollgate policy schema"),
        ("policy-test.schema.json", schema::TEST, "tollgate policy schema --test"),
        ("config.schema.json", schema::CONFIG, "tollgate config schema"),
    ] {
        let path = directory.join(name);
        match written(directory, name, text) {
            Ok(()) => console.line(format_args!("{} written", path.display())),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let is_same = fs::read(&path).is_ok_and(|known| known == text.as_bytes());
                if !is_same {
                    console.warning(format_args!(
                        "{}: is there already with other text and is not overwritten; `{command}` prints the one of this version",
                        path.display()
                    ));
                }
            }
            Err(error) => console.warning(format_args!("{}: {}", path.display(), plain_cause(&error))),
        }
    }
    let [policy, test, config] = [POLICY, TEST, CONFIG].map(|name| directory.join(name));
    console.line(format_args!(
        "\nEdit them, check them with `tollgate policy check {policy} --config {config}`, test the policy with\n\
         `tollgate policy test {test}`, and start:\n  \
         tollgate serve --policy {policy} --config {config}",
        policy = policy.display(),
        test = test.display(),
        config = config.display()
    ));
    SUCCESS
}

fn written(directory: &Path, name: &str, text: &str) -> io::Result<()> {
    if !directory.as_os_str().is_empty() {
        fs::create_dir_all(directory)?;
    }
    let mut file = OpenOptions::new().write(true).create_new(true).open(directory.join(name))?;
    file.write_all(text.as_bytes())
}
