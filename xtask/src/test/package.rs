//! Packages every crate that is published, and installs the program from the packages alone, without the network.

use std::fs;
use std::path::{Path, PathBuf};

use super::shell::Shell;
use super::totals::thousands;

/// The package of the program.
const PROGRAM: &str = "tollgate-server";

/// A package as it would be uploaded.
struct Package {
    name: String,
    file: PathBuf,
    bytes: u64,
    /// Where it is unpacked.
    source: PathBuf,
}

/// Cargo puts the packages in order and builds each against those before it.
pub(crate) fn package(shell: &mut Shell) -> Result<(), String> {
    let directory = shell.directories.target.join("package");
    let excluded = unpublished(&shell.directories.root)?;
    let excluded: Vec<String> = excluded.iter().map(|name| format!("--exclude {name}")).collect();
    let excluded = excluded.join(" ");
    shell.run(&format!("cargo package --workspace --allow-dirty {excluded}"))?;
    let packages = packages(&directory)?;
    let unpacked = directory.join("unpacked");
    let _ = fs::remove_dir_all(&unpacked);
    fs::create_dir_all(&unpacked).map_err(|error| format!("cannot make {}: {error}", unpacked.display()))?;
    shell.print("package              bytes      files");
    for package in &packages {
        let mut unpack = shell.command("tar -xzf");
        unpack.arg(&package.file).arg("-C").arg(&unpacked);
        shell.run_command(unpack)?;
        let (bytes, files) = (thousands(package.bytes), count_files(&package.source));
        shell.print(&format!("{:<20} {bytes:>9} {files:>6}", package.name));
    }
    install(shell, &packages, &directory)?;
    shell.note = format!("{} packages, and {PROGRAM} installs from them", packages.len());
    Ok(())
}

/// The names of the workspace's members that are not published, as their manifests say.
fn unpublished(root: &Path) -> Result<Vec<String>, String> {
    let mut members = vec![root.join("e2e"), root.join("xtask")];
    for folder in ["crates", "examples"].map(|name| root.join(name)) {
        let failed = |error| format!("cannot read {}: {error}", folder.display());
        let entries = fs::read_dir(&folder).map_err(failed)?;
        members.extend(entries.filter_map(|entry| entry.ok().map(|entry| entry.path())));
    }
    let manifests = members.iter().filter_map(|member| fs::read_to_string(member.join("Cargo.toml")).ok());
    let manifests = manifests.filter(|manifest| manifest.lines().any(|line| line == "publish = false"));
    let name = |manifest: String| {
        let name = manifest.lines().find_map(|line| line.strip_prefix("name = "));
        name.map(|name| name.trim_matches('"').to_owned())
    };
    Ok(manifests.filter_map(name).collect())
}

fn packages(directory: &Path) -> Result<Vec<Package>, String> {
    let failed = |error| format!("cannot read {}: {error}", directory.display());
    let version = env!("CARGO_PKG_VERSION");
    let mut packages = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(name) = name.strip_suffix(&format!("-{version}.crate")).map(str::to_owned) else { continue };
        let bytes = fs::metadata(&file).map_err(failed)?.len();
        let source = directory.join("unpacked").join(format!("{name}-{version}"));
        packages.push(Package { name, file, bytes, source });
    }
    packages.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(packages)
}

fn count_files(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| if entry.path().is_dir() { count_files(&entry.path()) } else { 1 }).sum()
}

/// Installs the program from the unpacked packages, as if they came from the registry, and starts it.
fn install(shell: &mut Shell, packages: &[Package], directory: &Path) -> Result<(), String> {
    let program = packages.iter().find(|package| package.name == PROGRAM);
    let program = program.ok_or_else(|| format!("there is no package {PROGRAM}"))?;
    let root = directory.join("installed");
    let mut install = shell.command("cargo install --offline --locked --debug --force");
    install.arg("--path").arg(&program.source).arg("--root").arg(&root);
    install.arg("--target-dir").arg(directory.join("build"));
    for package in packages.iter().filter(|package| package.name != PROGRAM) {
        let source = package.source.display();
        install.arg("--config").arg(format!("patch.crates-io.{}.path=\"{source}\"", package.name));
    }
    shell.run_command(install)?;
    let mut version = shell.command("env");
    version.arg(root.join("bin/tollgate")).arg("--version");
    shell.run_command(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the examples were packaged, which are not published.
    #[test]
    fn what_is_not_published_is_left_out() {
        let found = unpublished(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap();
        for name in ["e2e", "xtask", "tollgate-testkit", "example-login", "example-outbound-tonic"] {
            assert!(found.iter().any(|found| found == name), "{name}: {found:?}");
        }
        assert!(!found.iter().any(|found| ["tollgate", "tollgate-server"].contains(&found.as_str())));
    }
}
