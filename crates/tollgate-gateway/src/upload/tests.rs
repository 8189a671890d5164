//! When a body begins, which bounds it has, and how slowly it may come.

use http_body_util::BodyExt;
use hyper::body::Frame;
use tokio::time::sleep;

use super::source::SMALL_BYTES_MAX;
use super::*;

const PACE: Pace = Pace { bytes: 300, over: Duration::from_secs(60), first: Duration::from_secs(20) };

/// An upload in progress, and its shared state.
fn coming() -> (Upload, Arc<UploadShared>) {
    let upload = Upload::new(RequestBody::from(Bytes::from_static(b"x")), None, PACE);
    let shared = upload.0.clone().unwrap();
    (upload, shared)
}

/// The timeout of an answer counts exactly from the last byte of the request, and not while the gateway waits for the
/// client.
#[tokio::test(start_paused = true)]
async fn an_answer_is_late_to_the_moment() {
    let second = Duration::from_secs(1);
    let late = async |upload: &Upload| {
        let begun = Instant::now();
        assert_eq!(upload.in_time(2 * second, std::future::pending::<()>()).await, None);
        begun.elapsed().as_secs()
    };
    assert_eq!(late(&Upload::empty()).await, 2);
    // The last byte is sent after a second.
    let (upload, moving) = coming();
    tokio::spawn(async move {
        sleep(second).await;
        moving.moves();
    });
    assert_eq!(late(&upload).await, 3);
    // The client sends nothing for ten seconds, and then the last byte.
    let (upload, moving) = coming();
    moving.is_awaited.store(true, Ordering::Relaxed);
    tokio::spawn(async move {
        sleep(10 * second).await;
        moving.moves();
        moving.is_awaited.store(false, Ordering::Relaxed);
    });
    assert_eq!(late(&upload).await, 12);
    // An answer in time.
    assert_eq!(Upload::empty().in_time(2 * second, sleep(second)).await, Some(()));
}

/// A body with this announced length, and the channel that sends its parts.
fn of_length(length: Option<u64>) -> (Upload, tokio::sync::mpsc::UnboundedSender<&'static [u8]>) {
    let (send, parts) = tokio::sync::mpsc::unbounded_channel();
    (Upload::new(RequestBody::Boxed(Parts { parts, length }.boxed_unsync()), None, PACE), send)
}

/// A body that a test sends part by part.
struct Parts {
    parts: tokio::sync::mpsc::UnboundedReceiver<&'static [u8]>,
    length: Option<u64>,
}

impl Body for Parts {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.parts.poll_recv(context).map(|part| Some(Ok(Frame::data(Bytes::from_static(part?)))))
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

fn client() -> ShareOwner {
    ShareOwner::One(std::net::IpAddr::from([192, 0, 2, 1]))
}

async fn seconds_until_begun(upload: &Upload, unsent: &Unsent) -> (u64, Result<(), BodyNotStarted>) {
    let begun = Instant::now();
    let result = upload.begin(unsent, client()).await;
    (begun.elapsed().as_secs(), result)
}

/// A small body begins when it is complete; a large one, and one of unknown length, with its first bytes. All of it is
/// sent on.
#[tokio::test(start_paused = true)]
async fn a_body_begins_when_there_is_something_to_send() {
    for (length, seconds) in [(Some(6), 10), (Some(SMALL_BYTES_MAX + 1), 5), (None, 5)] {
        let (upload, send) = of_length(length);
        tokio::spawn(async move {
            for part in [&b"abc"[..], &b"def"[..]] {
                sleep(Duration::from_secs(5)).await;
                send.send(part).unwrap();
            }
        });
        let unsent = Unsent::default();
        assert_eq!(seconds_until_begun(&upload, &unsent).await, (seconds, Ok(())), "{length:?}");
        assert!(upload.is_whole(), "it can be sent to any upstream");
        let sent = upload.attempt_body().collect().await.unwrap().to_bytes();
        assert_eq!(&sent[..], b"abcdef");
        assert_eq!(upload.is_whole(), seconds == 10, "what was there as a whole still is");
    }
}

/// The bug: a request that an upstream had not processed was lost, because its body had been read, though all of it had
/// been there. A small body that is complete can be sent again; a large one, and one that is still to come, are sent
/// once.
#[tokio::test(start_paused = true)]
async fn a_small_body_can_be_sent_again() {
    for length in [Some(6), None] {
        let (upload, send) = of_length(length);
        send.send(b"abc").unwrap();
        send.send(b"def").unwrap();
        drop(send);
        for _ in 0..2 {
            assert!(upload.attempt_body().frame().await.unwrap().is_ok(), "an attempt that breaks off");
            assert!(upload.is_whole());
            assert_eq!(&upload.attempt_body().collect().await.unwrap().to_bytes()[..], b"abcdef");
        }
    }
    static LARGE: [u8; 65_536] = [b'x'; 65_536];
    let (large, send) = of_length(None);
    send.send(&LARGE).unwrap();
    send.send(b"x").unwrap();
    drop(send);
    assert_eq!(large.attempt_body().collect().await.unwrap().to_bytes().len(), 65_537);
    assert!(!large.is_whole());
    let (coming, send) = of_length(None);
    send.send(b"x").unwrap();
    assert!(coming.attempt_body().frame().await.unwrap().is_ok());
    assert!(!coming.is_whole());
    drop(send);
}

/// The gateway gives up a body that never comes after its first allowance, and a body that trickles not much later.
/// Afterwards neither holds anything.
#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_begin_is_given_up() {
    let unsent = Unsent::default();
    let (upload, send) = of_length(Some(1_000));
    assert_eq!(seconds_until_begun(&upload, &unsent).await, (20, Err(BodyNotStarted::Fault(Fault::TooSlow))));
    drop(send);
    let (upload, send) = of_length(Some(1_000));
    tokio::spawn(async move {
        while send.send(b"x").is_ok() {
            sleep(Duration::from_secs(1)).await; // Each byte earns a fifth of a second.
        }
    });
    let (seconds, result) = seconds_until_begun(&upload, &unsent).await;
    assert!((20..30).contains(&seconds) && result == Err(BodyNotStarted::Fault(Fault::TooSlow)), "{seconds}");
    assert_eq!(upload.fault(), Some(Fault::TooSlow));
}

/// If the memory budget has no room for the whole of a small body, the request takes its slot with what has come. If
/// too many requests wait for their bodies, it is refused. Other clients have their own share of both.
#[tokio::test(start_paused = true)]
async fn waits_for_an_upload_are_bounded() {
    let unsent = Unsent { requests: ClientShares::new(4, 2), bytes: BodyBudget::of(8 * 2) };
    let (upload, send) = of_length(Some(6));
    send.send(b"abc").unwrap();
    assert_eq!(seconds_until_begun(&upload, &unsent).await, (0, Ok(())), "a client has room for two bytes");
    let waiting = [of_length(Some(6)), of_length(Some(6))];
    let first = waiting[0].0.begin(&unsent, client());
    let second = waiting[1].0.begin(&unsent, client());
    let (third, _send) = of_length(Some(6));
    let (fourth, other) = of_length(Some(1));
    let other_client = ShareOwner::One(std::net::IpAddr::from([192, 0, 2, 2]));
    let rest = async {
        tokio::task::yield_now().await;
        assert_eq!(third.begin(&unsent, client()).await, Err(BodyNotStarted::Full(Full::Client)));
        let sent = async { other.send(b"x").unwrap() };
        assert_eq!(tokio::join!(fourth.begin(&unsent, other_client), sent).0, Ok(()));
    };
    tokio::select! {
        biased;
        _ = first => panic!("nothing came of it"),
        _ = second => panic!("nothing came of it"),
        () = rest => {}
    }
}

/// The minimum rate also holds while the upstream reads, until it has answered.
#[tokio::test(start_paused = true)]
async fn the_pace_holds_until_the_answer() {
    let (upload, send) = of_length(None);
    send.send(b"x").unwrap();
    upload.begin(&Unsent::default(), client()).await.unwrap();
    let begun = Instant::now();
    assert!(upload.attempt_body().collect().await.is_err());
    assert_eq!((begun.elapsed().as_secs(), upload.fault()), (20, Some(Fault::TooSlow)));
    drop(send);
    let (upload, send) = of_length(None);
    upload.answered();
    tokio::spawn(async move {
        sleep(Duration::from_secs(3_600)).await;
        send.send(b"late").unwrap();
    });
    assert_eq!(&upload.attempt_body().collect().await.unwrap().to_bytes()[..], b"late");
}
