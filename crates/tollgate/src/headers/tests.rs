//! Tests of the answers that callers get: golden vectors of the contract, the rule of each number, and properties that
//! hold for every possible decision.

mod disclosure;
pub(crate) mod fixture;
mod golden;
mod numbers;
mod properties;
mod refusals;
