//! Pieces of a connection that every listener needs: its stream, its timeouts, the minimum rate of its client, and the
//! limits on connections of one address and on connections to upstreams. Accepting connections is left to the program.

mod crowd;
mod keepalive;
mod links;
mod pace;
mod patience;
mod stream;

pub use crowd::{Bound, Crowd, Seat, Seated};
pub use keepalive::{ask_when_silent, end_when_deaf, show_pace};
pub use links::{Descriptors, Links};
pub use pace::{Allowance, Pace};
pub use patience::{Answering, HEAD_TIMEOUT, IDLE_TIMEOUT, Patient, Phase, WRITE_TIMEOUT};
pub use stream::Stream;
