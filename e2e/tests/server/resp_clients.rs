//! redis-cli, redis-py and ioredis, as their users have them: each connects in its own way, and asks.

use std::process::{Command, Stdio};

use crate::cached::{cached, succeeds};
use crate::program::Server;

const POLICY: &str = "limits:
  - {name: per-key, by: [api_key], rate: 3/h}
  - {name: in-flight, by: [worker], concurrency: 1, permit_ttl: 30s}
";

const PYTHON: &str = r#"
import sys, redis
host, port = sys.argv[1], int(sys.argv[2])
for protocol in (2, 3):
    client = redis.Redis(host=host, port=port, protocol=protocol, client_name=f"py{protocol}", decode_responses=True)
    assert client.ping() is True
    assert client.echo("x") == "x"
    assert client.client_getname() == f"py{protocol}"
    assert client.info("server")["server_name"] == "tollgate"
    assert client.execute_command("CL.THROTTLE", f"u{protocol}", 15, 30, 60) == [0, 16, 15, -1, 2]
    with client.pipeline(transaction=False) as pipe:
        for _ in range(15):
            pipe.execute_command("CL.THROTTLE", f"p{protocol}", 14, 1, 3600)
        answers = pipe.execute()
    assert [answer[2] for answer in answers] == list(range(14, -1, -1)), answers
    answer = client.execute_command("TG.CHECK", "api_key", f"py{protocol}")
    if protocol == 3:
        assert answer["allowed"] is True and answer["remaining"] == 2 and answer["name"] == "per-key", answer
        assert answer["permit"] is None
    else:
        assert answer[:5] == [1, "allow", 2, 3, 0] and answer[6:] == ["per-key", None], answer
    taken = client.execute_command("TG.CHECK", "worker", "w")
    permit = taken["permit"] if protocol == 3 else taken[7]
    assert client.execute_command("TG.RELEASE", permit) == 1
    try:
        client.execute_command("CL.THROTTLE", "k")
        raise SystemExit("no error")
    except redis.ResponseError as error:
        assert str(error).startswith("Cell error: Usage: "), error
    try:
        client.get("k")
        raise SystemExit("no error")
    except redis.ResponseError as error:
        assert "unknown command 'GET'" in str(error), error
    client.close()
print("fine")
"#;

const NODE: &str = r#"
const assert = require("node:assert");
const Redis = require(process.argv[1]);
async function main() {
  const [host, port] = [process.argv[2], Number(process.argv[3])];
  for (const choice of [{ protocol: 2 }, { protocol: 3, replyMapping: "resp3" }]) {
    const { protocol } = choice;
    const redis = new Redis({ host, port, connectionName: "io", ...choice });
    await new Promise((resolve, reject) => { redis.once("ready", resolve); redis.once("error", reject); });
    assert.equal(await redis.ping(), "PONG");
    assert.equal(await redis.client("GETNAME"), "io");
    assert.deepEqual(await redis.call("CL.THROTTLE", `node${protocol}`, 15, 30, 60), [0, 16, 15, -1, 2]);
    const many = Array.from({ length: 100 }, () => redis.call("CL.THROTTLE", `many${protocol}`, 99, 1, 3600));
    const left = (await Promise.all(many)).map((answer) => answer[2]);
    assert.deepEqual(left, Array.from({ length: 100 }, (_, index) => 99 - index));
    const answer = await redis.call("TG.CHECK", "api_key", `node${protocol}`);
    if (protocol === 2) assert.deepEqual(answer.slice(0, 4), [1, "allow", 2, 3]);
    else assert.deepEqual([answer.verdict, answer.remaining, answer.limit, answer.permit], ["allow", 2, 3, null]);
    await assert.rejects(redis.get("k"), /unknown command 'get'/i);
    assert.equal(await redis.quit(), "OK");
  }
  console.log("fine");
}
main().catch((error) => { console.error(error); process.exit(1); });
"#;

/// redis-cli with these arguments.
pub(crate) fn redis_cli(server: &Server) -> Command {
    let address = server.resp();
    let mut command = Command::new("redis-cli");
    command.args(["-h", &address.ip().to_string(), "-p", &address.port().to_string()]);
    command
}

/// The command line, in both protocols, and as the interactive one is fed by a pipe.
#[test]
fn redis_cli_works() {
    let server = Server::start(POLICY);
    let ask = |arguments: &[&str]| succeeds(redis_cli(&server).args(arguments));
    assert_eq!(ask(&["PING"]), "PONG\n");
    assert_eq!(ask(&["CL.THROTTLE", "u", "15", "30", "60"]), "0\n16\n15\n-1\n2\n");
    assert_eq!(
        ask(&["-3", "--json", "TG.CHECK", "api_key", "k"]).trim(),
        concat!(
            r#"{"allowed":true,"verdict":"allow","remaining":2,"limit":3,"retry_after_ms":0,"reset_after_ms":1200000,"#,
            r#""name":"per-key","permit":null}"#
        )
    );
    assert!(ask(&["GET", "x"]).starts_with("ERR unknown command 'GET', with args beginning with: 'x' "));
    assert!(ask(&["INFO"]).contains("server_name:tollgate"));
    assert_eq!(ask(&["COMMAND", "COUNT"]), "14\n");
    let mut piped = redis_cli(&server);
    let mut child =
        piped.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("run `./test tools` first");
    std::io::Write::write_all(
        &mut child.stdin.take().unwrap(),
        b"ECHO \"a b\"\nCL.THROTTLE p 0 1 60\nCL.THROTTLE p 0 1 60\n",
    )
    .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "a b\n0\n1\n0\n-1\n60\n1\n1\n0\n60\n60\n");
}

/// redis-py, in both protocols, with pipelines and errors.
#[test]
fn redis_py_works() {
    let server = Server::start(POLICY);
    let address = server.resp();
    let mut python = Command::new(cached("python/bin/python"));
    python.args(["-c", PYTHON, &address.ip().to_string(), &address.port().to_string()]);
    assert_eq!(succeeds(&mut python), "fine\n");
}

/// ioredis, in both protocols, whose ready check asks INFO, and which sends whatever is asked at once as one pipeline.
#[test]
fn ioredis_works() {
    let server = Server::start(POLICY);
    let address = server.resp();
    let mut node = Command::new("node");
    node.args(["-e", NODE]).arg(cached("node/node_modules/ioredis"));
    node.args([address.ip().to_string(), address.port().to_string()]);
    assert_eq!(succeeds(&mut node), "fine\n");
}
