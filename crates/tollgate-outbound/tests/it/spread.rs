//! A thousand calls wait for the end of a freeze: when each of them leaves, as numbers and as the picture in the guide.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use tollgate::{Ticks, Timestamp};

use crate::fixture::{Client, Departures, call, run_tasks, settings};

const CALLS: usize = 1_000;
/// The width of a bar.
const BIN: u64 = 50;
const WIDE: usize = 720;
const HIGH: usize = 160;
const LEFT: usize = 50;
const TOP: usize = 40;
const STEP: Duration = Duration::from_millis(5);

/// The server answers each call after 30 to 70 ms.
fn latency(number: usize) -> Ticks {
    Ticks::from_millis(30 + (number as u64 * 7_919) % 41)
}

/// Freezes a thousand calls for ten seconds. Returns the end of `Retry-After`, and when each call left.
async fn departures() -> (Timestamp, Vec<Timestamp>) {
    let client = Client::new("limits: [{name: open, by: [host], rate: 10_000/s}]", settings());
    let refused = client.outbound.acquire(&call()).await.unwrap();
    client.answer(refused, 429, &[("retry-after", "10")]).await;
    let end = client.time.now() + Ticks::from_secs(10);
    let departures = Departures::default();
    let calls: Vec<_> = (0..CALLS)
        .map(|number| {
            let (outbound, departures, time) =
                (client.outbound.clone(), departures.clone(), client.time.clone());
            tokio::spawn(async move {
                let guard = outbound.acquire(&call()).await.unwrap();
                departures.note(number, time.now());
                outbound.clock().sleep_until(time.now() + latency(number)).await;
                let headers = http::HeaderMap::new();
                let (status, received) = (http::StatusCode::OK, time.now());
                let response =
                    tollgate_outbound::ResponseView { status, headers: &headers, body: None, received };
                guard.settle(&response, None).await.unwrap();
            })
        })
        .collect();
    run_tasks().await;
    client.advance(Duration::from_millis(9_995)).await;
    for _ in 0..2_000 {
        for _ in 0..4 {
            run_tasks().await;
        }
        if calls.iter().all(tokio::task::JoinHandle::is_finished) {
            break;
        }
        client.advance(STEP).await;
    }
    (end, departures.times())
}

/// How many calls left in each interval of 50 ms after the end of the freeze.
fn histogram(end: Timestamp, times: &[Timestamp]) -> Vec<usize> {
    let mut bins = Vec::new();
    for time in times {
        let bin = usize::try_from(time.since(end).as_micros() / 1_000 / BIN).unwrap();
        if bins.len() <= bin {
            bins.resize(bin + 1, 0);
        }
        bins[bin] += 1;
    }
    bins
}

fn picture(bins: &[usize]) -> String {
    let most = bins.iter().max().unwrap().div_ceil(50) * 50;
    let bottom = TOP + HIGH;
    let bar = WIDE / bins.len();
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 800 240\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"800\" height=\"240\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"20\">1,000 calls after a freeze of 10 s: calls that leave in each 50 ms</text>\n\
         <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{most}</text>\n\
         <text x=\"{}\" y=\"{bottom}\" text-anchor=\"end\">0</text>\n",
        LEFT - 6,
        TOP + 10,
        LEFT - 6,
    );
    for (bin, calls) in bins.iter().enumerate() {
        let high = calls * HIGH / most;
        let _ = writeln!(
            text,
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{high}\" fill=\"#2563eb\"><title>{calls}</title></rect>",
            LEFT + bin * bar,
            bottom - high,
            bar - 1
        );
    }
    let _ = writeln!(
        text,
        "<line x1=\"{LEFT}\" y1=\"{bottom}\" x2=\"{}\" y2=\"{bottom}\" stroke=\"#9ca3af\"/>",
        LEFT + bar * bins.len()
    );
    for bin in (0..=bins.len()).step_by(10) {
        let _ = writeln!(
            text,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"#6b7280\">{} ms</text>",
            LEFT + bin * bar,
            bottom + 16,
            bin as u64 * BIN
        );
    }
    text.push_str("</svg>\n");
    text
}

/// After the freeze one call leaves, then few, then more: never as many in 50 ms as a tenth of those that waited. The
/// picture in the guide shows these numbers; `DRAW=1` draws it anew.
#[tokio::test]
async fn a_thousand_calls_leave_without_a_herd() {
    let (end, times) = departures().await;
    assert_eq!(times.len(), CALLS);
    let bins = histogram(end, &times);
    let first = bins.iter().position(|calls| *calls > 0).unwrap();
    assert_eq!(bins[first], 1, "one probe: {bins:?}");
    let most = *bins.iter().max().unwrap();
    assert!(most <= CALLS / 10, "{bins:?}");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pictures/outbound-release.svg");
    if std::env::var_os("DRAW").is_some() {
        std::fs::write(&file, picture(&bins)).unwrap();
    }
    assert_eq!(
        std::fs::read_to_string(&file).unwrap_or_default(),
        picture(&bins),
        "draw it anew with DRAW=1"
    );
    let guide = include_str!("../../../../docs/outbound.md");
    assert!(guide.contains("](pictures/outbound-release.svg)"));
    let figure = format!("at most {most} in 50 ms");
    assert!(guide.contains(&figure), "{figure}: {bins:?}");
}
