//! The formats that are read, and what is known about the stamps of a log.

use std::fmt;

use super::record::Precision;

/// A format of access logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// The common log format of nginx and Apache, with or without appended fields.
    Common,
    /// The combined log format of nginx and Apache, with or without appended fields.
    Combined,
    /// Envoy's access log in JSON, with the names of Envoy Gateway or Istio.
    Envoy,
    /// The access log of an AWS Application Load Balancer.
    Alb,
    /// Caddy's access log in JSON.
    Caddy,
    /// Traefik's access log in JSON.
    Traefik,
    /// HAProxy's `option httplog`, with or without the prefix of syslog.
    Haproxy,
    /// Separated values whose first line names the columns.
    Csv,
    /// One JSON object a line.
    Ndjson,
    /// An HTTP archive.
    Har,
    /// Tollgate's own decisions, as `tollgate tail --json` writes them.
    Decisions,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 11] = [
        Format::Common,
        Format::Combined,
        Format::Envoy,
        Format::Alb,
        Format::Caddy,
        Format::Traefik,
        Format::Haproxy,
        Format::Csv,
        Format::Ndjson,
        Format::Har,
        Format::Decisions,
    ];

    /// The name for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Common => "nginx/Apache common",
            Self::Combined => "nginx/Apache combined",
            Self::Envoy => "Envoy JSON",
            Self::Alb => "AWS ALB",
            Self::Caddy => "Caddy JSON",
            Self::Traefik => "Traefik JSON",
            Self::Haproxy => "HAProxy httplog",
            Self::Csv => "CSV",
            Self::Ndjson => "NDJSON",
            Self::Har => "HAR",
            Self::Decisions => "Tollgate decisions",
        }
    }

    /// The meaning of the format's stamps.
    #[must_use]
    pub const fn stamp(self) -> Stamp {
        match self {
            Self::Common | Self::Combined | Self::Caddy => Stamp::End,
            Self::Envoy
            | Self::Alb
            | Self::Traefik
            | Self::Haproxy
            | Self::Csv
            | Self::Ndjson
            | Self::Har
            | Self::Decisions => Stamp::Arrival,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// The instant that a log stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamp {
    /// The arrival of the request.
    Arrival,
    /// The end of the answer.
    End,
}

/// The format that the first lines of a log show. Its `Display` is a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detection {
    /// The format.
    pub format: Format,
    /// The meaning of the stamps.
    pub stamp: Stamp,
    /// How fine the stamps are.
    pub precision: Precision,
    /// Whether the lines have durations.
    pub duration: bool,
    /// Whether stamps have no zone, so that they are read as UTC.
    pub has_no_zone: bool,
}

impl fmt::Display for Detection {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: ", self.format)?;
        out.write_str(match self.precision {
            Precision::Second => "stamps in whole seconds, ",
            Precision::Exact => "stamps in milliseconds or finer, ",
        })?;
        out.write_str(match (self.stamp, self.duration) {
            (Stamp::Arrival, true) => "at arrival, with durations",
            (Stamp::Arrival, false) => "at arrival, without durations",
            (Stamp::End, true) => "at the end, with durations, so arrival = end - duration",
            (Stamp::End, false) => "at the end, without durations, so arrivals are taken as the stamps",
        })?;
        if self.has_no_zone {
            out.write_str("; the stamps have no zone and are read as UTC")?;
        }
        Ok(())
    }
}
