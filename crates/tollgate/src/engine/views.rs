//! Requests with several descriptors, as Envoy sends them: still one decision, all or nothing.

use super::Engine;
use crate::decision::Decision;
use crate::request::CheckRequest;
use crate::store::Store;
use crate::time::Timestamp;

impl<S: Store> Engine<S> {
    /// Decides about one request with several descriptors, each with attributes and a cost of its own. A limit applies
    /// at most once, to the first descriptor that matches it, and no limit sees attributes of two descriptors together.
    /// All limits that apply are charged, or none.
    ///
    /// ```
    /// use tollgate::{CheckRequest, Clock, Engine, Policy};
    /// let limits = b"limits: [{name: key, by: [api_key], rate: 9/h}, {name: path, by: [path], rate: 1/h}]";
    /// let (policy, _) = Policy::compile("policy.yaml", limits)?;
    /// let clock = Clock::precise();
    /// let engine = Engine::new(policy, clock.now());
    /// let views = [CheckRequest::new().with("api_key", "k1")?, CheckRequest::new().with("path", "/a")?.cost(2)?];
    /// # pollster::block_on(async {
    /// let decision = engine.check_views(&views, clock.now()).await;
    /// let cause = decision.cause().unwrap();
    /// assert_eq!((cause.limit.name(), cause.view), ("path", 1));
    /// # });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn check_views(&self, views: &[CheckRequest<'_>], now: Timestamp) -> Decision {
        match self.check_at_once(views, now) {
            Some(decision) => decision,
            // Boxed, because the future of a decision that waits is large, and most decisions never wait.
            None => Box::pin(self.decide(views, now)).await.decision,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Fault, Policy};
    use crate::request::DESCRIPTORS_MAX;
    use crate::time::Ticks;
    use pollster::block_on;

    const NOW: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);
    const LIMITS: &str = "
limits:
  - {name: both, by: [a, b], rate: 9/h}
  - {name: only-a, by: [a], rate: 2/h}
  - {name: only-b, by: [b], rate: 9/h}
  - {name: all, rate: 9/h}
  - {name: quiet, by: [b], rate: 1/h, mode: shadow}
";

    fn engine(policy: &str) -> Engine {
        Engine::new(Policy::compile("policy.yaml", policy.as_bytes()).unwrap().0, NOW)
    }

    fn view<'a>(attributes: &[(&'a str, &'a str)], cost: u64) -> CheckRequest<'a> {
        let add = |request: CheckRequest<'a>, &(name, value): &(&'a str, &'a str)| request.with(name, value);
        attributes.iter().try_fold(CheckRequest::new(), add).and_then(|request| request.cost(cost)).unwrap()
    }

    /// Name, descriptor and remaining units of each limit that applied, in the policy's order.
    fn told(decision: &Decision) -> Vec<(&str, usize, u64)> {
        let status = decision.limits();
        status.map(|status| (status.limit.name(), status.view, status.outcome.remaining)).collect()
    }

    /// Each limit applies once, to the first descriptor that has its attributes, at the cost of that descriptor. A
    /// limit that needs attributes of two descriptors does not apply, and a name may have a different value in each
    /// descriptor.
    #[test]
    fn a_limit_applies_to_the_first_view_that_it_matches() {
        let engine = engine(LIMITS);
        let views = [view(&[("b", "1")], 3), view(&[("a", "1")], 1), view(&[("a", "2")], 1)];
        let decision = block_on(engine.check_views(&views, NOW));
        assert_eq!(told(&decision), [("only-a", 1, 1), ("only-b", 0, 6), ("all", 0, 6), ("quiet", 0, 1)]);
        // The second descriptor's key was charged, the third's was not.
        assert_eq!(told(&engine.check_now(&view(&[("a", "1")], 0), NOW))[0], ("only-a", 0, 1));
        assert_eq!(told(&engine.check_now(&view(&[("a", "2")], 0), NOW))[0], ("only-a", 0, 2));
        // With both attributes in one descriptor, the limit `both` applies.
        assert_eq!(told(&engine.check_now(&view(&[("a", "1"), ("b", "1")], 0), NOW))[0], ("both", 0, 9));
    }

    /// If the limit of one descriptor denies, the limits of no descriptor are charged.
    #[test]
    fn views_are_charged_all_or_none() {
        let engine = engine(LIMITS);
        let views = [view(&[("b", "1")], 1), view(&[("a", "1")], 2)];
        assert!(block_on(engine.check_views(&views, NOW)).is_allowed());
        let denied = block_on(engine.check_views(&views, NOW));
        assert!(!denied.is_allowed());
        assert_eq!(denied.cause().map(|cause| (cause.limit.name(), cause.view)), Some(("only-a", 1)));
        let left = engine.check_now(&view(&[("b", "1")], 0), NOW);
        assert_eq!(told(&left)[..2], [("only-b", 0, 8), ("all", 0, 8)]);
    }

    /// A descriptor of cost 0 only looks, beside others that pay.
    #[test]
    fn a_view_may_only_look() {
        let engine = engine(LIMITS);
        let views = [view(&[("a", "1")], 0), view(&[("b", "1")], 1)];
        for left in [8, 7, 6, 5] {
            let decision = block_on(engine.check_views(&views, NOW));
            assert!(decision.is_allowed());
            assert_eq!(told(&decision)[..2], [("only-a", 0, 2), ("only-b", 1, left)]);
        }
    }

    /// One descriptor is the same as a request. A request without descriptors matches no limit.
    #[test]
    fn one_view_is_a_request() {
        let (one, other) = (engine(LIMITS), engine(LIMITS));
        let request = view(&[("a", "1"), ("b", "2")], 1);
        for step in 0..5 {
            let now = NOW + Ticks::from_secs(step);
            let views = block_on(one.check_views(std::slice::from_ref(&request), now));
            let request = other.check_now(&request, now);
            assert_eq!((told(&views), views.verdict()), (told(&request), request.verdict()));
        }
        assert_eq!(told(&block_on(one.check_views(&[], NOW))), []);
    }

    /// The request is denied if a limit cannot compute its cost from its descriptor, and if there are too many
    /// descriptors.
    #[test]
    fn a_faulty_view_refuses_the_request() {
        let engine = engine("limits: [{name: t, by: [a], rate: 9/h, cost: tokens}, {name: all, rate: 9/h}]");
        let views = [view(&[("b", "1")], 1), view(&[("a", "1")], 1)];
        let decision = block_on(engine.check_views(&views, NOW));
        assert!(matches!(decision.fault(), Some(Fault::Cost { .. })) && !decision.is_allowed());
        let many = vec![view(&[("b", "1")], 1); DESCRIPTORS_MAX + 1];
        assert!(block_on(engine.check_views(&many[1..], NOW)).is_allowed());
        let decision = block_on(engine.check_views(&many, NOW));
        assert_eq!(decision.fault(), Some(&Fault::TooManyDescriptors));
        assert!(!decision.is_allowed());
        assert_eq!(told(&engine.check_now(&view(&[("b", "1")], 0), NOW)), [("all", 0, 8)]);
    }

    /// Units can be refunded to one of the limits that a request matches.
    #[test]
    fn a_refund_may_name_its_limits() {
        let engine = engine(LIMITS);
        let request = view(&[("a", "1"), ("b", "1")], 2);
        assert!(engine.check_now(&request, NOW).is_allowed());
        block_on(engine.refund_of(&request, &["only-a"], Ticks::ZERO, NOW)).unwrap();
        let left = engine.check_now(&request.clone().looking(), NOW);
        assert_eq!(told(&left)[..4], [("both", 0, 7), ("only-a", 0, 2), ("only-b", 0, 7), ("all", 0, 7)]);
    }
}
