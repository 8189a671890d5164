//! Why an upstream could not be asked, or did not answer, as clients are told: one of a fixed set, each with a cure. What exactly
//! happened names addresses and certificates, and is for the log.

use std::error::Error;
use std::io;

use tokio_rustls::rustls;

/// What clients are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Nobody listens.
    Refused,
    /// No way leads there.
    Unreachable,
    /// No connection in time.
    Slow,
    /// Its name has no address.
    NoName,
    /// It is not who it should be, or does not speak TLS.
    Tls,
    /// It does not speak what the request or the route needs.
    Protocol,
    /// No connection, for a reason that is none of these.
    Failed,
    /// The connection ended before an answer.
    HungUp,
    /// What it said is no answer.
    Malformed,
    /// The head of its answer is too large.
    TooLarge,
}

impl Cause {
    /// Why there is no connection.
    pub(super) fn of_connecting(error: &io::Error) -> Self {
        if error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) {
            return Cause::Tls;
        }
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Cause::Refused,
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => Cause::Unreachable,
            io::ErrorKind::TimedOut => Cause::Slow,
            io::ErrorKind::Unsupported => Cause::Protocol,
            io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => Cause::Tls,
            // The standard library has no kind for it.
            _ if error.to_string().contains("lookup address") => Cause::NoName,
            _ => Cause::Failed,
        }
    }

    /// Why there is no answer.
    pub(super) fn of_asking(error: &hyper::Error) -> Self {
        if error.is_parse_too_large() {
            Cause::TooLarge
        } else if error.is_parse() {
            Cause::Malformed
        } else {
            Cause::HungUp
        }
    }

    /// The cause and its cure.
    pub(super) const fn told(self) -> &'static str {
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
pub(super) fn details(error: &dyn Error) -> String {
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
