//! A connection that makes unary calls, and nothing more: a general client costs more than the server that it measures.
//! [`calls`] tracks the calls in flight, [`permits`] tracks what the server allows, and [`frame`], [`fields`] and
//! [`request`] encode and decode. This module sends and receives.

mod calls;
mod cause;
mod fields;
mod frame;
mod permits;
mod request;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use self::calls::Calls;
use self::request::{Head, put_hello};
use crate::connect::{ANSWER_TIMEOUT, connected};
use crate::details::Details;
use crate::error::LoadError;
use crate::reply::Reply;
use crate::request::LoadRequest;

/// Size of one read.
const READ_BYTES: usize = 16 << 10;

/// A connection, and the next one when its streams are used up or the server closes it.
pub(crate) struct Connection {
    target: SocketAddr,
    head: Head,
    stream: TcpStream,
    input: BytesMut,
    output: BytesMut,
    /// A message that is not sent yet.
    message: BytesMut,
    calls: Calls,
}

impl Connection {
    pub(crate) async fn open(target: SocketAddr, question: &LoadRequest) -> Result<Self, LoadError> {
        let mut connection = Self {
            target,
            head: Head::new(question.grpc_path(), target),
            stream: connected(target).await?,
            input: BytesMut::new(),
            output: BytesMut::new(),
            message: BytesMut::new(),
            calls: Calls::new(question.verdict()),
        };
        connection.greet().await?;
        Ok(connection)
    }

    /// Makes this many calls, whose messages `write` writes, and waits until all have ended.
    pub(crate) async fn exchange(
        &mut self,
        requests: usize,
        question: &LoadRequest,
        mut write: impl FnMut(&mut BytesMut),
    ) -> Result<Vec<Reply>, LoadError> {
        let mut replies = Vec::with_capacity(requests);
        let mut asked = 0;
        while replies.len() < requests {
            if self.calls.is_spent() && self.calls.is_idle() {
                self.stream = connected(self.target).await?;
                self.input.clear();
                self.output.clear();
                let details = self.details();
                self.calls = Calls::new(question.verdict());
                self.calls.details = details;
                self.greet().await?;
            }
            while asked < requests {
                if self.message.is_empty() {
                    write(&mut self.message);
                }
                let Some(stream) = self.calls.begin(self.message.len()).map_err(lost)? else { break };
                self.head.put(&mut self.output, stream, &self.message);
                self.message.clear();
                asked += 1;
            }
            self.send().await?;
            self.receive(&mut replies).await?;
        }
        Ok(replies)
    }

    /// Takes the reasons of refusals since the last call.
    pub(crate) fn details(&mut self) -> Details {
        std::mem::take(&mut self.calls.details)
    }

    /// Answers the server's frames between calls, such as pings, until an instant.
    pub(crate) async fn rest(&mut self, until: Instant) -> Result<(), LoadError> {
        while !self.calls.is_spent() {
            self.send().await?;
            // Receiving waits for bytes first and then takes them at once, so a cancelled receive loses nothing.
            match timeout_at(until, self.receive(&mut Vec::new())).await {
                Err(_) => return Ok(()),
                Ok(received) => received?,
            }
        }
        tokio::time::sleep_until(until).await;
        Ok(())
    }

    /// Sends the preface, and waits for the server's settings.
    async fn greet(&mut self) -> Result<(), LoadError> {
        put_hello(&mut self.output);
        self.send().await?;
        while !self.calls.is_settled() {
            let received = timeout(ANSWER_TIMEOUT, self.receive(&mut Vec::new())).await;
            received.map_err(|_| LoadError::Slow { seconds: ANSWER_TIMEOUT.as_secs() })??;
        }
        self.send().await
    }

    async fn send(&mut self) -> Result<(), LoadError> {
        self.stream.write_all(&self.output).await.map_err(lost)?;
        self.output.clear();
        Ok(())
    }

    async fn receive(&mut self, replies: &mut Vec<Reply>) -> Result<(), LoadError> {
        self.input.reserve(READ_BYTES);
        if self.stream.read_buf(&mut self.input).await.map_err(lost)? == 0 {
            return Err(LoadError::Lost { reason: "the server closed the connection".to_owned() });
        }
        self.calls.take(&mut self.input, &mut self.output, replies).map_err(lost)
    }
}

/// The error of a connection that cannot be used any more.
fn lost(reason: impl std::fmt::Display) -> LoadError {
    LoadError::Lost { reason: reason.to_string() }
}
