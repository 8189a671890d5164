//! Tollgate's counters in Redis or Valkey: the same decisions as memory, one round trip each, for a whole fleet.
