//! The host of a request. The engine normalises it, so that policies and requests spell hosts in the same way.

pub use tollgate::host::Host;
