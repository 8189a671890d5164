//! Servers that count in one Redis: over every wire, by policies and by other people's files, with and without their store.

use std::time::Duration;

use tollgate_testkit::{Scratch, free_port, rest, until};

use crate::admin::operate;
use crate::pki::TestCa;
use crate::program::{Server, run, stderr, stdout, tollgate};
use crate::redis::{Cluster, Redis};
use crate::rls;
use crate::store_check::{Sentinel, recommended_user};

const POLICY: &str = "limits: [{name: per-key, by: [api_key], rate: 10/h}]";
const KEY: &str = r#"{"attributes":{"api_key":"k"}}"#;
/// How long a decision may wait for the store here, where many tests share two processors.
const DEADLINE: &str = "50ms";
const TOKEN: &str = crate::admin::TOKEN;

/// A server on a store.
pub(crate) fn on(store: &str, policy: &str) -> Server {
    on_with(store, policy, &[])
}

pub(crate) fn on_with(store: &str, policy: &str, more: &[&str]) -> Server {
    let mut arguments = vec![
        "serve",
        "--http",
        "127.0.0.1:0",
        "--policy",
        "-",
        "--store",
        store,
        "--store-deadline",
        DEADLINE,
    ];
    arguments.extend(more);
    let mut command = tollgate(&arguments);
    command.env("TOLLGATE_ADMIN_TOKEN", TOKEN);
    Server::spawn(command, policy)
}

/// Tries a story with keys of its own until the machine was quick enough for every decision to be made in the store.
pub(crate) fn quick<T>(mut story: impl FnMut(&str) -> Option<T>) -> T {
    let mut attempt = 0;
    until("the machine is quick enough", || {
        attempt += 1;
        story(&format!("key-{attempt}"))
    })
}

fn asked(key: &str) -> String {
    format!(r#"{{"attributes":{{"api_key":"{key}"}}}}"#)
}

/// Over each protocol and on each node, a key has one count; and it outlives the servers.
#[test]
fn one_count_over_all_servers_and_wires() {
    let redis = Redis::start(&[]);
    let (one, two) = (on(&redis.url(), POLICY), on(&redis.url(), POLICY));
    assert!(
        one.banner.contains(&format!("store   {}, each decision within 50 ms", redis.url())),
        "{}",
        one.banner
    );
    let client = rls::Client::new(one.grpc.unwrap());
    let mut last = String::new();
    quick(|key| {
        assert_eq!((one.charged(key)?, two.charged(key)?, one.charged(key)?), (9, 8, 7));
        let printed = two.resp_exchange(format!("TG.CHECK api_key {key}\r\nQUIT\r\n").as_bytes());
        assert!(printed.starts_with('*'), "{printed}");
        (one.left(key) == 6).then_some(())?;
        let answer = client.ask(rls::question("any", 1, &format!("api_key={key}"))).unwrap();
        assert!(rls::shown(&answer).starts_with("OK"), "{}", rls::shown(&answer));
        (two.left(key) == 5).then_some(())?;
        let batch = two.send("POST", "/v1/check/batch", &format!("[{0},{0}]", asked(key)));
        assert_eq!(batch.status, 200);
        last = key.to_owned();
        (one.left(key) == 3).then_some(())
    });
    drop((one, two));
    let three = on(&redis.url(), POLICY);
    assert_eq!(three.left(&last), 3);
    for key in redis.cli(&["KEYS", "*"]).lines() {
        assert!(redis.cli(&["PTTL", key]).trim().parse::<i64>().unwrap() > 0, "{key} has no end");
    }
}

/// A server starts and is ready without its store, decides by its own share, and counts in the store once that is there: no operator has to
/// restart it.
#[test]
fn a_server_starts_without_its_store() {
    let port = free_port();
    let mut server = on(&format!("redis://127.0.0.1:{port}"), POLICY);
    let (status, reported) = server.readyz();
    assert_eq!(
        (status, &reported["status"], &reported["store"]["status"]),
        (200, &"degraded".into(), &"away".into()),
        "{reported}"
    );
    assert!(reported["store"]["meaning"].as_str().unwrap().contains("on_store_failure"), "{reported}");
    assert_eq!(server.source(KEY), "local");
    let _redis = Redis::start_at(port, &[]);
    until("it counts in the store", || {
        (server.source(r#"{"attributes":{"api_key":"late"},"cost":0}"#) == "exact").then_some(())
    });
    server.await_log("the store serves again");
    until("it is well", || (server.readyz().1["status"] == "ok").then_some(()));
    let other = on(&format!("redis://127.0.0.1:{port}"), POLICY);
    quick(|key| {
        server.charged(key)?;
        assert_eq!(other.left(key), 9);
        Some(())
    });
}

/// While the store stands still, every decision is made within twice its deadline; when it goes on, it is asked again.
#[test]
fn no_decision_is_late() {
    let redis = Redis::start(&[]);
    let server = on(&redis.url(), POLICY);
    server.joined();
    redis.signal("-STOP");
    let question = r#"{"domain":"any","descriptors":[{"entries":[{"key":"api_key","value":"slow"}]}]}"#;
    let asked = 60;
    for _ in 0..asked {
        let answer = server.send("POST", "/json", question);
        assert!(answer.status == 200 || answer.status == 429, "{}", answer.status);
    }
    let counted = |bound: &str| {
        server.metric(&format!("tollgate_decision_duration_seconds_bucket{{wire=\"rls\",le=\"{bound}\"}}"))
    };
    assert_eq!((counted("+Inf"), counted("0.1")), (asked, asked), "{}", server.metrics());
    let failed = server.metric("tollgate_store_failures_total{class=\"timeout\"}");
    assert!(failed > 0, "the fault was seen");
    assert_eq!(server.readyz().0, 200);
    redis.signal("-CONT");
    until("it counts in the store again", || (server.source(KEY) == "exact").then_some(()));
    let opened = format!("tollgate_store_breaker_opened_total{{shard=\"127.0.0.1:{}\"}}", redis.port);
    assert!(server.metric(&opened) > 0);
    until("the outage is counted", || {
        let seconds = server.metric("tollgate_store_outage_seconds_total");
        (server.readyz().1["status"] == "ok" && seconds < 60).then_some(())
    });
}

/// A store that is killed and started again: answers say where they come from, and no restart is needed.
#[test]
fn a_store_goes_and_comes_back() {
    let mut redis = Redis::start(&[]);
    let mut server = on(&redis.url(), POLICY);
    server.joined();
    redis.kill();
    assert_eq!(server.source(KEY), "local");
    until("readyz reports it", || (server.readyz().1["store"]["status"] == "away").then_some(()));
    assert!(server.metrics().contains("tollgate_store_shards{state=\"closed\"} 0\n"), "{}", server.metrics());
    redis.start_again();
    until("it counts in the store again", || (server.source(KEY) == "exact").then_some(()));
    server.await_log("the store does not serve");
    server.await_log("the store serves again");
    let local = server.metric(
        "tollgate_limit_decisions_total{limit=\"per-key\",outcome=\"allow\",source=\"local\",wire=\"http\"}",
    );
    assert!(local > 0);
}

/// A limit that says `deny` refuses while the store is away, as a 503 that is not the caller's fault; over RLS it is OVER_LIMIT.
#[test]
fn a_limit_that_denies_without_its_store() {
    let policy = "limits: [{name: hard, by: [api_key], rate: 10/h, on_store_failure: deny}]";
    let server = on(&format!("redis://127.0.0.1:{}", free_port()), policy);
    let answer = server.check(KEY);
    assert_eq!(
        (&answer["allowed"], &answer["limits"][0]["source"]),
        (&false.into(), &"closed".into()),
        "{answer}"
    );
    let answer = server.send(
        "POST",
        "/json",
        r#"{"domain":"any","descriptors":[{"entries":[{"key":"api_key","value":"k"}]}]}"#,
    );
    assert_eq!(answer.json()["overallCode"], "OVER_LIMIT");
    let authz = server.send("GET", "/v1/authz", "");
    assert_ne!(authz.status, 500);
}

/// Operators look at and reset keys at any server: the counter is the same.
#[test]
fn operators_reach_counters_through_any_server() {
    let redis = Redis::start(&[]);
    let (one, two) = (on(&redis.url(), POLICY), on(&redis.url(), POLICY));
    one.joined();
    until("all of it is used", || {
        one.charged("k");
        (one.left("k") == 0).then_some(())
    });
    two.joined();
    let call = |server: &Server, arguments: &[&str], status: i32| {
        let output = operate(server, arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{}", stderr(&output));
        stdout(&output)
    };
    // The request would be denied, which the status says.
    assert!(call(&two, &["get", "api_key=k"], 1).contains("0 of 10"));
    assert!(call(&two, &["explain", "api_key=k"], 1).contains("per-key: denies"));
    assert!(call(&two, &["reset", "api_key=k"], 0).contains("1 counter reset"));
    assert_eq!(one.left("k"), 10);
    assert!(call(&one, &["top", "--once"], 0).contains("per-key"));
}

/// Limits that come with a call are counted in the process alone, and the banner says so. Nothing is written of counters that are elsewhere.
#[test]
fn process_local_counters_are_reported() {
    let (redis, folder) = (Redis::start(&[]), Scratch::new());
    let state = folder.text("state");
    let (one, two) = (on_with(&redis.url(), POLICY, &["--state-dir", &state]), on(&redis.url(), POLICY));
    assert!(one.banner.contains("CL.THROTTLE and THROTTLE count in this process alone"), "{}", one.banner);
    assert!(one.banner.contains("counters are in the store"), "{}", one.banner);
    for server in [&one, &two] {
        let printed = server.resp_exchange(b"CL.THROTTLE k 0 1 3600\r\nQUIT\r\n");
        assert!(printed.starts_with("*5\r\n:0\r\n"), "{printed}");
    }
    let refused =
        run(&["serve", "--http", "127.0.0.1:0", "--store", &redis.url(), "--state-dir", &state], b"");
    assert!(refused.status.code() == Some(1), "the directory has one server: {}", stderr(&refused));
    one.signal("-TERM");
    drop(one);
    assert!(!folder.path("state").join("counters.snapshot").exists());
    assert!(
        !two.metrics().contains("\ntollgate_store_keys "),
        "numbers of memory are not shown for another store"
    );
}

/// Passwords get in from the address, a file and the environment, and are shown nowhere: neither banner, log, status nor metrics.
#[test]
fn passwords_are_never_shown() {
    let (redis, folder) = (Redis::start(&["--requirepass", "s3cret"]), Scratch::new());
    folder.replace("password", "s3cret\n");
    let by_address = format!("redis://:s3cret@127.0.0.1:{}", redis.port);
    let wrong = format!("redis://:s3cretwrong@127.0.0.1:{}", redis.port);
    let by_file = ["--store-password-file", &folder.text("password")];
    for (store, more, source) in [
        (by_address.as_str(), &[][..], "exact"),
        (&redis.url(), &by_file[..], "exact"),
        (&wrong, &[], "local"),
    ] {
        let mut server = on_with(store, POLICY, more);
        match source {
            "exact" => server.joined(),
            other => assert_eq!(server.source(KEY), other, "{}", server.banner),
        }
        let mut shown = server.banner.clone() + &server.metrics() + &server.readyz().1.to_string();
        server.signal("-TERM");
        server.wait();
        shown.push_str(&server.rest_of_log());
        assert!(!shown.contains("s3cret"), "{shown}");
    }
    for store in ["redis://u:s3cret@h:x", "s3cret", "http://u:s3cret@h"] {
        let output = run(&["serve", "--http", "127.0.0.1:0", "--store", store], b"");
        let printed = stdout(&output) + &stderr(&output);
        assert!(
            output.status.code() == Some(2) && printed.contains("memory") && !printed.contains("s3cret"),
            "{printed}"
        );
    }
    let help = tollgate(&["serve", "--help"])
        .env("TOLLGATE_STORE", "redis://:s3cret@h")
        .env("TOLLGATE_STORE_SECRET", "s3cret")
        .output()
        .unwrap();
    assert!(!stdout(&help).contains("s3cret"));
}

/// The config file may say all of it, and the command line counts before it. A secret that the operator names is not in the store.
#[test]
fn the_config_file_and_the_environment() {
    let (redis, folder) = (Redis::start(&[]), Scratch::new());
    folder.replace("secret", "a secret that all servers share\n");
    let config = format!(
        "store: {{url: '{}', deadline: 50ms, nodes: 3, min_nodes: 2, secret_file: {}}}",
        redis.url(),
        folder.text("secret")
    );
    folder.replace("config.yaml", &config);
    let arguments =
        ["serve", "--http", "127.0.0.1:0", "--policy", "-", "--config", &folder.text("config.yaml")];
    let one = Server::spawn(tollgate(&arguments), POLICY);
    assert!(one.banner.contains(&redis.url()), "{}", one.banner);
    let mut command = tollgate(&["serve", "--http", "127.0.0.1:0", "--policy", "-"]);
    command.env("TOLLGATE_STORE", redis.url()).env("TOLLGATE_STORE_DEADLINE", DEADLINE);
    command.env("TOLLGATE_STORE_SECRET", "a secret that all servers share");
    let two = Server::spawn(command, POLICY);
    quick(|key| {
        one.charged(key)?;
        assert_eq!(two.left(key), 9, "the same secret, the same keys");
        Some(())
    });
    assert_eq!(redis.cli(&["EXISTS", "tg:{secret}"]).trim(), "0");
    assert_eq!(one.metric("tollgate_store_nodes"), 3);
    let mut memory = arguments.to_vec();
    memory.extend(["--store", "memory"]);
    let three = Server::spawn(tollgate(&memory), POLICY);
    assert!(three.banner.contains("store   memory, at most 512 MiB"), "{}", three.banner);
    folder.replace("config.yaml", "store: {url: 'redis://:s3cret@h:x'}");
    let output = run(&arguments, POLICY.as_bytes());
    assert!(output.status.code() == Some(2) && !stderr(&output).contains("s3cret"), "{}", stderr(&output));
}

/// A cluster serves as one Redis does, and the loss of a shard is reported by name.
#[test]
fn servers_on_a_cluster() {
    let mut cluster = Cluster::start(0, &["--cluster-require-full-coverage", "no"]);
    let (one, two) = (on(&cluster.url(), POLICY), on(&cluster.url(), POLICY));
    for shard in 0..20 {
        quick(|key| {
            let key = format!("{shard}-{key}");
            one.charged(&key)?;
            assert_eq!(two.left(&key), 9);
            Some(())
        });
    }
    assert_eq!(one.metric("tollgate_store_shards{state=\"closed\"}"), 3);
    let gone = cluster.nodes.pop().unwrap();
    let address = format!("127.0.0.1:{}", gone.port);
    drop(gone);
    let troubled = until("the loss is reported", || {
        let reported = one.readyz().1;
        (reported["store"]["status"] == "away").then_some(reported)
    });
    assert!(troubled["store"]["shards"][0].as_str().unwrap().contains(&address), "{troubled}");
    let sources: Vec<String> =
        (0..20).map(|number| one.source(&format!(r#"{{"attributes":{{"api_key":"k{number}"}}}}"#))).collect();
    assert!(
        sources.iter().any(|source| source == "exact") && sources.iter().any(|source| source == "local"),
        "{sources:?}"
    );
}

/// TLS with certificates on both sides.
#[test]
fn servers_on_a_store_with_tls() {
    let (authority, folder) = (TestCa::new("store"), Scratch::new());
    folder.replace("ca.pem", &authority.pem);
    for (name, pair) in [("server", authority.server()), ("client", authority.client())] {
        folder.replace(&format!("{name}.pem"), &pair.certificate);
        folder.replace(&format!("{name}.key"), &pair.key);
    }
    let (secure, path) = (free_port().to_string(), |name: &str| folder.text(name));
    let files = [path("server.pem"), path("server.key"), path("ca.pem")];
    let _redis = Redis::start(&[
        "--tls-port",
        &secure,
        "--tls-cert-file",
        &files[0],
        "--tls-key-file",
        &files[1],
        "--tls-ca-cert-file",
        &files[2],
    ]);
    let url = format!("rediss://127.0.0.1:{secure}");
    let server = on_with(
        &url,
        POLICY,
        &[
            "--store-ca",
            &path("ca.pem"),
            "--store-cert",
            &path("client.pem"),
            "--store-key",
            &path("client.key"),
        ],
    );
    server.joined();
    assert!(server.banner.contains("over TLS"), "{}", server.banner);
    let stranger = on_with(&url, POLICY, &["--store-ca", &path("ca.pem")]);
    rest(Duration::from_millis(200));
    assert_eq!(stranger.source(KEY), "local");
}

/// The user that `store check` recommends can do everything: decide, hold and give back, reset, agree on a secret, sign itself.
#[test]
fn a_user_with_few_rights_is_enough() {
    let redis = Redis::start(&[]);
    recommended_user(&redis, &redis.url());
    redis.tell(&["ACL", "SETUSER", "default", "off"]);
    let policy = "limits: [{name: per-key, by: [api_key], rate: 10/h}, {name: in-flight, by: [worker], concurrency: 1}]";
    let mut server = on(&format!("redis://tollgate:s3cret@127.0.0.1:{}", redis.port), policy);
    server.joined();
    quick(|key| {
        server.charged(key)?;
        let output = operate(&server, &["reset", &format!("api_key={key}")]).output().unwrap();
        assert!(stdout(&output).contains("1 counter reset"), "{}{}", stdout(&output), stderr(&output));
        assert_eq!(server.left(key), 10);
        let worker = format!(r#"{{"attributes":{{"worker":"{key}"}}}}"#);
        let held = server.check(&worker);
        (held["limits"][0]["source"] == "exact").then_some(())?;
        let release = format!("/v1/permits/{}", held["permit"].as_str().unwrap());
        assert!(server.send("DELETE", &release, "").status < 300);
        (server.check(&worker)["allowed"] == true).then_some(())
    });
    until("it is counted", || (server.metric("tollgate_store_nodes") == 1).then_some(()));
    assert_eq!(server.metric("tollgate_store_failures_total{class=\"refused\"}"), 0);
    server.signal("-TERM");
    server.wait();
    let log = server.rest_of_log();
    assert!(!log.contains("NOPERM"), "{log}");
}

/// Units admitted while the store was away are charged to its counters when it is back, once.
#[test]
fn fallback_admissions_are_reconciled() {
    let mut redis = Redis::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let server = on(&redis.url(), POLICY);
    server.joined();
    let mut reported = String::new();
    quick(|key| {
        server.charged(key)?;
        server.charged(key)?;
        reported = key.to_owned();
        Some(())
    });
    until("it has signed itself", || (server.metric("tollgate_store_nodes") == 1).then_some(()));
    redis.kill();
    for _ in 0..3 {
        let answer = server.check(&asked(&reported));
        assert_eq!(
            (&answer["allowed"], &answer["limits"][0]["source"]),
            (&true.into(), &"local".into()),
            "{answer}"
        );
    }
    assert!(server.metric("tollgate_store_debts") > 0);
    redis.start_again();
    until("the store knows of all five", || (server.left(&reported) == 5).then_some(()));
    until("nothing is owed", || (server.metric("tollgate_store_debts") == 0).then_some(()));
    assert!(server.metric("tollgate_store_debts_settled_total{result=\"ok\"}") > 0);
    assert_eq!(server.left(&reported), 5);
}

/// Behind sentinels a primary that dies is replaced, and servers follow by themselves; what it had counted is still counted.
#[test]
fn servers_behind_sentinels_follow_a_failover() {
    let mut primary = Redis::start(&[]);
    let replica = Redis::start(&["--replicaof", "127.0.0.1", &primary.port.to_string()]);
    until("the replica is connected", || {
        replica.cli(&["INFO", "replication"]).contains("link_status:up").then_some(())
    });
    let sentinels: Vec<Sentinel> = (0..3).map(|_| Sentinel::start(primary.port)).collect();
    let hosts: Vec<String> =
        sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.redis.port)).collect();
    until("the sentinels know each other and the replica", || {
        let known = |sentinel: &Sentinel| {
            let printed = sentinel.redis.cli(&["SENTINEL", "MASTER", "main"]);
            let after =
                |name: &str| printed.lines().skip_while(|line| *line != name).nth(1).map(str::to_owned);
            after("num-other-sentinels").as_deref() == Some("2")
                && after("num-slaves").as_deref() == Some("1")
        };
        sentinels.iter().all(known).then_some(())
    });
    let server = on(&format!("redis-sentinel://{}/main", hosts.join(",")), POLICY);
    server.joined();
    let mut counted = String::new();
    quick(|key| {
        server.charged(key)?;
        counted = key.to_owned();
        (server.left(key) == 9).then_some(())
    });
    until("the replica has it", || (replica.cli(&["DBSIZE"]) == primary.cli(&["DBSIZE"])).then_some(()));
    primary.kill();
    assert_eq!(server.source(KEY), "local");
    until("the replica is asked", || (server.readyz().1["store"]["status"] == "ok").then_some(()));
    assert_eq!(server.left(&counted), 9);
}

/// A batch waits for the store once, not once for each of its checks. Its checks go there together, so which of those about one key
/// come first is not said; how many pass is.
#[test]
fn a_batch_shares_calls() {
    let redis = Redis::start(&[]);
    let server = on(&redis.url(), POLICY);
    server.joined();
    quick(|key| {
        let calls = server.metric("tollgate_store_calls_total");
        let checks: Vec<String> = (0..40).map(|number| asked(&format!("{key}-{}", number % 2))).collect();
        let answer = server.send("POST", "/v1/check/batch", &format!("[{}]", checks.join(",")));
        assert_eq!(answer.status, 200);
        let answers = answer.json();
        let answers = answers.as_array().unwrap();
        answers.iter().all(|answer| answer["limits"][0]["source"] == "exact").then_some(())?;
        let allowed = |parity: usize| {
            let of_key = answers.iter().skip(parity).step_by(2);
            of_key.filter(|answer| answer["allowed"] == true).count()
        };
        assert_eq!((allowed(0), allowed(1)), (10, 10), "ten of each key");
        let calls = server.metric("tollgate_store_calls_total") - calls;
        assert!(calls < 20, "{calls} calls for 40 checks");
        Some(())
    });
}
