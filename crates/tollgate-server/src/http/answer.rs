//! What each route does with the service. Time is read here, once for each request, and passed down.

use std::net::IpAddr;
use std::sync::Arc;

use hyper::Request;
use hyper::body::Incoming;
use tollgate::store::Store;
use tollgate::{CheckRequest, Decision, Settled, Timestamp};

use super::access;
use super::authz::Verified;
use super::body::{self, BATCH_BYTES_MAX, BODY_BYTES_MAX};
use super::problem::{Kind, Problem};
use super::question::{self, Question};
use super::route::Route;
use crate::decision_json::{DECISION_BYTES, Decided, Hold};
use crate::foreign::InForce;
use crate::foreign::plain::Checked;
use crate::readiness::{Audience, Report};
use crate::rls::Unanswerable;
use crate::service::holds::{Absent, Id};
use crate::service::{Service, Wire};
use crate::telemetry::Stopwatch;

/// What a request is answered with.
#[derive(Debug)]
pub(super) enum Answered {
    /// The server lives.
    Healthy,
    /// The description of the interface.
    OpenApi,
    /// Whether requests should come here, and what the operator should know.
    Ready { is_ready: bool, report: Box<Report> },
    /// What was counted, as Prometheus reads it.
    Metrics(String),
    /// One decision or those of a batch, as JSON. They are large, and written where they are made.
    Decision(Vec<u8>),
    /// What a proxy is told.
    Verified(Box<Verified>),
    /// What settling a reservation did.
    Settled(Settled),
    /// Done, and there is nothing to say.
    Done,
    /// What somebody else's interface answers.
    Foreign(Foreign),
}

/// An answer whose status, headers and body another program's interface prescribes.
#[derive(Debug, Default)]
pub(super) struct Foreign {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: ForeignBody,
}

/// The body of such an answer.
#[derive(Debug)]
pub(super) enum ForeignBody {
    Json(serde_json::Value),
    Text(&'static str),
}

impl Default for ForeignBody {
    fn default() -> Self {
        ForeignBody::Json(serde_json::Value::Null)
    }
}

impl<S: Store> Service<S> {
    /// Answers one request of a peer.
    ///
    /// # Errors
    /// When no decision could be made because of the request, or a reservation cannot be settled.
    pub(super) async fn answer(&self, request: Request<Incoming>, peer: IpAddr) -> Result<Answered, Problem> {
        let route = Route::of(request.method(), request.uri().path());
        let is_admitted = access::is_admitted(&self.auth, request.headers());
        // Probes prove nothing. Everything else does first, so that a stranger does not even learn which paths there are.
        if !is_admitted && !matches!(route, Ok(Route::Health | Route::Ready)) {
            return Err(access::refusal());
        }
        match route? {
            Route::Health => Ok(Answered::Healthy),
            Route::Ready => Ok(self.ready(is_admitted)),
            Route::OpenApi => Ok(Answered::OpenApi),
            Route::Metrics => Ok(Answered::Metrics(self.metrics().await)),
            Route::Check => {
                let body = body::read(request, BODY_BYTES_MAX).await?;
                self.answer_check(&Question::check(&body)?).await
            }
            Route::Batch => {
                let body = body::read(request, BATCH_BYTES_MAX).await?;
                self.batch(&Question::batch(&body)?).await
            }
            Route::Authz(asker) => {
                let verified = self.authorize(peer, &request.into_parts().0, asker).await;
                Ok(Answered::Verified(Box::new(verified)))
            }
            Route::Reserve => {
                let body = body::read(request, BODY_BYTES_MAX).await?;
                self.answer_reserve(&Question::reservation(&body)?).await
            }
            Route::Commit(id) => {
                let body = body::read(request, BODY_BYTES_MAX).await?;
                self.commit(id, question::settlement(&body)?).await
            }
            Route::Cancel(id) => self.cancel(id).await,
            Route::Release(id) => self.release(id).await,
            Route::Rls => {
                let body = body::read_any(request, BATCH_BYTES_MAX).await?;
                self.rls_json(&body).await
            }
            Route::Limitador(action) => {
                let body = body::read_any(request, BODY_BYTES_MAX).await?;
                self.limitador(action, &body).await
            }
            Route::LimitadorStatus => self.limitador_status(),
            Route::LimitadorLimits => self.limitador_limits(request.uri().path()),
            Route::LimitadorCounters => self.limitador_counters(request.uri().path()).await,
        }
    }

    /// What was counted. It is read on a thread of its own, since it may take longer than a decision should wait, and once at
    /// a time.
    async fn metrics(&self) -> String {
        let _alone = self.scraping.lock().await;
        let (meter, now) = (Arc::clone(&self.meter), self.now());
        // It fails only when the server is about to end.
        tokio::task::spawn_blocking(move || meter.exposition(now)).await.unwrap_or_default()
    }

    fn ready(&self, is_admitted: bool) -> Answered {
        let audience = if is_admitted { Audience::Admitted } else { Audience::Anybody };
        let report = self.readiness.report(self.reloader.as_ref(), audience);
        Answered::Ready { is_ready: self.readiness.is_ready(), report: Box::new(report) }
    }

    async fn answer_check(&self, question: &Question<'_>) -> Result<Answered, Problem> {
        let request = question.request()?;
        if let Some(foreign) = self.foreign() {
            return self.answer_check_foreign(&foreign, &request).await;
        }
        let mut text = Vec::with_capacity(DECISION_BYTES);
        match self.decide(&request, self.now(), &mut text).await {
            Some(foreign) => self.answer_check_foreign(&foreign, &request).await,
            None => Ok(Answered::Decision(text)),
        }
    }

    async fn answer_check_foreign(
        &self,
        foreign: &InForce,
        request: &CheckRequest<'_>,
    ) -> Result<Answered, Problem> {
        let answers = self.check_foreign(foreign, std::slice::from_ref(request), self.now()).await;
        let mut answers = answers.map_err(|(_, error)| Problem::invalid(error.to_string()))?;
        let body = ForeignBody::Json(answers.pop().unwrap_or_default());
        Ok(Answered::Foreign(Foreign { status: 200, body, ..Foreign::default() }))
    }

    /// Answers all questions, or none if one of them is wrong.
    async fn batch(&self, questions: &[Question<'_>]) -> Result<Answered, Problem> {
        let mut requests = Vec::with_capacity(questions.len());
        for (index, question) in questions.iter().enumerate() {
            let request = question.request();
            requests.push(request.map_err(|error| Problem::invalid(format!("[{index}]: {error}")))?);
        }
        let now = self.now();
        if let Some(foreign) = self.foreign() {
            let answers = self.check_foreign(&foreign, &requests, now).await;
            let told = |(index, error)| Problem::invalid(format!("[{index}]: {error}"));
            let body = ForeignBody::Json(answers.map_err(told)?.into());
            return Ok(Answered::Foreign(Foreign { status: 200, body, ..Foreign::default() }));
        }
        // Written one by one, so that a batch needs the memory of its answer and no more.
        let mut text = Vec::with_capacity(2 + requests.len() * DECISION_BYTES);
        text.push(b'[');
        for (index, request) in requests.iter().enumerate() {
            if index > 0 {
                text.push(b',');
            }
            let start = text.len();
            if let Some(foreign) = self.decide(request, now, &mut text).await {
                text.truncate(start);
                let answers = self.check_foreign(&foreign, std::slice::from_ref(request), now).await;
                let told = |(_, error)| Problem::invalid(format!("[{index}]: {error}"));
                let answer = answers.map_err(told)?.pop().unwrap_or_default();
                text.extend_from_slice(answer.to_string().as_bytes());
            }
        }
        text.push(b']');
        Ok(Answered::Decision(text))
    }

    /// Decides, and writes the answer. A decision is large, and each future that it passes through would copy it.
    /// Where foreign rules came into force meanwhile, they are to be asked instead.
    async fn decide(
        &self,
        request: &CheckRequest<'_>,
        now: Timestamp,
        text: &mut Vec<u8>,
    ) -> Option<Arc<InForce>> {
        let watch = Stopwatch::start();
        let overtaken = match self.check_at_once(request, now, Wire::Http) {
            Some(decision) => self.write(decision, request.units(), now, text),
            None => self.write(self.check(request, now, Wire::Http).await, request.units(), now, text),
        };
        self.meter.took(Wire::Http, watch.elapsed());
        overtaken
    }

    fn write(
        &self,
        mut decision: Decision,
        cost: u64,
        now: Timestamp,
        text: &mut Vec<u8>,
    ) -> Option<Arc<InForce>> {
        let overtaken = self.overtaken(&decision);
        let hold = self.hold(&mut decision, now);
        Decided::new(decision, hold, &self.headers, cost, now).write(text);
        overtaken
    }

    /// Plain questions to a foreign configuration: all of them are answered, or none if one of them is wrong.
    async fn check_foreign(
        &self,
        foreign: &InForce,
        requests: &[CheckRequest<'_>],
        now: Timestamp,
    ) -> Result<Vec<serde_json::Value>, (usize, Unanswerable)> {
        let mut questions = Vec::with_capacity(requests.len());
        for (index, request) in requests.iter().enumerate() {
            let question = foreign.question(request).and_then(|question| question.check().map(|()| question));
            questions.push(question.map_err(|error| (index, error))?);
        }
        let mut answers = Vec::with_capacity(questions.len());
        for question in &questions {
            let answer = self.answer_foreign(foreign, question, Wire::Http, now).await;
            let checked = Checked::new(question, answer);
            // Text and numbers always have a form in JSON.
            answers.push(serde_json::to_value(checked).unwrap_or_default());
        }
        Ok(answers)
    }

    async fn answer_reserve(&self, question: &Question<'_>) -> Result<Answered, Problem> {
        let request = question.request()?;
        if let Some(foreign) = self.foreign() {
            let format = foreign.rules.format().name();
            let detail = format!(
                "{format} cannot reserve; ask POST /v1/check or /json, or convert the configuration with `tollgate policy convert`"
            );
            return Err(Problem::new(Kind::WrongFormat, detail));
        }
        let (lifetime, now, watch) = (question.lifetime(), self.now(), Stopwatch::start());
        let (decision, reservation) = self.reserve(&request, lifetime, now, Wire::Http).await;
        let mut hold = Hold::None;
        if let Some(reservation) = reservation {
            match self.reservations.put(reservation, now + lifetime, now) {
                Ok(id) => hold = Hold::Reservation { id: id.to_string(), lifetime },
                Err(mut reservation) => {
                    self.engine.cancel(&mut reservation, now).await?;
                    let detail = "nothing was reserved; settle reservations as soon as the cost is known, or ask for a shorter ttl_ms";
                    return Err(Problem::new(Kind::TooManyReservations, detail));
                }
            }
        }
        let decided = Decided::new(decision, hold, &self.headers, request.units(), now);
        self.meter.took(Wire::Http, watch.elapsed());
        Ok(Answered::Decision(decided.text()))
    }

    async fn commit(&self, id: Id, cost: u64) -> Result<Answered, Problem> {
        let now = self.now();
        let mut reservation = self.reservations.lend(id, now).map_err(unsettleable)?;
        let settled = self.engine.commit(&mut reservation, cost, now).await?;
        reservation.done();
        Ok(Answered::Settled(settled))
    }

    async fn cancel(&self, id: Id) -> Result<Answered, Problem> {
        let now = self.now();
        let mut reservation = self.reservations.lend(id, now).map_err(unsettleable)?;
        self.engine.cancel(&mut reservation, now).await?;
        reservation.done();
        Ok(Answered::Done)
    }

    /// Gives a permit back. One that is not held any more has come back already, which is what was asked for; one that somebody
    /// else gives back just now is coming back.
    async fn release(&self, id: Id) -> Result<Answered, Problem> {
        let now = self.now();
        if let Ok(permit) = self.permits.lend(id, now) {
            let released = self.engine.release(&permit, now).await;
            released.map_err(|failure| Problem::new(Kind::StoreUnavailable, failure.to_string()))?;
            permit.done();
        }
        Ok(Answered::Done)
    }
}

fn unsettleable(absent: Absent) -> Problem {
    match absent {
        Absent::Done => Problem::new(
            Kind::ReservationSettled,
            "it was committed or cancelled; each reservation is settled once",
        ),
        Absent::Lent => Problem::new(
            Kind::ReservationBusy,
            "another request is about to commit or cancel it; if that one fails, send this one again",
        ),
        Absent::Expired => Problem::new(
            Kind::ReservationExpired,
            "it stays charged at its estimate; reserve with a longer ttl_ms",
        ),
        Absent::Unknown => Problem::new(
            Kind::UnknownReservation,
            "no reservation has this id; it may have expired or been settled long ago",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use std::sync::atomic::{AtomicBool, Ordering};

    use tollgate::charge::{Answers, Charge};
    use tollgate::store::StoreFailure;
    use tollgate::{Engine, ManualClock, MemoryStore, Policy, Secret};

    use crate::service::holds::Holds;

    use super::*;

    const POLICY: &[u8] = b"limits: [{name: in-flight, by: [k], concurrency: 2, permit_ttl: 30s}, {name: units, by: [t], rate: 5/h}]";

    fn service(time: &ManualClock, room: usize) -> Service {
        let (policy, _) = Policy::compile("test", POLICY).unwrap();
        let mut service = Service::new(Engine::new(policy, time.now()), time.clock());
        service.permits = Holds::new(room);
        service.reservations = Holds::new(room);
        service
    }

    /// Memory behind a connection that can be cut.
    struct Flaky {
        memory: MemoryStore,
        down: Arc<AtomicBool>,
    }

    impl Flaky {
        fn reached(&self) -> Result<&MemoryStore, StoreFailure> {
            if self.down.load(Ordering::SeqCst) { Err(StoreFailure::Unreachable) } else { Ok(&self.memory) }
        }
    }

    impl Store for Flaky {
        async fn charge(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<Answers, StoreFailure> {
            self.reached()?.charge(charges, now).await
        }

        async fn refund(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
            self.reached()?.refund(charges, now).await
        }

        async fn reset(&self, charges: &[Charge<'_>], now: Timestamp) -> Result<(), StoreFailure> {
            self.reached()?.reset(charges, now).await
        }

        fn hold(&self, hold: &tollgate::store::Hold) {
            self.memory.hold(hold);
        }
    }

    fn json_of(text: &[u8]) -> serde_json::Value {
        serde_json::from_slice(text).unwrap()
    }

    async fn json<S: Store>(service: &Service<S>, body: &str) -> serde_json::Value {
        let question = Question::check(body.as_bytes()).unwrap();
        let Answered::Decision(decided) = service.answer_check(&question).await.unwrap() else {
            panic!("no decision")
        };
        json_of(&decided)
    }

    /// Without room for another permit the place stays taken until it expires: nothing is admitted too much.
    #[tokio::test]
    async fn a_permit_without_room_returns_by_itself() {
        let time = ManualClock::new();
        let service = service(&time, 0);
        let body = r#"{"attributes":{"k":"x"}}"#;
        for remaining in [1, 0] {
            let answer = json(&service, body).await;
            assert_eq!((&answer["allowed"], answer.get("permit")), (&true.into(), None));
            assert_eq!(answer["limits"][0]["remaining"], remaining);
        }
        let denied = json(&service, body).await;
        assert_eq!((&denied["allowed"], &denied["retry_after_ms"]), (&false.into(), &30_000.into()));
        time.advance(Duration::from_secs(30));
        assert_eq!(json(&service, body).await["allowed"], true);
    }

    /// A permit that has expired frees nobody else's place when it is given back late.
    #[tokio::test]
    async fn a_late_release_changes_nothing() {
        let time = ManualClock::new();
        let service = service(&time, 100);
        let body = r#"{"attributes":{"k":"x"}}"#;
        let late = json(&service, body).await["permit"].as_str().and_then(Id::parse).unwrap();
        time.advance(Duration::from_secs(30));
        for _ in 0..2 {
            json(&service, body).await;
        }
        assert!(matches!(service.release(late).await, Ok(Answered::Done)));
        assert_eq!(json(&service, body).await["allowed"], false);
    }

    /// Without room for another reservation nothing is charged, and the caller is told.
    #[tokio::test]
    async fn a_reservation_without_room_charges_nothing() {
        let time = ManualClock::new();
        let service = service(&time, 0);
        let body = br#"{"attributes":{"t":"x"},"cost":3}"#;
        let problem = service.answer_reserve(&Question::reservation(body).unwrap()).await.unwrap_err();
        assert_eq!(problem.kind, Kind::TooManyReservations);
        let look = json(&service, r#"{"attributes":{"t":"x"},"cost":0}"#).await;
        assert_eq!(look["limits"][0]["remaining"], 5);
    }

    /// One tick before its end a reservation can be settled, at its end it cannot.
    #[tokio::test]
    async fn a_reservation_expires_on_its_tick() {
        let time = ManualClock::new();
        let service = service(&time, 100);
        let question = Question::reservation(br#"{"attributes":{"t":"x"},"ttl_ms":1000}"#).unwrap();
        let mut ids = Vec::new();
        for _ in 0..2 {
            let Answered::Decision(decided) = service.answer_reserve(&question).await.unwrap() else {
                panic!("no decision")
            };
            let answer = json_of(&decided);
            ids.push(answer["reservation"].as_str().and_then(Id::parse).unwrap());
        }
        time.advance(Duration::from_micros(999_999));
        assert!(service.commit(ids[0], 1).await.is_ok());
        time.advance(Duration::from_micros(1));
        assert_eq!(service.commit(ids[1], 1).await.unwrap_err().kind, Kind::ReservationExpired);
        assert_eq!(service.cancel(ids[0]).await.unwrap_err().kind, Kind::ReservationSettled);
    }

    /// The story: a commit, a cancel or a release that met a store that was away lost its id with it. It is there again when
    /// the store is.
    #[tokio::test]
    async fn what_a_failing_store_did_not_take_back_is_still_held() {
        let (time, down) = (ManualClock::new(), Arc::new(AtomicBool::new(false)));
        let store = Flaky { memory: MemoryStore::new(1 << 20, time.now()), down: Arc::clone(&down) };
        let (policy, _) = Policy::compile("test", POLICY).unwrap();
        let service = Service::new(Engine::with_store(policy, store, Secret::random()), time.clock());
        let question = Question::reservation(br#"{"attributes":{"t":"x"},"cost":2}"#).unwrap();
        let mut ids = Vec::new();
        for _ in 0..2 {
            let Answered::Decision(decided) = service.answer_reserve(&question).await.unwrap() else {
                panic!("no decision")
            };
            let answer = json_of(&decided);
            ids.push(answer["reservation"].as_str().and_then(Id::parse).unwrap());
        }
        let taken = json(&service, r#"{"attributes":{"k":"x"}}"#).await;
        let permit = taken["permit"].as_str().and_then(Id::parse).unwrap();
        down.store(true, Ordering::SeqCst);
        let problems = [
            service.commit(ids[0], 1).await.unwrap_err(),
            service.cancel(ids[1]).await.unwrap_err(),
            service.release(permit).await.unwrap_err(),
        ];
        assert!(problems.iter().all(|problem| problem.kind == Kind::StoreUnavailable), "{problems:?}");
        down.store(false, Ordering::SeqCst);
        assert!(service.commit(ids[0], 1).await.is_ok());
        assert!(service.cancel(ids[1]).await.is_ok());
        assert!(service.release(permit).await.is_ok());
        let look = json(&service, r#"{"attributes":{"t":"x","k":"x"},"cost":0}"#).await;
        assert_eq!(
            (&look["limits"][0]["remaining"], &look["limits"][1]["remaining"]),
            (&2.into(), &4.into())
        );
        assert_eq!(service.commit(ids[0], 1).await.unwrap_err().kind, Kind::ReservationSettled);
    }
}
