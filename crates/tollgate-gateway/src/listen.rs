//! Pieces of a connection that every listener needs: its stream, its timeouts, the minimum rate of its client, and the
//! limits on connections of one address and on connections to upstreams. Accepting connections is left to the program.

mod connection_table;
mod keepalive;
mod pace;
mod stream;
mod timed_stream;
mod upstream_budget;

pub use connection_table::{AddressLimit, ConnectionActivity, ConnectionTable, Registration};
pub use keepalive::{ask_when_silent, end_when_deaf, show_pace};
pub use pace::{Allowance, Pace};
pub use stream::Stream;
pub(crate) use stream::UpstreamStream;
pub use timed_stream::{Answering, HEAD_TIMEOUT, IDLE_TIMEOUT, Phase, TimedStream, WRITE_TIMEOUT};
pub use upstream_budget::{Descriptors, UpstreamBudget};
