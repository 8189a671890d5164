//! The HTTP wire. The way of a request: `connection` (its patience) → `route` (what is asked) → `access` (by whom) → `body` (bytes, bounded) →
//! `question` (JSON) → `answer` and `held` (the service) → `reply` (the one place where answers and problems become HTTP).

mod connection;
mod distinct;
mod pace;
mod patience;
mod route;
mod access;
mod body;
mod question;
mod answer;
mod held;
mod authz;
mod rls_json;
mod limitador;
mod problem;
mod reply;

pub(crate) use body::{BATCH_BYTES_MAX, BODY_BYTES_MAX, read as read_json, read_any};
pub(crate) use connection::connection;
pub(crate) use pace::{Allowance, Pace};
pub(crate) use patience::{HEAD_TIMEOUT, Patient, Phase, WRITE_TIMEOUT};
pub(crate) use problem::{Kind, Problem};
pub(crate) use question::{Named, Question};
pub(crate) use reply::problem_details;
#[cfg(feature = "fuzzing")]
pub(crate) use rls_json::{document as rls_document, question as rls_question};

/// What the fuzz targets see of this wire.
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing {
    use super::question::Question;
    use tollgate::Value;

    /// The attributes of a question, as text, and its cost; or why it is none.
    ///
    /// # Errors
    /// As the wire would tell it.
    pub fn question(bytes: &[u8]) -> Result<(Vec<(String, String)>, u64), String> {
        let question = Question::check(bytes).map_err(|problem| problem.detail)?;
        let request = question.request().map_err(|error| error.to_string())?;
        let text = |value| match value {
            Value::Text(text) => text.to_owned(),
            Value::Number(number) => number.to_string(),
        };
        let attributes = request.attributes().iter();
        Ok((attributes.map(|given| (given.name.to_owned(), text(given.value))).collect(), request.units()))
    }
}
