//! What fuzz targets may see and programs may not. No part of the crate's promises.

pub use crate::foreign::fuzzing::{envoy_file, limitador_file, rls_json};
pub use crate::gateway::fuzzing::framed;
pub use crate::grpc::fuzzing::rls_message;
pub use crate::http::fuzzing::question;
pub use crate::resp::fuzzing::{Command, commands, replies};
pub use crate::rlqs::fuzzing::rlqs_message;
pub use tollgate_tower::attributes::fuzzing::{held, path};
