//! Overload in the request path: the controllers of [`tollgate::overload`] around a service. A request passes, waits in line for a place,
//! or is refused with a 503; how long those that pass take is what the controllers learn from.

mod future;
mod gate;
mod layer;

pub use future::ShedFuture;
pub use gate::Shedder;
pub use layer::{Shed, ShedLayer};
