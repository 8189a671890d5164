//! Calls to other people's APIs within their limits: shape, learn from headers, freeze, retry.

pub mod signal;
pub mod dialect;
mod call;
mod refusal;
mod random;
mod retry;
mod settings;
mod background;
mod learned;
mod pace;
mod bucket;
mod queues;
mod shared_freezes;
mod report;
mod state;
mod guard;
mod waiting;
mod outbound;
#[cfg(feature = "tower")]
mod layer;
#[cfg(feature = "redis")]
mod fleet;

pub use bucket::{Freeze, FreezeCause};
pub use call::{Call, Priority};
pub use dialect::ResponseView;
pub use guard::{Failure, Guard};
#[cfg(feature = "tower")]
pub use layer::{
    BoxError, CallError, CloneBody, CopyBody, OutboundBody, OutboundLayer, OutboundLayerBuilder,
    OutboundService, SendOnce, UsageReader,
};
#[cfg(feature = "reqwest")]
pub use layer::{HttpClient, OutboundMiddleware, copy_reqwest_body};
pub use learned::{Replenish, WindowReport};
pub use outbound::Outbound;
pub use queues::BucketReport;
pub use refusal::{Basis, Refusal};
pub use report::{Forecast, Report, Totals};
pub use retry::RetrySettings;
pub use settings::{Learning, Settings};
pub use signal::{Signals, Throttle, ThrottleKind, ThrottleScope, Window, WindowUnit};
