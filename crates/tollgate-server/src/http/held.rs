//! Reservations and permits that callers hold: reservations are made, committed and cancelled here, and permits are
//! released.

use tollgate::policy::Ended;
use tollgate::store::Store;

use super::check::has_addresses;
use super::handler::HttpAnswer;
use crate::decision_json::{Decided, Hold};
use crate::problem::{Kind, Problem};
use crate::protocol::Protocol;
use crate::request_json::JsonRequest;
use crate::service::Service;
use crate::service::holds::{Absent, Id};
use crate::telemetry::Stopwatch;

/// Reserves units until their real cost is known.
///
/// # Errors
/// When the request is invalid, no reservation is possible at the moment, or the server cannot remember another
/// one.
pub(super) async fn reserve<S: Store>(
    service: &Service<S>,
    json_request: &JsonRequest<'_>,
) -> Result<HttpAnswer, Problem> {
    let known = json_request.known(&service.identity);
    let request = json_request.request_of(&known)?;
    if let Some(compat) = service.compat() {
        let format = compat.rules.format().name();
        let detail = format!(
            "{format} cannot reserve; ask POST /v1/check or /json, or convert the configuration with `tollgate policy convert`"
        );
        return Err(Problem::new(Kind::WrongFormat, detail));
    }
    has_addresses(service, &request)?;
    let (lifetime, now, watch) = (json_request.lifetime(), service.now(), Stopwatch::start());
    let (decision, reservation) = service.reserve(&request, lifetime, now, Protocol::Http).await;
    let mut hold = Hold::None;
    if let Some(reservation) = reservation {
        // Its lifetime starts when its queue slot comes, so it is remembered while it waits, too.
        let expires_at = reservation.expires_at();
        match service.holds.reservations.put(reservation, expires_at, now) {
            Ok(id) => {
                hold = Hold::Reservation { id: id.to_string(), lifetime: expires_at.since(now) };
            }
            Err(mut reservation) => {
                service.engine.reservations().cancel(&mut reservation, now).await?;
                let detail = "nothing was reserved; settle reservations as soon as the cost is known, or ask for a shorter ttl_ms";
                return Err(Problem::new(Kind::TooManyReservations, detail));
            }
        }
    }
    let decided = Decided::new(&decision, hold, &service.headers, &request, service.on_wall(now));
    service.meter.took(Protocol::Http, watch.elapsed());
    Ok(HttpAnswer::Decision(decided.text()))
}

pub(super) async fn commit<S: Store>(service: &Service<S>, id: Id, cost: u64) -> Result<HttpAnswer, Problem> {
    let now = service.now();
    let mut reservation = service.holds.reservations.checkout(id, now).map_err(unsettleable)?;
    let settled = service.engine.reservations().commit(&mut reservation, cost, now).await?;
    reservation.done();
    Ok(HttpAnswer::Settled(settled))
}

/// Processes the outcome of a request: limits that count only failures refund the charge of a request that did not
/// fail.
pub(super) async fn report<S: Store>(
    service: &Service<S>,
    id: Id,
    ended: Ended,
) -> Result<HttpAnswer, Problem> {
    let now = service.now();
    let mut awaiting = service.holds.reports.checkout(id, now).map_err(unreportable)?;
    let settled = service.engine.reservations().report(&mut awaiting, ended, now).await?;
    awaiting.done();
    Ok(HttpAnswer::Settled(settled))
}

pub(super) async fn cancel<S: Store>(service: &Service<S>, id: Id) -> Result<HttpAnswer, Problem> {
    let now = service.now();
    let mut reservation = service.holds.reservations.checkout(id, now).map_err(unsettleable)?;
    service.engine.reservations().cancel(&mut reservation, now).await?;
    reservation.done();
    Ok(HttpAnswer::Done)
}

/// Releases a permit. If it is no longer held, it has come back already, which is the desired result. If another
/// caller is releasing it at the moment, it is coming back.
pub(super) async fn release<S: Store>(service: &Service<S>, id: Id) -> Result<HttpAnswer, Problem> {
    let now = service.now();
    if let Ok(permit) = service.holds.permits.checkout(id, now) {
        let released = service.engine.reservations().release(&permit, now).await;
        released.map_err(|failure| Problem::new(Kind::StoreUnavailable, failure.to_string()))?;
        permit.done();
    }
    Ok(HttpAnswer::Done)
}

fn unreportable(absent: Absent) -> Problem {
    let (kind, detail) = match absent {
        Absent::Done => (Kind::ReservationSettled, "it was reported before; each request ends once"),
        Absent::InUse => {
            (Kind::ReservationBusy, "another report is under way; if that one fails, send this one again")
        }
        Absent::Expired => {
            (Kind::ReservationExpired, "the request counts as a failure; report within 60 seconds")
        }
        Absent::Unknown => (Kind::UnknownReservation, "no request awaits a report under this id"),
    };
    Problem::new(kind, detail)
}

fn unsettleable(absent: Absent) -> Problem {
    match absent {
        Absent::Done => Problem::new(
            Kind::ReservationSettled,
            "it was committed or cancelled; each reservation is settled once",
        ),
        Absent::InUse => Problem::new(
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
mod tests;
