//! Why a request cannot be matched.

use crate::policy::limit::MATCHED_MAX;
use crate::request::DESCRIPTORS_MAX;

/// Why a request was refused without asking any counter: the request itself is at fault, and it will not be admitted later.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A limit's cost could not be computed from the attributes.
    #[error("limit {limit}: its cost cannot be computed: {reason}")]
    Cost {
        /// Which limit.
        limit: String,
        /// The problem, with the accepted values.
        reason: String,
    },
    /// More limits match than one decision may charge.
    #[error("more than {max} limits match this request; a policy may match at most {max} at once", max = MATCHED_MAX)]
    TooManyLimits,
    /// More descriptors than one request may have.
    #[error("the request has more than {max} descriptors; send at most {max}", max = DESCRIPTORS_MAX)]
    TooManyDescriptors,
}
