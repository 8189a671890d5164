//! Slow clients, on tokio's clock, which a test moves by waiting.

use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::time::{Instant, sleep};

use super::{Client, Server, command};

/// The time until the connection ends.
async fn lifetime(client: &mut Client) -> u64 {
    let start = Instant::now();
    let mut rest = Vec::new();
    client.stream.read_to_end(&mut rest).await.unwrap();
    start.elapsed().as_secs()
}

/// A client that sends nothing after connecting is disconnected after ten seconds, and a client that is idle between
/// commands after five minutes.
#[tokio::test(start_paused = true)]
async fn silence() {
    let server = Server::new();
    assert_eq!(lifetime(&mut server.connect()).await, 10);
    let mut client = server.connect();
    for _ in 0..3 {
        client.expect(command("PING"), "+PONG\r\n").await;
        sleep(Duration::from_secs(299)).await;
    }
    client.expect(command("PING"), "+PONG\r\n").await;
    assert_eq!(lifetime(&mut client).await, 300);
}

/// A command that has begun must be complete within ten seconds, however it drips, and whenever it begins.
#[tokio::test(start_paused = true)]
async fn a_dripping_command() {
    let server = Server::new();
    for rest in [0, 3, 8, 12, 200] {
        let mut client = server.connect();
        client.expect(command("PING"), "+PONG\r\n").await;
        sleep(Duration::from_secs(rest)).await;
        for byte in b"*1\r\n$" {
            client.send([*byte]).await;
            sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(lifetime(&mut client).await, 5, "after a rest of {rest} s");
    }
}

/// A client that sends many commands, each in two pieces, is not slow.
#[tokio::test(start_paused = true)]
async fn cut_commands_are_not_slow() {
    let mut client = Server::new().connect();
    client.send("PI").await;
    for _ in 0..10 {
        sleep(Duration::from_secs(9)).await;
        client.expect("NG\r\nPI", "+PONG\r\n").await;
    }
}

/// A client that does not read is disconnected, and the server does not write to it without end.
#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read() {
    let mut client = Server::new().connect_with(1_024);
    let start = Instant::now();
    let asked = command("PING hello").repeat(10_000);
    assert!(tokio::io::AsyncWriteExt::write_all(&mut client.stream, &asked).await.is_err());
    assert_eq!(start.elapsed().as_secs(), 30);
}

/// After the stop signal a client is answered until it is silent for a second, and for at most five seconds. That holds
/// even if it connected after the signal.
#[tokio::test(start_paused = true)]
async fn after_the_stop() {
    let server = Server::new();
    let mut early = server.connect();
    early.expect(command("PING"), "+PONG\r\n").await;
    server.stop.send_replace(true);
    for client in [Some(early), None] {
        let mut client = client.unwrap_or_else(|| server.connect());
        sleep(Duration::from_millis(900)).await;
        client.expect(command("PING"), "+PONG\r\n").await;
        assert_eq!(lifetime(&mut client).await, 1);
    }
    let (mut client, start) = (server.connect(), Instant::now());
    for _ in 0..9 {
        client.expect(command("PING"), "+PONG\r\n").await;
        sleep(Duration::from_millis(500)).await;
    }
    lifetime(&mut client).await;
    assert_eq!(start.elapsed().as_secs(), 5);
}
