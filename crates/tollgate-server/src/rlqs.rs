//! Envoy's rate-limit quota service.

mod counter;
mod grant;
mod level;
mod shares;
