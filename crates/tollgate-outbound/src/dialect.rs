//! stub
use crate::signal::Signals;
use http::{HeaderMap, StatusCode};
use tollgate::Timestamp;
/// x
pub struct ResponseView<'a> {
    /// x
    pub status: StatusCode,
    /// x
    pub headers: &'a HeaderMap,
    /// x
    pub body: Option<&'a [u8]>,
    /// x
    pub received: Timestamp,
}
/// x
pub fn read(response: &ResponseView<'_>) -> Signals {
    let _ = response;
    Signals::default()
}
