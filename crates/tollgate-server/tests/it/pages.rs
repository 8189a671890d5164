//! Output of `policy check` that pages show: each page is held to it with the real program.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use crate::admin;
use crate::guide::{Last, blocks, first, follow_blocks, shell, succeeded};
use crate::program::Server;
use crate::proxy::Folder;

const README: &str = include_str!("../../../../README.md");
const GATEWAY: &str = include_str!("../../../../docs/gateway.md");

/// The standard output and standard error of `policy check` about a file of this name.
fn checked(folder: &Folder, name: &str, text: &str) -> (bool, String, String) {
    folder.write(name, text);
    let output = shell(&format!("tollgate policy check {name}")).current_dir(&folder.0).output().unwrap();
    let [out, errors] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    (output.status.success(), out, errors)
}

/// The README is run with the built-in policy: its first decision, why a request was denied, and what `policy check` prints of its own
/// policy. The story: it once showed a policy without the warning that `policy check` prints as well.
#[test]
fn the_readme_is_true() {
    let (blocks, folder) = (blocks(README), Folder::new("pages-readme"));
    folder.write("policy.yaml", first(&blocks, "yaml"));
    let server = admin::server(tollgate::policy::EXAMPLE);
    follow_blocks(&blocks, &server, ("-eu", 4), |shell| {
        let address = format!("http://{}", server.address);
        shell.current_dir(&folder.0);
        shell.env("TOLLGATE_SERVER", address).env("TOLLGATE_ADMIN_TOKEN", admin::TOKEN);
    });
}

/// The README's own policy protects a service as its gateway row says. The story: its limit by tenant never applied there,
/// since nothing maps a tenant, and the server warned of it.
#[test]
fn the_policy_of_the_readme_applies_behind_its_gateway() {
    assert!(README.contains("`tollgate serve --policy policy.yaml --upstream http://127.0.0.1:3000`"));
    let upstream = ["--upstream", "http://127.0.0.1:1", "--gateway", "127.0.0.1:0"];
    let arguments = [&["serve", "--http", "127.0.0.1:0", "--policy", "-"][..], &upstream].concat();
    let mut server = Server::start_with(&arguments, first(&blocks(README), "yaml"));
    server.signal("-TERM");
    let log = server.rest_of_log();
    assert!(!log.contains("never applies"), "{log}");
}

/// Each block of `docs/cli.md` that shows a command and its output is what the program prints. The story: the page left out
/// a file that `init` writes.
#[test]
fn the_page_of_commands_shows_what_they_print() {
    let folder = Folder::new("pages-cli");
    let mut compared = 0;
    for (_, block) in
        blocks(include_str!("../../../../docs/cli.md")).iter().filter(|(of, _)| *of == "console")
    {
        let Some((command, shown)) = block.split_once('\n') else { continue };
        let command = command.strip_prefix("$ ").unwrap();
        let output = shell(&format!("{command} 2>&1")).current_dir(&folder.0).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap().trim_end(), shown.trim_end(), "{command}");
        compared += 1;
    }
    assert_eq!(compared, 2);
}

/// A number of the README about speed is one of the last tables of the benchmarks.
#[test]
fn figures_of_the_readme_are_measured() {
    let bench = include_str!("../../../../bench/README.md").replace(',', "");
    let figures = [
        "1.53×", "218,574", "41,735", "5.49×", "107,400", "95,453", "1.13×", "0.97×", "43,970", "0.75×",
        "0.72×", "2.20×",
    ];
    for figure in figures {
        assert!(README.contains(figure), "README.md no longer has {figure}: nor should this test");
        assert!(
            bench.contains(&figure.replace(',', "")),
            "bench/README.md has no {figure}: README.md is out of date"
        );
    }
}

/// The README names the repository that the packages name.
#[test]
fn the_readme_names_the_repository() {
    let install = format!("cargo install --git {} tollgate-server", env!("CARGO_PKG_REPOSITORY"));
    assert!(README.contains(&install), "README.md has no `{install}`");
}

/// The story: an example installed a package by its name, from where it is the project of others. A page installs from this
/// repository, or from a folder.
#[test]
fn no_page_installs_by_name() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let (mut folders, mut found) = (vec![root.to_owned()], 0);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
            let kind = path.extension().and_then(OsStr::to_str).unwrap_or_default();
            let is_built = ["target", "node_modules", ".git", ".cache"].contains(&name.as_str());
            if entry.file_type().unwrap().is_dir() && !is_built {
                folders.push(path);
            } else if ["md", "yml", "yaml", "sh", "html"].contains(&kind) {
                let text = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
                for (at, _) in text.match_indices("cargo install ") {
                    // A line may be broken within a command.
                    let command: Vec<&str> = text[at..].lines().take(2).collect();
                    let command = command.join(" ");
                    let command = command.split(['`', '&', ';', '$']).next().unwrap_or_default();
                    let is_ours = command.contains("tollgate");
                    found += u32::from(is_ours);
                    let is_named = command.contains("--git https://github.com/tollgate/tollgate ")
                        || command.contains("--path ");
                    assert!(!is_ours || is_named, "{}: {command}", path.display());
                }
            }
        }
    }
    assert!(found >= 6, "{found}");
}

/// Pages that are no guides: lists, measurements, stories and references of another guide.
const NO_GUIDES: [&str; 11] = [
    "README",
    "accuracy",
    "faq",
    "faults",
    "gateway-requests",
    "glossary",
    "mistakes",
    "outbound-providers",
    "overload-measured",
    "runbook",
    "tutorial",
];

/// Each guide has the same shape: an example, a table to look things up, and the pitfalls at its end. The story:
/// `docs/refunds.md` had tables and nothing else.
#[test]
fn guides_have_one_shape() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
    let pages = std::fs::read_dir(folder).unwrap().map(|page| page.unwrap().path());
    let pages: Vec<_> = pages.filter(|page| page.extension().is_some_and(|end| end == "md")).collect();
    for name in NO_GUIDES {
        assert!(pages.iter().any(|page| page.file_stem().is_some_and(|stem| stem == name)), "{name}");
    }
    for page in pages
        .iter()
        .filter(|page| !NO_GUIDES.iter().any(|name| page.file_stem().is_some_and(|stem| stem == *name)))
    {
        let text = std::fs::read_to_string(page).unwrap();
        assert!(text.contains("\n```"), "{} has no example", page.display());
        assert!(text.contains("\n|---"), "{} has no table", page.display());
        assert!(text.contains("\n## Pitfalls"), "{} has no pitfalls", page.display());
    }
}

/// The configs and recipes that pages show as their smallest example are accepted, and are those of the repository.
#[test]
fn smallest_examples_are_true() {
    let folder = Folder::new("pages-smallest");
    let clients = blocks(include_str!("../../../../docs/gateway-clients.md"));
    folder.write("config.yaml", first(&clients, "yaml clients"));
    assert_eq!(succeeded(tollgate_in(&folder, "config check config.yaml")).0, "config.yaml: accepted\n");
    let sticky = blocks(include_str!("../../../../docs/sticky.md"));
    let recipe = include_str!("../../../../deploy/nginx/sticky.conf");
    for line in first(&sticky, "nginx").lines() {
        assert!(
            recipe.lines().any(|of_recipe| of_recipe == line),
            "deploy/nginx/sticky.conf has no {line:?}"
        );
    }
}

fn tollgate_in(folder: &Folder, words: &str) -> std::process::Command {
    let mut command = shell(&format!("tollgate {words}"));
    command.current_dir(&folder.0);
    command
}

/// `docs/leases.md` shows the program's output about a fleet in virtual time.
#[test]
fn the_simulated_fleet_is_true() {
    let mut last = Last::default();
    for (language, block) in blocks(include_str!("../../../../docs/leases.md")) {
        match language {
            "sh" => last.ran(&block, succeeded(shell(&block)).0),
            _ => last.compare(language, &block),
        }
    }
    assert_eq!(last.compared, 1);
}

/// Whatever a page says that `policy check` warns of, it warns of: the page and its words, a file, and the warning.
#[test]
fn promised_warnings_are_given() {
    let folder = Folder::new("pages-warnings");
    let gateway_blocks = blocks(GATEWAY);
    let native = |fields: &str| format!("limits: [{{name: a, {fields}}}]");
    let cases = [
        ("docs/gateway.md", "`tollgate policy check` and the start of the server warn of it", first(&gateway_blocks, "yaml").to_owned(), "which a stranger can invent"),
        ("docs/policy.md", "warns where a limit counts by something that a stranger can invent or leave out", native("by: [api_key], rate: 1/s"), "which a stranger can invent"),
        ("docs/matching.md", "`policy check` warns where that may have been forgotten", native("by: [ip], rate: 1/s, when: \"plan != 'internal'\""), "plan"),
        ("docs/policy.md", "without `align: calendar` a month is 30 days", native("by: [ip], algorithm: fixed-window, rate: 9/month"), "without `align: calendar` a month is 30 days"),
        ("docs/failures.md", "`policy check` warns of it, unless its `--config` has routes of the gateway", native("by: [ip], rate: 1/s, count: failures"), "all requests through them count as failures"),
        ("docs/failures.md", "`policy check` warns of it where that is not `deny`", native("by: [ip], rate: 1/s, block_for: 10m"), "while a shared store is away blocks are not seen"),
        ("docs/migrate.md", "get a warning, too", "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1, shadow_mode: true}}]".to_owned(), "shadow_mode"),
        ("docs/migrate.md", "and a warning says so", "- {namespace: n, max_value: 1, seconds: 60, conditions: [], variables: []}\n- {namespace: n, max_value: 2, seconds: 60, conditions: [], variables: []}\n".to_owned(), "another limit has the same namespace"),
    ];
    for (page, words, file, warning) in cases {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let text = std::fs::read_to_string(root.join(page)).unwrap();
        // A line may end anywhere in the words.
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(words), "{page} no longer says {words:?}: nor should this test");
        let (is_fine, _, errors) = checked(&folder, "file.yaml", &file);
        assert!(
            is_fine && errors.contains("warning: ") && errors.contains(warning),
            "{page}: {words}\n{file}\n{errors}"
        );
    }
    let refused = [
        "algorithm: sliding-log",
        "algorithm: leaky-bucket, queue: 3",
        "algorithm: fixed-window, align: calendar",
    ];
    let rates = refused.map(|fields| format!("rate: 5/h, {fields}"));
    for fields in rates.iter().map(String::as_str).chain(["concurrency: 5, permit_ttl: 30s"]) {
        let (is_fine, _, errors) =
            checked(&folder, "file.yaml", &native(&format!("by: [ip], {fields}, consistency: leased")));
        assert!(!is_fine && errors.contains("cannot be leased"), "{fields}: {errors}");
    }
}

/// A domain in two files is the rules of both, with a warning, as docs/migrate.md says.
#[test]
fn a_domain_in_two_files_is_warned_of() {
    let folder = Folder::new("pages-domains");
    let file = |key: &str| {
        format!("domain: d\ndescriptors: [{{key: {key}, rate_limit: {{unit: day, requests_per_unit: 1}}}}]")
    };
    std::fs::create_dir(folder.0.join("rules")).unwrap();
    folder.write("rules/1.yaml", &file("a"));
    folder.write("rules/2.yaml", &file("b"));
    let output = shell("tollgate policy check rules").current_dir(&folder.0).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.success() && errors.contains("warning: domain: domain d is in another file"),
        "{errors}"
    );
}
