//! `CL.THROTTLE` and `THROTTLE` over the protocol.

use tollgate::{CheckRequest, ExpiringOverride, LimitOverride, Scope, Ticks};

use super::{Server, command, integers};

/// redis-cell's example: the first request, the last one that passes, and the first one that is denied; then time
/// passes.
#[tokio::test]
async fn as_redis_cell() {
    let server = Server::new();
    let mut client = server.connect();
    let ask = command("CL.THROTTLE u 15 30 60");
    client.expect(&ask, integers([0, 16, 15, -1, 2])).await;
    let expected: String = (1..=15).map(|used| integers([0, 16, 15 - used, -1, 2 + 2 * used])).collect();
    client.expect(ask.repeat(15), expected).await;
    client.expect(&ask, integers([1, 16, 0, 2, 32])).await;
    server.advance(1_999);
    client.expect(&ask, integers([1, 16, 0, 1, 31])).await;
    server.advance(1);
    client.expect(&ask, integers([0, 16, 0, -1, 32])).await;
    client.expect(command("cl.throttle v 0 1 10 5"), integers([1, 1, 1, -1, 0])).await;
}

/// Reading, giving back, rates above a thousand a second, and numbers at the ends of the range.
#[tokio::test]
async fn corners_of_redis_cell() {
    let server = Server::new();
    let mut client = server.connect();
    client.expect(command("CL.THROTTLE a 4 1 1 0"), integers([0, 5, 5, -1, 0])).await;
    client.expect(command("CL.THROTTLE a 4 1 1 5"), integers([0, 5, 0, -1, 5])).await;
    client.expect(command("CL.THROTTLE a 4 1 1 -2"), integers([0, 5, 2, -1, 3])).await;
    client.expect(command("CL.THROTTLE a 4 1 1 -3"), integers([0, 5, 5, -1, 0])).await;
    client.expect(command("CL.THROTTLE fast 99 5000 1 100"), integers([0, 100, 0, -1, 1])).await;
    client.expect(command("CL.THROTTLE fast 99 5000 1"), integers([1, 100, 0, 0, 1])).await;
    server.advance(1);
    client.expect(command("CL.THROTTLE fast 99 5000 1 5"), integers([0, 100, 0, -1, 1])).await;
    client.expect(command("CL.THROTTLE fast 99 5000 1"), integers([1, 100, 0, 0, 1])).await;
    let (least, most) = (i64::MIN, i64::MAX);
    client.expect(command(&format!("CL.THROTTLE w 0 1 2 {most}")), integers([1, 1, 1, -1, 0])).await;
    for numbers in [[most; 4], [least; 4], [most, least, most, least], [least, 1, most, most]] {
        let [a, b, c, d] = numbers;
        client.send(command(&format!("CL.THROTTLE extreme {a} {b} {c} {d}"))).await;
        client.receive("*5\r\n:").await;
        client.send("PING\r\n").await;
        let mut line = Vec::new();
        while !line.ends_with(b"+PONG\r\n") {
            use tokio::io::AsyncReadExt;
            line.push(client.stream.read_u8().await.unwrap());
        }
        assert_eq!(line.iter().filter(|&&byte| byte == b'\n').count(), 6, "{}", line.escape_ascii());
    }
}

/// redis-cell's errors for invalid calls, word for word.
#[tokio::test]
async fn errors_of_redis_cell() {
    let mut client = Server::new().connect();
    let usage =
        "-Cell error: Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]\r\n";
    for wrong in ["CL.THROTTLE", "CL.THROTTLE k", "CL.THROTTLE k 15 30", "CL.THROTTLE k 15 30 60 1 1"] {
        client.expect(command(wrong), usage).await;
    }
    for (wrong, text) in [
        ("CL.THROTTLE k x 30 60", "x"),
        ("CL.THROTTLE k 15 1.5 60", "1.5"),
        ("CL.THROTTLE k 15 30 ", ""),
        ("CL.THROTTLE k 15 30 60 9223372036854775808", "9223372036854775808"),
    ] {
        client.expect(command(wrong), format!("-Cell error: Couldn't parse as integer: {text}\r\n")).await;
    }
    for zero in ["CL.THROTTLE k 15 0 60", "CL.THROTTLE k 15 30 0", "CL.THROTTLE k 15 0 0 0"] {
        client.expect(command(zero), "-Cell error: Zero rates are not supported\r\n").await;
    }
    // No argument can be mistaken for another reply.
    client
        .expect(
            b"*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$5\r\n\r\n+OK\r\n$1\r\n1\r\n$1\r\n1\r\n",
            "-Cell error: Couldn't parse as integer:   +OK\r\n",
        )
        .await;
}

/// A key is any bytes, and all connections share the counters.
#[tokio::test]
async fn keys_are_shared_by_connections() {
    let server = Server::new();
    let (mut one, mut other) = (server.connect(), server.connect());
    let ask = b"*5\r\n$11\r\nCL.THROTTLE\r\n$2\r\n\xff\x00\r\n$1\r\n0\r\n$1\r\n1\r\n$2\r\n60\r\n";
    one.expect(ask, integers([0, 1, 0, -1, 60])).await;
    other.expect(ask, integers([1, 1, 0, 60, 60])).await;
}

/// throttlecrab's order of fields, its limit and its rounding.
#[tokio::test]
async fn as_throttlecrab() {
    let server = Server::new();
    let mut client = server.connect();
    client.expect(command("THROTTLE k 2 10 6"), integers([1, 2, 1, 0, 0])).await; // 0.6 s, rounded down.
    client.expect(command("THROTTLE k 2 10 6"), integers([1, 2, 0, 1, 0])).await;
    client.expect(command("THROTTLE k 2 10 6"), integers([0, 2, 0, 1, 0])).await;
    client.expect(command("THROTTLE k 2 10 6 3"), integers([0, 2, 0, 1, -1])).await;
    client.expect(command("THROTTLE slow 1 1 10 0"), integers([1, 1, 1, 0, 0])).await;
    client.expect(command("THROTTLE slow 1 1 10"), integers([1, 1, 0, 10, 0])).await;
    server.advance(100);
    client.expect(command("THROTTLE slow 1 1 10"), integers([0, 1, 0, 9, 9])).await;
    client.expect(command("CL.THROTTLE slow 0 1 10"), integers([0, 1, 0, -1, 10])).await;
    // A key that is idle for long still gets no more than the burst.
    server.advance(3_600_000);
    client.expect(command("THROTTLE k 2 10 6 3"), integers([0, 2, 2, 0, -1])).await;
    for (wrong, reason) in [
        ("THROTTLE k 2 10", "wrong number of arguments for 'throttle' command"),
        ("THROTTLE k 2 10 6 1 1", "wrong number of arguments for 'throttle' command"),
        ("THROTTLE k x 10 6", "invalid max_burst: accepted: whole numbers"),
        ("THROTTLE k 2 10 6 -1", "invalid quantity: accepted: 0 (only look) and more"),
        ("THROTTLE k 0 10 6", "invalid limit: max_burst, count_per_period and period must be 1 or more"),
        ("THROTTLE k 1 9223372036854775807 1", "invalid limit: more than one unit in a nanosecond"),
    ] {
        client.expect(command(wrong), format!("-ERR {reason}\r\n")).await;
    }
}

/// Operator actions override the limit that comes with the call, exact to the millisecond. They change no counter,
/// except in shadow.
#[tokio::test]
async fn operators_are_obeyed() {
    let server = Server::new();
    let mut client = server.connect();
    let (engine, now) = (&server.resp.service.engine, server.time.now());
    let ask = command("CL.THROTTLE k 1 1 60");
    client.expect(&ask, integers([0, 2, 1, -1, 60])).await;

    let key = CheckRequest::new().with("key", "k").unwrap();
    engine.operator().block(&key, now + Ticks::from_micros(9_000_001), now).unwrap();
    client.expect(&ask, integers([1, 2, 0, 10, 10])).await;
    client.expect(command("CL.THROTTLE k 1 1 60 -1"), integers([1, 2, 0, 10, 10])).await;
    client.expect(command("THROTTLE k 2 1 60"), integers([0, 2, 0, 9, 9])).await;
    server.advance(9_000);
    client.expect(&ask, integers([1, 2, 0, 1, 1])).await;
    server.advance(1);
    client.expect(&ask, integers([0, 2, 0, -1, 111])).await;
    // A key that is not UTF-8 cannot be blocked itself, but a block of its command covers it.
    let mut bytes = command("CL.THROTTLE ~ 1 1 60");
    bytes.iter_mut().filter(|byte| **byte == b'~').for_each(|byte| *byte = 0xff);
    client.expect(&bytes, integers([0, 2, 1, -1, 60])).await;
    let command_alone = CheckRequest::new().with("command", "cl.throttle").unwrap();
    let now = server.time.now();
    engine.operator().block(&command_alone, now + Ticks::from_secs(5), now).unwrap();
    client.expect(&bytes, integers([1, 2, 0, 5, 5])).await;
    assert!(engine.operator().unblock(&command_alone, now));

    let rule = |kind| {
        engine.operator().set_override(
            Scope::All,
            ExpiringOverride { kind, until: now + Ticks::from_secs(60) },
            now,
        )
    };
    client.expect(&ask, integers([1, 2, 0, 51, 111])).await;
    rule(LimitOverride::Off).unwrap();
    client.expect(&ask, integers([0, 2, 2, -1, 0])).await;
    rule(LimitOverride::Shadow).unwrap();
    client.expect(&ask, integers([0, 2, 0, -1, 111])).await;
    rule(LimitOverride::Percent(0)).unwrap();
    client.expect(&ask, integers([1, 2, 0, 51, 111])).await;
    assert!(engine.operator().lift_override(Scope::All, now));
}
