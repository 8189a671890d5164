//! Side-by-side benchmarks: Tollgate, its peers, and a lower bound, measured in one run because a machine's mood moves
//! every figure but hardly the ratios. The modules stand in the order of a measurement: what the user typed, the requests,
//! who answers them, how they are timed, and the tables. The programs are in `src/bin`.

pub mod arguments;
pub mod quota;
pub mod workload;
pub mod contender;
pub mod clock;
pub mod lower_bound;
pub mod peers;
pub mod five;
pub mod tollgate_side;
pub mod measure;
pub mod report;
pub mod target;
pub mod machine;

/// The error that ends a program: a message for a person.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
