//! Tests of what callers are told: golden vectors of the contract, the rule of each number, and properties that hold for
//! every decision there can be.

mod disclosure;
pub(crate) mod fixture;
mod golden;
mod numbers;
mod properties;
mod refusals;
