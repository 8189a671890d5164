//! `top` and `tail`: live views of a running server. On a terminal q or Ctrl-C ends them. Without a terminal they write
//! lines.

use std::collections::HashMap;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;

use super::client::Client;
use super::screen::{CLEAR, Screen};
use super::show;
use super::show::{list, text};
use super::table::{cell, table};
use crate::SUCCESS;
use crate::cli::{TailArguments, TopArguments};
use crate::console::Console;
use crate::text::plain;

/// How often `top` is drawn, and how long `tail --once` watches.
const FRAME: Duration = Duration::from_secs(1);
/// Maximum length of a line of `tail`.
const LINE_BYTES_MAX: usize = 1 << 20;
/// Lines of a frame that are not keys: two header lines, the titles, and the line of the cursor.
const FRAME_LINES: usize = 4;

/// Shows the busiest keys until the user leaves.
pub(super) async fn top(arguments: &TopArguments, console: &mut Console) -> Result<u8, String> {
    let client = Client::new(&arguments.server)?;
    let path = format!("/admin/v1/top?limit={}", arguments.limit);
    let mut before = Counts::new();
    let mut answer = client.call("GET", &path, None).await?;
    if arguments.once {
        show_top(&answer, &before, usize::MAX, arguments, console);
        return Ok(SUCCESS);
    }
    let mut screen = Screen::open();
    loop {
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
        let next = async {
            tokio::time::sleep(FRAME).await;
            client.call("GET", &path, None).await
        };
        answer = tokio::select! {
            () = screen.left() => return Ok(SUCCESS),
            next = next => next?,
        };
    }
}

/// The last counts of each key: all decisions, and those of each source.
type Counts = HashMap<(String, String), (u64, Value)>;

fn counts(answer: &Value) -> Counts {
    let count =
        |key: &Value| (named(key), (key["decisions"].as_u64().unwrap_or_default(), key["sources"].clone()));
    list(answer, "keys").iter().map(count).collect()
}

/// The source of most answers about a key, with its percentage. It covers the answers since the last frame, if there
/// are any.
fn decided(key: &Value, before: Option<&Value>) -> String {
    let since = |before: Option<&Value>| {
        let known = |source: &str| before.map_or(0, |before| before[source].as_u64().unwrap_or_default());
        let each = key["sources"].as_object().into_iter().flatten();
        let counts = each.map(|(source, count)| {
            (source.as_str(), count.as_u64().unwrap_or_default().saturating_sub(known(source)))
        });
        let counts: Vec<(&str, u64)> = counts.collect();
        let all: u64 = counts.iter().map(|(_, count)| count).sum();
        let (source, most) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        Some(format!("{} {} %", cell(source), most.saturating_mul(100).checked_div(all)?))
    };
    since(before).or_else(|| since(None)).unwrap_or_else(|| "-".to_owned())
}

fn named(key: &Value) -> (String, String) {
    (text(key, "limit").to_owned(), text(key, "key").to_owned())
}

/// Prints one frame: the keys with their decisions in total and since the last frame.
fn show_top(answer: &Value, before: &Counts, rows: usize, arguments: &TopArguments, console: &mut Console) {
    if arguments.server.json {
        console.line(answer);
        return;
    }
    let at = text(answer, "at");
    console.line(format_args!("{at}  {}  (q to leave)\n", plain(&arguments.server.server)));
    let keys = list(answer, "keys");
    let row = |key: &Value| {
        let decisions = key["decisions"].as_u64().unwrap_or_default();
        let denied = key["denied"].as_u64().unwrap_or_default();
        let known = before.get(&named(key));
        let rate =
            known.map_or_else(|| "-".to_owned(), |(known, _)| decisions.saturating_sub(*known).to_string());
        let share = denied.saturating_mul(100).checked_div(decisions).unwrap_or(0);
        let about = if key["estimated"] == true { "~" } else { "" };
        vec![
            cell(text(key, "limit")),
            format!("{about}{decisions}"),
            rate,
            format!("{about}{denied}"),
            format!("{share} %"),
            decided(key, known.map(|(_, sources)| sources)),
            cell(text(key, "key")),
        ]
    };
    let rows: Vec<Vec<String>> = keys.iter().take(rows).map(row).collect();
    for line in table(&["limit", "decisions", "last second", "denied", "share", "decided", "key"], &rows) {
        console.line(line);
    }
    if keys.iter().take(rows.len()).any(|key| key["estimated"] == true) {
        console.line(
            "\n~ is estimated: of many decisions in a second one in 16 is looked at, and counts for 16",
        );
    }
    if keys.is_empty() {
        console.line("no key was asked about yet");
    }
}

/// Shows decisions until the user leaves or the server ends the stream.
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

/// Lines of JSON from a streamed body.
struct Lines {
    body: Incoming,
    rest: Vec<u8>,
}

impl Lines {
    /// The next line, or `None` when the server has ended the stream. Safe to cancel while it waits.
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
                    if let Some(bytes) = frame.data_ref() {
                        self.rest.extend_from_slice(bytes);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command, OperateCommand};

    #[derive(Clone, Default)]
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl Write for Page {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn frame(answer: &Value, before: &Counts, rows: usize) -> String {
        let cli = Cli::try_parse_from(["tollgate", "top", "--server", "http://127.0.0.1:8080"]).unwrap();
        let Command::Operate(OperateCommand::Top(arguments)) = cli.command else { panic!("not top") };
        let page = Page::default();
        let mut console = Console::new(page.clone(), io::sink());
        show_top(answer, before, rows, &arguments, &mut console);
        drop(console);
        let bytes = page.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    /// A frame shows the keys in order with their counts since the last frame, as many as fit. No key can act on the
    /// terminal.
    #[test]
    fn a_frame_of_top() {
        let first = serde_json::json!({ "at": "T", "keys": [
            { "limit": "per-key", "key": "k\u{1b}[2J", "decisions": 100, "denied": 25,
              "sources": { "exact": 90, "lease": 10 } },
            { "limit": "all", "key": "", "decisions": 90, "denied": 0 },
        ]});
        let mut second = first.clone();
        second["keys"][0]["decisions"] = 130.into();
        second["keys"][0]["sources"] = serde_json::json!({ "deny-cache": 3, "exact": 90, "lease": 37 });
        let seen = frame(&second, &counts(&first), 10);
        assert_eq!(
            seen,
            "T  http://127.0.0.1:8080  (q to leave)\n\n\
             limit    decisions  last second  denied  share  decided     key\n\
             per-key  130        30           25      19 %   lease 90 %  k\\u{1b}[2J\n\
             all      90         0            0       0 %    -\n"
        );
        // The first frame covers everything counted so far. A frame without new requests repeats the earlier source.
        for before in [Counts::new(), counts(&first)] {
            assert!(frame(&first, &before, 1).contains("exact 90 %"));
        }
        assert!(!frame(&second, &counts(&first), 1).contains("all  "));
        assert!(
            frame(&serde_json::json!({ "at": "T", "keys": [] }), &Counts::new(), 5)
                .contains("no key was asked")
        );
    }

    /// Regression: `top` showed 32 decisions of a key with two requests as if they were counted. Estimates are marked
    /// as such.
    #[test]
    fn estimates_are_marked() {
        let answer = serde_json::json!({ "at": "T", "keys": [
            { "limit": "a", "key": "k=1", "decisions": 32, "denied": 16, "estimated": true },
            { "limit": "a", "key": "k=2", "decisions": 2, "denied": 1 },
        ]});
        let seen = frame(&answer, &Counts::new(), 10);
        assert!(seen.contains("~32") && seen.contains("~16") && !seen.contains("~2 "), "{seen}");
        assert!(seen.contains("~ is estimated"), "{seen}");
        assert!(!frame(&answer, &Counts::new(), 0).contains("estimated"));
    }

    /// A line of `tail` shows the decision and its attributes, and reports how many it left out.
    #[test]
    fn a_line_of_tail() {
        let denied = serde_json::json!({ "at": "T", "wire": "rls", "allowed": false, "limit": "per-key",
            "attributes": { "api_key": "k\r1", "n": 5 }, "retry_after_ms": 412, "source": "exact" });
        assert_eq!(
            show::event(&denied),
            "T  rls        DENY, retry in 0.412s     per-key           api_key=k\\r1 n:=5"
        );
        assert!(show::event(&serde_json::json!({ "missed": 7 })).contains("7 decisions"));
        // Regression: a request to which no limit applied looked like any other, and one that can never pass looked
        // like one to retry.
        let unmet = serde_json::json!({ "at": "T", "wire": "http", "allowed": true, "verdict": "allow", "limit": "",
            "attributes": { "foo": "solo" }, "reason": "no limit applies to these attributes", "source": "none" });
        assert!(show::event(&unmet).ends_with("foo=solo  (no limit applies to these attributes)"));
        let never = serde_json::json!({ "at": "T", "wire": "http", "allowed": false, "verdict": "never",
            "limit": "per-key", "attributes": {}, "reason": "a cost of 9", "source": "exact" });
        assert!(show::event(&never).contains("  NEVER  "), "{}", show::event(&never));
    }
}
