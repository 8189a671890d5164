//! The attributes of a record. The server reads it as it reads live requests; a log that names the attributes
//! itself needs no more than [`Given`].

use tollgate::CheckRequest;

use crate::log::Record;

/// Why a line of a log is no request: the live system would have refused it before it asked the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undecidable(pub String);

/// Turns a record into the request that the engine decides about.
pub trait Describe {
    /// Passes the request to `decide`.
    ///
    /// # Errors
    /// The record is no request that any policy could decide about.
    fn describe<R>(
        &self,
        record: &Record<'_>,
        decide: impl FnOnce(&CheckRequest<'_>) -> R,
    ) -> Result<R, Undecidable>;
}

/// The attributes that the log names, as they are, and the address of the client as `ip`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Given;

impl Describe for Given {
    fn describe<R>(
        &self,
        record: &Record<'_>,
        decide: impl FnOnce(&CheckRequest<'_>) -> R,
    ) -> Result<R, Undecidable> {
        let wrong = |error: tollgate::RequestError| Undecidable(error.to_string());
        let ip = record.client.map(|client| client.to_string());
        let mut request = CheckRequest::new();
        for (name, value) in &record.attributes {
            request.push(name, &**value).map_err(wrong)?;
        }
        let has_ip = record.attributes.iter().any(|(name, _)| name == "ip");
        if let Some(ip) = ip.as_deref().filter(|_| !has_ip) {
            request.push("ip", ip).map_err(wrong)?;
        }
        request.set_cost(record.cost.unwrap_or(1)).map_err(wrong)?;
        Ok(decide(&request))
    }
}
