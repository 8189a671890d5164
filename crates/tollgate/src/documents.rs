//! The pages of the documentation, so that `cargo test` compiles and runs every Rust example in them. The policy's own
//! tests compile the policies in them.

#[doc = include_str!("../../../README.md")]
struct Readme;

#[doc = include_str!("../../../docs/library.md")]
struct Library;

#[doc = include_str!("../../../docs/library-gate.md")]
struct LibraryGate;

#[doc = include_str!("../../../docs/library-engine.md")]
struct LibraryEngine;

#[doc = include_str!("../../../docs/policy.md")]
struct Policy;

#[doc = include_str!("../../../docs/algorithms.md")]
struct Algorithms;

#[doc = include_str!("../../../docs/refunds.md")]
struct Refunds;

#[doc = include_str!("../README.md")]
struct Package;
