//! The layer around services: what passes, what is refused and how, and what is given back whichever way a request ends.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that meets the unexpected fails, and says where"
)]

mod ends;
mod examples;
mod graphql;
mod identity;
#[path = "../../../tollgate/tests/it/ideal.rs"]
mod ideal;
mod limited;
mod line;
mod moving;
mod passing;
mod shaping;
mod shed;
mod spellings;
mod unserved;
mod wall;
