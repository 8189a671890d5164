//! The commands of a connecting client, and the smaller commands.

use tokio::io::AsyncReadExt;

use super::{Server, command};

/// Commands and their replies, in one session.
#[tokio::test]
async fn a_session() {
    let mut client = Server::new().connect();
    let exchanges: [(&str, &str); 40] = [
        ("PING", "+PONG\r\n"),
        ("ping hello", "$5\r\nhello\r\n"),
        ("PING a b", "-ERR wrong number of arguments for 'ping' command\r\n"),
        ("ECHO hi", "$2\r\nhi\r\n"),
        ("ECHO", "-ERR wrong number of arguments for 'echo' command\r\n"),
        ("SELECT 0", "+OK\r\n"),
        ("SELECT 1", "-ERR DB index is out of range\r\n"),
        ("SELECT x", "-ERR value is not an integer or out of range\r\n"),
        ("CLIENT ID", ":1\r\n"),
        ("CLIENT GETNAME", "$-1\r\n"),
        ("CLIENT SETNAME worker-7", "+OK\r\n"),
        ("CLIENT GETNAME", "$8\r\nworker-7\r\n"),
        ("CLIENT SETINFO lib-name redis-py", "+OK\r\n"),
        ("CLIENT SETINFO LIB-VER 8.1.0", "+OK\r\n"),
        ("CLIENT SETINFO lib-age 5", "-ERR Unrecognized option 'lib-age'\r\n"),
        ("CLIENT NO-EVICT on", "+OK\r\n"),
        ("CLIENT NO-TOUCH off", "+OK\r\n"),
        ("CLIENT NO-EVICT perhaps", "-ERR syntax error\r\n"),
        ("CLIENT REPLY ON", "+OK\r\n"),
        ("CLIENT LIST", "$31\r\nid=1 name=worker-7 db=0 resp=2\n\r\n"),
        (
            "CLIENT SETNAME \u{e9}",
            "-ERR Client names cannot contain spaces, newlines or special characters.\r\n",
        ),
        ("CLIENT ID x", "-ERR wrong number of arguments for 'client|id' command\r\n"),
        (
            "CLIENT KILL x",
            "-ERR unknown subcommand 'KILL'; accepted: ID, GETNAME, SETNAME, SETINFO, INFO, LIST, NO-EVICT, NO-TOUCH and REPLY ON\r\n",
        ),
        (
            "AUTH secret",
            "-ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?\r\n",
        ),
        ("AUTH default secret", "+OK\r\n"),
        ("AUTH admin secret", "-WRONGPASS invalid username-password pair or user is disabled.\r\n"),
        ("AUTH a b c", "-ERR wrong number of arguments for 'auth' command\r\n"),
        ("HELLO 4", "-NOPROTO unsupported protocol version\r\n"),
        ("HELLO x", "-ERR Protocol version is not an integer or out of range\r\n"),
        ("HELLO 3 AUTH admin x", "-WRONGPASS invalid username-password pair or user is disabled.\r\n"),
        ("HELLO 3 NONSENSE", "-ERR Syntax error in HELLO option 'NONSENSE'\r\n"),
        ("HELLO 3 SETNAME", "-ERR Syntax error in HELLO option 'SETNAME'\r\n"),
        ("COMMAND COUNT", ":14\r\n"),
        ("COMMAND NONSENSE", "-ERR unknown subcommand; accepted: COUNT, LIST, INFO and DOCS\r\n"),
        (
            "COMMAND INFO cl.throttle get",
            "*2\r\n*10\r\n$11\r\ncl.throttle\r\n:-1\r\n*1\r\n+write\r\n:1\r\n:1\r\n:1\r\n*1\r\n+@all\r\n*0\r\n*0\r\n*0\r\n$-1\r\n",
        ),
        (
            "COMMAND DOCS echo",
            "*2\r\n$4\r\necho\r\n*4\r\n$7\r\nsummary\r\n$19\r\nAnswers the message\r\n$5\r\ngroup\r\n$10\r\nconnection\r\n",
        ),
        ("GET a b", "-ERR unknown command 'GET', with args beginning with: 'a' 'b' \r\n"),
        ("INFO persistence", "$26\r\n# Persistence\r\nloading:0\r\n\r\n"),
        ("RESET", "+RESET\r\n"),
        ("CLIENT GETNAME", "$-1\r\n"),
    ];
    for (sent, expected) in exchanges {
        client.expect(command(sent), expected).await;
    }
    client.expect(command("QUIT"), "+OK\r\n").await;
    client.ends().await;
}

/// HELLO describes the server in the chosen protocol and sets a name, and RESET reverts both.
#[tokio::test]
async fn hello() {
    let version = env!("CARGO_PKG_VERSION");
    let length = version.len();
    let hello = |map: &str, protocol: u8| {
        format!(
            "{map}\r\n$6\r\nserver\r\n$8\r\ntollgate\r\n$7\r\nversion\r\n${length}\r\n{version}\r\n$4\r\nmode\r\n$10\r\n\
             standalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$5\r\nproto\r\n:{protocol}\r\n$2\r\nid\r\n:1\r\n$7\r\nmodules\r\n*0\r\n"
        )
    };
    let mut client = Server::new().connect();
    client.expect(command("HELLO"), hello("*14", 2)).await;
    client.expect(command("HELLO 3 AUTH default x SETNAME me"), hello("%7", 3)).await;
    client.expect(command("HELLO"), hello("%7", 3)).await;
    client.expect(command("CLIENT GETNAME"), "$2\r\nme\r\n").await;
    client.expect(command("COMMAND INFO get"), "*1\r\n_\r\n").await;
    client.expect(command("RESET"), "+RESET\r\n").await;
    client.expect(command("HELLO 2"), hello("*14", 2)).await;
}

/// COMMAND lists every command, and INFO has the fields that clients look for.
#[tokio::test]
async fn client_libraries_find_the_expected_fields() {
    let mut client = Server::new().connect();
    client
        .send([command("COMMAND"), command("COMMAND DOCS"), command("INFO"), command("QUIT")].concat())
        .await;
    let mut all = String::new();
    client.stream.read_to_string(&mut all).await.unwrap();
    assert!(all.starts_with("*14\r\n*10\r\n$8\r\ntg.check\r\n"), "{all}");
    for expected in [
        "\r\nredis_version:",
        "\r\nloading:0\r\n",
        "\r\nconnected_clients:1\r\n",
        "\r\nserver_name:tollgate\r\n",
    ] {
        assert!(all.contains(expected), "{expected:?} is not in {all}");
    }
}

/// Commands as a person types them into telnet.
#[tokio::test]
async fn typed_by_hand() {
    let mut client = Server::new().connect();
    client.expect("PING\r\n\r\n  echo \"it's \\x41\"\n", "+PONG\r\n$6\r\nit's A\r\n").await;
    client.expect("CL.THROTTLE u 15 30 60\n", "*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n").await;
}
