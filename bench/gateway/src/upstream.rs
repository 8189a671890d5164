//! The service behind all gateways: it answers each head that it reads with the same 200.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::Failure;
use crate::poll::Poll;

/// Its answer.
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nserver: upstream\r\ndate: Sun, 15 Nov 2026 12:00:00 GMT\r\n\
content-type: text/plain\r\ncontent-length: 14\r\n\r\nHello, world!\n";
/// The number of the listener in the set; connections have those below.
const LISTENER: usize = usize::MAX;

struct Client {
    stream: TcpStream,
    /// Bytes of the end of a head that were seen.
    seen: usize,
}

/// Serves until it is ended.
pub(crate) fn serve(address: &str) -> Result<(), Failure> {
    let listener = TcpListener::bind(address)?;
    let mut poll = Poll::new()?;
    poll.add(&listener, LISTENER)?;
    let mut clients: Vec<Option<Client>> = Vec::new();
    let mut bytes = vec![0; 16 << 10];
    loop {
        for number in poll.wait(None)? {
            if number == LISTENER {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                poll.add(&stream, clients.len())?;
                clients.push(Some(Client { stream, seen: 0 }));
                continue;
            }
            let Some(slot) = clients.get_mut(number) else { continue };
            if !slot.as_mut().is_some_and(|client| client.answer(&mut bytes)) {
                *slot = None; // Closing it takes it out of the set.
            }
        }
    }
}

impl Client {
    /// Answers what is there, and says whether the connection goes on.
    fn answer(&mut self, bytes: &mut [u8]) -> bool {
        match self.stream.read(bytes) {
            Ok(0) => false,
            Ok(read) => (0..self.heads(&bytes[..read])).all(|_| self.stream.write_all(ANSWER).is_ok()),
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        }
    }

    /// How many heads end in these bytes. Nobody here sends a body.
    fn heads(&mut self, bytes: &[u8]) -> usize {
        const END: &[u8; 4] = b"\r\n\r\n";
        let mut ended = 0;
        for &byte in bytes {
            self.seen = match byte {
                byte if byte == END[self.seen] => self.seen + 1,
                b'\r' => 1,
                _ => 0,
            };
            if self.seen == END.len() {
                (self.seen, ended) = (0, ended + 1);
            }
        }
        ended
    }
}
