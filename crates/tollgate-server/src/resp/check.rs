//! `TG.CHECK`, a decision by the policy, and `TG.RELEASE`, which releases a permit.

use smallvec::SmallVec;
use tollgate::store::Store;
use tollgate::{
    CheckRequest, Decision, Enforcement, LimitStatus, RequestError, Ticks, Timestamp, Value, Verdict,
};
use tollgate_compat::ActiveConfig;

use super::Resp;
use super::frame::Arguments;
use super::reply::{Reply, RespVersion, quoted};
use crate::decision_json::{Hold, RefusalText, verdict_name};
use crate::identity::{AttributeOrigin, Identified};
use crate::protocol::Protocol;
use crate::service::holds::Id;

/// If it is the last but one argument, the last one is the cost.
const COST: &[u8] = b"COST";

/// Why a request cannot be parsed.
#[derive(Debug, thiserror::Error)]
enum Unclear {
    #[error("an attribute without a value; accepted: TG.CHECK attribute value ... [COST n]")]
    Odd,
    #[error("{0:?} is not UTF-8; accepted: names and values in UTF-8")]
    NotText(String),
    #[error("COST {0:?} is not a whole number; accepted: 0 (only look) to {max}", max = tollgate::request::COST_MAX)]
    Cost(String),
}

/// `TG.CHECK attribute value … [COST n]`.
pub(super) async fn answer<S: Store>(
    resp: &Resp<S>,
    arguments: Arguments<'_>,
    reply: &mut Reply<'_>,
    now: Timestamp,
) {
    let command = match CheckCommand::of(arguments) {
        Ok(command) => command,
        Err(unclear) => return reply.error(&format!("ERR TG.CHECK: {unclear}")),
    };
    let known = resp.service.identity.identify(command.pairs(), AttributeOrigin::Trusted);
    let request = match command.request(&known) {
        Ok(request) => request,
        Err(error) => return reply.error(&format!("ERR TG.CHECK: {error}")),
    };
    if let Some(compat) = resp.service.compat() {
        return elsewhere(&compat, reply);
    }
    if let Some(problem) = resp.service.engine.policy().address_problem(&request) {
        return reply.error(&format!("ERR TG.CHECK: {problem}"));
    }
    let watch = resp.service.meter.sampled_watch();
    // A decision is large, and each future that it passes through would copy it.
    let mut decision = match resp.service.try_check(&request, now, Protocol::Resp) {
        Ok(decision) => decision,
        Err(prepared) => resp.service.check_prepared(prepared, &request, now, Protocol::Resp).await,
    };
    if let Some(compat) = resp.service.overtaken(&decision) {
        return elsewhere(&compat, reply);
    }
    let hold = resp.service.holds.keep_permit(&mut decision, now);
    let permit = match &hold {
        Hold::Permit { id } => Some(id.as_str()),
        Hold::None | Hold::Reservation { .. } => None,
    };
    write_answer(&decision, permit, reply);
    if let Some(watch) = watch {
        resp.service.meter.took(Protocol::Resp, watch.elapsed());
    }
}

/// Writes the error that points to the protocol of the active compat rules.
#[cold]
fn elsewhere(compat: &ActiveConfig, reply: &mut Reply<'_>) {
    let format = compat.rules.format().name();
    reply.error(&format!(
        "ERR TG.CHECK: the active policy is {format}: ask by RLS, POST /json or POST /v1/check"
    ));
}

/// The request as it was written.
struct CheckCommand<'a> {
    pairs: SmallVec<[(&'a str, &'a str); 8]>,
    cost: Option<u64>,
}

impl<'a> CheckCommand<'a> {
    /// Parses the request.
    #[inline]
    fn of(arguments: Arguments<'a>) -> Result<Self, Unclear> {
        let given = arguments.len();
        if given.is_multiple_of(2) {
            return Err(Unclear::Odd);
        }
        let mut command = Self { pairs: SmallVec::new(), cost: None };
        for at in (1..given).step_by(2) {
            let (name, value) =
                (arguments.get(at).unwrap_or_default(), arguments.get(at + 1).unwrap_or_default());
            if at + 2 == given && name.eq_ignore_ascii_case(COST) {
                let cost = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                command.cost = Some(cost.ok_or_else(|| Unclear::Cost(quoted(value)))?);
            } else {
                command.pairs.push((text(name)?, text(value)?));
            }
        }
        Ok(command)
    }

    #[inline]
    fn pairs(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        self.pairs.iter().map(|(name, value)| (*name, Value::Text(value)))
    }

    #[inline]
    fn request<'r>(&'r self, known: &'r Identified) -> Result<CheckRequest<'r>, RequestError> {
        let request = known.request(self.pairs())?;
        match self.cost {
            Some(cost) => request.cost(cost),
            None => Ok(request),
        }
    }
}

#[inline]
fn text(bytes: &[u8]) -> Result<&str, Unclear> {
    std::str::from_utf8(bytes).map_err(|_| Unclear::NotText(quoted(bytes)))
}

/// Writes the answer: eight fields, with names in RESP3.
fn write_answer(decision: &Decision, permit: Option<&str>, reply: &mut Reply<'_>) {
    let verdict = decision.verdict();
    let shown = decision.cause().or_else(|| tightest(decision));
    let counted = shown.filter(|status| status.source.is_counted()).map(|status| status.outcome);
    // In RESP2 fields have indexes instead of names, so none may be optional.
    let is_named = reply.protocol() == RespVersion::Resp3;
    let fault = decision.fault().filter(|_| is_named);
    let why = if is_named { RefusalText::of(decision) } else { RefusalText::default() };
    let is_unlimited = is_named && decision.meets_no_limit();
    let more = [fault.is_some(), why.reason.is_some(), is_unlimited];
    let mut field = CheckFields::start(reply, more.into_iter().map(usize::from).sum());
    field.named("allowed").boolean(verdict.is_allowed());
    field.named("verdict").bulk(verdict_name(verdict).as_bytes());
    field.named("remaining").integer(counted.map_or(-1, |outcome| whole(outcome.remaining)));
    field.named("limit").integer(counted.map_or(-1, |outcome| whole(outcome.limit)));
    field.named("retry_after_ms").integer(match verdict {
        Verdict::Allow => 0,
        Verdict::Wait(wait) => milliseconds(wait),
        Verdict::Deny { retry_after } => milliseconds(decision.retry_advice().unwrap_or(retry_after)),
        Verdict::Never | Verdict::Forbidden => -1,
    });
    field.named("reset_after_ms").integer(counted.map_or(-1, |outcome| milliseconds(outcome.reset_after)));
    field.named("name").text(decision.refused_by().or(shown.map(|status| status.limit.name())));
    field.named("permit").text(permit);
    if let Some(reason) = &why.reason {
        field.named("reason").bulk(reason.as_bytes());
    }
    if let Some(fault) = fault {
        field.named("fault").bulk(fault.to_string().as_bytes());
    }
    if is_unlimited {
        field.named("no_limit_applies").boolean(true);
    }
}

/// Writes fields, with names if the client supports them.
struct CheckFields<'r, 'o>(&'r mut Reply<'o>);

/// Fields of an answer.
const FIELDS: usize = 8;

impl<'r, 'o> CheckFields<'r, 'o> {
    #[inline]
    fn start(reply: &'r mut Reply<'o>, more: usize) -> Self {
        match reply.protocol() {
            RespVersion::Resp2 => reply.array(FIELDS),
            RespVersion::Resp3 => reply.map(FIELDS + more),
        }
        Self(reply)
    }

    #[inline]
    fn named(&mut self, name: &'static str) -> &mut Reply<'o> {
        if self.0.protocol() == RespVersion::Resp3 {
            self.0.bulk(name.as_bytes());
        }
        self.0
    }
}

/// Of the limits that admitted the request, the one with the fewest units left.
#[inline]
fn tightest(decision: &Decision) -> Option<LimitStatus<'_>> {
    decision
        .limits()
        .filter(|status| status.enforcement == Enforcement::Enforced)
        .min_by_key(|status| if status.source.is_counted() { status.outcome.remaining } else { u64::MAX })
}

fn whole(units: u64) -> i64 {
    i64::try_from(units).unwrap_or(i64::MAX)
}

fn milliseconds(time: Ticks) -> i64 {
    whole(time.ceil_millis())
}

/// `TG.RELEASE id`: 1 if the permit was held, 0 if it has been released already or is being released.
pub(super) async fn release<S: Store>(
    resp: &Resp<S>,
    arguments: Arguments<'_>,
    reply: &mut Reply<'_>,
    now: Timestamp,
) {
    let text = arguments.get(1).and_then(|id| std::str::from_utf8(id).ok());
    let Some(id) = text.and_then(Id::parse) else {
        return reply
            .error("ERR TG.RELEASE: not a permit; accepted: what TG.CHECK gave, 32 hexadecimal digits");
    };
    let Ok(permit) = resp.service.holds.permits.checkout(id, now) else {
        return reply.integer(0);
    };
    match resp.service.engine.reservations().release(&permit, now).await {
        Ok(()) => {
            permit.done();
            reply.integer(1);
        }
        Err(failure) => {
            reply.error(&format!("ERR TG.RELEASE: {failure}; the permit is still held, try again"))
        }
    }
}
