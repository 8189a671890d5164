//! Checks whether this user may do everything that Tollgate does, by doing it to a test key.

use redis::{Cmd, RedisError, Value};

use super::Deployment;
use super::node::{Entrance, Node, error_text};
use super::report::{CheckFinding, Mark};
use super::slot;

/// The script `return 1`, as EVALSHA names it.
const RETURN_1: &str = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
/// Lifetime of the test keys, in case a check is interrupted before it removes them.
const LIFE_MS: u64 = 10_000;
/// All rights that a Tollgate user needs, for operators who create one. The last line is for this check.
pub(super) const RIGHTS: &str = "~tg:* resetchannels -@all +ping +role +select +time +eval +evalsha +set +getex +mget +del +expire +pexpire \
                                 +hget +hgetall +hset +hsetnx +hdel +hlen +zadd +zcard +zrem +zrangebyscore +zremrangebyscore +cluster|slots +asking \
                                 +info +cluster|info +cluster|nodes";

/// One operation of Tollgate.
struct Trial {
    /// The right it needs, in the syntax of ACL SETUSER.
    right: &'static str,
    command: Cmd,
    /// Whether a script does it, so that it cannot be tried without the right to run scripts.
    is_in_script: bool,
}

/// Tries all operations.
pub(super) async fn lines(
    node: &Node,
    entrance: &Entrance<'_>,
    kind: Deployment,
    slots: &[(u16, u16)],
) -> Vec<CheckFinding> {
    let Some(tag) = slot::tag_within(slots) else { return Vec::new() };
    let key = format!("tg:{{{tag}}}check-{:016x}", crate::random::next());
    let mut missing: Vec<&'static str> = Vec::new();
    let mut other: Vec<CheckFinding> = Vec::new();
    let mut untried: Vec<&'static str> = Vec::new();
    for Trial { right, command, is_in_script } in trials(&key, kind) {
        let Err(error) = node.does(&command).await else { continue };
        match judged(&error) {
            CommandRight::Missing if is_in_script && missing.contains(&"+eval") => untried.push(right),
            CommandRight::Missing if !missing.contains(&right) => missing.push(right),
            CommandRight::NoKey if !missing.contains(&"~tg:*") => missing.push("~tg:*"),
            CommandRight::Missing | CommandRight::NoKey => {}
            CommandRight::Unknown => other.push(
                CheckFinding::new(
                    Mark::Fail,
                    "commands",
                    format!("it knows no {}: {}", right.trim_start_matches('+'), error_text(&error)),
                )
                .cured_by("see whether rename-command in its configuration hides it"),
            ),
            CommandRight::Refused(cure) => {
                let line = CheckFinding::new(Mark::Fail, "writes", error_text(&error)).cured_by(cure);
                if !other.contains(&line) {
                    other.push(line);
                }
            }
        }
    }
    let _ = node.does(&tidy(&[&key, &format!("{key}-hash"), &format!("{key}-nodes")])).await; // They expire by themselves otherwise.
    let user = entrance.user();
    let mut lines = match missing.as_slice() {
        [] => vec![CheckFinding::ok("rights", format!("{user} may do all that is needed"))],
        missing => {
            untried.retain(|right| !missing.contains(right));
            let unknown = if untried.is_empty() {
                ""
            } else {
                "; without +eval, commands inside scripts were not tried"
            };
            // Granting a right that the user already has does no harm.
            let all: Vec<&str> = missing.iter().chain(&untried).copied().collect();
            let cure = format!("ACL SETUSER {user} {}", all.join(" "));
            let found = format!("{user} lacks {}{unknown}", missing.join(" "));
            vec![CheckFinding::new(Mark::Fail, "rights", found).cured_by(cure)]
        }
    };
    if missing.is_empty() && other.is_empty() {
        lines.push(CheckFinding::ok("scripts", "run, and may use every command that Tollgate's use"));
    }
    lines.extend(excess(node, user).await);
    lines.extend(other);
    lines
}

/// Removes test keys. It uses a script, because a Tollgate user may remove keys only there.
pub(super) fn tidy(keys: &[&str]) -> Cmd {
    let mut command = redis::cmd("EVAL");
    command.arg("return redis.call('DEL', unpack(KEYS))").arg(keys.len()).arg(keys);
    command
}

/// Whether the user has many more rights than needed.
async fn excess(node: &Node, user: &str) -> Option<CheckFinding> {
    let mut list = redis::cmd("ACL");
    list.arg("LIST");
    let is_master = node.ask::<Value>(&list).await.is_ok();
    let found = format!("{user} may run every command, also those that Tollgate never uses");
    let cure = format!("make a user of its own: ACL SETUSER tollgate on >PASSWORD {RIGHTS}");
    is_master.then(|| CheckFinding::new(Mark::Note, "rights", found).cured_by(cure))
}

fn trials(key: &str, kind: Deployment) -> Vec<Trial> {
    let one = |right: &'static str, name: &str, arguments: &[&str]| {
        let mut command = redis::cmd(name);
        command.arg(arguments);
        Trial { right, command, is_in_script: false }
    };
    let life = LIFE_MS.to_string();
    let (hash, nodes) = (format!("{key}-hash"), format!("{key}-nodes"));
    let script = |right: &'static str, body: &str, key: &str| Trial {
        is_in_script: true,
        ..one(right, "EVAL", &[body, "1", key])
    };
    let mut all = vec![
        one("+ping", "PING", &[]),
        one("+set", "SET", &[key, "1", "NX", "PX", &life]),
        one("+getex", "GETEX", &[key, "PX", &life]),
        one("+hsetnx", "HSETNX", &[&hash, "a", "1"]),
        one("+expire", "EXPIRE", &[&hash, "10"]),
        one("+hset", "HSET", &[&hash, "a", "2"]),
        one("+hget", "HGET", &[&hash, "a"]),
        one("+hgetall", "HGETALL", &[&hash]),
        one("+hdel", "HDEL", &[&hash, "b"]),
        one("+eval", "EVAL", &["return 1", "1", key]),
        one("+evalsha", "EVALSHA", &[RETURN_1, "1", key]),
        script("+time", "return redis.call('TIME')", key),
        script("+mget", "return redis.call('MGET', KEYS[1])", key),
        script("+set", "return redis.call('SET', KEYS[1], '1', 'PX', '10000')", key),
        script("+zadd", "return redis.call('ZADD', KEYS[1], 1, 'a')", &nodes),
        script("+pexpire", "return redis.call('PEXPIRE', KEYS[1], 10000)", &nodes),
        script("+zcard", "return redis.call('ZCARD', KEYS[1])", &nodes),
        script("+hlen", "return redis.call('HLEN', KEYS[1])", &hash),
        script("+zrangebyscore", "return redis.call('ZRANGEBYSCORE', KEYS[1], 5, 6)", &nodes),
        script("+zremrangebyscore", "return redis.call('ZREMRANGEBYSCORE', KEYS[1], 5, 6)", &nodes),
        one("+zrem", "ZREM", &[&nodes, "a"]),
        script("+del", "return redis.call('DEL', KEYS[1])", key),
    ];
    match kind {
        Deployment::Single => {}
        Deployment::Sentinel => all.push(one("+role", "ROLE", &[])),
        Deployment::Cluster => {
            all.extend([one("+cluster|slots", "CLUSTER", &["SLOTS"]), one("+asking", "ASKING", &[])])
        }
    }
    all
}

/// The meaning of an error in a trial.
enum CommandRight {
    Missing,
    NoKey,
    Unknown,
    Refused(&'static str),
}

/// Whether a right is missing, for a command or for one inside a script.
pub(super) fn is_forbidden(error: &RedisError) -> bool {
    let text = error_text(error);
    ["NOPERM", "ACL failure in script", "can't run this command", "permission"]
        .iter()
        .any(|part| text.contains(part))
}

fn judged(error: &RedisError) -> CommandRight {
    let text = error_text(error);
    let has = |part: &str| text.contains(part);
    if is_forbidden(error) {
        return if has("access") && has("key") { CommandRight::NoKey } else { CommandRight::Missing };
    }
    if has("unknown command") || has("unknown subcommand") || has("Unknown Redis command") {
        return CommandRight::Unknown;
    }
    CommandRight::Refused(if has("OOM") {
        "it is full: CONFIG SET maxmemory to more"
    } else if has("READONLY") {
        "it is a replica: name its primary"
    } else if has("MISCONF") {
        "it cannot write its snapshot, and refuses writes for it: see its log; or CONFIG SET stop-writes-on-bgsave-error no"
    } else if has("NOREPLICAS") {
        "too few replicas are connected: start them, or lower min-replicas-to-write"
    } else if has("CLUSTERDOWN") {
        "see the lines about the cluster"
    } else if has("LOADING") {
        "it still reads its data: wait"
    } else if has("BUSY") {
        "another client's script does not end: find that client; SCRIPT KILL ends a script that wrote nothing"
    } else {
        "its log may say more"
    })
}
