//! Spans of decisions, for OpenTelemetry. A decision never waits for them: one or two numbers decide which spans are
//! taken, and a full queue drops and counts new ones. [`export`] sends them, and [`parent`] reads a caller's own trace.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;
use tollgate::{Clock, Decision, Source, Ticks, Timestamp};

use super::compat::RuleVerdict;
use super::events::{EventBudget, deciding};
use super::names::{SPANS, VERDICTS, label, verdict_index};
use super::{Admission, Sample};
use crate::protocol::Protocol;
use crate::random;
use crate::text;

pub(crate) mod export;
pub(crate) mod parent;

use parent::Parent;

/// Maximum number of spans waiting to be sent.
const QUEUE_MAX: usize = 4_096;
/// Maximum number of denials per second that are traced regardless of the share.
const DENIALS_PER_SECOND: u64 = 100;
/// Maximum number of spans per second that callers may request by their own traces.
const ASKED_PER_SECOND: u64 = 1_000;
/// The share that means all decisions.
pub(crate) const WHOLE: u32 = 1_000_000;

/// One traced decision. It contains no values of the request.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    trace: u128,
    id: u64,
    parent: Option<u64>,
    start: Timestamp,
    end: Timestamp,
    protocol: &'static str,
    verdict: &'static str,
    limit: Option<String>,
    source: Option<&'static str>,
    retry_after_ms: Option<u64>,
}

/// The part of a decision that a span contains.
struct SpanContent {
    verdict: &'static str,
    limit: Option<String>,
    source: Option<&'static str>,
    retry_after: Option<Ticks>,
}

/// Counts what became of spans. The numbers are independent, so relaxed orderings are enough.
#[derive(Debug, Default)]
pub(crate) struct SpanCounts {
    exported: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
}

impl SpanCounts {
    pub(crate) fn samples(&self) -> Vec<Sample> {
        let sample = |result, count: &AtomicU64| Sample {
            metric: &SPANS,
            label: Some((label::RESULT, result)),
            value: count.load(Ordering::Relaxed),
        };
        vec![
            sample("exported", &self.exported),
            sample("dropped", &self.dropped),
            sample("failed", &self.failed),
        ]
    }
}

/// Selects decisions and queues their spans.
pub(crate) struct Tracer {
    queue: mpsc::Sender<Span>,
    /// Out of [`WHOLE`].
    share: u32,
    clock: Clock,
    denials: EventBudget,
    asked: EventBudget,
    span_counts: Arc<SpanCounts>,
}

impl Tracer {
    /// A tracer that takes this share, out of [`WHOLE`], and the receiver of its queue.
    pub(crate) fn new(
        share: u32,
        clock: Clock,
        span_counts: Arc<SpanCounts>,
    ) -> (Self, mpsc::Receiver<Span>) {
        let (queue, spans) = mpsc::channel(QUEUE_MAX);
        let tracer = Self {
            queue,
            share,
            clock,
            denials: EventBudget::new(DENIALS_PER_SECOND),
            asked: EventBudget::new(ASKED_PER_SECOND),
            span_counts,
        };
        (tracer, spans)
    }

    /// Traces a decision if it is selected.
    pub(super) fn record(&self, decision: &Decision, protocol: Protocol, now: Timestamp) {
        self.record_span(decision.into(), protocol, now, || {
            let deciding = deciding(decision);
            SpanContent {
                verdict: VERDICTS[verdict_index(decision)],
                limit: deciding.map(|status| status.limit.name().to_owned()),
                source: deciding.map(|status| status.source.name()),
                retry_after: decision.retry_after(),
            }
        });
    }

    /// Traces a decision by another program's rules if it is selected.
    pub(super) fn record_compat(&self, verdict: &RuleVerdict<'_>, protocol: Protocol, now: Timestamp) {
        let admission = if verdict.is_allowed { Admission::Admitted } else { Admission::Refused };
        self.record_span(admission, protocol, now, || SpanContent {
            verdict: VERDICTS[verdict.index()],
            limit: (!verdict.limit.is_empty()).then(|| text::shown(verdict.limit)),
            source: verdict.source().map(Source::name),
            retry_after: verdict.retry_after,
        });
    }

    fn record_span(
        &self,
        admission: Admission,
        protocol: Protocol,
        now: Timestamp,
        content: impl FnOnce() -> SpanContent,
    ) {
        let parent = Parent::current();
        if !self.is_taken(admission, parent, now) {
            return;
        }
        let span = self.span(content(), protocol, parent, now);
        if self.queue.try_send(span).is_err() {
            self.span_counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A caller that traces decides for itself, within bounds. Of the other decisions, a share and the denials are
    /// taken.
    fn is_taken(&self, admission: Admission, parent: Option<Parent>, now: Timestamp) -> bool {
        match parent {
            Some(parent) => parent.is_sampled && self.asked.spend(now),
            None => is_drawn(self.share) || (admission == Admission::Refused && self.denials.spend(now)),
        }
    }

    #[cold]
    fn span(&self, content: SpanContent, protocol: Protocol, parent: Option<Parent>, now: Timestamp) -> Span {
        let new_trace = || (u128::from(random::next()) << 64) | u128::from(random::next());
        Span {
            trace: parent.map_or_else(new_trace, |parent| parent.trace),
            // Zero means that there is no id.
            id: random::next().max(1),
            parent: parent.map(|parent| parent.span),
            start: self.clock.on_wall(now),
            end: self.clock.on_wall(self.clock.now().max(now)),
            protocol: protocol.name(),
            verdict: content.verdict,
            limit: content.limit,
            source: content.source,
            retry_after_ms: content.retry_after.map(Ticks::ceil_millis),
        }
    }
}

/// Whether a random number selects this decision, for a share out of [`WHOLE`].
fn is_drawn(share: u32) -> bool {
    random::next() % u64::from(WHOLE) < u64::from(share)
}

#[cfg(test)]
mod tests {
    use tollgate::{CheckRequest, Engine, ManualClock, Policy};

    use super::*;

    struct Fixture {
        time: ManualClock,
        tracer: Tracer,
        spans: mpsc::Receiver<Span>,
        allowed: Decision,
        denied: Decision,
    }

    fn fixture(share: u32) -> Fixture {
        let time = ManualClock::new();
        let policy = Policy::compile("test", b"limits: [{name: one, rate: 1/h}]").unwrap();
        let engine = Engine::builder().policy(policy).clock(time.clock()).build();
        let [allowed, denied] = [0, 1].map(|_| engine.try_check(&CheckRequest::new(), time.now()).unwrap());
        let (tracer, spans) = Tracer::new(share, time.clock(), Arc::new(SpanCounts::default()));
        Fixture { time, tracer, spans, allowed, denied }
    }

    fn taken(fixture: &mut Fixture) -> usize {
        std::iter::from_fn(|| fixture.spans.try_recv().ok()).count()
    }

    /// With a share of zero only denials are traced, and only up to a rate per second.
    #[test]
    fn denials_are_traced_up_to_a_rate() {
        let mut fixture = fixture(0);
        for _ in 0..1_000 {
            fixture.tracer.record(&fixture.allowed, Protocol::Http, fixture.time.now());
            fixture.tracer.record(&fixture.denied, Protocol::Http, fixture.time.now());
        }
        assert_eq!(taken(&mut fixture), 100);
        fixture.time.advance(std::time::Duration::from_secs(1));
        fixture.tracer.record(&fixture.denied, Protocol::Http, fixture.time.now());
        assert_eq!(taken(&mut fixture), 1);
    }

    /// The number of traced decisions is about the configured share.
    #[test]
    fn a_share_is_about_that_share() {
        let mut fixture = fixture(WHOLE / 10);
        for _ in 0..20_000 {
            fixture.tracer.record(&fixture.allowed, Protocol::Http, fixture.time.now());
        }
        let taken = taken(&mut fixture);
        assert!((1_700..2_300).contains(&taken), "{taken}");
    }

    /// When no task takes spans from the queue, a decision drops spans without room and counts them.
    #[test]
    fn a_full_queue_drops_and_counts() {
        let mut fixture = fixture(WHOLE);
        for _ in 0..QUEUE_MAX + 10 {
            fixture.tracer.record(&fixture.allowed, Protocol::Http, fixture.time.now());
        }
        assert_eq!(fixture.tracer.span_counts.dropped.load(Ordering::Relaxed), 10);
        assert_eq!(taken(&mut fixture), QUEUE_MAX);
    }

    /// A caller's own trace decides whether it is continued, also for denials. It cannot request more spans than the
    /// maximum.
    #[tokio::test]
    async fn a_caller_that_traces_decides() {
        let mut fixture = fixture(0);
        let parent = Parent { trace: 7, span: 8, is_sampled: true };
        let unsampled = Parent { is_sampled: false, ..parent };
        unsampled
            .scope(async {
                fixture.tracer.record(&fixture.denied, Protocol::Http, fixture.time.now());
            })
            .await;
        assert_eq!(taken(&mut fixture), 0);
        parent
            .scope(async {
                for _ in 0..2_000 {
                    fixture.tracer.record(&fixture.allowed, Protocol::Http, fixture.time.now());
                }
            })
            .await;
        let span = fixture.spans.try_recv().unwrap();
        assert_eq!((span.trace, span.parent), (7, Some(8)));
        assert_eq!(taken(&mut fixture), 999);
    }
}
