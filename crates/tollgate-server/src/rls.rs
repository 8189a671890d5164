//! Envoy's rate-limit request and its answer, independent of a protocol: gRPC and JSON are decoded into them.
//! `service::rls` decides the answer.

use std::borrow::Cow;

use tollgate::Decision;
pub(crate) use tollgate_compat::rls::{
    Answer, Code, CurrentLimit, Descriptor, NO_LIMIT_APPLIES, Override, Refusal, RlsRequest, Status,
    Unanswerable, Unit,
};

use crate::decision_json::RefusalText;

pub(crate) mod json;

/// Why a decision refuses its request, or `None` if it does not.
pub(crate) fn refusal(decision: &Decision) -> Option<Refusal> {
    let RefusalText { reason, detail } = RefusalText::of(decision);
    Some(Refusal {
        cause: decision.refused_by()?.to_owned(),
        reason: reason?.into_owned(),
        detail: detail.map(Cow::into_owned),
    })
}
