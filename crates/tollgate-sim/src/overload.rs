//! A server in virtual time that can be overloaded: so many workers, a queue inside that nobody sees, service times of several kinds, callers
//! that give up, retry or go away. In front of it stands a limit: Tollgate's, or one of the published ones that it is held against. What
//! they let through, and how long that took, is told for each second.

pub mod contrast;
pub mod table;
pub mod scene;
mod server;
mod play;
mod crowd;

pub use crowd::{Crowd, CrowdOutcome, CrowdSecond, crowd};
pub use play::{Outcome, Second, play, play_with};
