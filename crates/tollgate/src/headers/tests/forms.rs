//! What a form writes is what would be written without it.

use proptest::prelude::*;

use super::fixture::{Case, authenticated, decision, speaking};
use super::properties::{cases, instants};
use crate::decision::Decision;
use crate::headers::{Answer, Dialect, Form, HeaderPolicy, Value};
use crate::time::Timestamp;

/// What callers are told by a form: the headers' values with those that it writes among them, and the body.
fn written(
    form: &Form,
    model: &Answer,
    decision: &Decision,
    now: Timestamp,
) -> (Vec<String>, Option<String>) {
    let status = decision.limits().next().unwrap();
    let mut values: Vec<String> = model.headers.iter().map(|(_, value)| value.to_owned()).collect();
    let numbers = form.numbers(&status, now);
    form.values(&numbers, values.iter_mut(), |slot, value| {
        *slot = match value {
            Value::Number(number) => number.to_string(),
            Value::RateLimit => String::from_utf8(form.rate_limit(&numbers).as_bytes().to_vec()).unwrap(),
        };
    });
    (values, form.body(&numbers))
}

/// The same without it.
fn told(answer: &Answer) -> (Vec<String>, Option<String>) {
    let values = answer.headers.iter().map(|(_, value)| value.to_owned()).collect();
    (values, answer.body.as_ref().map(|body| body.text.clone().into_owned()))
}

fn answered(decision: &Decision, policy: &HeaderPolicy, now: Timestamp) -> Answer {
    Answer::of(decision, policy, authenticated(), now)
}

/// One limit that said two things.
fn pairs() -> impl Strategy<Value = [Case; 2]> {
    (cases(), cases()).prop_map(|(first, second)| {
        let remaining = second.outcome.remaining.min(first.quota.capacity());
        let mut next = first.clone();
        next.outcome = second.outcome;
        next.outcome.remaining = remaining;
        next.source = second.source;
        next.key_hash = second.key_hash;
        [first, next]
    })
}

const SPOKEN: [&[Dialect]; 4] = [
    &[Dialect::Ietf11, Dialect::XRateLimit],
    &[Dialect::Ietf11, Dialect::XRateLimitDelta],
    &[Dialect::Ietf11],
    &[Dialect::XRateLimit],
];

proptest! {
    /// Whatever a limit said when the form was made, and whatever it says next.
    #[test]
    fn a_form_writes_what_would_be_written(
        [first, next] in pairs(),
        spoken in prop::sample::select(SPOKEN.to_vec()),
        times in (instants(), instants()),
    ) {
        let policy = speaking(spoken);
        let decisions = [decision(&[first]), decision(&[next])];
        let model = answered(&decisions[0], &policy, times.0);
        if let Some(form) = Form::of(&decisions[0], &model, &policy, times.0) {
            prop_assert_eq!(written(&form, &model, &decisions[0], times.0), told(&model));
            let status = decisions[1].limits().next().unwrap();
            // The policies are two here; a form is asked only about the one that it was made by.
            if form.fits(decisions[0].policy(), &status) {
                let wanted = answered(&decisions[1], &policy, times.1);
                prop_assert_eq!(written(&form, &model, &decisions[1], times.1), told(&wanted));
                let names = |answer: &Answer| answer.headers.iter().map(|(name, _)| name).collect::<Vec<_>>();
                prop_assert_eq!(names(&model), names(&wanted));
                prop_assert_eq!(model.status, wanted.status);
            }
            prop_assert!(!form.fits(decisions[1].policy(), &status));
        }
    }
}

/// Usual answers have a form: it is not that none ever has.
#[test]
fn usual_answers_have_forms() {
    use super::fixture::{NOW, bucket, secs};
    use crate::quota::Rate;
    let policy = speaking(SPOKEN[0]);
    let passes = Case::new("per-key", bucket(Rate::per_second(5))).left(3, secs(1), secs(2));
    for case in [passes.clone(), passes.denied(secs(7))] {
        let decision = decision(std::slice::from_ref(&case));
        let answer = answered(&decision, &policy, NOW);
        assert!(Form::of(&decision, &answer, &policy, NOW).is_some(), "{case:?}");
    }
    for spoken in [&[Dialect::IetfNext][..], &[Dialect::Discord], &[Dialect::OpenAi]] {
        let decision = decision(&[Case::new("per-key", bucket(Rate::per_second(5)))]);
        let policy = speaking(spoken);
        let answer = answered(&decision, &policy, NOW);
        assert!(Form::of(&decision, &answer, &policy, NOW).is_none(), "{spoken:?}");
    }
}
