//! Calls to other people's APIs within their limits: shape, learn from headers, freeze, retry.

pub mod signal;
pub mod dialect;
mod call;
mod refusal;
mod settings;
mod random;
mod background;
mod learned;
mod pace;
mod bucket;
mod room;
mod shared_freezes;
mod report;
mod state;
mod guard;
mod outbound;
mod preset;
#[cfg(feature = "redis")]
mod fleet;

pub use bucket::{Freeze, FreezeCause};
pub use call::{Call, Priority};
pub use dialect::ResponseView;
pub use guard::{Failure, Guard};
pub use learned::{Replenish, WindowReport};
pub use outbound::Outbound;
pub use preset::Preset;
pub use refusal::{Numbers, Refusal};
pub use report::{Forecast, Report, Totals};
pub use room::BucketReport;
pub use settings::{Learning, Settings};
pub use signal::{Signals, Throttle, ThrottleKind, ThrottleScope, Window, WindowUnit};
