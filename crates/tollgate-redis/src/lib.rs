//! Tollgate's counters in Redis or Valkey: the same decisions as memory, one round trip each, for a whole fleet.

#[allow(unused, reason = "the link that uses it is being built")]
mod key;
#[allow(unused, reason = "the link that uses it is being built")]
mod registry;
#[allow(unused, reason = "the link that uses it is being built")]
mod script;
