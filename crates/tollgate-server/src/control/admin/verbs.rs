//! Executes each verb on the service. The time is read here, once for each request. Every change is audited, and so is
//! every attempt that the role did not permit.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use hyper::Request;
use hyper::body::Incoming;
use serde::Serialize;
use serde_json::{Value, json};
use tollgate::engine::{BlockError, Forgotten, OverrideError};
use tollgate::policy::{Limit, Policy};
use tollgate::time::WallOffset;
use tollgate::{ExpiringOverride, LimitOverride, Scope, Timestamp};
use tollgate_tower::attributes::Spelled;

use super::Admin;
use super::form::{self, BlockForm, KeyForm, OverrideEffect, OverrideForm, Query, ResetForm};
use super::guard::Sender;
use super::past_hour::LAST_MAX;
use super::policy_change;
use super::reply::AdminClient;
use super::route::Verb;
use super::tail::EventBody;
use super::token::{Role, TokenHolder};
use super::view::{
    self, AsGivenView, BlockView, Depth, ExpiringOverrideView, ExplainedRequest, ExplanationView, Instant,
    LastDeniedView, LimitFooting, LimitsView, OtherView, OverrideView,
};
use super::web_console::FormFields;
use super::wording::{
    joined, not_begun, not_counted, not_with_a_body, own_limits, remarked, texts, unforgotten,
    unknown_credential, unknown_limit,
};
use crate::control::ControlPlane;
use crate::identity::{AttributeOrigin, Identified};
use crate::problem::AdminProblem;
use crate::problem::{Kind, Problem};
use crate::readiness::PolicyReport;
use crate::request_body::{self, BATCH_BYTES_MAX, BODY_BYTES_MAX};
use crate::request_json::JsonRequest;
use crate::service::comparison::ComparisonStatus;
use crate::service::throttle::{ForgottenCalls, ThrottledKey};
use crate::text::counted;

/// The name of the candidate in findings.
pub(super) const CANDIDATE: &str = "candidate";

/// The answer to a request.
pub(super) enum AdminAnswer {
    /// A document.
    Json(Bytes),
    /// Lines, streamed as they come.
    Lines(EventBody),
}

impl AdminAnswer {
    pub(super) fn json(document: &impl Serialize) -> Result<Self, Problem> {
        // Text and numbers always have a form in JSON. If there is a mistake, it costs one answer and not the process.
        serde_json::to_vec(document)
            .map(|text| AdminAnswer::Json(text.into()))
            .map_err(|error| Problem::new(Kind::StoreUnavailable, format!("the answer has no form: {error}")))
    }

    /// Adds a text field to the document.
    pub(super) fn with(self, name: &str, text: &str) -> Result<Self, Problem> {
        let mut answer = self;
        if let AdminAnswer::Json(bytes) = &answer
            && let Ok(Value::Object(mut document)) = serde_json::from_slice(bytes)
        {
            let before = document.get(name).and_then(Value::as_str).map(|before| format!("{before}; "));
            document.insert(name.to_owned(), format!("{}{text}", before.unwrap_or_default()).into());
            answer = Self::json(&document)?;
        }
        Ok(answer)
    }
}

/// An attribute as it was given.
type GivenPair<'a> = (&'a str, tollgate::Value<'a>);

/// One request of an identified sender.
pub(super) struct Act<'a> {
    pub(super) admin: &'a Admin,
    who: &'a TokenHolder,
    pub(super) verb: Verb,
    pub(super) now: Timestamp,
    pub(super) wall: WallOffset,
}

impl Act<'_> {
    /// The operator, as the audit log names them.
    pub(super) fn operator(&self) -> String {
        format!("{} ({})", self.who.name, self.who.role.name())
    }

    pub(super) fn audit(&self, about: &str, outcome: &str) {
        self.admin.audit.write(self.who, self.verb.name(), about, outcome, self.shown(self.now));
    }

    /// An instant of the decision clock, for output.
    pub(super) const fn shown(&self, at: Timestamp) -> Instant {
        Instant::new(at, self.wall)
    }

    /// An override, for output.
    pub(super) const fn expiring(&self, expiring: ExpiringOverride) -> ExpiringOverrideView {
        ExpiringOverrideView::new(expiring, self.wall)
    }

    /// Refuses the request if the sender's role is below `least`.
    pub(super) fn allow(&self, least: Role, about: &str) -> Result<(), Problem> {
        if self.who.role >= least {
            return Ok(());
        }
        self.audit(about, "refused: the role may not do this");
        let (verb, has, needs) = (self.verb.name(), self.who.role.name(), least.name());
        let about = if about.is_empty() { String::new() } else { format!(" about {about}") };
        let detail = format!(
            "{verb}{about} needs the role {needs}, and the token of {} has the role {has}",
            self.who.name
        );
        Err(Problem::of_admin(AdminProblem::NotAllowed, detail))
    }
}

impl ControlPlane {
    /// Executes an operator's request.
    ///
    /// # Errors
    /// When the operator may not do it, or it cannot be done. The message says what would be accepted.
    pub(super) async fn operate(
        &self,
        sender: &Sender<'_>,
        request: Request<Incoming>,
        asker: AdminClient,
    ) -> Result<AdminAnswer, Problem> {
        let verb = Verb::of(request.method(), request.uri().path())?;
        let act = self.begin(sender.who, verb)?;
        if sender.question.is_some() && !verb.is_for_nodes() {
            let detail = format!("nodes ask each other for views, and {} is none", verb.name());
            return Err(Problem::of_admin(AdminProblem::NotAllowed, detail));
        }
        match verb {
            Verb::Limits => self.limits(&act),
            Verb::Get | Verb::Explain | Verb::Top | Verb::Tail | Verb::Audit => {
                self.view(&act, sender, request, asker).await
            }
            Verb::Fleet => AdminAnswer::json(&self.fleet.roster().await),
            Verb::Diff => self.diff(&act, sender, request).await,
            Verb::Numbers => self.own_numbers(),
            Verb::History => {
                let fields = FormFields::read(request.uri().query().unwrap_or_default().as_bytes())?;
                AdminAnswer::json(&self.history(fields.get("limit"))?)
            }
            Verb::Requests => {
                let last = Query::read(request.uri().query(), &["last"])?.last()?;
                self.kept_requests(&act, last.unwrap_or(LAST_MAX)).await
            }
            Verb::Compared(id) => standing(self.service.comparison.standing(id, act.now)),
            Verb::Stop(id) => {
                act.audit(&id.to_string(), "stopped");
                standing(self.service.comparison.stop(id, act.now))
            }
            _ => self.carry_out(&act, &body(request).await?).await,
        }
    }

    /// Executes a verb whose body is a JSON document, for an operator who was admitted.
    ///
    /// # Errors
    /// As [`Self::operate`].
    pub(super) async fn perform(
        &self,
        who: &TokenHolder,
        verb: Verb,
        body: &[u8],
    ) -> Result<AdminAnswer, Problem> {
        let act = self.begin(who, verb)?;
        self.carry_out(&act, body).await
    }

    /// Checks that the operator may do it, and that the active policy knows it.
    pub(super) fn begin<'a>(&'a self, who: &'a TokenHolder, verb: Verb) -> Result<Act<'a>, Problem> {
        let (now, wall) = (self.service.now(), self.service.engine.maintenance().wall());
        let act = Act { admin: &self.admin, who, verb, now, wall };
        act.allow(verb.role(), "")?;
        if !verb.applies_to_compat() {
            self.native(&act)?;
        }
        Ok(act)
    }

    async fn carry_out(&self, act: &Act<'_>, body: &[u8]) -> Result<AdminAnswer, Problem> {
        match act.verb {
            Verb::Get => self.explain(act, body, Depth::State).await,
            Verb::Explain => self.explain(act, body, Depth::Reasons).await,
            Verb::Reset => self.reset(act, form::read(body)?).await,
            Verb::Block | Verb::Unblock | Verb::Kill | Verb::Shadow | Verb::Percent | Verb::Restore => {
                self.changed(|| self.change(act, body)).await
            }
            Verb::Reload => self.reload(act, &form::read(body)?).await,
            Verb::Limits | Verb::Top | Verb::Tail | Verb::Audit | Verb::Fleet => {
                Err(not_with_a_body(act.verb))
            }
            Verb::Diff | Verb::Requests | Verb::Numbers | Verb::History => Err(not_with_a_body(act.verb)),
            Verb::Compared(_) | Verb::Stop(_) => Err(not_with_a_body(act.verb)),
        }
    }

    /// Changes the operator state of this node.
    fn change(&self, act: &Act<'_>, body: &[u8]) -> Result<AdminAnswer, Problem> {
        match act.verb {
            Verb::Block => self.block(act, &form::read(body)?),
            Verb::Unblock => self.unblock(act, &form::read(body)?),
            Verb::Restore => self.restore(act, &form::read(body)?),
            _ => self.rule(act, &form::read(body)?),
        }
    }

    /// Refuses a verb about Tollgate limits while the rules of another program are active.
    fn native(&self, act: &Act<'_>) -> Result<(), Problem> {
        let Some(compat) = self.service.compat() else { return Ok(()) };
        let (verb, format) = (act.verb.name(), compat.rules.format().name());
        let detail = format!(
            "{verb} is about limits of a Tollgate policy, and the active policy is {format}; accepted: block, unblock, \
             kill, shadow and restore of all limits, limits, top, tail and audit"
        );
        Err(Problem::of_admin(AdminProblem::Conflict, detail))
    }

    fn limits(&self, act: &Act<'_>) -> Result<AdminAnswer, Problem> {
        let (policy, operator) = (self.service.engine.policy(), self.service.engine.operator());
        let (overrides, blocks) = (operator.overrides(act.now), operator.blocks(act.now));
        let (all, single) = overrides.list();
        let single: HashMap<String, ExpiringOverride> = single.into_iter().collect();
        let holding = |limit: &Limit| LimitFooting {
            footing: overrides.mode_of(limit),
            own_override: single.get(limit.name()).copied(),
            effective_override: overrides.of(limit),
            applied: self.service.meter.has_applied(limit),
        };
        let mut view = LimitsView::new(
            (&policy, self.known_attributes()),
            self.policy_report(act),
            all,
            holding,
            &blocks,
            act.wall,
        );
        view.overload = self.overload_overrides(act);
        match self.service.compat() {
            // In that case the engine's own policy is only a guard, so it is not shown.
            Some(compat) => AdminAnswer::json(&view.of_compat(&compat.rules)),
            None => AdminAnswer::json(&view),
        }
    }

    /// The active policy, and why the file on disk is another one, while that is so.
    pub(super) fn policy_report(&self, act: &Act<'_>) -> PolicyReport {
        PolicyReport::of(&self.reloader.status(), act.wall)
    }

    pub(super) async fn explain(
        &self,
        act: &Act<'_>,
        body: &[u8],
        depth: Depth,
    ) -> Result<AdminAnswer, Problem> {
        let question = JsonRequest::check(body)?;
        let given = question.given();
        self.spelled_rightly(&given)?;
        let known = question.known(&self.service.identity);
        let request = question.request_of(&known)?;
        self.single(&request)?;
        // Attributes that a gateway derives itself, such as the template of the path.
        let derived = self.service.reader.derived(&given);
        let (complete, complete_known) = self.completed(&given, &derived);
        let complete = question.priced(complete_known.request(complete.iter().copied())?)?;
        let spelled = Spelled::by(&self.service.reader, &complete);
        let read = match spelled.request(&complete)? {
            None if !derived.is_empty() => Some(Spelled::as_given(&complete)?),
            read => read,
        };
        let operator = self.service.engine.operator();
        let as_given = operator.explain(&request, act.now).await;
        let as_read = match &read {
            Some(read) => Some(operator.explain(read, act.now).await),
            None => None,
        };
        let throttled = self.service.throttled(&request, act.now);
        let mut view =
            ExplanationView::new(as_read.as_ref().unwrap_or(&as_given), depth, &throttled, act.wall);
        view.policy = Some(self.policy_report(act)).filter(PolicyReport::has_error);
        view.is_stranger = known.is_stranger();
        view.digests = self.digests(&given, &request);
        view.doubt = self.doubt(&given);
        let given = ExplainedRequest { request: &request, explanation: &as_given };
        match read.as_ref().zip(as_read.as_ref()) {
            Some((read, explanation)) => {
                let read = ExplainedRequest { request: read, explanation };
                self.complete(act, &mut view, &read, &throttled);
                view.as_given = AsGivenView::beside(&read, &given, &self.service.engine.policy());
            }
            None => self.complete(act, &mut view, &given, &throttled),
        }
        AdminAnswer::json(&view)
    }

    /// The attributes with those derived from them, and the caller that they identify.
    fn completed<'a>(
        &self,
        given: &[GivenPair<'a>],
        derived: &'a [(&'a str, String)],
    ) -> (Vec<GivenPair<'a>>, Identified) {
        let derived = derived.iter().map(|(name, value)| (*name, value.into()));
        let complete: Vec<GivenPair<'a>> = given.iter().copied().chain(derived).collect();
        let known = self.service.identity.identify(complete.iter().copied(), AttributeOrigin::Trusted);
        (complete, known)
    }

    /// Adds to an explanation which limits may apply with further attributes, and the latest denials.
    fn complete<'a>(
        &self,
        act: &Act<'_>,
        view: &mut ExplanationView<'a>,
        asked: &ExplainedRequest<'a, '_>,
        throttled: &ThrottledKey,
    ) {
        let (meter, policy) = (&self.service.meter, self.service.engine.policy());
        // No limit of the policy applies to a call that carries its limit.
        if !throttled.is_call {
            view.doubt_missing(asked, &policy);
        }
        let last = |name: &str| {
            let limit = policy.limits().iter().find(|limit| limit.name() == name)?;
            let last = meter.last_denial(limit, asked.request, act.now)?;
            Some(LastDeniedView::new(last, meter.top_since(act.now), act.now, act.wall))
        };
        view.remember(last, meter.denials_forgotten_until().map(|at| act.shown(at)));
    }

    async fn reset(&self, act: &Act<'_>, form: ResetForm<'_>) -> Result<AdminAnswer, Problem> {
        let given = form.attributes.given();
        self.spelled_rightly(&given)?;
        let known = form.attributes.known(&self.service.identity);
        let request = form.attributes.request_of(&known)?;
        self.single(&request)?;
        // Reset both forms: the attributes as a gateway spells and derives them, and as programs send them.
        let derived = self.service.reader.derived(&given);
        let (complete, complete_known) = self.completed(&given, &derived);
        let complete = complete_known.request(complete.iter().copied())?;
        let (spelled, as_given) = (Spelled::by(&self.service.reader, &complete), Spelled::default());
        let mut readings = spelled.readings(&complete)?;
        if !derived.is_empty() {
            readings = readings.and(as_given.readings(&request)?);
        }
        let policy = self.service.engine.policy();
        let is_known = |name: &&String| policy.limits().iter().any(|limit| limit.name() == name.as_str());
        if let Some(unknown) = form.limits.iter().find(|name| !is_known(name)) {
            return Err(unknown_limit(unknown, &policy));
        }
        let named: Vec<&str> = form.limits.iter().map(String::as_str).collect();
        let names = if named.is_empty() { own_limits(&policy, &readings) } else { named.clone() };
        let (mut forgotten, mut keys) = (Forgotten::default(), Vec::new());
        if !names.is_empty() {
            let operator = self.service.engine.operator();
            forgotten = operator.reset(&readings, &names, act.now).await.map_err(|failure| {
                act.audit(&joined(&request), &format!("failed: {failure}"));
                Problem::new(Kind::StoreUnavailable, unforgotten(failure))
            })?;
            keys = operator.reset_keys(&readings, &names, act.now);
        }
        let calls = if named.is_empty() {
            self.service.forget_throttled(&request, act.now)
        } else {
            ForgottenCalls::default()
        };
        if names.is_empty() {
            forgotten.untouched.extend(calls.untouched.iter().map(|command| (*command).to_owned()));
        }
        let counters = forgotten.counters.len() + calls.counters;
        let mut limits = forgotten.counters;
        limits.dedup();
        let mut answer = json!({ "counters": counters, "limits": limits, "untouched": forgotten.untouched });
        if let Some(doubt) = self.doubt(&given) {
            answer["doubt"] = doubt.into();
        }
        if known.is_stranger() {
            answer["unknown_credential"] = true.into();
        }
        if !forgotten.shared.is_empty() {
            answer["shared"] = json!(forgotten.shared);
        }
        let not_counted = not_counted(&policy, &named, &readings);
        if !not_counted.is_empty() {
            answer["not_counted"] = json!(not_counted);
        }
        if counters > 0 || !names.is_empty() {
            let only = if named.is_empty() { String::new() } else { format!(" only {}", named.join(", ")) };
            let outcome = format!("{} reset", counted(counters, "counter"));
            act.audit(&format!("{}{only}", joined(&request)), &outcome);
        }
        self.announce_reset(AdminAnswer::json(&answer)?, keys).await
    }

    fn block(&self, act: &Act<'_>, form: &BlockForm<'_>) -> Result<AdminAnswer, Problem> {
        let given = form.attributes.given();
        self.spelled_rightly(&given)?;
        self.nameable(&given)?;
        let known = form.attributes.known(&self.service.identity).alone().map_err(unknown_credential)?;
        let (request, until, note) =
            (form.attributes.request_of(&known)?, form.until(act.now)?, form.note()?);
        if let Some(doubt) = self.doubt(&given).filter(|_| !form.anyway) {
            return Err(Problem::invalid(format!(
                "{doubt}; nothing was blocked; accepted: a name that requests have, or `--anyway` (\"anyway\": true)"
            )));
        }
        let block = self.service.engine.operator().block(&request, until, act.now);
        let block = block.map_err(|error| match error {
            BlockError::Value { .. } => Problem::invalid(error.to_string()),
            _ => Problem::of_admin(AdminProblem::Conflict, error.to_string()),
        })?;
        act.audit(&joined(&request), &remarked(&format!("until {}", act.shown(until).text()), note));
        AdminAnswer::json(&BlockView::from(&*block))
    }

    fn unblock(&self, act: &Act<'_>, form: &KeyForm<'_>) -> Result<AdminAnswer, Problem> {
        let known = form.attributes.known(&self.service.identity).in_any_case();
        let request = form.attributes.request_of(&known)?;
        let unblocked = self.service.engine.operator().unblock(&request, act.now);
        act.audit(&joined(&request), if unblocked { "unblocked" } else { "there was no such block" });
        // Another block may deny the same request. For instance, an address may be inside a blocked network.
        let pairs = texts(&request);
        let pairs: Vec<(&str, &str)> = pairs.iter().map(|(name, text)| (*name, text.as_str())).collect();
        let held = self.service.engine.operator().blocked(&pairs, act.now);
        let still: Vec<BlockView<'_>> = held.iter().map(|block| BlockView::from(&**block)).collect();
        AdminAnswer::json(&json!({ "unblocked": unblocked, "still_blocked_by": still }))
    }

    /// Kill, shadow and percent.
    fn rule(&self, act: &Act<'_>, form: &OverrideForm) -> Result<AdminAnswer, Problem> {
        if let Some(name) = form.overload()? {
            return self.rule_overload(act, form, name);
        }
        let (kind, effect) = match (act.verb, form.percent) {
            (Verb::Kill, None) => (LimitOverride::Off, OverrideEffect::Open),
            (Verb::Shadow, None) => (LimitOverride::Shadow, OverrideEffect::Open),
            (Verb::Percent, Some(percent)) => (LimitOverride::Percent(percent), OverrideEffect::Share),
            (Verb::Percent, None) => return Err(Problem::invalid("percent: missing; accepted: 0 to 100")),
            _ => return Err(Problem::invalid("percent: only the path percent takes it")),
        };
        let scope = self.scope(act, form)?;
        let (until, note) = (form.until(effect, act.now)?, form.note()?);
        let expiring = ExpiringOverride { kind, until };
        self.service.engine.operator().set_override(scope, expiring, act.now).map_err(
            |error| match error {
                OverrideError::UnknownLimit(name) => unknown_limit(&name, &self.service.engine.policy()),
                OverrideError::Percent(_) => Problem::invalid(format!("percent: {error}")),
                _ => Problem::of_admin(AdminProblem::Conflict, error.to_string()),
            },
        )?;
        let what = match kind {
            LimitOverride::Percent(percent) => format!("{percent} % until {}", act.shown(until).text()),
            LimitOverride::Off | LimitOverride::Shadow => format!("until {}", act.shown(until).text()),
        };
        act.audit(name_of(scope), &remarked(&what, note));
        let milder = self.others(act, scope, |other| *other != expiring);
        AdminAnswer::json(&OverrideView { expiring: act.expiring(expiring), milder })
    }

    /// The limits that an override is about. Overriding all of them needs the role admin.
    fn scope<'f>(&self, act: &Act<'_>, form: &'f OverrideForm) -> Result<Scope<'f>, Problem> {
        match (&form.limit, form.all) {
            (Some(limit), false) => self.native(act).map(|()| Scope::Limit(limit)),
            (None, true) => act.allow(Role::Admin, "all limits").map(|()| Scope::All),
            _ => Err(Problem::invalid("name one limit with \"limit\", or all of them with \"all\": true")),
        }
    }

    /// The other overrides that apply in this scope, beside those of the scope itself.
    fn others(
        &self,
        act: &Act<'_>,
        scope: Scope<'_>,
        is_other: impl Fn(&ExpiringOverride) -> bool,
    ) -> Vec<OtherView> {
        let (policy, overrides) =
            (self.service.engine.policy(), self.service.engine.operator().overrides(act.now));
        let (all, single) = overrides.list();
        let effective = |name: &str| {
            let limit = policy.limits().iter().find(|limit| limit.name() == name)?;
            overrides.of(limit).filter(&is_other)
        };
        match scope {
            Scope::Limit(name) => effective(name)
                .filter(|expiring| all == Some(*expiring))
                .map(|expiring| OtherView::about_all(act.expiring(expiring)))
                .into_iter()
                .collect(),
            Scope::All => single
                .into_iter()
                .filter_map(|(name, own)| {
                    let expiring = effective(&name).filter(|expiring| *expiring == own)?;
                    Some(OtherView::about(name, act.expiring(expiring)))
                })
                .collect(),
        }
    }

    fn restore(&self, act: &Act<'_>, form: &OverrideForm) -> Result<AdminAnswer, Problem> {
        if let Some(name) = form.overload()? {
            return self.restore_overload(act, name);
        }
        let scope = self.scope(act, form)?;
        let restored = self.service.engine.operator().lift_override(scope, act.now);
        act.audit(name_of(scope), if restored { "restored" } else { "there was no override" });
        AdminAnswer::json(
            &json!({ "restored": restored, "still_overridden": self.others(act, scope, |_| true) }),
        )
    }

    /// Shows what a candidate would change. On request it shows how many decisions of the last requests it would have
    /// changed, or starts counting how many it changes from now on.
    async fn diff(
        &self,
        act: &Act<'_>,
        sender: &Sender<'_>,
        request: Request<Incoming>,
    ) -> Result<AdminAnswer, Problem> {
        let query = request.uri().query().map(str::to_owned);
        let query = Query::read(query.as_deref(), &["for", "last", "fleet", "node"])?;
        let (lasting, last, scope) = (query.comparison()?, query.last()?, query.scope()?);
        if lasting.is_some() && last.is_some() {
            return Err(Problem::invalid("for and last: give one of them"));
        }
        let text = request_body::read_any(request, BATCH_BYTES_MAX).await?;
        let candidate = Policy::compile_for(CANDIDATE, &text, self.service.identity.credentials())
            .map_err(|findings| Problem::of_findings(AdminProblem::WrongPolicy, findings.to_string()))?;
        let difference = self.service.engine.policy().difference(&candidate);
        let mut document = json!({
            "policy": policy_change::fields(&difference.fields),
            "changes": policy_change::changes(&difference),
            "unchanged": difference.unchanged,
            "warnings": candidate.warnings().to_string().lines().collect::<Vec<_>>(),
        });
        if let Some(last) = last {
            let policies = [self.service.engine.policy(), Arc::new(candidate)];
            let view = self.past(policies, last, &self.meant(&scope).await?, sender.key).await?;
            let decisions = view.comparison.tallied.decisions;
            act.audit("the last requests", &format!("{decisions} of them compared"));
            document["decisions"] = serde_json::to_value(&view).unwrap_or_default();
        } else if let Some(lasting) = lasting {
            let (until, comparison) = (act.now + lasting, &self.service.comparison);
            let id = comparison.begin(&self.service.engine, candidate, until, act.now).map_err(not_begun)?;
            act.audit(&id.to_string(), &format!("compared until {}", act.shown(until).text()));
            document["comparison"] = json!({ "id": id.to_string(), "for_ms": view::millis(lasting) });
        }
        AdminAnswer::json(&document)
    }
}

pub(super) async fn body(request: Request<Incoming>) -> Result<Bytes, Problem> {
    request_body::read(request, BODY_BYTES_MAX).await
}

const fn name_of<'s>(scope: Scope<'s>) -> &'s str {
    match scope {
        Scope::Limit(name) => name,
        Scope::All => "all limits",
    }
}

fn standing(standing: Option<ComparisonStatus>) -> Result<AdminAnswer, Problem> {
    let standing = standing.ok_or_else(|| {
        Problem::of_admin(AdminProblem::Unknown, "no comparison has this id; only the latest one is kept")
    })?;
    AdminAnswer::json(&standing)
}
