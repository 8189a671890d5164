//! `top` and `tail`: what a running server does, as it does it. On a terminal q or Ctrl-C ends them; without one they write lines.

use std::collections::HashMap;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;

use super::client::Client;
use super::screen::{CLEAR, Screen};
use super::show;
use super::table::{cell, table};
use crate::SUCCESS;
use crate::cli::{TailArguments, TopArguments};
use crate::console::Console;

/// How often `top` is drawn, and how long `tail --once` watches.
const FRAME: Duration = Duration::from_secs(1);
/// Longest line of `tail` that is read.
const LINE_BYTES_MAX: usize = 1 << 20;
/// Lines of a frame that are not keys: the two of its head, the titles, and the one that the cursor is on.
const FRAME_LINES: usize = 4;

/// Shows the busiest keys until the user leaves.
pub(super) async fn top(arguments: &TopArguments, console: &mut Console) -> Result<u8, String> {
    let client = Client::new(&arguments.server)?;
    let path = format!("/admin/v1/top?limit={}", arguments.limit);
    let first = client.call("GET", &path, None).await?;
    if arguments.once || arguments.server.json {
        show_top(&first, &HashMap::new(), usize::MAX, arguments, console);
        if arguments.once {
            return Ok(SUCCESS);
        }
    }
    let mut screen = Screen::open();
    let mut before = counts(&first);
    let mut ticks = tokio::time::interval(FRAME);
    let mut answer = first;
    loop {
        tokio::select! {
            () = screen.left() => return Ok(SUCCESS),
            _ = ticks.tick() => {}
        }
        let rows = if screen.is_watched { screen.rows().saturating_sub(FRAME_LINES) } else { usize::MAX };
        if screen.is_watched && !arguments.server.json {
            console.text(CLEAR);
        }
        show_top(&answer, &before, rows, arguments, console);
        console.flush();
        if console.is_closed() {
            return Ok(SUCCESS);
        }
        before = counts(&answer);
        answer = client.call("GET", &path, None).await?;
    }
}

type Counts = HashMap<(String, String), u64>;

fn counts(answer: &Value) -> Counts {
    let keys = answer["keys"].as_array().map_or(&[][..], Vec::as_slice);
    let named = |key: &Value| {
        let text = |name: &str| key[name].as_str().unwrap_or_default().to_owned();
        ((text("limit"), text("key")), key["decisions"].as_u64().unwrap_or_default())
    };
    keys.iter().map(named).collect()
}

/// One frame: the keys with what was decided about them, and since the last frame.
fn show_top(answer: &Value, before: &Counts, rows: usize, arguments: &TopArguments, console: &mut Console) {
    if arguments.server.json {
        console.line(answer);
        return;
    }
    let at = answer["at"].as_str().unwrap_or_default();
    console.line(format_args!("{at}  {}  (q to leave)\n", super::plain(&arguments.server.server)));
    let keys = answer["keys"].as_array().map_or(&[][..], Vec::as_slice);
    let row = |key: &Value| {
        let text = |name: &str| key[name].as_str().unwrap_or_default();
        let decisions = key["decisions"].as_u64().unwrap_or_default();
        let denied = key["denied"].as_u64().unwrap_or_default();
        let known = before.get(&(text("limit").to_owned(), text("key").to_owned()));
        let rate = known.map_or_else(|| "-".to_owned(), |known| decisions.saturating_sub(*known).to_string());
        let share = denied.saturating_mul(100).checked_div(decisions).unwrap_or(0);
        vec![
            cell(text("limit")),
            decisions.to_string(),
            rate,
            denied.to_string(),
            format!("{share} %"),
            cell(text("key")),
        ]
    };
    let rows: Vec<Vec<String>> = keys.iter().take(rows).map(row).collect();
    for line in table(&["limit", "decisions", "last second", "denied", "share", "key"], &rows) {
        console.line(line);
    }
    if keys.is_empty() {
        console.line("no key was asked about yet");
    }
}

/// Shows decisions until the user leaves, or the server does.
pub(super) async fn tail(arguments: &TailArguments, console: &mut Console) -> Result<u8, String> {
    let client = Client::new(&arguments.server)?;
    let path = if arguments.denied { "/admin/v1/tail?denied=true" } else { "/admin/v1/tail" };
    let mut lines = Lines { body: client.open(path).await?, rest: Vec::new() };
    let mut screen = Screen::open();
    let deadline = tokio::time::sleep(if arguments.once { FRAME } else { Duration::MAX });
    let mut deadline = std::pin::pin!(deadline);
    loop {
        let line = tokio::select! {
            () = screen.left() => return Ok(SUCCESS),
            () = &mut deadline => return Ok(SUCCESS),
            line = lines.next() => line?,
        };
        let Some(line) = line else {
            return Err("the server has ended the view; it may have stopped, or an hour is over".to_owned());
        };
        if arguments.server.json {
            console.line(&line);
        } else {
            console.line(show::event(&line));
        }
        console.flush();
        if console.is_closed() {
            return Ok(SUCCESS);
        }
    }
}

/// Lines of JSON on a body that comes by and by.
struct Lines {
    body: Incoming,
    rest: Vec<u8>,
}

impl Lines {
    /// The next one; none when the server has ended them. May be dropped while it waits.
    async fn next(&mut self) -> Result<Option<Value>, String> {
        loop {
            while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                if line.len() > 1 {
                    let read = serde_json::from_slice(&line);
                    return read.map(Some).map_err(|_| "the server sent a line that is not JSON".to_owned());
                }
            }
            if self.rest.len() > LINE_BYTES_MAX {
                return Err("the server sent a line that does not end".to_owned());
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(format!("the view was cut off: {error}; ask again")),
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.rest.extend_from_slice(data);
                    }
                }
            }
        }
    }
}
