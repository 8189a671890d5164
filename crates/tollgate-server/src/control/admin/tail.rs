//! Decisions as they are made: lines of JSON on a response that lasts until its reader leaves, the server stops, or an
//! hour has passed. A reader that is too slow loses lines, and receives the number of lost ones.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame};
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, broadcast, mpsc};
use tokio::task::JoinSet;
use tollgate::{Clock, Timestamp};

use super::traffic_view::EventView;
use super::view::Instant;
use crate::fleet::{FleetMember, NodeView, PeerRequest, PeerStream, StreamProofs};
use crate::shutdown::{Stop, stopped};
use crate::telemetry::Event;

/// Maximum number of lines queued for a reader.
const LINES_MAX: usize = 256;
/// Maximum length of a line of another node.
const LINE_BYTES_MAX: usize = 1 << 20;
/// How often a reader gets an empty line, so that a reader that went away is noticed.
const PULSE: Duration = Duration::from_secs(10);
/// Maximum duration of one view.
const LONGEST: Duration = Duration::from_secs(3_600);

/// A body of lines.
pub(crate) struct EventBody {
    lines: mpsc::Receiver<Bytes>,
    /// Where another node reads them.
    proofs: Option<StreamProofs>,
    /// While it exists, the connection counts an answer as in progress.
    _answering: Box<dyn Send + Sync>,
}

impl EventBody {
    /// A body of what the sender of `lines` sends.
    pub(super) fn new(lines: mpsc::Receiver<Bytes>, answering: Box<dyn Send + Sync>) -> Self {
        Self { lines, proofs: None, _answering: answering }
    }

    /// The same lines, each with its proof.
    pub(super) fn with_proofs(self, proofs: StreamProofs) -> Self {
        Self { proofs: Some(proofs), ..self }
    }
}

impl Body for EventBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        this.lines.poll_recv(context).map(|line| {
            let line = line?;
            Some(Ok(Frame::data(match &mut this.proofs {
                Some(proofs) => proofs.proven(&line),
                None => line,
            })))
        })
    }
}

/// The decisions to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TailFilter {
    All,
    Denied,
    /// Those that a limit in shadow would have denied.
    WouldDeny,
}

impl TailFilter {
    fn shows(self, event: &Event) -> bool {
        match self {
            TailFilter::All => true,
            TailFilter::Denied => !event.allowed,
            TailFilter::WouldDeny => !event.would_deny.is_empty(),
        }
    }
}

/// Denials that were made before a view began.
pub(super) struct PastDenials {
    pub(super) events: Vec<Arc<Event>>,
    /// The instant up to which keys were denied of which no denial is remembered, if that is in the time of the view.
    pub(super) forgotten_until: Option<Timestamp>,
}

/// The decisions of a view: those that were made before, if it shows them, and those to come.
pub(super) struct TailSource {
    pub(super) past: Option<PastDenials>,
    pub(super) events: broadcast::Receiver<Arc<Event>>,
}

/// Starts a view of decisions.
pub(super) fn lines(
    source: TailSource,
    filter: TailFilter,
    clock: Clock,
    stop: Stop,
    place: OwnedSemaphorePermit,
    answering: Box<dyn Send + Sync>,
) -> EventBody {
    let (sender, lines) = mpsc::channel(LINES_MAX);
    tokio::spawn(async move {
        let pumped = tokio::time::timeout(LONGEST, pump(source, filter, clock, stop, sender));
        // The view has ended in either case.
        let _ = pumped.await;
        drop(place);
    });
    EventBody::new(lines, answering)
}

async fn pump(
    source: TailSource,
    filter: TailFilter,
    clock: Clock,
    mut stop: Stop,
    lines: mpsc::Sender<Bytes>,
) {
    let TailSource { past, mut events } = source;
    let wall = || clock.wall_offset(clock.now());
    if let Some(PastDenials { events, forgotten_until }) = past {
        let shown = events.iter().filter(|event| filter.shows(event));
        let mut before: Vec<Bytes> = shown.map(|event| line(&EventView::new(event, wall()))).collect();
        let forgotten_until = forgotten_until.map(|at| Instant::new(at, wall()));
        before.push(line(&json!({ "past": before.len(), "forgotten_until": forgotten_until })));
        for line in before {
            if lines.send(line).await.is_err() {
                return;
            }
        }
    }
    let mut pulse = tokio::time::interval(PULSE);
    loop {
        let line = tokio::select! {
            event = events.recv() => match event {
                Ok(event) if !filter.shows(&event) => continue,
                Ok(event) => line(&EventView::new(&event, wall())),
                Err(RecvError::Lagged(missed)) => line(&serde_json::json!({ "missed": missed })),
                Err(RecvError::Closed) => return,
            },
            // The first tick is immediate: the reader sees that it is connected.
            _ = pulse.tick() => Bytes::from_static(b"\n"),
            () = stopped(&mut stop) => return,
            () = lines.closed() => return,
        };
        if lines.send(line).await.is_err() {
            return;
        }
    }
}

/// Merges the lines of this node, if it is named, with those of other nodes. Each says of which node it is. It ends with
/// the lines of this node.
pub(super) fn merged(
    own: EventBody,
    shows_this: Option<String>,
    others: Vec<NodeView>,
    fleet: Arc<FleetMember>,
    question: PeerRequest,
) -> EventBody {
    let EventBody { lines: mut own, proofs, _answering } = own;
    let (sender, lines) = mpsc::channel(LINES_MAX);
    tokio::spawn(async move {
        // Dropped with this task, which ends the lines of the other nodes.
        let mut peers = JoinSet::new();
        for node in others {
            let (fleet, question, sender) = (Arc::clone(&fleet), question.clone(), sender.clone());
            peers.spawn(async move {
                let problem = match fleet.open(&node, &question).await {
                    Ok(lines) => relay(lines, &node.name, &sender).await,
                    Err(problem) => problem,
                };
                // A reader that has gone misses nothing.
                let _ = sender.send(line(&json!({ "node": node.name, "problem": problem }))).await;
            });
        }
        while let Some(bytes) = own.recv().await {
            let shown = match &shows_this {
                _ if bytes.len() <= 1 => Some(bytes),
                Some(name) => of_node(&bytes, name),
                None => None,
            };
            let Some(shown) = shown else { continue };
            if sender.send(shown).await.is_err() {
                return;
            }
        }
    });
    EventBody { lines, proofs, _answering }
}

/// Forwards the proven lines of another node until they end. Returns why they ended.
async fn relay(peer: PeerStream, name: &str, lines: &mpsc::Sender<Bytes>) -> String {
    let PeerStream { mut body, mut proofs } = peer;
    let mut rest: Vec<u8> = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { break };
        rest.extend_from_slice(frame.data_ref().map(|bytes| &bytes[..]).unwrap_or_default());
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let bytes: Vec<u8> = rest.drain(..=end).collect();
            let Some(proven) = proofs.checked(&bytes) else {
                return "it does not prove a line: lines were changed or lost on the way".to_owned();
            };
            if let Some(shown) = of_node(proven, name)
                && lines.send(shown).await.is_err()
            {
                return "the view has ended".to_owned();
            }
        }
        if rest.len() > LINE_BYTES_MAX {
            return "it sent a line that does not end".to_owned();
        }
    }
    "it has ended its lines".to_owned()
}

/// A line with the name of its node. `None` for an empty one.
fn of_node(bytes: &[u8], name: &str) -> Option<Bytes> {
    let mut event: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    event.as_object_mut()?.insert("node".to_owned(), name.into());
    Some(line(&event))
}

fn line(view: &impl serde::Serialize) -> Bytes {
    let mut text = serde_json::to_vec(view).unwrap_or_default();
    text.push(b'\n');
    text.into()
}

#[cfg(test)]
mod tests {
    use tokio::sync::{Semaphore, watch};

    use super::*;
    use crate::protocol::Protocol;

    fn event(allowed: bool, key: &str) -> Arc<Event> {
        Arc::new(Event {
            verdict: if allowed { "allow" } else { "deny" },
            at: Timestamp::from_unix_seconds(1_700_000_000),
            protocol: Protocol::Http,
            allowed,
            limit: "per-key".into(),
            would_deny: Vec::new(),
            attributes: vec![("api_key".into(), key.into())],
            retry_after_ms: (!allowed).then_some(412),
            reason: (!allowed).then(|| "100 requests a second, burst 200".to_owned()),
            source: "exact",
        })
    }

    async fn next(lines: &mut EventBody) -> Option<String> {
        let frame = lines.frame().await?.unwrap();
        Some(String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap())
    }

    /// A view of denials shows every decision except admissions, reports how many it lost, and ends with the server.
    #[tokio::test]
    async fn a_view_of_denials() {
        let (events, receiver) = broadcast::channel(2);
        let (stop, stopped) = watch::channel(false);
        let room = Arc::new(Semaphore::new(1));
        let place = Arc::clone(&room).try_acquire_owned().unwrap();
        for number in 0..3 {
            events.send(event(false, &format!("k\n{number}"))).unwrap();
        }
        let past =
            PastDenials { events: vec![event(true, "no"), event(false, "past")], forgotten_until: None };
        let source = TailSource { past: Some(past), events: receiver };
        let mut lines = lines(source, TailFilter::Denied, Clock::precise(), stopped, place, Box::new(()));
        let mut seen = Vec::new();
        assert!(next(&mut lines).await.unwrap().contains(r#""api_key":"past""#));
        assert_eq!(next(&mut lines).await.unwrap(), "{\"forgotten_until\":null,\"past\":1}\n");
        while seen.len() < 4 {
            seen.push(next(&mut lines).await.unwrap());
        }
        seen.retain(|line| line != "\n");
        assert_eq!(seen[0], "{\"missed\":1}\n");
        assert_eq!(
            seen[1],
            "{\"at\":\"2023-11-14T22:13:20.000Z\",\"wire\":\"http\",\"allowed\":false,\"verdict\":\"deny\",\"limit\":\"per-key\",\
             \"attributes\":{\"api_key\":\"k\\n1\"},\"retry_after_ms\":412,\"reason\":\"100 requests a second, burst 200\",\"source\":\"exact\"}\n"
        );
        events.send(event(true, "passes")).unwrap();
        events.send(event(false, "last")).unwrap();
        assert!(next(&mut lines).await.unwrap().contains("last"));
        stop.send(true).unwrap();
        assert_eq!(next(&mut lines).await, None);
        let _room = room.acquire().await.unwrap();
    }
}
