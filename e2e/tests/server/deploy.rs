//! `docs/proxies.md` is run through each proxy, and the other files of `deploy/` are checked as far as they can be without a machine
//! to deploy to.

use std::process::Command;

use crate::caddy::caddy;
use crate::guide::{Last, blocks, shell, succeeded};
use crate::haproxy::haproxy;
use crate::nginx::nginx;
use crate::program::{Server, run, stderr, tollgate};
use crate::proxy::{App, Folder, Proxy, file};
use crate::redis::Redis;

const GUIDE: &str = include_str!("../../../docs/proxies.md");

/// Runs each command of the guide through a proxy, and compares what it prints with what the guide shows.
fn follow(proxy: &Proxy) {
    let blocks = blocks(GUIDE);
    let mut last = Last::default();
    for (language, block) in &blocks {
        if *language != "sh" {
            last.compare(language, block);
            continue;
        }
        let commands = block.replace("127.0.0.1:8000", &proxy.address.to_string());
        last.ran(block, succeeded(shell(&format!("set -eu\n{commands}"))).0);
    }
    let commands = blocks.iter().filter(|(language, _)| *language == "sh").count();
    assert_eq!(last.compared, commands, "each command's output is shown");
    last.at_least(4);
}

/// The guide's policy and config, served.
fn served() -> Server {
    let yaml: Vec<String> =
        blocks(GUIDE).into_iter().filter(|block| block.0.starts_with("yaml")).map(|block| block.1).collect();
    let folder = Folder::new("guide");
    let config = folder.write("config.yaml", &yaml[1]);
    let config = config.display().to_string();
    Server::start_with(&["serve", "--http", "127.0.0.1:0", "--policy", "-", "--config", &config], &yaml[0])
}

/// The guide is true behind nginx.
#[test]
fn the_guide_is_true_for_nginx() {
    let (server, app) = (served(), App::start());
    follow(&nginx(&server.address.to_string(), &app).0);
}

/// The guide is true behind Caddy.
#[test]
fn the_guide_is_true_for_caddy() {
    let (server, app) = (served(), App::start());
    follow(&caddy(&server.address.to_string(), app.port).0);
}

/// The guide is true behind HAProxy.
#[test]
fn the_guide_is_true_for_haproxy() {
    let (server, app) = (served(), App::start());
    follow(&haproxy(&server.address.to_string(), &app).0);
}

/// systemd understands every line of the unit, and finds little that it exposes.
#[test]
fn the_unit_is_understood_and_tight() {
    let folder = Folder::new("systemd");
    let program = crate::program::executable().display().to_string();
    let unit = folder.adapt(
        "deploy/systemd/tollgate.service",
        "tollgate.service",
        &[("/usr/local/bin/tollgate", program)],
    );
    let analyze = |arguments: &[&str]| {
        let output = Command::new("systemd-analyze").args(arguments).arg(&unit).output();
        let output = output.expect("systemd-analyze cannot be started; `./test tools` installs it");
        let printed = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&printed).into_owned())
    };
    let text = std::fs::read_to_string(&unit).unwrap();
    for line in [
        "StateDirectory=tollgate",
        "Environment=TOLLGATE_STATE_DIR=%S/tollgate TOLLGATE_DRAIN_DELAY=5s",
        "TimeoutStopSec=60",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    let (is_good, printed) = analyze(&["verify"]);
    assert!(is_good && !printed.contains("tollgate.service"), "{printed}");
    let (_, printed) = analyze(&["security", "--offline=true", "--no-pager"]);
    let level = printed
        .lines()
        .last()
        .and_then(|line| line.split_whitespace().find_map(|word| word.parse::<f32>().ok()));
    assert!(level.is_some_and(|level| level < 2.0), "{printed}");
}

/// Everything that the image copies is there and is all that the build needs, it does not run as root, and whom it trusts is for
/// the operator to say: as it is, it does not start.
#[test]
fn the_image_names_existing_files() {
    let text = std::fs::read_to_string(file("Dockerfile")).unwrap();
    let mut copied = Vec::new();
    for line in text.lines().filter(|line| line.starts_with("COPY ") && !line.contains("--from")) {
        let mut words: Vec<&str> = line.split_whitespace().skip(1).collect();
        words.pop();
        copied.extend(words);
    }
    for path in &copied {
        assert!(file(path).exists(), "{path}");
    }
    for needed in ["Cargo.toml", "Cargo.lock", "crates", "e2e", "examples", "xtask"] {
        assert!(copied.contains(&needed), "{needed} is not copied");
    }
    assert!(text.lines().any(|line| line.starts_with("USER ") && !line.contains("root")), "{text}");
    assert!(text.lines().any(|line| line == "EXPOSE 8080 8081 6380"), "{text}");
    let settings: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("ENV ")).collect();
    let settings: Vec<(&str, &str)> =
        settings.iter().flat_map(|line| line.split(' ')).map(|pair| pair.split_once('=').unwrap()).collect();
    assert_eq!(settings.len(), 3);
    let output = tollgate(&["serve"]).envs(settings).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    for choice in ["TOLLGATE_AUTH_TOKEN_FILE", "TOLLGATE_TLS_CLIENT_CA", "TOLLGATE_INSECURE"] {
        assert!(text.contains(&format!("#   {choice}")), "{choice}");
    }
    for choice in ["--auth-token-file", "--tls-client-ca", "--insecure"] {
        assert!(stderr(&output).contains(choice), "{}", stderr(&output));
    }
    let wanted = std::fs::read_to_string(file("Cargo.toml")).unwrap();
    let version =
        wanted.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap().trim_matches('"');
    assert!(
        text.contains(&format!("FROM rust:{version}-")),
        "the image builds with another Rust than {version}"
    );
}

/// Everything that the composition mounts, joins or changes is there, and its settings are settings of the program.
#[test]
fn the_compose_file_names_existing_files() {
    let text = std::fs::read_to_string(file("compose.yaml")).unwrap();
    let document: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
    let services = document["services"].as_object().unwrap();
    assert_eq!(services.len(), 3);
    let mut mounted = 0;
    for service in services.values() {
        for volume in service["volumes"].as_array().into_iter().flatten() {
            let path = volume.as_str().unwrap().split(':').next().unwrap();
            if path.starts_with("./") {
                assert!(file(path).is_file(), "{path}");
                mounted += 1;
            } else {
                assert!(document["volumes"].as_object().unwrap().contains_key(path), "{path}");
            }
        }
        if let Some(network) = service["network_mode"].as_str() {
            assert!(services.contains_key(network.strip_prefix("service:").unwrap()), "{network}");
        }
    }
    assert_eq!(mounted, 2);
    let envoy = std::fs::read_to_string(file("deploy/envoy/envoy.yaml")).unwrap();
    assert!(
        text.contains("s/address: 127.0.0.1, port_value: 10000/")
            && envoy.contains("address: 127.0.0.1, port_value: 10000")
    );
    let help = run(&["serve", "--help"], b"");
    let help = String::from_utf8(help.stdout).unwrap();
    let tollgate = &services["tollgate"];
    let state = tollgate["environment"]["TOLLGATE_STATE_DIR"].as_str().unwrap();
    assert!(tollgate["volumes"].as_array().unwrap().contains(&format!("state:{state}").into()), "{state}");
    let image = std::fs::read_to_string(file("Dockerfile")).unwrap();
    assert!(image.contains(&format!("install -d -o 65532 -g 65532 -m 0700 {state}\n")), "{state}");
    assert_eq!(tollgate["stop_grace_period"], "60s");
    assert_eq!(tollgate["environment"]["TOLLGATE_DRAIN_DELAY"], "5s");
    for (name, _) in services["tollgate"]["environment"].as_object().unwrap() {
        assert!(help.contains(name), "{name}");
    }
    let policy = file("deploy/envoy/policy.yaml").display().to_string();
    assert!(run(&["policy", "check", &policy], b"").status.success());
}

/// The composition with a shared store mounts what is there, says settings of the program, and its Redis is fit: started as it starts
/// it, by a user who may do just what is needed.
#[test]
fn the_composition_with_redis_works() {
    let text = std::fs::read_to_string(file("deploy/redis/compose.yaml")).unwrap();
    let document: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
    let services = document["services"].as_object().unwrap();
    assert_eq!(services.keys().collect::<Vec<_>>(), ["one", "redis", "two"]);
    let help = String::from_utf8(run(&["serve", "--help"], b"").stdout).unwrap();
    for name in ["one", "two"] {
        for (setting, _) in services[name]["environment"].as_object().unwrap() {
            assert!(help.contains(setting.as_str()), "{setting}");
        }
    }
    for service in services.values() {
        for volume in service["volumes"].as_array().into_iter().flatten() {
            let path = volume.as_str().unwrap().split(':').next().unwrap();
            let is_there = match path.strip_prefix("./") {
                Some(path) => file("deploy/redis").join(path).is_file(),
                None => document["volumes"].as_object().unwrap().contains_key(path),
            };
            assert!(is_there, "{path}");
        }
        for secret in service["secrets"].as_array().unwrap() {
            assert!(document["secrets"].as_object().unwrap().contains_key(secret.as_str().unwrap()));
        }
    }
    let policy = file("deploy/redis/policy.yaml").display().to_string();
    assert!(run(&["policy", "check", &policy], b"").status.success());

    let command = services["redis"]["command"][0].as_str().unwrap();
    let (_, settings) = command.split_once("redis.conf ").unwrap();
    let settings = settings.replace("--bind 0.0.0.0 --protected-mode no", "");
    let words = settings.split_whitespace().map(|word| word.trim_matches('\'').to_owned());
    // The shell reads the password from its file.
    let mut words: Vec<String> = words.filter(|word| word != "/run/secrets/store-password)\"").collect();
    words
        .iter_mut()
        .filter(|word| word.starts_with("\">$$(cat"))
        .for_each(|word| *word = ">s3cret".to_owned());
    let conf = file("deploy/redis/redis.conf").display().to_string();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let redis = Redis::with_file(&conf, &words);
    let url = format!("redis://tollgate:s3cret@127.0.0.1:{}", redis.port);
    let output = run(&["store", "check", &url, "--store-deadline", "50ms"], b"");
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && !printed.contains("  FAIL"), "{printed}");
    for line in [
        "  ok    eviction",
        "  ok    memory",
        "  ok    rights       tollgate may do all that is needed",
        "  ok    scripts",
    ] {
        assert!(printed.contains(line), "{line}\n{printed}");
    }
    assert!(!printed.contains("may run every command"), "{printed}");
}
