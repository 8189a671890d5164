//! Functions for fuzz targets. They are not part of the public API.

pub use crate::grpc::fuzzing::rls_message;
pub use crate::http::fuzzing::{check_request, rls_json};
pub use crate::resp::fuzzing::{CommandArguments, commands, replies};
pub use crate::rlqs::fuzzing::rlqs_message;
pub use tollgate_compat::fuzzing::{envoy_file, limitador_file};
pub use tollgate_gateway::fuzzing::framed;
pub use tollgate_tower::attributes::fuzzing::{held, path};
