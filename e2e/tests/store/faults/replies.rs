//! A server that answers with errors: it is read-only, not ready, busy with a script, or refuses the login.

use std::time::Duration;

use redis::{RedisResult, Value};

use super::outage::Outage;
use super::report::{AWAY, Promise};
use super::standalone::immortal;
use super::{DEADLINE, Rig};
use crate::fleet::Running;
use crate::server::{Plan, Program, Server};
use crate::store::settings;
use tollgate_testkit::{rest, until};

use super::assessment::FaultSpans;

/// How long the server answers with errors.
const SPELL: Duration = Duration::from_secs(2);
/// Keys that a server loads before it is ready, and how long each takes, in microseconds.
const LOADED: u32 = 4_000;
const LOAD_DELAY: u32 = 500;
/// Milliseconds that a script may run before the server is busy.
const BUSY_AFTER: &str = "300";
const ENDLESS: &str = "while true do end";
const ENDLESS_WRITER: &str = "redis.call('SET', 'foreign', '1', 'PX', 60000) while true do end";

/// A server that recovered is used again within a second.
const REPLY: Promise = Promise { number: "F21", back: Some([1_000, 1_000, 5_000]), ..AWAY };
const BUSY: Promise = Promise { number: "F7", back: Some([2_000, 2_000, 5_000]), ..AWAY };
/// An error that only an operator can fix is retried every ten seconds.
const RIGHTS: Promise = Promise { number: "F22", back: Some([10_000, 10_000, 10_000]), ..AWAY };

pub(super) fn long(rig: &mut Rig) {
    let mut server = Plan::new(Program::Redis).start();
    let other = Server::redis();
    let fleet = rig.fleet([&server.url(); 3]);
    rig.run("READONLY", REPLY, &fleet, |running| read_only(&server, &other, running));
    rig.run("NOREPLICAS", REPLY, &fleet, |running| no_replicas(&server, running));
    rig.run("MISCONF", REPLY, &fleet, |running| not_persisted(&server, running));
    rig.run("BUSY, a script that reads", BUSY, &fleet, |running| busy(&server, running));
    rig.found(immortal(&server));
    rig.run("BUSY, a script that wrote", BUSY, &fleet, |running| busy_for_ever(&mut server, running));
    rig.run("LOADING", REPLY, &fleet, |running| loading(&mut server, running));
    drop(fleet);
    rights(rig);
}

/// A primary becomes a replica, and a primary again.
fn read_only(server: &Server, other: &Server, running: &Running) -> FaultSpans {
    let outage = Outage::begin(running);
    server.tell(&["REPLICAOF", "127.0.0.1", &other.port.to_string()]);
    rest(SPELL);
    let refused = server.errors("READONLY");
    server.tell(&["REPLICAOF", "NO", "ONE"]);
    // It replicated the other server, which is empty.
    outage.over_empty(&[("READONLY", refused)])
}

/// A server that requires replicas and has none.
fn no_replicas(server: &Server, running: &Running) -> FaultSpans {
    let outage = Outage::begin(running);
    server.tell(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    rest(SPELL);
    let refused = server.errors("NOREPLICAS");
    server.tell(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    outage.over(&[("NOREPLICAS", refused)])
}

/// A server that cannot write to its disk: a directory is in place of its file.
fn not_persisted(server: &Server, running: &Running) -> FaultSpans {
    let save = |status: &str| {
        server.tell(&["BGSAVE"]);
        until("the server has tried to save", || {
            let done = server.info("rdb_bgsave_in_progress")? == "0";
            (done && server.info("rdb_last_bgsave_status")? == status).then_some(())
        });
    };
    let outage = Outage::begin(running);
    server.tell(&["CONFIG", "SET", "save", "3600 1"]);
    let _ = std::fs::remove_file(server.path("dump.rdb"));
    std::fs::create_dir(server.path("dump.rdb")).unwrap();
    save("err");
    rest(SPELL);
    let refused = server.errors("MISCONF");
    std::fs::remove_dir(server.path("dump.rdb")).unwrap();
    save("ok");
    server.tell(&["CONFIG", "SET", "save", ""]);
    outage.over(&[("MISCONF", refused)])
}

/// Runs a script that never ends. Returns once the server is busy.
fn occupy(server: &Server, script: &'static str) {
    server.tell(&["CONFIG", "SET", "busy-reply-threshold", BUSY_AFTER]);
    let url = server.url();
    std::thread::spawn(move || {
        let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
        // It ends with an error when the script or the server is killed.
        let _ = redis::cmd("EVAL").arg(script).arg(0).query::<Value>(&mut connection);
    });
    until("the server is busy", || {
        let answer: RedisResult<Value> = server.ask(&["PING"]);
        answer.err().filter(|error| error.code() == Some("BUSY"))
    });
}

/// A script that only reads can be killed.
fn busy(server: &Server, running: &Running) -> FaultSpans {
    let outage = Outage::begin(running);
    occupy(server, ENDLESS);
    rest(SPELL);
    server.tell(&["SCRIPT", "KILL"]);
    let refused = until("the script is gone", || server.info("redis_version").map(|_| server.errors("BUSY")));
    outage.over(&[("BUSY", refused)])
}

/// A script that has written cannot be killed; only a restart helps.
fn busy_for_ever(server: &mut Server, running: &Running) -> FaultSpans {
    let outage = Outage::begin(running);
    occupy(server, ENDLESS_WRITER);
    rest(SPELL);
    let answer: RedisResult<Value> = server.ask(&["SCRIPT", "KILL"]);
    let unkillable = answer.err().filter(|error| error.code() == Some("UNKILLABLE"));
    server.kill();
    server.restart();
    outage.over_empty(&[("UNKILLABLE", u64::from(unkillable.is_some()))])
}

/// A server dies, and takes a while to load its data.
fn loading(server: &mut Server, running: &Running) -> FaultSpans {
    server.tell(&["DEBUG", "POPULATE", &LOADED.to_string()]);
    server.tell(&["CONFIG", "SET", "key-load-delay", &LOAD_DELAY.to_string()]);
    server.tell(&["CONFIG", "SET", "loading-process-events-interval-bytes", "1024"]);
    server.tell(&["CONFIG", "REWRITE"]);
    server.tell(&["SAVE"]);
    let outage = Outage::begin(running);
    server.kill();
    server.restart();
    let refused =
        until("it has loaded", || (server.info("loading")? == "0").then(|| server.errors("LOADING")));
    outage.over_empty(&[("LOADING", refused)])
}

/// The user loses its permissions, then its password, while connections are open.
fn rights(rig: &mut Rig) {
    let server = Server::redis();
    let allowed = ["ACL", "SETUSER", "toll", "on", ">word", "~tg:*", "+@all"];
    server.tell(&allowed);
    let url = server.url().replace("://", "://toll:word@");
    let fleet = rig.fleet_of([(); 3].map(|()| settings(&url).deadline(DEADLINE).unwrap()));
    let mut lose = |name: &'static str, code: &'static str, words: &[&str], cure: &[&str]| {
        rig.run(name, RIGHTS, &fleet, |running| {
            let outage = Outage::begin(running);
            server.tell(&[&["ACL", "SETUSER", "toll"], words].concat());
            if code == "WRONGPASS" {
                server.tell(&["CLIENT", "KILL", "USER", "toll"]);
            }
            rest(SPELL);
            let refused = server.errors(code);
            let fast = outage.fast_path(500_000);
            server.tell(&[&["ACL", "SETUSER", "toll"], cure].concat());
            FaultSpans { measures: vec![fast], ..outage.over(&[(code, refused)]) }
        });
        rig.found(immortal(&server));
    };
    lose("NOPERM", "NOPERM", &["-eval", "-evalsha"], &["+eval", "+evalsha"]);
    lose("WRONGPASS", "WRONGPASS", &["resetpass", ">other"], &["resetpass", ">word"]);
}
