//! `TG.CHECK` and `TG.RELEASE` over the protocol.

use tokio::io::AsyncReadExt;

use super::{Client, Server, command};

/// The eight fields in RESP2.
fn reply(allowed: u8, verdict: &str, numbers: [i64; 4], name: &str) -> String {
    let [remaining, limit, retry, reset] = numbers;
    let length = verdict.len();
    let name = if name.is_empty() { "$-1\r\n".to_owned() } else { format!("${}\r\n{name}\r\n", name.len()) };
    format!(
        "*8\r\n:{allowed}\r\n${length}\r\n{verdict}\r\n:{remaining}\r\n:{limit}\r\n:{retry}\r\n:{reset}\r\n{name}$-1\r\n"
    )
}

/// Allow, deny, and allow after the retry time; a read; a cost; and a cost that can never pass.
#[tokio::test]
async fn decisions() {
    let server = Server::new();
    let mut client = server.connect();
    let ask = command("TG.CHECK api_key k1");
    client.expect(&ask, reply(1, "allow", [2, 3, 0, 20_000], "per-key")).await;
    client
        .expect(command("tg.check api_key k1 cost 2"), reply(1, "allow", [0, 3, 0, 60_000], "per-key"))
        .await;
    client.expect(&ask, reply(0, "deny", [0, 3, 20_000, 60_000], "per-key")).await;
    server.advance(19_999);
    client.expect(&ask, reply(0, "deny", [0, 3, 1, 40_001], "per-key")).await;
    server.advance(1);
    client
        .expect(command("TG.CHECK api_key k1 COST 0"), reply(1, "allow", [1, 3, 0, 40_000], "per-key"))
        .await;
    client.expect(command("TG.CHECK api_key k2 COST 4"), reply(0, "never", [3, 3, -1, 0], "per-key")).await;
    client.expect(command("TG.CHECK queue q"), reply(1, "allow", [1, 2, 0, 1_000], "queue")).await;
    client.expect(command("TG.CHECK queue q"), reply(1, "wait", [0, 2, 1_000, 2_000], "queue")).await;
    client.expect(command("TG.CHECK queue q"), reply(0, "deny", [0, 2, 1_000, 2_000], "queue")).await;
}

/// The answer names the limit that denied, or else the limit with the fewest units left. If no limit applies, it names
/// none.
#[tokio::test]
async fn a_denial_names_its_limit() {
    let mut client = Server::new().connect();
    let both = command("TG.CHECK api_key k1 tenant acme tokens 10");
    client.expect(&both, reply(1, "allow", [2, 3, 0, 20_000], "per-key")).await;
    client
        .expect(
            command("TG.CHECK api_key k1 tenant acme tokens 91"),
            reply(0, "deny", [90, 100, 36_000, 360_000], "tokens"),
        )
        .await;
    client.expect(command("TG.CHECK unknown x"), reply(1, "allow", [-1, -1, 0, -1], "")).await;
    client.expect(command("TG.CHECK"), reply(1, "allow", [-1, -1, 0, -1], "")).await;
    // A limit in shadow is counted, and never decides.
    client
        .expect(
            command("TG.CHECK watched w COST 1").repeat(2),
            reply(1, "allow", [-1, -1, 0, -1], "").repeat(2),
        )
        .await;
    // A request with an error is refused, not admitted.
    client
        .expect(command("TG.CHECK tenant acme tokens many"), reply(0, "never", [-1, -1, -1, -1], "tokens"))
        .await;
}

/// Invalid requests, each with an error that says what would be accepted.
#[tokio::test]
async fn unclear_questions() {
    let mut client = Server::new().connect();
    for (question, reason) in [
        ("TG.CHECK api_key", "an attribute without a value; accepted: TG.CHECK attribute value ... [COST n]"),
        (
            "TG.CHECK api_key k1 COST",
            "an attribute without a value; accepted: TG.CHECK attribute value ... [COST n]",
        ),
        (
            "TG.CHECK api_key k1 COST -1",
            "COST \"-1\" is not a whole number; accepted: 0 (only look) to 9007199254740991",
        ),
        (
            "TG.CHECK COST 9007199254740992",
            "cost: 9007199254740992 is out of range; accepted: 0 (only look) to 9007199254740991",
        ),
        ("TG.CHECK a 1 a 2", "attributes.a: given twice; give each attribute once"),
        ("TG.CHECK  1", "attributes: a name of 0 bytes; accepted: 1 to 64"),
    ] {
        client.expect(command(question), format!("-ERR TG.CHECK: {reason}\r\n")).await;
    }
    let not_text = b"*3\r\n$8\r\nTG.CHECK\r\n$1\r\na\r\n$1\r\n\xff\r\n";
    client
        .expect(not_text, "-ERR TG.CHECK: \"\u{fffd}\" is not UTF-8; accepted: names and values in UTF-8\r\n")
        .await;
    // An attribute may be named cost, if it is not the last.
    client
        .expect(command("TG.CHECK cost x api_key k9"), reply(1, "allow", [2, 3, 0, 20_000], "per-key"))
        .await;
}

/// After HELLO 3 the answer is a map with true and null, and with the reason of an error.
#[tokio::test]
async fn resp3_is_a_map() {
    let mut client = Server::new().connect();
    client.send(command("HELLO 3")).await;
    client.receive("%7\r\n$6\r\nserver\r\n$8\r\ntollgate\r\n").await;
    client.send(command("PING end")).await;
    let mut rest = Vec::new();
    while !rest.ends_with(b"$3\r\nend\r\n") {
        rest.push(client.stream.read_u8().await.unwrap());
    }
    client
        .expect(
            command("TG.CHECK api_key k1"),
            "%8\r\n$7\r\nallowed\r\n#t\r\n$7\r\nverdict\r\n$5\r\nallow\r\n$9\r\nremaining\r\n:2\r\n$5\r\nlimit\r\n:3\r\n\
             $14\r\nretry_after_ms\r\n:0\r\n$14\r\nreset_after_ms\r\n:20000\r\n$4\r\nname\r\n$7\r\nper-key\r\n\
             $6\r\npermit\r\n_\r\n",
        )
        .await;
    client.send(command("TG.CHECK tenant acme")).await;
    client.receive("%10\r\n$7\r\nallowed\r\n#f\r\n$7\r\nverdict\r\n$5\r\nnever\r\n").await;
    client.send(command("PING end")).await;
    let mut rest = Vec::new();
    while !rest.ends_with(b"$3\r\nend\r\n") {
        rest.push(client.stream.read_u8().await.unwrap());
    }
    let rest = String::from_utf8(rest).unwrap();
    assert!(
        rest.contains("name\r\n$6\r\ntokens") && rest.contains("reason\r\n") && rest.contains("fault\r\n"),
        "{rest}"
    );
}

/// Takes the only permit of a worker, and returns its id.
async fn permit(client: &mut Client) -> String {
    client.send(command("TG.CHECK worker w")).await;
    client.receive("*8\r\n:1\r\n$5\r\nallow\r\n:0\r\n:1\r\n:0\r\n:30000\r\n$9\r\nin-flight\r\n$32\r\n").await;
    let mut id = [0; 34];
    client.stream.read_exact(&mut id).await.unwrap();
    String::from_utf8(id.to_vec()).unwrap().trim().to_owned()
}

/// A permit is held until it is released, once, or until it expires.
#[tokio::test]
async fn permits() {
    let server = Server::new();
    let mut client = server.connect();
    let id = permit(&mut client).await;
    client.expect(command("TG.CHECK worker w"), reply(0, "deny", [0, 1, 1_000, 30_000], "in-flight")).await;
    let release = command(&format!("TG.RELEASE {id}"));
    client.expect(release.repeat(2), ":1\r\n:0\r\n").await;
    let late = permit(&mut client).await;
    server.advance(30_000);
    client.expect(command(&format!("TG.RELEASE {late}")), ":0\r\n").await;
    let wrong = "-ERR TG.RELEASE: not a permit; accepted: what TG.CHECK gave, 32 hexadecimal digits\r\n";
    client.expect(command("TG.RELEASE 5"), wrong).await;
    client.expect(command("TG.RELEASE"), "-ERR wrong number of arguments for 'tg.release' command\r\n").await;
}
