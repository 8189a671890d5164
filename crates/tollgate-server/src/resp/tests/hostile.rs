//! Split, joined, broken and hostile bytes.

use std::time::Duration;

use tokio::time::timeout;

use super::{Server, command, integers};

/// A pipeline gets the same answers in order, wherever it is split.
#[tokio::test]
async fn every_cut_gives_the_same_answers() {
    let bytes = [
        command("CL.THROTTLE k 1 1 60"),
        command("PING"),
        b"ECHO x\r\n".to_vec(),
        command("CL.THROTTLE k 1 1 60"),
    ]
    .concat();
    let expected =
        format!("{}+PONG\r\n$1\r\nx\r\n{}", integers([0, 2, 1, -1, 60]), integers([0, 2, 0, -1, 120]));
    for cut in 0..=bytes.len() {
        let server = Server::new();
        // The pipe holds few bytes, so that the server really sees the pieces.
        let mut client = server.connect_with(16);
        let (first, second) = bytes.split_at(cut);
        let (mut reader, mut writer) = tokio::io::split(&mut client.stream);
        let write = async {
            use tokio::io::AsyncWriteExt;
            for piece in [first, second] {
                writer.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        let read = async {
            use tokio::io::AsyncReadExt;
            let mut received = vec![0; expected.len()];
            reader.read_exact(&mut received).await.unwrap();
            String::from_utf8(received).unwrap()
        };
        let ((), received) = tokio::join!(write, read);
        assert_eq!(received, expected, "cut at {cut}");
    }
}

/// Ten thousand commands in one piece get ten thousand answers.
#[tokio::test]
async fn a_long_pipeline() {
    let server = Server::new();
    let client = server.connect_with(4096);
    let (mut reader, mut writer) = tokio::io::split(client.stream);
    let asked = command("CL.THROTTLE key 9999 1 1").repeat(10_000);
    let write = tokio::spawn(async move {
        use tokio::io::AsyncWriteExt;
        writer.write_all(&asked).await.unwrap();
        writer.write_all(b"QUIT\r\n").await.unwrap();
    });
    let mut received = String::new();
    use tokio::io::AsyncReadExt;
    reader.read_to_string(&mut received).await.unwrap();
    write.await.unwrap();
    assert_eq!(received.matches("*5\r\n:0\r\n:10000\r\n").count(), 10_000);
    assert!(received.ends_with(":0\r\n:-1\r\n:10000\r\n+OK\r\n"));
}

/// Bytes that can never be a command get an error, after the preceding commands are answered. Then the connection ends.
#[tokio::test]
async fn hostile_frames() {
    let long_line = vec![b'a'; 9_000];
    let cases: [(&[u8], &str); 9] = [
        (b"*100000\r\n", "invalid multibulk length; accepted: at most 132 arguments"),
        (b"*99999999999999999999999\r\n", "too big mbulk count string"),
        (b"*1\r\n$9999999999\r\n", "invalid bulk length; accepted: 0 to 8192 bytes"),
        (b"*1\r\n*1\r\n*1\r\n", "expected '$', got '*'"),
        (b"*1\r\n\x00", "expected '$', got '\\x00'"),
        (b"*1\r\n$4\r\nPING__", "expected CRLF after a bulk string"),
        (b"ECHO \"\r\n", "unbalanced quotes in request"),
        (b"POST / HTTP/1.1\r\nHost: x\r\n\r\n", "this port speaks RESP, and the request is HTTP"),
        (&long_line, "too big inline request; accepted: at most 8192 bytes"),
    ];
    for (bytes, reason) in cases {
        let mut client = Server::new().connect();
        let sent = [b"PING\r\n", bytes, b"\r\nPING\r\n"].concat();
        client.expect(sent, format!("+PONG\r\n-ERR Protocol error: {reason}\r\n")).await;
        client.ends().await;
    }
}

/// Nothing that a web page makes a browser send is executed.
#[tokio::test]
async fn a_browser_is_turned_away() {
    let server = Server::new();
    for start in ["GET /x HTTP/1.1\r\n", "Host: 127.0.0.1:6380\r\n", "OPTIONS * HTTP/1.1\r\n"] {
        let mut client = server.connect();
        let body = [start.as_bytes(), &command("CL.THROTTLE victim 0 1 3600")].concat();
        client.expect(body, "-ERR Protocol error: this port speaks RESP, and the request is HTTP\r\n").await;
        client.ends().await;
    }
    server.connect().expect(command("CL.THROTTLE victim 0 1 3600"), integers([0, 1, 0, -1, 3_600])).await;
}

/// A client that disconnects in the middle of a command leaves nothing behind.
#[tokio::test]
async fn a_client_goes_away() {
    let mut client = Server::new().connect();
    client.send(b"*2\r\n$4\r\nECHO\r\n$5\r\nhel").await;
    drop(client.stream);
    timeout(Duration::from_secs(10), client.server).await.unwrap().unwrap();
}

/// On a stop signal the server answers the commands it has received, and ends the connection, whether it is idle, busy
/// or in the middle of a command.
#[tokio::test]
async fn a_stop_ends_connections() {
    let server = Server::new();
    let (mut resting, mut midway, mut asking) = (server.connect(), server.connect(), server.connect());
    for client in [&mut resting, &mut midway, &mut asking] {
        client.expect("PING\r\n", "+PONG\r\n").await;
    }
    midway.send("PI").await;
    asking.send("ECHO last\r\n").await;
    server.stop.send(true).unwrap();
    asking.receive("$4\r\nlast\r\n").await;
    for client in [resting, midway, asking] {
        client.ends().await;
    }
}
