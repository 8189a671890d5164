//! Whether the gateway speaks HTTP/2 as RFC 9113 and RFC 7541 say: raw frames go to the real program, case by case, in the order and with
//! the verdicts of h2spec, which cannot be installed here. Each case says what is sent, and which answer is right; where the gateway
//! differs in a harmless way, the case says why.

mod control;
mod frames;
mod headers;
mod hpack;
mod streams;
pub(crate) mod talk;

use crate::gateway_upstream::{Gateway, OPEN, Upstream};
use talk::{Received, Talk};

const NO_ERROR: u32 = 0;
const PROTOCOL: u32 = 1;
const FLOW_CONTROL: u32 = 3;
const STREAM_CLOSED: u32 = 5;
const FRAME_SIZE: u32 = 6;
const REFUSED_STREAM: u32 = 7;
const COMPRESSION: u32 = 9;
const ENHANCE_YOUR_CALM: u32 = 11;

/// Why another code than the RFC's is accepted in many cases.
const GENERAL: &str =
    "h2 names PROTOCOL_ERROR whatever it could not read, and ends the connection as it must";

/// The answer that is right.
#[derive(Clone, Copy, Debug)]
enum Want {
    /// The connection ends with one of these codes in GOAWAY.
    Connection(&'static [u32]),
    /// The stream ends with one of these codes, or the connection does, as RFC 9113 (5.4.2) leaves to the end that finds an error.
    Stream(&'static [u32]),
    /// As [`Want::Stream`], and the upstream never gets the request.
    Malformed(&'static [u32]),
    /// A response of this status to stream 1.
    Status(u16),
    /// The connection goes on: a ping is answered.
    Alive,
    /// The received frames satisfy this rule.
    So(fn(&Received) -> bool),
}

/// One case.
struct Case {
    section: &'static str,
    what: &'static str,
    /// The bytes sent after the preface and the first settings; between two parts the end of stream 1 is awaited.
    parts: Vec<Vec<u8>>,
    want: Want,
    /// Whether the client begins as it should: it does but in cases about that.
    begins: bool,
    /// Why an answer that the RFC does not ask for is accepted.
    accepted: &'static str,
}

impl Case {
    fn new(section: &'static str, what: &'static str, sent: &[Vec<u8>], want: Want) -> Self {
        Self { section, what, parts: vec![sent.concat()], want, begins: true, accepted: "" }
    }

    /// More is sent when stream 1 has ended.
    fn then(mut self, sent: &[Vec<u8>]) -> Self {
        self.parts.push(sent.concat());
        self
    }

    /// Nothing is sent before.
    fn bare(self) -> Self {
        Self { begins: false, ..self }
    }

    /// The code may be the general one.
    fn general(self) -> Self {
        self.accepted(GENERAL)
    }

    /// Whether a GOAWAY with this code is right where these are wanted.
    fn takes(&self, codes: &[u32], code: Option<u32>) -> bool {
        code.is_some_and(|code| codes.contains(&code) || code == PROTOCOL && self.accepted == GENERAL)
    }

    /// Why the expected answer differs from the RFC.
    fn accepted(self, accepted: &'static str) -> Self {
        Self { accepted, ..self }
    }
}

/// The problem with the answer to a case; nothing if it is correct.
fn wrong(case: &Case, gateway: &Gateway, upstream: &Upstream) -> Option<String> {
    upstream.seen();
    let mut talk = Talk::begin(gateway, case.begins);
    let (last, before) = case.parts.split_last().unwrap();
    for part in before {
        talk.send(part);
        talk.hear(Received::has_ended);
    }
    talk.send(last);
    let is_right = match case.want {
        Want::Connection(codes) => {
            talk.hear(|received| received.is_closed);
            case.takes(codes, talk.received.goaway) && talk.received.is_closed
        }
        Want::Stream(codes) | Want::Malformed(codes) => {
            talk.hear(|received| received.is_closed || !received.resets.is_empty());
            let reset = talk.received.resets.iter().any(|(_, code)| codes.contains(code));
            reset || case.takes(codes, talk.received.goaway)
        }
        Want::Status(status) => {
            talk.hear(|received| {
                received.is_closed || received.statuses.iter().any(|(stream, _)| *stream == 1)
            });
            talk.received.statuses.contains(&(1, status))
        }
        Want::Alive => {
            talk.ping();
            talk.hear(|received| received.is_closed || received.is_alive);
            talk.received.is_alive && talk.received.goaway.is_none() && talk.received.resets.is_empty()
        }
        Want::So(rule) => {
            talk.hear(|received| received.is_closed || rule(received));
            rule(&talk.received)
        }
    };
    let unheard = !matches!(case.want, Want::Malformed(_)) || upstream.count() == 0;
    (!is_right || !unheard).then(|| {
        let seen: Vec<String> = upstream.seen().into_iter().map(|seen| seen.line).collect();
        format!(
            "{} {}: wanted {:?}, heard {:?}, the upstream {seen:?}",
            case.section, case.what, case.want, talk.received
        )
    })
}

/// Every case, on a connection of its own; one line for each that fails.
#[test]
fn the_gateway_speaks_http_2() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let cases: Vec<Case> =
        [frames::cases(), control::cases(), streams::cases(), headers::cases(), hpack::cases()]
            .into_iter()
            .flatten()
            .collect();
    let failures: Vec<String> = cases.iter().filter_map(|case| wrong(case, &gateway, &upstream)).collect();
    let different = cases.iter().filter(|case| !case.accepted.is_empty()).count();
    assert!(
        failures.is_empty(),
        "{} of {} cases failed\n{}",
        failures.len(),
        cases.len(),
        failures.join("\n")
    );
    assert!(cases.len() >= 120 && different <= 40, "{} cases, {different} with a difference", cases.len());
    // Whatever they did, others are served.
    assert_eq!(gateway.get("/after", "").status, 200);
}

/// An unread body is not sent beyond the stream's window: what a client sends in spite of that is its error, not our memory. The
/// second request waits for the upstream's only place.
#[test]
fn windows_are_kept() {
    let (upstream, folder) = (Upstream::start(), crate::proxy::Folder::new("h2-windows"));
    let text = format!(
        "routes: [{{upstreams: ['http://{}'], connections: 1, timeouts: {{connect: 30s}}}}]",
        upstream.address
    );
    let config = folder.write("config.yaml", &text).display().to_string();
    let gateway = Gateway::with(&["--config", &config], OPEN);
    let mut talk = Talk::begin(&gateway, true);
    talk.send(&talk::headers(1, &talk::get("/hang")));
    crate::gateway_upstream::until(|| upstream.count() == 1);
    // The window that the server offers holds once it was heard of.
    talk.ping();
    talk.hear(|received| received.is_alive);
    talk.received.is_alive = false;
    talk.send(&talk::open(3, &talk::post("/x")));
    let part = talk::frame(talk::DATA, 0, 3, &[b'x'; 1 << 14]);
    talk.send(&part.repeat(16));
    talk.ping();
    talk.hear(|received| received.is_closed || received.is_alive);
    assert!(
        talk.received.is_alive && talk.received.resets.is_empty(),
        "a window of 256 KiB: {:?}",
        talk.received
    );
    talk.send(&part);
    talk.hear(|received| received.is_closed || !received.resets.is_empty());
    let is_reported =
        talk.received.resets.contains(&(3, FLOW_CONTROL)) || talk.received.goaway == Some(FLOW_CONTROL);
    assert!(is_reported, "{:?}", talk.received);
}

/// Spaces around a value, which h2 lets pass and HTTP/1.1 cuts off, make no other key of it: who adds them has the same limit.
#[test]
fn spaces_make_no_other_key() {
    let upstream = Upstream::start();
    let address = format!("http://{}", upstream.address);
    let policy = "limits: [{name: per-key, by: [api_key], rate: 2/h}]";
    let gateway = Gateway::with(&["--upstream", &address], policy);
    let mut talk = Talk::begin(&gateway, true);
    for (number, key) in ["k", " k", "k\t "].into_iter().enumerate() {
        let stream = u32::try_from(number * 2 + 1).unwrap();
        let fields = [&talk::line("GET", "/")[..], &[("x-api-key", key)]].concat();
        talk.send(&talk::headers(stream, &talk::block(&fields)));
        talk.hear(|received| received.statuses.len() > number);
    }
    let statuses: Vec<u16> = talk.received.statuses.iter().map(|(_, status)| *status).collect();
    assert_eq!(statuses, [200, 200, 429]);
}

/// A runner that takes anything would prove nothing: wrong wishes fail, each way that there is to be wrong.
#[test]
fn problems_are_found() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let get = || talk::headers(1, &talk::get("/"));
    let ping = || talk::frame(6, 0, 1, &[0; 8]);
    let wrong_wishes = [
        Case::new("", "an answer is no error", &[get()], Want::Stream(&[PROTOCOL])),
        Case::new("", "an answer is no end", &[get()], Want::Connection(&[PROTOCOL])),
        Case::new("", "another status", &[get()], Want::Status(404)),
        Case::new("", "another code", &[ping()], Want::Connection(&[FRAME_SIZE])),
        Case::new("", "an end is not alive", &[ping()], Want::Alive),
        Case::new("", "no rule", &[ping()], Want::So(|received| received.is_alive)),
    ];
    for case in wrong_wishes {
        assert!(wrong(&case, &gateway, &upstream).is_some(), "{}", case.what);
    }
}
