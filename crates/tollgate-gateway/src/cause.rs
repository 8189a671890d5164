//! Why an upstream could not be reached, or did not answer, in the words for clients: one of a fixed set, each with a
//! remedy. The details name addresses and certificates, and go only to the log.

use std::error::Error;
use std::io;
use std::task::Poll;

use bytes::Bytes;
use hyper::body::Frame;
use tokio_rustls::rustls;

/// The error of every body in the gateway.
pub(crate) type BodyError = Box<dyn Error + Send + Sync>;
/// The answer of a body that is asked for its next frame.
pub(crate) type FramePoll = Poll<Option<Result<Frame<Bytes>, BodyError>>>;

/// The cause that clients see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The upstream's port is closed.
    Refused,
    /// There is no route to its network.
    Unreachable,
    /// The connection was not made in time.
    Slow,
    /// Its name has no address.
    NoName,
    /// Its certificate is not accepted, or it does not speak TLS.
    Tls,
    /// It does not speak the protocol that the request or the route needs.
    Protocol,
    /// The connection failed for another reason.
    Failed,
    /// The connection ended before an answer.
    HungUp,
    /// Its answer is not valid HTTP.
    Malformed,
    /// The head of its answer is too large.
    TooLarge,
}

impl Cause {
    /// Why there is no connection.
    pub(crate) fn of_connecting(error: &io::Error) -> Self {
        if error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) {
            return Cause::Tls;
        }
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Cause::Refused,
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => Cause::Unreachable,
            io::ErrorKind::TimedOut => Cause::Slow,
            io::ErrorKind::Unsupported => Cause::Protocol,
            io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => Cause::Tls,
            // The standard library has no error kind for a failed name lookup.
            _ if error.to_string().contains("lookup address") => Cause::NoName,
            _ => Cause::Failed,
        }
    }

    /// Why there is no answer.
    pub(crate) fn of_asking(error: &hyper::Error) -> Self {
        if error.is_parse_too_large() {
            Cause::TooLarge
        } else if error.is_parse() {
            Cause::Malformed
        } else {
            Cause::HungUp
        }
    }

    /// The cause and its remedy, as text for the client.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Cause::Refused => {
                "the connection was refused; the server behind the gateway does not run, or listens elsewhere"
            }
            Cause::Unreachable => {
                "no way leads to the server behind the gateway; look at its network, and at upstreams in the config"
            }
            Cause::Slow => {
                "no connection in time; the server behind the gateway is not there, or has too much to do; timeouts.connect in the config allows more"
            }
            Cause::NoName => {
                "the name of the server behind the gateway has no address; look at upstreams in the config"
            }
            Cause::Tls => {
                "the server behind the gateway does not prove by TLS who it is; look at its certificate, and at ca in the config"
            }
            Cause::Protocol => {
                "the server behind the gateway does not speak the protocol that is needed; set protocol: auto in the config"
            }
            Cause::Failed => "no connection could be made; the log of the gateway says why",
            Cause::HungUp => "the server hung up before an answer; it may have acted on the request or not",
            Cause::Malformed => {
                "the server's answer is not valid HTTP; it may have acted on the request or not; the log of the gateway says more"
            }
            Cause::TooLarge => {
                "the server's answer has too many header fields, or too large ones; it may have acted on the request or not"
            }
        }
    }
}

/// An error with its causes, for the log.
pub(crate) fn details(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
