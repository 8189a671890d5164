//! `tollgate store check` on real redis-servers that are as they should be, and on such as are not.

use serde_json::Value;
use tollgate_testkit::{Scratch, free_port, until};

use crate::pki::TestCa;
use crate::program::{run, stderr, stdout, tollgate};
use crate::redis::{Cluster, Redis};

/// Settings of a server that is fit.
const GOOD: [&str; 2] = ["--maxmemory", "100mb"];

/// The result of a check: its status, and its findings.
struct Found {
    status: Option<i32>,
    report: Value,
    text: String,
}

fn checked(arguments: &[&str]) -> Found {
    let mut all = vec!["store", "check", "--json"];
    all.extend(arguments);
    let output = run(&all, b"");
    let text = stdout(&output);
    let report = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}{}", stderr(&output)));
    Found { status: output.status.code(), report, text }
}

impl Found {
    /// The findings about something, as marks and texts.
    fn about(&self, check: &str) -> Vec<(&str, String)> {
        let lines = self.report["checks"].as_array().unwrap().iter().filter(|line| line["check"] == check);
        let reported = |line: &Value| {
            format!("{} | {}", line["found"].as_str().unwrap(), line["cure"].as_str().unwrap_or_default())
        };
        lines.map(|line| (line["mark"].as_str().unwrap(), reported(line))).collect()
    }

    /// Whether a finding has this mark, and these words in what was found and how it is cured.
    fn says(&self, check: &str, mark: &str, words: &[&str]) {
        let found = self.about(check);
        let is_it =
            |(found, text): &(&str, String)| *found == mark && words.iter().all(|word| text.contains(word));
        assert!(found.iter().any(is_it), "{check} {mark} {words:?}\n{}", self.text);
    }

    /// The checks that failed.
    fn failures(&self) -> Vec<&str> {
        let lines = self.report["checks"].as_array().unwrap().iter().filter(|line| line["mark"] == "fail");
        lines.map(|line| line["check"].as_str().unwrap()).collect()
    }
}

/// For a database that the server does not have, the cure was to look whether the port speaks TLS.
#[test]
fn a_database_that_is_not_there_has_its_cure() {
    let redis = Redis::start(&GOOD);
    let found = checked(&[&format!("{}/99", redis.url())]);
    assert_eq!((found.failures(), found.status), (vec!["reach"], Some(1)), "{}", found.text);
    found.says("reach", "fail", &["has no database 99", "such as", "/0", "CONFIG GET databases"]);
    let there = checked(&[&format!("{}/15", redis.url()), "--store-deadline", "50ms"]);
    assert_eq!(there.failures(), Vec::<&str>::new(), "{}", there.text);
}

/// A Redis that is as it should be is fit, and the check leaves nothing behind.
#[test]
fn a_good_server_is_fit() {
    let redis = Redis::start(&GOOD);
    let found = checked(&[&redis.url(), "--store-deadline", "50ms"]);
    assert_eq!((found.failures(), found.status), (vec![], Some(0)), "{}", found.text);
    for check in ["reach", "version", "role", "eviction", "memory", "rights", "scripts", "clock", "latency"] {
        assert!(found.about(check).iter().any(|(mark, _)| *mark == "ok"), "{check}: {}", found.text);
    }
    assert_eq!(redis.cli(&["DBSIZE"]).trim(), "0");
    let shown = stdout(&run(&["store", "check", &redis.url()], b""));
    assert!(
        shown.starts_with(&redis.url()) && shown.contains("\n  ok    eviction     noeviction: "),
        "{shown}"
    );
    assert!(shown.lines().last().unwrap().starts_with("fit"), "{shown}");
}

/// Policies that forget counters in use, and memory that is full, are found and the cure works.
#[test]
fn eviction_and_memory() {
    let redis = Redis::start(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let found = checked(&[&redis.url()]);
    found.says("eviction", "fail", &["allkeys-lru", "CONFIG SET maxmemory-policy noeviction"]);
    assert_eq!(found.status, Some(1));
    for policy in ["volatile-lru", "volatile-lfu", "volatile-random", "allkeys-random"] {
        redis.tell(&["CONFIG", "SET", "maxmemory-policy", policy]);
        checked(&[&redis.url()]).says("eviction", "fail", &[policy]);
    }
    redis.tell(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]);
    checked(&[&redis.url()]).says("eviction", "warn", &["before their time"]);
    redis.tell(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    checked(&[&redis.url()]).says("eviction", "ok", &["noeviction"]);
    redis.tell(&["CONFIG", "SET", "maxmemory", "0"]);
    checked(&[&redis.url()]).says("memory", "warn", &["no bound", "CONFIG SET maxmemory"]);
    redis.tell(&["CONFIG", "SET", "maxmemory", "1mb"]);
    let found = checked(&[&redis.url()]);
    found.says("memory", "fail", &["CONFIG SET maxmemory"]);
    found.says("writes", "fail", &["OOM", "it is full"]);
    assert_eq!(found.status, Some(1));
}

/// The check names the rights that a user lacks, and its cure grants them. It also reports a user that lacks the keys.
#[test]
fn rights_are_tried_and_named() {
    let redis = Redis::start(&GOOD);
    redis.tell(&[
        "ACL", "SETUSER", "small", "on", ">s3cret", "~tg:*", "-@all", "+ping", "+get", "+eval", "+info",
    ]);
    let url = format!("redis://small:s3cret@127.0.0.1:{}", redis.port);
    let found = checked(&[&url]);
    found.says("rights", "fail", &["small lacks", "+set", "+evalsha", "ACL SETUSER small"]);
    assert_eq!((found.failures(), found.status), (vec!["rights"], Some(1)), "{}", found.text);
    let (_, reported) = &found.about("rights")[0];
    let cure: Vec<&str> = reported.split(" | ").nth(1).unwrap().split(' ').collect();
    redis.tell(&cure);
    let found = checked(&[&url]);
    assert_eq!((found.failures(), found.status), (vec![], Some(0)), "{}", found.text);
    found.says("rights", "ok", &["small may do all that is needed"]);
    assert!(found.about("rights").len() == 1, "it may not do everything: {}", found.text);

    redis.tell(&["ACL", "SETUSER", "astray", "on", ">s3cret", "~other:*", "+@all"]);
    let found = checked(&[&format!("redis://astray:s3cret@127.0.0.1:{}", redis.port)]);
    found.says("rights", "fail", &["astray lacks ~tg:*", "ACL SETUSER astray ~tg:*"]);

    redis.tell(&["ACL", "SETUSER", "blind", "on", ">s3cret", "~tg:*", "+@all", "-info", "-eval"]);
    let found = checked(&[&format!("redis://blind:s3cret@127.0.0.1:{}", redis.port)]);
    found.says("about", "note", &["INFO", "+info"]);
    // What scripts do cannot be tried without the right to run one: it was all said to be missing.
    found.says(
        "rights",
        "fail",
        &[
            "blind lacks +eval; without +eval, commands inside scripts were not tried",
            "ACL SETUSER blind +eval +time",
        ],
    );
}

/// The cure for `rediss://` at a port without TLS was to write `rediss://`.
#[test]
fn the_cure_for_a_port_without_tls_is_the_other_scheme() {
    let redis = Redis::start(&GOOD);
    let found = checked(&[&redis.url().replace("redis://", "rediss://")]);
    let (mark, cure) = &found.about("reach")[0];
    assert!(*mark == "fail" && !cure.contains("write rediss://"), "{cure}");
    assert!(cure.contains("whether the port speaks TLS"), "{cure}");
}

/// Makes the user that the check of a store itself recommends, with the password s3cret.
pub(crate) fn recommended_user(redis: &Redis, url: &str) {
    let found = checked(&[url]);
    let advice = found.about("rights").into_iter().find(|(mark, _)| *mark == "note").unwrap().1;
    let (_, command) = advice.split_once("ACL SETUSER ").unwrap();
    let mut words = vec!["ACL", "SETUSER"];
    words.extend(command.split_whitespace().map(|word| if word == ">PASSWORD" { ">s3cret" } else { word }));
    redis.tell(&words);
}

/// The user that the check itself recommends may do all that is needed, and nothing else.
#[test]
fn the_recommended_user_is_enough() {
    let redis = Redis::start(&GOOD);
    recommended_user(&redis, &redis.url());
    let found = checked(&[&format!("redis://tollgate:s3cret@127.0.0.1:{}", redis.port)]);
    assert_eq!((found.failures(), found.status), (vec![], Some(0)), "{}", found.text);
    assert_eq!(found.about("rights").len(), 1, "{}", found.text);
}

/// No client gets in without a password, or with a wrong one; the password is in a file, a variable or the address, and never shown.
#[test]
fn passwords_let_in_and_are_never_shown() {
    let redis = Redis::start(&["--maxmemory", "100mb", "--requirepass", "s3cret"]);
    let found = checked(&[&redis.url()]);
    found.says("reach", "fail", &["asks for a password", "TOLLGATE_STORE_PASSWORD"]);
    let found = checked(&[&format!("redis://:s3cretwrong@127.0.0.1:{}", redis.port)]);
    found.says("reach", "fail", &["wrong password, or no such user"]);
    assert!(!found.text.contains("s3cret"), "{}", found.text);

    let found = checked(&[&format!("redis://:s3cret@127.0.0.1:{}", redis.port)]);
    assert!(found.status == Some(0) && found.report["store"] == redis.url());
    assert!(!found.text.contains("s3cret"), "{}", found.text);
    let folder = Scratch::new();
    folder.replace("password", "s3cret\n");
    assert_eq!(checked(&[&redis.url(), "--store-password-file", &folder.text("password")]).status, Some(0));
    let by_variable = tollgate(&["store", "check", &redis.url()])
        .env("TOLLGATE_STORE_PASSWORD", "s3cret")
        .output()
        .unwrap();
    assert_eq!(by_variable.status.code(), Some(0));
    assert!(!stdout(&by_variable).contains("s3cret"));
}

/// An invalid address is wrong usage, and the message omits the password that may be in it.
#[test]
fn wrong_usage_shows_no_password() {
    for url in ["s3cret", "redis://u:s3cret@h:x", "http://u:s3cret@h", "redis-cluster://u:s3cret@h/3"] {
        let output = run(&["store", "check", url], b"");
        let printed = stdout(&output) + &stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{printed}");
        assert!(
            printed.starts_with("tollgate: the store's address: ") && !printed.contains("s3cret"),
            "{printed}"
        );
    }
}

/// An address without an answer, a replica, a cluster's member and a hidden command are each reported with their cure.
#[test]
fn servers_that_cannot_serve() {
    let found = checked(&[&format!("redis://127.0.0.1:{}", free_port())]);
    found.says("reach", "fail", &["refuses connections", "see whether it runs"]);
    assert_eq!(found.status, Some(1));

    let primary = Redis::start(&GOOD);
    let replica =
        Redis::start(&["--maxmemory", "100mb", "--replicaof", "127.0.0.1", &primary.port.to_string()]);
    until("the replica is connected", || {
        replica.cli(&["INFO", "replication"]).contains("link_status:up").then_some(())
    });
    let found = checked(&[&replica.url()]);
    found.says("role", "fail", &["takes no writes", &format!("127.0.0.1:{}", primary.port)]);
    found.says("writes", "fail", &["READONLY"]);
    checked(&[&primary.url()]).says("replicas", "ok", &["1 connected"]);

    let lonely = Redis::start(&["--cluster-enabled", "yes", "--cluster-port", &free_port().to_string()]);
    checked(&[&lonely.url()]).says("role", "fail", &["part of a cluster", "redis-cluster://"]);
    let found = checked(&[&format!("redis-cluster://127.0.0.1:{}", primary.port)]);
    found.says("role", "fail", &["no cluster", "redis://"]);
    let found = checked(&[&format!("redis-cluster://127.0.0.1:{}", lonely.port)]);
    found.says("slots", "fail", &["16384 of 16384 are served by no node"]);

    let hidden = Redis::start(&["--maxmemory", "100mb", "--rename-command", "EVAL", "hidden"]);
    checked(&[&hidden.url()]).says("commands", "fail", &["eval", "rename-command"]);

    let strict = Redis::start(&["--maxmemory", "100mb", "--min-replicas-to-write", "1"]);
    checked(&[&strict.url()]).says("writes", "fail", &["NOREPLICAS", "min-replicas-to-write"]);
}

/// TLS: without the CA no server is trusted; with it, and a certificate of ours where one is asked for, it is fit.
#[test]
fn tls_is_checked() {
    let (authority, folder) = (TestCa::new("store"), Scratch::new());
    let (server, client) = (authority.server(), authority.client());
    folder.replace("ca.pem", &authority.pem);
    for (name, pair) in [("server", &server), ("client", &client)] {
        folder.replace(&format!("{name}.pem"), &pair.certificate);
        folder.replace(&format!("{name}.key"), &pair.key);
    }
    let secure = free_port();
    let path = |name: &str| folder.text(name);
    let files = [path("server.pem"), path("server.key"), path("ca.pem")];
    let port = secure.to_string();
    let settings = [
        "--maxmemory",
        "100mb",
        "--tls-port",
        &port,
        "--tls-cert-file",
        &files[0],
        "--tls-key-file",
        &files[1],
        "--tls-ca-cert-file",
        &files[2],
    ];
    let _redis = Redis::start(&settings);
    let url = format!("rediss://127.0.0.1:{secure}");
    let found = checked(&[&url]);
    found.says("reach", "fail", &["no TLS", "--store-ca"]);
    let found = checked(&[&url, "--store-ca", &path("ca.pem")]);
    found.says("reach", "fail", &["no TLS", "--store-cert"]);
    let found = checked(&[
        &url,
        "--store-ca",
        &path("ca.pem"),
        "--store-cert",
        &path("client.pem"),
        "--store-key",
        &path("client.key"),
    ]);
    assert_eq!((found.failures(), found.status), (vec![], Some(0)), "{}", found.text);
    let output =
        run(&["store", "check", &format!("redis://127.0.0.1:{secure}"), "--store-ca", &path("ca.pem")], b"");
    assert!(
        output.status.code() == Some(2) && stderr(&output).contains("only used with rediss://"),
        "{}",
        stderr(&output)
    );
}

/// A cluster is checked as a whole and server by server: with replicas it is fit; without, and with a server that is gone, it is not.
#[test]
fn clusters_are_checked() {
    let cluster = Cluster::start(1, &["--maxmemory", "100mb", "--cluster-require-full-coverage", "no"]);
    let found = checked(&[&cluster.url(), "--store-deadline", "50ms"]);
    assert_eq!((found.failures(), found.status), (vec![], Some(0)), "{}", found.text);
    found.says("cluster", "ok", &["6 servers, state ok"]);
    found.says("slots", "ok", &["all 16384 are served"]);
    found.says("replicas", "ok", &["each primary has one"]);
    found.says("failover", "ok", &["2000 ms"]);
    let version =
        found.report["checks"].as_array().unwrap().iter().find(|line| line["check"] == "version").unwrap();
    assert_eq!(
        version["nodes"].as_array().unwrap().len(),
        3,
        "what they have in common is one line: {}",
        found.text
    );
    for node in &cluster.nodes {
        assert_eq!(node.cli(&["DBSIZE"]).trim(), "0");
        node.tell(&["CONFIG", "SET", "cluster-node-timeout", "15000"]);
        node.tell(&["CONFIG", "SET", "cluster-require-full-coverage", "yes"]);
    }
    let found = checked(&[&cluster.url()]);
    found.says("failover", "warn", &["15000", "CONFIG SET cluster-node-timeout 5000"]);
    found.says("failover", "warn", &["stops all of them"]);

    let mut bare = Cluster::start(0, &["--maxmemory", "100mb", "--cluster-require-full-coverage", "no"]);
    checked(&[&bare.url()]).says("replicas", "warn", &["without a replica"]);
    let url = bare.url();
    bare.nodes.truncate(2);
    let found = until("the loss is noticed", || {
        let found = checked(&[&url]);
        found.failures().contains(&"slots").then_some(found)
    });
    found.says("slots", "fail", &["are served by no node"]);
    found.says("members", "warn", &["not reached by the others"]);
    found.says("reach", "warn", &["refuses connections"]);
    assert_eq!(found.status, Some(1));
}

/// Sentinels are asked for the server that they watch, and whether they could replace it.
#[test]
fn sentinels_are_checked() {
    let primary = Redis::start(&GOOD);
    let replica =
        Redis::start(&["--maxmemory", "100mb", "--replicaof", "127.0.0.1", &primary.port.to_string()]);
    until("the replica is connected", || {
        replica.cli(&["INFO", "replication"]).contains("link_status:up").then_some(())
    });
    let sentinels: Vec<Sentinel> = (0..3).map(|_| Sentinel::start(primary.port)).collect();
    let hosts: Vec<String> =
        sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.redis.port)).collect();
    let url = |service: &str| format!("redis-sentinel://{}/{service}", hosts.join(","));
    let found = until("the sentinels know each other", || {
        let found = checked(&[&url("main"), "--store-deadline", "50ms"]);
        found.failures().is_empty().then_some(found).filter(|found| found.text.contains("3 know main"))
    });
    assert_eq!(found.status, Some(0));
    found.says("sentinels", "ok", &["3 know main", &primary.port.to_string()]);
    checked(&[&url("unknown")]).says("sentinels", "fail", &["knows no unknown"]);
    let found = checked(&[&format!("redis://{}", hosts[0])]);
    found.says("role", "fail", &["it is a sentinel", "redis-sentinel://"]);
}

/// A sentinel that watches a server as `main`.
pub(crate) struct Sentinel {
    pub(crate) redis: Redis,
}

impl Sentinel {
    pub(crate) fn start(watched: u16) -> Self {
        // A sentinel writes its configuration, so it has a file of its own.
        let folder = Scratch::new();
        let file = folder.text("sentinel.conf");
        std::fs::write(
            &file,
            format!(
                "sentinel monitor main 127.0.0.1 {watched} 2\nsentinel down-after-milliseconds main 2000\nsentinel failover-timeout main 5000\n"
            ),
        )
        .unwrap();
        Self { redis: Redis::sentinel(folder, &file) }
    }
}
