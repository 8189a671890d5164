//! Two servers on one store are one fleet to an operator: what is said to one holds on both, survives both, and works without the
//! store, and what is shown is what both do.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use serde_json::{Value, json};
use tollgate_testkit::{Scratch, free_port, rest, until};

use crate::admin::{TOKEN, ask, operate, shown};
use crate::pki::TestCa;
use crate::program::{Server, stderr, stdout, tollgate};
use crate::redis::{Cluster, Redis};
use crate::shared::{on, on_with};
use crate::store_check::Sentinel;

const POLICY: &str = "limits:
  - {name: per-key, by: [api_key], rate: 100/h}
  - {name: all, rate: 1000/h}
";
const FLEET_NOTICE: &str = "this holds on every node that reaches the store, within a second";
const NODE_NOTICE: &str = "this holds on this node only";

/// The output of an operator's command, which ends with this status.
#[track_caller]
fn says(server: &Server, words: &str, status: i32) -> String {
    let output = operate(server, &words.split(' ').collect::<Vec<_>>()).output().unwrap();
    let printed = stdout(&output) + &stderr(&output);
    assert_eq!(output.status.code(), Some(status), "{words}: {printed}");
    printed
}

/// Asks for a decision about a key.
fn decide(server: &Server, key: &str) {
    server.check(&format!(r#"{{"attributes":{{"api_key":"{key}"}}}}"#));
}

fn is_blocked(server: &Server, key: &str) -> bool {
    server.check(&format!(r#"{{"attributes":{{"api_key":"{key}"}}}}"#))["allowed"] == false
}

fn await_blocked(server: &Server, key: &str, expected: bool) {
    until("the block is as expected", || (is_blocked(server, key) == expected).then_some(()));
}

/// The mode of a limit on a server, overrides included.
fn mode(server: &Server, limit: &str) -> (String, u64) {
    let answer = shown(server, "limits");
    let limits = answer["limits"].as_array().unwrap();
    let found = limits.iter().find(|each| each["name"] == limit).unwrap();
    (found["mode"].as_str().unwrap().to_owned(), found["percent"].as_u64().unwrap())
}

fn await_mode(server: &Server, limit: &str, expected: (&str, u64)) {
    until("the limit is as expected", || {
        let (mode, percent) = mode(server, limit);
        ((mode.as_str(), percent) == expected || (mode == expected.0 && mode != "enforce")).then_some(())
    });
}

/// The names of the nodes that a server lists.
fn nodes(server: &Server) -> Vec<Value> {
    let answer = ask(server, TOKEN, "GET", "/admin/v1/fleet", "").json();
    answer["nodes"].as_array().unwrap().clone()
}

fn await_two(server: &Server) {
    until("two nodes are listed", || (nodes(server).len() == 2).then_some(()));
}

/// A block on one node is refused on the other, survives a restart of both, ends when it is taken back anywhere, and by itself.
fn blocks_hold_for_a_fleet(url: &str) {
    let (one, two) = (on(url, POLICY), on(url, POLICY));
    let printed = says(&one, "block api_key=k --for 10m", 0);
    assert!(printed.contains(FLEET_NOTICE), "{printed}");
    await_blocked(&two, "k", true);
    assert!(is_blocked(&one, "k") && !is_blocked(&two, "other"));
    drop((one, two));
    let (one, two) = (on(url, POLICY), on(url, POLICY));
    await_blocked(&one, "k", true);
    await_blocked(&two, "k", true);
    says(&two, "block api_key=short --for 3s", 0);
    says(&two, "unblock api_key=k", 0);
    await_blocked(&one, "k", false);
    assert!(!is_blocked(&two, "k"));
    await_blocked(&one, "short", false);
    await_blocked(&two, "short", false);
    says(&one, "unblock api_key=k", 1);
}

#[test]
fn blocks_hold_for_a_fleet_on_one_server() {
    blocks_hold_for_a_fleet(&Redis::start(&[]).url());
}

#[test]
fn blocks_hold_for_a_fleet_on_a_cluster() {
    blocks_hold_for_a_fleet(&Cluster::start(0, &[]).url());
}

#[test]
fn blocks_hold_for_a_fleet_behind_sentinels() {
    let redis = Redis::start(&[]);
    let sentinel = Sentinel::start(redis.port);
    blocks_hold_for_a_fleet(&format!("redis-sentinel://127.0.0.1:{}/main", sentinel.redis.port));
}

/// Kill switches, shadow and percentages of one limit and of all of them hold on both nodes, and end on both.
#[test]
fn overrides_hold_for_a_fleet() {
    let redis = Redis::start(&[]);
    let (one, two) = (on(&redis.url(), POLICY), on(&redis.url(), POLICY));
    for (words, limit, expected) in [
        ("kill per-key --for 10m", "per-key", ("off", 0)),
        ("shadow all --for 10m", "all", ("shadow", 0)),
        ("percent per-key 25 --for 10m", "per-key", ("enforce", 25)),
    ] {
        assert!(says(&one, words, 0).contains(FLEET_NOTICE));
        await_mode(&two, limit, expected);
        assert_eq!(mode(&one, limit), mode(&two, limit));
    }
    says(&two, "kill --all --for 10m", 0);
    await_mode(&one, "per-key", ("off", 0));
    says(&one, "restore --all", 0);
    await_mode(&two, "per-key", ("enforce", 25));
    says(&two, "restore per-key", 0);
    says(&two, "restore all", 0);
    await_mode(&one, "per-key", ("enforce", 100));
    await_mode(&one, "all", ("enforce", 100));
}

/// Nodes that write at once keep each other's items.
#[test]
fn two_nodes_write_at_once() {
    let redis = Redis::start(&[]);
    let (one, two) = (on(&redis.url(), POLICY), on(&redis.url(), POLICY));
    const EACH: usize = 20;
    std::thread::scope(|scope| {
        for (name, server) in [("a", &one), ("b", &two)] {
            scope.spawn(move || {
                for number in 0..EACH {
                    let body = json!({"attributes": {"api_key": format!("{name}{number}")}, "for": "10m"});
                    let answer = ask(server, TOKEN, "POST", "/admin/v1/block", &body.to_string());
                    assert_eq!(answer.status, 200);
                }
            });
        }
    });
    for server in [&one, &two] {
        until("all blocks are on both", || {
            (shown(server, "limits")["blocks"].as_array().unwrap().len() == 2 * EACH).then_some(())
        });
    }
}

/// Without the store a change holds on one node, which is said, and is shared when the store is back. Of two words about the same
/// thing the later one wins.
#[test]
fn without_the_store_a_change_is_the_nodes_own() {
    let mut redis = Redis::start(&["--appendonly", "yes"]);
    let (one, two) = (on(&redis.url(), POLICY), on(&redis.url(), POLICY));
    says(&one, "block api_key=before --for 10m", 0);
    await_blocked(&two, "before", true);
    redis.kill();
    until("the store is away", || (one.readyz().1["store"]["status"] == "away").then_some(()));
    let printed = says(&one, "block api_key=during --for 10m", 0);
    assert!(printed.contains(NODE_NOTICE) && printed.contains("as soon as the store takes it"), "{printed}");
    let answer: Value = shown(&one, "kill per-key --for 10m");
    assert_eq!(answer["scope"], "node", "{answer}");
    assert!(is_blocked(&one, "during") && !is_blocked(&two, "during"));
    says(&two, "shadow per-key --for 10m", 0);
    assert_eq!((mode(&one, "per-key").0.as_str(), mode(&two, "per-key").0.as_str()), ("off", "shadow"));
    assert!(says(&one, "fleet", 0).contains("are not in the store yet"));
    says(&two, "unblock api_key=before", 0);
    assert!(is_blocked(&one, "before"), "the block is not there yet");
    redis.start_again();
    await_blocked(&two, "during", true);
    await_blocked(&one, "before", false);
    await_mode(&one, "per-key", ("shadow", 0));
    assert_eq!(mode(&two, "per-key").0, "shadow");
    until("all is shared", || {
        says(&one, "fleet", 0).lines().all(|line| !line.contains("not in the store")).then_some(())
    });
}

/// A store that forgets everything gets it back from the nodes, and a node that starts later has it.
#[test]
fn a_flushed_store_is_filled_again() {
    let redis = Redis::start(&[]);
    let one = on(&redis.url(), POLICY);
    says(&one, "block api_key=k --for 10m", 0);
    redis.cli(&["FLUSHALL"]);
    until("the block is in the store again", || {
        redis
            .cli(&["HLEN", "tg:{fleet}items"])
            .trim()
            .parse()
            .is_ok_and(|items: u64| items >= 2)
            .then_some(())
    });
    let two = on(&redis.url(), POLICY);
    await_blocked(&two, "k", true);
}

/// After a flush what operators have said holds on all nodes without a gap, living nodes are listed again, and what was
/// taken back stays so.
#[test]
fn a_flush_takes_nothing_from_operators() {
    let redis = Redis::start(&[]);
    let (one, two) = (on(&redis.url(), POLICY), on(&redis.url(), POLICY));
    await_two(&one);
    says(&one, "block api_key=bad --for 10m", 0);
    says(&one, "block api_key=forgiven --for 10m", 0);
    says(&two, "kill per-key --for 10m", 0);
    await_blocked(&two, "forgiven", true);
    says(&two, "unblock api_key=forgiven", 0);
    await_blocked(&one, "forgiven", false);
    await_blocked(&two, "bad", true);
    await_mode(&one, "per-key", ("off", 0));
    for _ in 0..3 {
        redis.cli(&["FLUSHALL"]);
        until("the store has it all again", || {
            for server in [&one, &two] {
                assert!(is_blocked(server, "bad") && !is_blocked(server, "forgiven"));
                assert_eq!(mode(server, "per-key").0, "off");
            }
            let items = redis.cli(&["HKEYS", "tg:{fleet}items"]);
            let nodes = redis.cli(&["HLEN", "tg:{fleet}nodes"]);
            let has_all = items.contains("limit:per-key") && items.matches("block:").count() == 2;
            (has_all && nodes.trim() == "2" && redis.cli(&["EXISTS", "tg:{secret}"]).trim() == "1")
                .then_some(())
        });
        assert_eq!((nodes(&one).len(), nodes(&two).len()), (2, 2));
    }
}

/// The story: a server that started just after a flush made a new secret. The others counted by themselves from then on,
/// and `/readyz` said that all was well.
#[test]
fn a_server_with_another_secret_says_so() {
    let redis = Redis::start(&[]);
    let server = on(&redis.url(), POLICY);
    server.joined();
    redis.cli(&["SET", "tg:{secret}", &"x".repeat(32)]);
    let ready = until("it is seen", || {
        let ready = server.ready();
        (ready["status"] == "degraded").then_some(ready)
    });
    assert_eq!(ready["store"]["status"], "apart", "{ready}");
    assert!(ready["store"]["meaning"].as_str().unwrap().contains("shares no counters"), "{ready}");
    redis.cli(&["DEL", "tg:{secret}"]);
    until("its own secret is back", || (server.ready()["status"] == "ok").then_some(()));
}

/// A state directory brings back what the store does not know, also when both nodes and the store were gone.
#[test]
fn a_state_directory_and_a_lost_store() {
    let (mut redis, folder) = (Redis::start(&[]), Scratch::new());
    let state = folder.text("state");
    let kept = |url: &str| {
        let mut command = tollgate(&[
            "serve",
            "--http",
            "127.0.0.1:0",
            "--policy",
            "-",
            "--store",
            url,
            "--state-dir",
            &state,
        ]);
        command.env("TOLLGATE_ADMIN_TOKEN", TOKEN).env("TOLLGATE_STORE_DEADLINE", "50ms");
        Server::spawn(command, POLICY)
    };
    let one = kept(&redis.url());
    says(&one, "block api_key=k --for 10m", 0);
    redis.kill();
    until("the store is away", || (one.readyz().1["store"]["status"] == "away").then_some(()));
    assert!(says(&one, "block api_key=later --for 10m", 0).contains(NODE_NOTICE));
    drop(one);
    let one = kept(&redis.url());
    assert!(is_blocked(&one, "k") && is_blocked(&one, "later"), "from its disk, without the store");
    redis.start_again();
    let two = on(&redis.url(), POLICY);
    await_blocked(&two, "k", true);
    await_blocked(&two, "later", true);
}

/// A reset at one node reaches what the other holds ahead of time: it neither denies nor admits by it any longer.
#[test]
fn a_reset_reaches_leases_of_other_nodes() {
    let policy = "limits: [{name: hot, by: [api_key], rate: 600/h, burst: 600, consistency: leased, lease: {max_share: 50%, ttl: 60s}}]";
    let redis = Redis::start(&[]);
    let (one, two) = (on(&redis.url(), policy), on(&redis.url(), policy));
    one.joined();
    two.joined();
    let held = |server: &Server| server.metric("tollgate_limit_held_units{limit=\"hot\"}");
    until("the other node holds units", || {
        decide(&two, "k");
        (held(&two) > 0).then_some(())
    });
    assert!(says(&one, "reset api_key=k", 0).contains("1 counter reset: hot"));
    until("what it held is dropped", || (held(&two) == 0).then_some(()));
    assert_eq!(one.left("k"), 600, "nothing of it came back, and nothing is missing");
}

/// `fleet` lists both nodes. `top`, `get`, `explain`, `audit` and `tail` show both, or the one that is named.
#[test]
fn views_show_both_nodes() {
    let redis = Redis::start(&[]);
    let (one, two) = (on(&redis.url(), POLICY), on(&redis.url(), POLICY));
    await_two(&one);
    let listed = nodes(&one);
    assert_eq!(listed.iter().filter(|node| node["this"] == true).count(), 1, "{listed:?}");
    for (server, is_this) in [(&one, true), (&two, false)] {
        let name = server.address.to_string();
        let node = listed.iter().find(|node| node["name"] == name).unwrap();
        assert_eq!(
            (&node["this"], &node["state"], &node["admin"]),
            (&is_this.into(), &"ok".into(), &format!("http://{name}").into())
        );
    }
    (0..3).for_each(|_| decide(&one, "k"));
    (0..4).for_each(|_| decide(&two, "k"));
    let top = shown(&one, "top --once --limit per-key");
    assert_eq!((&top["summed_over"], &top["keys"][0]["decisions"]), (&2.into(), &7.into()), "{top}");
    let printed = says(&one, "top --once", 0);
    assert!(printed.contains("the sums of 2 nodes"), "{printed}");
    let this = shown(&one, "top --once --limit per-key --node this");
    assert_eq!((&this["nodes"], &this["keys"][0]["decisions"]), (&Value::Null, &3.into()), "{this}");
    let other = shown(&one, &format!("top --once --limit per-key --node {}", two.address));
    assert_eq!(other["keys"][0]["decisions"], 4, "{other}");
    for verb in ["get", "explain"] {
        let answer = shown(&one, &format!("{verb} api_key=k"));
        let answers = answer["answers"].as_array().unwrap();
        assert_eq!(answers.len(), 2, "{answer}");
        assert!(answers.iter().all(|each| each["answer"]["allowed"] == true), "{answer}");
        assert!(says(&one, &format!("{verb} api_key=k"), 0).contains("the answers of 2 nodes"));
    }
    says(&one, "block api_key=a --for 10m --note first", 0);
    says(&two, "block api_key=b --for 10m --note second", 0);
    let printed = says(&one, "audit", 0);
    assert!(printed.contains("first") && printed.contains("second"), "{printed}");
    assert!(!says(&one, "audit --node this", 0).contains("second"));
    let refused = says(&one, "get api_key=k --node nowhere", 2);
    assert!(refused.contains("there is no node") && refused.contains(&two.address.to_string()), "{refused}");
}

/// A live view of one node shows the decisions of the other.
#[test]
fn a_tail_shows_both_nodes() {
    let redis = Redis::start(&[]);
    let (one, two) = (on(&redis.url(), POLICY), on(&redis.url(), POLICY));
    await_two(&one);
    let other = until("a decision of the other node is shown", || {
        let printed = std::thread::scope(|scope| {
            let watching = scope.spawn(|| says(&one, "tail --once --json", 0));
            for _ in 0..10 {
                rest(Duration::from_millis(100));
                decide(&two, "k");
                decide(&one, "k");
            }
            watching.join().unwrap()
        });
        let events: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let of = |server: &Server| {
            let name = server.address.to_string();
            events.iter().find(|event| event["node"] == name.as_str() && event["limit"].is_string()).cloned()
        };
        of(&one)?;
        of(&two)
    });
    assert_eq!(other["allowed"], true, "{other}");
}

/// A node that is gone, one with another token, and one at whose address another server answers are shown as missing, and never
/// silently left out.
#[test]
fn a_node_that_does_not_answer_is_shown() {
    let redis = Redis::start(&[]);
    let (one, two) = (on(&redis.url(), POLICY), on(&redis.url(), POLICY));
    await_two(&one);
    let gone = two.address.to_string();
    drop(two); // As a power cut does.
    let top = shown(&one, "top --once");
    let missing = top["nodes"].as_array().unwrap().iter().find(|node| node["name"] == gone.as_str()).unwrap();
    assert_eq!(missing["answered"], false, "{top}");
    assert_eq!(top["summed_over"], 1, "{top}");
    let printed = says(&one, "get api_key=k", 0);
    assert!(printed.contains(&format!("{gone} is missing: it cannot be reached")), "{printed}");
    until("it is silent", || {
        let listed = nodes(&one);
        listed
            .iter()
            .find(|node| node["name"] == gone.as_str())
            .filter(|node| node["state"] == "silent")
            .map(drop)
    });
    let start = |advertised: &str, token: &str| {
        let mut command = tollgate(&[
            "serve",
            "--http",
            "127.0.0.1:0",
            "--policy",
            "-",
            "--store",
            &redis.url(),
            "--advertise-admin",
            advertised,
        ]);
        command.env("TOLLGATE_ADMIN_TOKEN", token).env("TOLLGATE_STORE_DEADLINE", "50ms");
        Server::spawn(command, POLICY)
    };
    let stranger = start(&format!("http://localhost:{}", one.address.port()), TOKEN);
    let port = free_port();
    let mut other = tollgate(&[
        "serve",
        "--http",
        &format!("127.0.0.1:{port}"),
        "--policy",
        "-",
        "--store",
        &redis.url(),
    ]);
    other.env("TOLLGATE_ADMIN_TOKEN", "another-token-0123456789").env("TOLLGATE_STORE_DEADLINE", "50ms");
    let other = Server::spawn(other, POLICY);
    until("both are listed", || (nodes(&one).len() == 4).then_some(()));
    let printed = says(&one, "get api_key=k", 0);
    assert!(printed.contains("is missing: another server answers at http://localhost"), "{printed}");
    assert!(printed.contains(&format!("127.0.0.1:{port} is missing: it refuses the token")), "{printed}");
    drop((stranger, other));
}

/// Answers one question at an address that a program has written to the store, and returns the question.
fn hostile_node(id: &'static str) -> (String, std::thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let asked = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(&stream).lines().map(Result::unwrap);
        let question: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
        let answer = r#"{"allowed":false,"limits":[]}"#;
        let head =
            format!("HTTP/1.1 200 OK\r\ntollgate-node: {id}\r\nContent-Length: {}\r\n\r\n", answer.len());
        (&stream).write_all([head.as_bytes(), answer.as_bytes()].concat().as_slice()).unwrap();
        question.join("\r\n")
    });
    (address, asked)
}

/// A program that can write to the store advertises an address of its own. It gets no token, what it gets is good at no
/// other node, and what it answers is not used.
#[test]
fn a_hostile_address_gets_no_token() {
    let redis = Redis::start(&[]);
    let (one, two) = (on(&redis.url(), POLICY), on(&redis.url(), POLICY));
    await_two(&one);
    let (address, asked) = hostile_node("hostile");
    let heartbeat = json!({"name": "a\u{1b}[2Jnode", "admin": format!("http://{address}"), "version": "9"});
    let time = redis.cli(&["TIME"]);
    let (seconds, _) = time.trim().split_once('\n').unwrap();
    redis.cli(&["HSET", "tg:{fleet}nodes", "hostile", &format!("{seconds}000000 {heartbeat}")]);
    until("it is listed", || (nodes(&one).len() == 3).then_some(()));
    let printed = says(&one, "get api_key=k", 0);
    let missing = "node is missing: it does not prove its answer, which is not used";
    assert!(printed.contains(missing) && printed.contains("the answers of 2 nodes"), "{printed}");
    assert!(!printed.contains('\u{1b}'), "{printed}");
    let question = asked.join().unwrap();
    assert!(question.starts_with("POST /admin/v1/get") && !question.contains(TOKEN), "{question}");
    let asked_for = question.lines().next().unwrap();
    let signed = question.lines().find(|line| line.starts_with("authorization: Tollgate-Node-2 ")).unwrap();
    let body = r#"{"attributes":{"api_key":"k"}}"#;
    for server in [&one, &two] {
        let passed_on = format!(
            "{asked_for}\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{signed}\r\n\r\n{body}",
            body.len()
        );
        assert_eq!(server.exchange(passed_on.as_bytes()).status, 401, "{passed_on}");
    }
}

/// A program between two nodes: it keeps what it passes on, and replaces words of answers with others of the same length.
struct Relay {
    address: String,
    to: Arc<OnceLock<SocketAddr>>,
    replaced: Arc<Mutex<Option<(&'static str, &'static str)>>>,
    questions: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Relay {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Self {
            address: listener.local_addr().unwrap().to_string(),
            to: Arc::default(),
            replaced: Arc::default(),
            questions: Arc::default(),
        };
        let (to, replaced, questions) =
            (Arc::clone(&relay.to), Arc::clone(&relay.replaced), Arc::clone(&relay.questions));
        std::thread::spawn(move || {
            for asking in listener.incoming().map_while(Result::ok) {
                let Some(to) = to.get() else { continue };
                let (mut asked, mut asker) = (TcpStream::connect(to).unwrap(), asking.try_clone().unwrap());
                let (mut from_asker, mut from_asked) = (asking, asked.try_clone().unwrap());
                let (replaced, questions) = (Arc::clone(&replaced), Arc::clone(&questions));
                std::thread::spawn(move || {
                    let place = {
                        let mut questions = questions.lock().unwrap();
                        questions.push(Vec::new());
                        questions.len() - 1
                    };
                    pass_on(&mut from_asker, &mut asked, |bytes| {
                        questions.lock().unwrap()[place].extend_from_slice(bytes);
                        bytes.to_vec()
                    });
                });
                std::thread::spawn(move || {
                    pass_on(&mut from_asked, &mut asker, |bytes| match *replaced.lock().unwrap() {
                        Some((from, to)) => String::from_utf8_lossy(bytes).replace(from, to).into_bytes(),
                        None => bytes.to_vec(),
                    });
                });
            }
        });
        relay
    }
}

fn pass_on(from: &mut TcpStream, to: &mut TcpStream, mut change: impl FnMut(&[u8]) -> Vec<u8>) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut bytes) {
        if to.write_all(&change(&bytes[..length])).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// A program between two nodes without TLS can neither change an answer nor a line, nor repeat a question that it has
/// overheard, nor put words into the mouth of a node that refuses.
#[test]
fn a_program_between_two_nodes_changes_nothing() {
    let (redis, relay) = (Redis::start(&[]), Relay::start());
    let one = on(&redis.url(), POLICY);
    let advertised = format!("http://{}", relay.address);
    let two = on_with(&redis.url(), POLICY, &["--advertise-admin", &advertised]);
    relay.to.set(two.address).unwrap();
    await_two(&one);
    let printed = says(&one, "get api_key=k", 0);
    assert!(printed.contains("the answers of 2 nodes"), "{printed}");
    let question = relay.questions.lock().unwrap().last().unwrap().clone();
    assert!(String::from_utf8_lossy(&question).contains("Tollgate-Node-2 "));
    for _ in 0..2 {
        let again = two.exchange(&question);
        let detail = again.json()["detail"].to_string();
        assert!(again.status == 409 && detail.contains("was answered before"), "{} {detail}", again.status);
    }
    for (from, to, missing) in [
        (r#""allowed":true"#, r#""allowed":null"#, "it does not prove its answer, which is not used"),
        ("HTTP/1.1 200 OK", "HTTP/1.1 409 No", "it answers 409 Conflict, and does not prove why"),
        ("tollgate-node-proof", "tollgate-node-prooF2", "it does not prove its answer"),
    ] {
        *relay.replaced.lock().unwrap() = Some((from, to));
        let printed = says(&one, "get api_key=k", 0);
        assert!(printed.contains(&format!("is missing: {missing}")), "{from}: {printed}");
        assert!(printed.contains("the answers of 1 node"), "{printed}");
    }
    *relay.replaced.lock().unwrap() = Some((r#""limit":"per-key""#, r#""limit":"PER-KEY""#));
    until("a changed line ends the lines of that node", || {
        let printed = std::thread::scope(|scope| {
            let watching = scope.spawn(|| says(&one, "tail --once --json", 0));
            for _ in 0..10 {
                rest(Duration::from_millis(100));
                decide(&two, "k");
            }
            watching.join().unwrap()
        });
        assert!(!printed.contains("PER-KEY"), "{printed}");
        printed.contains("it does not prove a line: lines were changed or lost on the way").then_some(())
    });
    *relay.replaced.lock().unwrap() = None;
    assert!(says(&one, "get api_key=k", 0).contains("the answers of 2 nodes"));
}

/// Views that wait for a node that does not answer are bounded: those beyond the bound are refused at once, with what to
/// do, and later ones are answered.
#[test]
fn views_of_a_fleet_are_bounded() {
    let redis = Redis::start(&[]);
    let one = on(&redis.url(), POLICY);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap(); // It never accepts.
    let url = format!("http://{}", silent.local_addr().unwrap());
    let seconds = redis.cli(&["TIME"]).trim().split_once('\n').unwrap().0.to_owned();
    let heartbeat = json!({"name": "silent", "admin": url, "version": "9"});
    redis.cli(&["HSET", "tg:{fleet}nodes", "silent", &format!("{seconds}000000 {heartbeat}")]);
    until("it is listed", || (nodes(&one).len() == 2).then_some(()));
    let view = || ask(&one, TOKEN, "GET", "/admin/v1/top?fleet=true", "");
    until("more views are asked for than there may be", || {
        let answers = std::thread::scope(|scope| {
            let asking: Vec<_> = (0..24).map(|_| scope.spawn(view)).collect();
            asking.into_iter().map(|asking| asking.join().unwrap()).collect::<Vec<_>>()
        });
        let answered = answers.iter().filter(|answer| answer.status == 200).count();
        let refused: Vec<_> = answers.iter().filter(|answer| answer.status == 503).collect();
        assert_eq!(answered + refused.len(), answers.len());
        let says_why = |text: String| {
            text.contains("urn:tollgate:problem:busy") && text.contains("try again in a second")
        };
        assert!(refused.iter().all(|answer| says_why(answer.json().to_string())));
        (answered >= 8 && !refused.is_empty()).then_some(())
    });
    let later = view();
    assert_eq!((later.status, &later.json()["summed_over"]), (200, &1.into()));
}

/// The story: a server that hung was shown as silent for a minute, and then left out without a word. It stays listed as
/// lost and is named as missing, views do not wait for it, and a server that stops in order leaves at once.
#[test]
fn a_node_that_hangs_is_lost_and_not_forgotten() {
    let redis = Redis::start(&[]);
    let one = on(&redis.url(), POLICY);
    let hanging = TcpListener::bind("127.0.0.1:0").unwrap(); // It never accepts.
    let url = format!("http://{}", hanging.local_addr().unwrap());
    let seconds: u64 = redis.cli(&["TIME"]).trim().split_once('\n').unwrap().0.parse().unwrap();
    let heartbeat = json!({"name": "hung", "admin": url, "version": "9", "started": 1});
    let two_minutes_ago = format!("{}000000 {heartbeat}", seconds - 120);
    redis.cli(&["HSET", "tg:{fleet}nodes", "hung", &two_minutes_ago]);
    let listed = nodes(&one);
    assert_eq!((listed.len(), &listed[1]["state"]), (2, &"lost".into()), "{listed:?}");
    let since = listed[1]["last_seen"].as_str().unwrap();
    let printed = says(&one, "fleet", 0);
    assert!(printed.contains(&format!("hung is lost: its last heartbeat was at {since}")), "{printed}");
    for view in ["top --once", "get api_key=k", "explain api_key=k"] {
        let printed = says(&one, view, 0);
        assert!(
            printed.contains(&format!("hung is missing: it is lost: its last heartbeat was at {since}")),
            "{printed}"
        );
    }
    let printed = says(&one, "tail --once", 0);
    assert!(printed.contains("is missing: it is lost"), "{printed}");
    let mut two = on(&redis.url(), POLICY);
    until("three nodes are listed", || (nodes(&one).len() == 3).then_some(()));
    two.signal("-TERM");
    assert!(two.wait().success());
    assert_eq!(nodes(&one).len(), 2, "it has left, and the lost one is still listed");
}

/// Servers that made their tokens themselves know none of each other, and the list of the nodes says so.
#[test]
fn nodes_without_a_common_token_say_so() {
    let redis = Redis::start(&[]);
    let start = || {
        let url = redis.url();
        let mut command = tollgate(&["serve", "--http", "127.0.0.1:0", "--policy", "-", "--store", &url]);
        command.env("TOLLGATE_STORE_DEADLINE", "50ms");
        Server::spawn(command, POLICY)
    };
    let (one, mut two) = (on(&redis.url(), POLICY), start());
    await_two(&one);
    two.await_log("this one made its admin token itself");
    let printed = says(&one, "fleet", 0);
    let expected = format!("no common token: made at its start by {};", two.address);
    assert!(printed.contains(&expected), "{printed}");
}

/// Nodes of versions that sign in different ways are missing in each other's views, with a reason, and nothing breaks.
#[test]
fn a_node_of_another_version_gets_the_reason() {
    let redis = Redis::start(&[]);
    let (one, two) = (on(&redis.url(), POLICY), on(&redis.url(), POLICY));
    await_two(&one);
    let digest = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
    for scheme in ["Tollgate-Node 1700000000", "Tollgate-Node-3 1700000000 more"] {
        let older = format!(
            "POST /admin/v1/get HTTP/1.1\r\nHost: localhost\r\nAuthorization: {scheme} {digest} {digest}\r\n\
             Content-Length: 2\r\n\r\n{{}}"
        );
        let refused = one.exchange(older.as_bytes());
        let detail = refused.json()["detail"].to_string();
        assert!(refused.status == 409 && detail.contains("run one version on all nodes"), "{detail}");
    }
    assert!(says(&one, "get api_key=k", 0).contains("the answers of 2 nodes"));
    drop(two);
}

/// A server in memory is a fleet of one, and nothing that it says is about others.
#[test]
fn a_server_in_memory_is_alone() {
    let server = crate::admin::server(POLICY);
    let listed = nodes(&server);
    assert_eq!((listed.len(), &listed[0]["this"]), (1, &true.into()));
    let printed = says(&server, "block api_key=k --for 10m", 0);
    assert!(!printed.contains("node"), "{printed}");
    assert!(shown(&server, "get api_key=x")["nodes"].is_null());
    assert!(says(&server, "fleet", 0).contains(&server.address.to_string()));
}

/// Over TLS nodes trust each other by the CA of the fleet, and one that has none says so.
#[test]
fn nodes_ask_each_other_over_tls() {
    let (redis, folder, authority) = (Redis::start(&[]), Scratch::new(), TestCa::new("fleet"));
    let pair = authority.server();
    folder.replace("ca.pem", &authority.pem);
    folder.replace("cert.pem", &pair.certificate);
    folder.replace("key.pem", &pair.key);
    let start = |more: &str| {
        let words = format!(
            "serve --http 127.0.0.1:0 --policy - --store {} --tls-cert cert.pem --tls-key key.pem {more}",
            redis.url()
        );
        let mut command = tollgate(&words.split_whitespace().collect::<Vec<_>>());
        command.current_dir(folder.path("")).env("TOLLGATE_ADMIN_TOKEN", TOKEN);
        command.env("TOLLGATE_STORE_DEADLINE", "50ms");
        Server::spawn(command, POLICY)
    };
    let (one, two) = (start("--fleet-ca ca.pem"), start(""));
    let get = |server: &Server| {
        let mut command = tollgate(&["get", "api_key=k", "--ca", "ca.pem"]);
        command.current_dir(folder.path("")).env("TOLLGATE_ADMIN_TOKEN", TOKEN);
        let output = command.env("TOLLGATE_SERVER", format!("https://{}", server.address)).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output)
    };
    until("both nodes answer", || get(&one).contains("the answers of 2 nodes").then_some(()));
    let missing = format!("{} is missing: it speaks TLS, and this node has no --fleet-ca", one.address);
    until("a node without the CA says so", || get(&two).contains(&missing).then_some(()));
}

/// Where nodes ask for certificates, a node shows its own. One whose certificate another CA signed is missing on both sides, with
/// the reason, and so is one whose certificate is no good for clients.
#[test]
fn nodes_show_each_other_their_certificates() {
    let (redis, folder) = (Redis::start(&[]), Scratch::new());
    let (ours, other) = (TestCa::new("fleet"), TestCa::new("other"));
    folder.replace("ca.pem", &ours.pem);
    folder.replace("other-ca.pem", &other.pem);
    let pairs = [
        ("one", ours.node()),
        ("two", ours.node()),
        ("stranger", other.node()),
        ("serving", ours.server()),
        ("operator", ours.client()),
    ];
    for (name, pair) in pairs {
        folder.replace(&format!("{name}.pem"), &pair.certificate);
        folder.replace(&format!("{name}-key.pem"), &pair.key);
    }
    let start = |name: &str| {
        let words = format!(
            "serve --http 127.0.0.1:0 --policy - --store {} --tls-cert {name}.pem --tls-key {name}-key.pem --tls-client-ca ca.pem \
             --fleet-ca ca.pem",
            redis.url()
        );
        let mut command = tollgate(&words.split_whitespace().collect::<Vec<_>>());
        command.current_dir(folder.path("")).env("TOLLGATE_ADMIN_TOKEN", TOKEN);
        command.env("TOLLGATE_STORE_DEADLINE", "50ms");
        Server::spawn(command, POLICY)
    };
    let get = |server: &Server, authority: &str| {
        let shown = "get api_key=k --cert operator.pem --key operator-key.pem --ca";
        let mut command = tollgate(&shown.split(' ').chain([authority]).collect::<Vec<_>>());
        command.current_dir(folder.path("")).env("TOLLGATE_ADMIN_TOKEN", TOKEN);
        let output = command.env("TOLLGATE_SERVER", format!("https://{}", server.address)).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output)
    };
    let (one, two) = (start("one"), start("two"));
    for server in [&one, &two] {
        until("both nodes answer", || get(server, "ca.pem").contains("the answers of 2 nodes").then_some(()));
    }
    let stranger = start("stranger");
    let await_missing = |at: &Server, authority: &str, about: &Server, reason: &str| {
        let missing = format!("{} is missing: {reason}", about.address);
        until(&missing, || get(at, authority).contains(&missing).then_some(()));
    };
    let untrusted = "TLS to it fails: no CA of --fleet-ca has signed its certificate";
    await_missing(&one, "ca.pem", &stranger, untrusted);
    assert!(get(&one, "ca.pem").contains("the answers of 2 nodes"), "the others are not less for it");
    let refused = "it ended the connection";
    await_missing(&stranger, "other-ca.pem", &one, refused);
    assert!(get(&stranger, "other-ca.pem").contains("it may not accept the certificate of this node"));
    drop(stranger);
    let serving = start("serving");
    await_missing(&serving, "ca.pem", &two, refused);
}

/// The number of changes that other servers do not know yet can be alerted on: it is there while the store is away, and gone when the store has it.
#[test]
fn unshared_operator_state_is_a_metric() {
    let mut redis = Redis::start(&["--appendonly", "yes"]);
    let server = on(&redis.url(), POLICY);
    let unshared = || {
        let page = String::from_utf8(server.send("GET", "/metrics", "").body).unwrap();
        let line = page.lines().find(|line| line.starts_with("tollgate_operator_state_unshared "));
        line.and_then(|line| line.rsplit(' ').next()).unwrap().to_owned()
    };
    assert_eq!(unshared(), "0");
    redis.kill();
    until("the store is away", || (server.readyz().1["store"]["status"] == "away").then_some(()));
    assert!(says(&server, "block api_key=k --for 10m", 0).contains(NODE_NOTICE));
    assert_eq!(unshared(), "1");
    redis.start_again();
    until("the store has it", || (unshared() == "0").then_some(()));
}

/// A candidate decides about the last requests of all nodes together: a key that used each node within the candidate's limit is
/// denied in sum. A node that does not answer is named.
#[test]
fn a_candidate_meets_the_last_hour_of_a_fleet() {
    let redis = Redis::start(&[]);
    let (one, two) = (on(&redis.url(), POLICY), on(&redis.url(), POLICY));
    await_two(&one);
    for server in [&one, &two] {
        (0..3).for_each(|_| decide(server, "busy"));
        decide(server, "quiet");
    }
    let scratch = Scratch::new();
    let path = scratch.path("new.yaml");
    scratch.replace(
        "new.yaml",
        "limits: [{name: per-key, by: [api_key], rate: 4/h}, {name: all, rate: 1000/h}]",
    );
    let words = format!("policy diff {} --live --last 10m", path.display());
    let printed = says(&one, &words, 1);
    assert!(printed.contains("2 of 8 decisions change: 2 newly denied, 0 newly allowed"), "{printed}");
    assert!(printed.contains("by per-key: 2 newly denied"), "{printed}");
    assert!(printed.contains("keys most affected:\n  per-key api_key=sha256:"), "{printed}");
    let gone = two.address.to_string();
    drop(two);
    let printed = says(&one, &words, 1);
    assert!(printed.contains("0 of 4 decisions change"), "{printed}");
    assert!(
        printed.contains(&format!("note: without the requests of {gone}: it cannot be reached")),
        "{printed}"
    );
}
