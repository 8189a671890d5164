//! The script on a real Redis, compared with its Rust counterparts.

mod batches;
mod bytes;
mod differential;
mod direct;
mod hostile;
mod lives;
mod loans;
mod properties;
mod server;
mod twin;
