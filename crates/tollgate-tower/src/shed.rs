//! Overload control in the request path: the controllers of [`tollgate_overload`] around a service. A request passes,
//! waits in a queue for a permit, or is refused with a 503. The controllers learn from the latency of those that pass.

mod future;
mod gate;
mod layer;

pub use future::ShedFuture;
pub use gate::Shedder;
pub use layer::{Shed, ShedLayer};
