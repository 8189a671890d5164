//! The program as a newcomer meets it: its first files, the examples in its help, a server that commands find by
//! themselves, and the schemas for editors.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tollgate_testkit::Scratch;

use crate::pki::TestCa;
use crate::program::{executable, run, stderr, stdout, tollgate};

const KINDS: [&str; 4] = ["api", "login", "llm", "gateway"];

/// Runs a command in a directory, where it also finds servers.
fn within(folder: &Scratch, arguments: &[&str]) -> Command {
    let mut command = tollgate(arguments);
    let path = std::env::var("PATH").unwrap_or_default();
    let programs = executable().parent().unwrap().display().to_string();
    command
        .current_dir(folder.folder())
        .env("XDG_RUNTIME_DIR", folder.folder())
        .env("TOLLGATE_HTTP", "127.0.0.1:0")
        .env("PATH", format!("{programs}:{path}"));
    // Without an upstream there is no gateway.
    if arguments.contains(&"--upstream") {
        command.env("TOLLGATE_GATEWAY", "127.0.0.1:0");
    }
    command
}

/// The files that `init` writes pass the checks without an error, and are never overwritten.
#[test]
fn first_files_are_accepted() {
    for kind in KINDS {
        let folder = Scratch::new();
        let output = within(&folder, &["init", kind]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{kind}: {}", stderr(&output));
        let checks: [&[&str]; 3] = [
            &["policy", "check", "policy.yaml", "--config", "config.yaml"],
            &["policy", "test", "policy.test.yaml"],
            &["config", "check", "config.yaml"],
        ];
        for check in checks {
            let output = within(&folder, check).output().unwrap();
            let said = format!("{}{}", stdout(&output), stderr(&output));
            assert_eq!(output.status.code(), Some(0), "{kind} {check:?}: {said}");
        }
        for schema in ["policy.schema.json", "policy-test.schema.json", "config.schema.json"] {
            let text = fs::read_to_string(folder.path(schema)).unwrap();
            assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{schema}");
        }
        fs::write(folder.path("policy.yaml"), "mine").unwrap();
        let again = within(&folder, &["init", kind]).output().unwrap();
        assert_eq!(again.status.code(), Some(1));
        assert!(stderr(&again).contains("is not overwritten"), "{}", stderr(&again));
        assert_eq!(fs::read_to_string(folder.path("policy.yaml")).unwrap(), "mine");
    }
}

/// Regression: `init` replaced schemas without a word.
#[test]
fn first_files_replace_no_schema() {
    let folder = Scratch::new();
    fs::write(folder.path("policy.schema.json"), "mine").unwrap();
    let output = within(&folder, &["init", "api"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("policy.schema.json: is there already with other text"),
        "{}",
        stderr(&output)
    );
    assert_eq!(fs::read_to_string(folder.path("policy.schema.json")).unwrap(), "mine");
    assert!(stdout(&output).contains("config.schema.json written"), "{}", stdout(&output));
    for file in ["policy.yaml", "policy.test.yaml", "config.yaml", "policy.schema.json"] {
        fs::remove_file(folder.path(file)).unwrap();
    }
    let again = within(&folder, &["init", "api"]).output().unwrap();
    assert_eq!((again.status.code(), stderr(&again)), (Some(0), String::new()), "the same text is fine");
}

/// A server that is ended with the test.
struct Running {
    process: std::process::Child,
    /// Where it answers over HTTP.
    address: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts a server whose banner is read to its end.
fn started(mut command: Command) -> Running {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut running = Running { process: child, address: String::new() };
    for line in lines.map_while(Result::ok) {
        if let Some((_, address)) = line.split_once("HTTP    http://") {
            running.address = address.trim().to_owned();
        }
        if line.contains("Stop it with") {
            return running;
        }
    }
    panic!("the server did not start");
}

/// Commands find the server of this user by themselves. Of several they use the newest, and say so. One that was killed
/// is not found, although it left its file behind.
#[test]
fn commands_find_the_running_server() {
    let folder = Scratch::new();
    let limits = |more: &[&str]| within(&folder, &[&["limits"], more].concat()).output().unwrap();
    let none = limits(&[]);
    assert_eq!(none.status.code(), Some(2));
    assert!(stderr(&none).contains("no server of this user runs on this machine"), "{}", stderr(&none));
    fs::write(folder.path("a.yaml"), "limits: [{name: first, rate: 5/h}]").unwrap();
    fs::write(folder.path("b.yaml"), "limits: [{name: second, rate: 5/h}]").unwrap();
    let first = started(within(&folder, &["serve", "--policy", "a.yaml"]));
    assert!(stdout(&limits(&[])).contains("first"));
    let second = started(within(&folder, &["serve", "--policy", "b.yaml", "--admin-token-file", "token"]));
    let found = limits(&[]);
    assert!(stdout(&found).contains("second"), "{}", stderr(&found));
    assert!(
        stderr(&found).contains("the newest; 1 more server runs here: --admin URL"),
        "{}",
        stderr(&found)
    );
    let change = within(&folder, &["kill", "second"]).output().unwrap();
    assert_eq!(change.status.code(), Some(2));
    assert!(stderr(&change).contains("several servers run here"), "{}", stderr(&change));
    // The story: `policy diff --live` and `bench` took the newest without a word.
    let diff = within(&folder, &["policy", "diff", "b.yaml", "--live"]).output().unwrap();
    assert_eq!(diff.status.code(), Some(0), "{}", stderr(&diff));
    assert!(stderr(&diff).contains("the newest; 1 more server runs here: --admin URL"), "{}", stderr(&diff));
    let bench = within(&folder, &["bench", "--duration", "10ms"]).output().unwrap();
    assert_eq!(bench.status.code(), Some(2));
    assert!(stderr(&bench).contains("several servers run here"), "{}", stderr(&bench));
    assert!(stderr(&bench).contains("choose with --to ADDR: 127.0.0.1:"), "{}", stderr(&bench));
    drop(second);
    let found = limits(&[]);
    assert!(stdout(&found).contains("first") && stderr(&found).is_empty(), "{}", stderr(&found));
    drop(first);
    assert_eq!(limits(&[]).status.code(), Some(2));
}

/// The indented blocks after the flags of a help, each without its indentation.
fn blocks(help: &str) -> Vec<Vec<String>> {
    let lines: Vec<&str> = help.lines().skip_while(|line| *line != "Examples:").collect();
    let blocks = lines.split(|line| !line.starts_with("  ")).filter(|block| !block.is_empty());
    blocks.map(|block| block.iter().map(|line| line[2..].to_owned()).collect()).collect()
}

/// The commands in the help, as they are copied: with comments, and with the lines that a backslash continues. What is
/// no command is YAML.
fn examples(help: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for block in blocks(help) {
        let is_command = |line: &str| {
            ["tollgate ", "curl ", "printf ", "man "].iter().any(|start| line.starts_with(start))
        };
        if !is_command(&block[0]) {
            let document: Result<Value, _> = serde_saphyr::from_str(&block.join("\n"));
            assert!(document.is_ok(), "neither a command nor YAML: {block:?}");
            continue;
        }
        for line in block {
            match found.last_mut() {
                Some(last) if last.ends_with('\\') => *last += &format!("\n{line}"),
                _ => {
                    assert!(is_command(&line), "{line}");
                    found.push(line);
                }
            }
        }
    }
    found
}

/// The help of every command, by the words that ask for it.
fn helps() -> Vec<(String, String)> {
    let mut found = Vec::new();
    walk(&tollgate_server::cli::Cli::arranged(), &mut Vec::new(), &mut found);
    found
}

fn walk(command: &clap::Command, path: &mut Vec<String>, found: &mut Vec<(String, String)>) {
    let mut words: Vec<&str> = path.iter().map(String::as_str).collect();
    words.push("--help");
    let help = |columns| {
        let output = tollgate(&words).env("COLUMNS", columns).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{words:?}");
        stdout(&output)
    };
    let at_80 = help("80");
    // The examples fit, and are copied whole from a narrower terminal, too.
    assert_eq!(blocks(&at_80), blocks(&help("40")), "{words:?}");
    for line in blocks(&at_80).into_iter().flatten() {
        assert!(line.chars().count() <= 78, "{words:?}: {line}");
    }
    found.push((path.join(" "), at_80));
    for below in command.get_subcommands() {
        path.push(below.get_name().to_owned());
        walk(below, path, found);
        path.pop();
    }
}

/// Files that examples name.
fn prepared(folder: &Scratch) {
    let policy = "limits: [{name: per-key, by: [api_key], rate: 100/s}]";
    for name in ["policy.yaml", "old.yaml", "new.yaml"] {
        fs::write(folder.path(name), policy).unwrap();
    }
    let test = "policy: policy.yaml\ncases: [{name: a burst, requests: [{attributes: {api_key: k1}, expect: allow}]}]";
    fs::write(folder.path("policy.test.yaml"), test).unwrap();
    fs::write(folder.path("config.yaml"), "ipv6_prefix: 64\n").unwrap();
    fs::write(folder.path("requests.jsonl"), "{\"at\": 1000, \"attributes\": {\"api_key\": \"k1\"}}\n")
        .unwrap();
    let log = "time,api_key,ip,path\n2030-01-31T12:00:00Z,k1,192.0.2.1,/\n";
    fs::write(folder.path("access.log"), log).unwrap();
    let envoy =
        "domain: test\ndescriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 5}}]\n";
    fs::write(folder.path("ratelimit.yaml"), envoy).unwrap();
    let limitador = "[{namespace: test, max_value: 10, seconds: 60, conditions: [], variables: []}]\n";
    fs::write(folder.path("limitador.yaml"), limitador).unwrap();
    fs::write(folder.path("ca.pem"), TestCa::new("test").pem).unwrap();
    let password = folder.path("password");
    fs::write(&password, "secret\n").unwrap();
    fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Every example of every help works as it is printed, with its comment. Examples that start a server are seen to start
/// one, also without their store. Others that need a store, and those that take minutes, are understood.
///
/// Regression: the help of `serve` broke its curl after `-d`, and comments were arguments of the line that was copied.
#[test]
fn examples_in_the_help_work() {
    let folder = Scratch::new();
    prepared(&folder);
    let server = started(within(&folder, &["serve", "--policy", "policy.yaml"]));
    let mut count = 0;
    for (command, help) in helps() {
        for example in examples(&help) {
            count += 1;
            let words: Vec<&str> = example.split_whitespace().collect();
            match words[..2] {
                ["man", _] => continue,
                ["tollgate", "serve"] => {
                    let surroundings = within(&folder, &words[1..]);
                    drop(started(shell(&surroundings, &format!("exec {example}"))));
                    continue;
                }
                ["tollgate", "init"] => {
                    let empty = Scratch::new();
                    let output = shell(&within(&empty, &[]), &example).output().unwrap();
                    assert_eq!(output.status.code(), Some(0), "{example}: {}", stderr(&output));
                    continue;
                }
                _ => {}
            }
            // What runs until it is stopped, or for long, ends; and the server listens on a free port.
            let text = example
                .replacen("tollgate bench", "tollgate bench --duration 50ms --warmup 0s --connections 2", 1)
                .replacen("tollgate top  ", "tollgate top --once", 1)
                .replacen("tollgate tail  ", "tollgate tail --once", 1)
                .replacen("127.0.0.1:8080", &server.address, 1);
            let output = shell(&within(&folder, &[]), &text).output().unwrap();
            // 1 is an answer too: files differ, a store is unreachable, there was nothing to undo.
            let is_fine = matches!(output.status.code(), Some(0 | 1));
            assert!(is_fine, "{command}: {example}: {}", stderr(&output));
            let json = words.iter().position(|word| *word == "--json");
            let to_file = |at: usize| words.get(at + 1).is_some_and(|next| !["\\", "#"].contains(next));
            if json.is_some_and(|at| !to_file(at)) || words[0] == "curl" {
                let documents = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
                let documents: Result<Vec<Value>, _> = documents.collect();
                let is_json = documents.is_ok_and(|found| !found.is_empty());
                assert!(is_json, "{example}: {}{}", stdout(&output), stderr(&output));
            }
        }
    }
    assert!(count > 50, "only {count} examples");
}

/// The command of a shell with the surroundings of another.
fn shell(command: &Command, text: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", text]).stdin(Stdio::null());
    if let Some(directory) = command.get_current_dir() {
        shell.current_dir(directory);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
}

/// The commands that have no commands below them, with their paths.
fn leaves<'c>(command: &'c clap::Command, path: &str, found: &mut Vec<(String, &'c clap::Command)>) {
    for below in command.get_subcommands() {
        let path = format!("{path}{}", below.get_name());
        match below.has_subcommands() {
            true => leaves(below, &format!("{path} "), found),
            false => found.push((path, below)),
        }
    }
}

/// Every command that prints data can print it as JSON. The others serve, write files, or print a file for another program.
#[test]
fn data_is_printed_as_json() {
    let (root, mut found) = (tollgate_server::cli::Cli::arranged(), Vec::new());
    leaves(&root, "", &mut found);
    let has_none =
        |command: &clap::Command| command.get_arguments().all(|one| one.get_long() != Some("json"));
    let found = found.iter().filter(|(_, command)| has_none(command));
    let found: BTreeSet<&str> = found.map(|(path, _)| path.as_str()).collect();
    let files = ["config schema", "init", "man", "policy convert", "policy schema"];
    let others = ["callers add", "callers remove", "completions", "serve"];
    assert_eq!(found, BTreeSet::from_iter([&files[..], &others[..]].concat()));
}

/// Completions exist for three shells, and every command has a manual page.
#[test]
fn shells_and_manuals() {
    for (shell, expected) in
        [("bash", "complete -F"), ("zsh", "#compdef tollgate"), ("fish", "complete -c tollgate")]
    {
        assert!(stdout(&run(&["completions", shell], b"")).contains(expected), "{shell}");
    }
    let fish = stdout(&run(&["completions", "fish"], b""));
    assert!(
        fish.contains("-n \"__fish_seen_subcommand_from init\" -f -a \"api login llm gateway\""),
        "{fish}"
    );
    let folder = Scratch::new();
    let directory = folder.text("man");
    assert_eq!(run(&["man", &directory], b"").status.code(), Some(0));
    let (root, mut found) = (tollgate_server::cli::Cli::arranged(), Vec::new());
    leaves(&root, "", &mut found);
    for (command, _) in found {
        let page = format!("man/tollgate-{}.1", command.replace(' ', "-"));
        assert!(folder.path(&page).is_file(), "{page}");
    }
    let page = fs::read_to_string(folder.path("man/tollgate-serve.1")).unwrap();
    assert!(page.contains("TOLLGATE_HTTP") && page.contains(".SH EXAMPLES\n.nf\n"), "{page}");
}

fn schema(kind: &str) -> Value {
    serde_json::from_str(&stdout(&run(&[kind, "schema"], b""))).unwrap()
}

/// The schema of test files.
fn test_schema() -> Value {
    serde_json::from_str(&stdout(&run(&["policy", "schema", "--test"], b""))).unwrap()
}

/// The problems of a YAML text by a schema.
fn problems(schema: &Value, text: &str) -> Option<String> {
    let mut compiler = boon::Compiler::new();
    compiler.add_resource("schema.json", schema.clone()).unwrap();
    let mut schemas = boon::Schemas::new();
    let index = compiler.compile("schema.json", &mut schemas).unwrap();
    let instance: Value = serde_saphyr::from_str(text).unwrap();
    schemas.validate(&instance, index).err().map(|error| error.to_string())
}

fn yaml_below(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().filter_map(Result::ok) {
        let path = entry.path();
        if path.is_dir() {
            yaml_below(&path, found);
        } else if path.file_name().is_some_and(|name| name.to_string_lossy().ends_with("policy.yaml")) {
            found.push(path);
        }
    }
}

/// The schemas accept every example file of this repository, and refuse a typing error.
#[test]
fn schemas_accept_the_example_files() {
    let (policy, config) = (schema("policy"), schema("config"));
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut files = vec![root.join("crates/tollgate/src/policy/example.yaml")];
    for folder in ["deploy", "examples"] {
        yaml_below(&root.join(folder), &mut files);
    }
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        if text.contains("limits:") {
            assert_eq!(problems(&policy, &text), None, "{}", file.display());
        }
    }
    for kind in KINDS {
        let folder = Scratch::new();
        within(&folder, &["init", kind]).output().unwrap();
        let text = |name: &str| fs::read_to_string(folder.path(name)).unwrap();
        assert_eq!(problems(&policy, &text("policy.yaml")), None, "{kind}");
        assert_eq!(problems(&test_schema(), &text("policy.test.yaml")), None, "{kind}");
        assert_eq!(problems(&config, &text("config.yaml")), None, "{kind}");
    }
    assert!(problems(&policy, "limits: [{name: a, rats: 5/s}]").is_some());
    assert!(problems(&config, "ipv6_prefixx: 64").is_some());
    assert!(
        problems(&test_schema(), "{policy: p, cases: [{name: a, requests: [{expects: allow}]}]}").is_some()
    );
}

/// The problem that a reader finds in a text.
fn reported(command: &str, text: &str) -> String {
    let folder = Scratch::new();
    fs::write(folder.path("file.yaml"), text).unwrap();
    stderr(&within(&folder, &[command, "check", "file.yaml"]).output().unwrap())
}

/// The fields that a reader accepts, as it lists them when it meets an unknown one.
fn accepted(command: &str, text: &str) -> BTreeSet<String> {
    listed(&reported(command, text), text)
}

/// The fields that a message about a text lists.
fn listed(message: &str, text: &str) -> BTreeSet<String> {
    let line =
        message.lines().find(|line| line.contains("zzz")).unwrap_or_else(|| panic!("{text}: {message}"));
    let list = match (line.rsplit_once("accepted: "), line.split_once("expected ")) {
        (Some((_, list)), _) => list.replace(" (line 1)", ""),
        (None, Some((_, list))) => list.to_owned(),
        _ => panic!("no list of fields: {line}"),
    };
    let is_name = |word: &&str| {
        !word.is_empty()
            && word.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_' || letter == '6')
    };
    let words = list.split([',', ' ', '`', '\n']).filter(is_name);
    words.filter(|word| !["one", "of", "or", "at"].contains(word)).map(str::to_owned).collect()
}

fn properties(schema: &Value, pointer: &str) -> BTreeSet<String> {
    let properties = schema.pointer(&format!("{pointer}/properties"));
    let properties = properties.and_then(Value::as_object).unwrap_or_else(|| panic!("nothing at {pointer}"));
    properties.keys().cloned().collect()
}

/// The tables of policy files: a text with `@` where the fields of the table stand, and its place in the schema.
const POLICY_TABLES: [(&str, &str); 8] = [
    ("{@}", ""),
    ("defaults: {@}", "/properties/defaults"),
    ("defaults: {lease: {@}}", "/properties/defaults/properties/lease"),
    ("defaults: {on_store_failure: {@}}", "/properties/defaults/properties/on_store_failure/anyOf/1"),
    ("limits: [{@}]", "/properties/limits/items"),
    ("limits: [{lease: {@}}]", "/properties/limits/items/properties/lease"),
    ("limits: [{block_for: {@}}]", "/properties/limits/items/properties/block_for/anyOf/1"),
    ("limits: [{on_store_failure: {@}}]", "/properties/limits/items/properties/on_store_failure/anyOf/1"),
];

/// The tables of config files.
const CONFIG_TABLES: [(&str, &str); 23] = [
    ("{@}", ""),
    ("attributes: {a: {@}}", "/properties/attributes/additionalProperties"),
    ("jwt: {@}", "/properties/jwt"),
    ("headers: {@}", "/properties/headers"),
    ("store: {@}", "/properties/store"),
    ("routes: [{@}]", "/properties/routes/items"),
    ("routes: [{upstreams: [{@}]}]", "/properties/routes/items/properties/upstreams/items/anyOf/1"),
    ("routes: [{timeouts: {@}}]", "/properties/routes/items/properties/timeouts"),
    ("routes: [{health: {@}}]", "/properties/routes/items/properties/health"),
    ("routes: [{pace: {@}}]", "/properties/routes/items/properties/pace"),
    ("routes: [{graphql: {@}}]", "/properties/routes/items/properties/graphql"),
    ("routes: [{graphql: {caps: {@}}}]", "/properties/routes/items/properties/graphql/properties/caps"),
    (
        "routes: [{graphql: {persisted: {@}}}]",
        "/properties/routes/items/properties/graphql/properties/persisted",
    ),
    ("overload: {@}", "/properties/overload"),
    ("overload: {priorities: [{@}]}", "/properties/overload/properties/priorities/items"),
    ("overload: {fleet: {@}}", "/properties/overload/properties/fleet"),
    ("overload: {worker: {@}}", "/properties/overload/properties/worker"),
    ("overload: {concurrency: {@}}", "/properties/overload/properties/concurrency"),
    ("overload: {rate: {@}}", "/properties/overload/properties/rate"),
    ("overload: {queue: {@}}", "/properties/overload/properties/queue"),
    ("outbound: {@}", "/properties/outbound"),
    ("outbound: {providers: {a: {@}}}", "/properties/outbound/properties/providers/additionalProperties"),
    (
        "outbound: {providers: {a: {timeouts: {@}}}}",
        "/properties/outbound/properties/providers/additionalProperties/properties/timeouts",
    ),
];

/// Tables that the readers take as values: a table with another field is refused as a whole.
const VALUES: [&str; 3] = [
    "/properties/credentials/items/anyOf/1",
    "/properties/limits/items/properties/when/anyOf/1/additionalProperties/anyOf/2",
    "/properties/overload/properties/priorities/items/properties/when/anyOf/1/additionalProperties/anyOf/2",
];

/// Every place of a schema that lists the fields of a table.
fn tables(schema: &Value, at: &str, found: &mut BTreeSet<String>) {
    if schema.get("properties").is_some_and(Value::is_object) {
        found.insert(at.to_owned());
    }
    let below: Vec<(String, &Value)> = match schema {
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), value)).collect(),
        Value::Array(items) => {
            items.iter().enumerate().map(|(index, item)| (index.to_string(), item)).collect()
        }
        _ => Vec::new(),
    };
    for (name, value) in below {
        tables(value, &format!("{at}/{name}"), found);
    }
}

/// Holds a schema to the reader at every depth: the tables of the schema are those of the list, each has exactly the
/// fields that the reader knows, and no field of it is a table for the reader and another value for the schema.
fn holds_to_the_reader(command: &str, list: &[(&str, &str)]) {
    let schema = schema(command);
    let mut found = BTreeSet::new();
    tables(&schema, "", &mut found);
    let known: BTreeSet<String> =
        list.iter().map(|(_, at)| (*at).to_owned()).chain(VALUES.map(str::to_owned)).collect();
    let unknown: Vec<&String> = found.difference(&known).collect();
    assert!(unknown.is_empty(), "{command}: tables of the schema that no reader is asked about: {unknown:?}");
    for (text, at) in list {
        let fields = properties(&schema, at);
        assert_eq!(accepted(command, &text.replace('@', "zzz: 1")), fields, "{text}");
        for field in fields {
            let has_fields = found.iter().any(|table| table.starts_with(&format!("{at}/properties/{field}")));
            for value in ["{zzz: 1}", "[{zzz: 1}]"] {
                let message = reported(command, &text.replace('@', &format!("{field}: {value}")));
                let is_table = message.lines().any(|line| line.contains("zzz: unknown field"));
                assert!(
                    !is_table || has_fields,
                    "{text}: the schema lacks the fields of {field}:\n{message}"
                );
            }
        }
    }
}

/// The schemas have exactly the fields that the readers know, at every depth.
#[test]
fn schemas_have_the_fields_of_the_readers() {
    holds_to_the_reader("policy", &POLICY_TABLES);
    holds_to_the_reader("config", &CONFIG_TABLES);
    for (text, pointer) in [
        ("{policy: p, cases: [{name: a, requests: [{expect: allow}]}], zzz: 1}", ""),
        ("{policy: p, cases: [{name: a, requests: [{expect: allow}], zzz: 1}]}", "/properties/cases/items"),
        (
            "{policy: p, cases: [{name: a, requests: [{expect: allow, zzz: 1}]}]}",
            "/properties/cases/items/properties/requests/items",
        ),
    ] {
        let folder = Scratch::new();
        fs::write(folder.path("file.yaml"), text).unwrap();
        let message = stderr(&within(&folder, &["policy", "test", "file.yaml"]).output().unwrap());
        let mut expected = properties(&test_schema(), pointer);
        expected.remove("at"); // `listed` takes it for a word of the sentence.
        assert_eq!(listed(&message, text), expected, "{text}");
    }
    for field in ["header", "cookie", "query"] {
        assert_eq!(reported("config", &format!("credentials: [{{{field}: name}}]")), "");
    }
    let wrong = reported("config", "credentials: [{header: X-Key, zzz: 1}]");
    assert!(wrong.contains("credentials[0].zzz: unknown field; accepted: header, cookie, query"), "{wrong}");
}

/// `docs/cli.md` has every command, and every variable that a command reads.
#[test]
fn the_page_has_every_command_and_variable() {
    let page = include_str!("../../../../docs/cli.md");
    let command = tollgate_server::cli::Cli::arranged();
    for below in command.get_subcommands() {
        let name = below.get_name();
        let is_there = page.contains(&format!("`{name}`")) || page.contains(&format!("`{name} "));
        assert!(is_there, "{name} is not in docs/cli.md");
    }
    for (_, help) in helps() {
        let words = help.split(|letter: char| !(letter.is_ascii_uppercase() || letter == '_'));
        for variable in words.filter(|word| word.starts_with("TOLLGATE_") && word.len() > 9) {
            assert!(page.contains(&format!("`{variable}`")), "{variable} is not in docs/cli.md");
        }
    }
}
