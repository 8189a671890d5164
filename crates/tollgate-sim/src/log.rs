//! Access logs: what a line says about one request.
//!
//! [`Reader`] opens logs, finds their [`Format`] in their first lines, and yields one [`Record`] for each request, borrowed
//! from the line. Plain text, gzip and zstd are recognised by their first bytes. [`ArrivalWindow`] says how long
//! records wait until they are in the order of arrival.
//!
//! | format | stamps | resolution | arrival | duration | notes |
//! |---|---|---|---|---|---|
//! | nginx/Apache common, combined | end | 1 s; 1 ms with `$msec` | end − `$request_time` | `$request_time`, if appended | appended fields are recognised by their form |
//! | Envoy JSON | arrival | 1 ms | `start_time` | `duration`, ms | names of Envoy Gateway or Istio; the flag `RL` means refused |
//! | AWS ALB | end | 1 µs | `request_creation_time` | end − arrival | old logs: end − the three processing times |
//! | Caddy JSON | end | finer than 1 ms | `ts` − `duration` | `duration`, s | headers are kept, redacted ones are left out |
//! | Traefik JSON | arrival | 1 ns | `StartUTC` | `Duration`, ns | headers as `request_…`, if kept |
//! | HAProxy httplog | arrival | 1 ms | the date, read as UTC | the last timer, ms | captured headers are `captured_1`, … |
//! | CSV, NDJSON | arrival | as written | mapped, see [`Mapping`] | `duration` (s), `duration_ms`, … | every column is an attribute |
//! | HAR | arrival | 1 ms | `startedDateTime` | `time`, ms | no address of the client |
//! | Tollgate decisions | arrival | 1 ms | `at` | none | as `tollgate tail --json` writes them |
//!
//! Each line is read by what it has; a line that is not a request is counted, and the first of them are kept to show them.
//! A line has at most 1 MiB, an entry of an archive at most 16 MiB; a longer one is a bad line and takes no memory.

mod record;
mod text;
mod stamp;
mod json;
mod clf;
mod proxy;
mod alb;
mod haproxy;
mod mapping;
mod table;
mod har;
mod format;
mod detect;
mod source;
mod pieces;
mod file;
mod reader;
mod window;
#[cfg(test)]
pub(crate) mod write;

pub use detect::DetectError;
pub use file::{FileReport, LogError};
pub use format::{Detection, Format, Stamp};
pub use mapping::{ColumnError, KeyColumn, Mapping};
pub use reader::{BadInput, Entry, Progress, Reader};
pub use record::{Precision, Record};
pub use window::ArrivalWindow;
