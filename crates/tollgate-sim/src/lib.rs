//! Tollgate's laboratory: one key in virtual time, seeded workloads to charge it with, and two judges of what it admits.
//! The [`oracle`] says what each algorithm's definition demands, to the tick; [`bound`] measures what a caller got in the
//! worst interval. It knows neither sockets nor the real clock, and shares no arithmetic with what it judges.

pub mod random;
pub mod workload;
pub mod limiter;
pub mod oracle;
pub mod bound;
pub mod drift;
pub mod accuracy;
pub mod fleet;
pub mod overload;
