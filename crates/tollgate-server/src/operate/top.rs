//! `top`: the busiest keys of a running server, again each second. On a terminal q or Ctrl-C ends it. Without a
//! terminal it writes lines.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::Value;

use super::client::Client;
use super::screen::{CLEAR, Screen};
use super::show::{self, list, text};
use super::table::cell;
use crate::SUCCESS;
use crate::cli::{TopArguments, TopSorting};
use crate::console::{Console, Style};
use crate::text::{counted, grouped, plain, unknown_name};

/// How often it is drawn.
const FRAME: Duration = Duration::from_secs(1);
/// Lines of a frame beside the keys, its head and its foot: the titles, the total, what it counts, one for more keys, and
/// that of the cursor.
const TABLE_LINES: usize = 5;
/// The explanation of the mark of an estimate.
const ESTIMATED: &str =
    "\n~ estimated: in a second with many decisions one in 16 is looked at, and counts for 16";
/// The column of the decisions since the last frame.
const LAST_SECOND: usize = 2;
/// The column of the latest denial.
const LAST_DENIED: usize = 5;
/// Maximum number of keys that the server lists.
const KEYS_MAX: u64 = 1_000;

/// Shows the busiest keys until the user leaves.
pub(super) async fn top(arguments: &TopArguments, console: &mut Console) -> Result<u8, String> {
    let client = Client::new(&arguments.server)?;
    if let Some(notice) = client.notice() {
        console.warning(notice);
    }
    let has_limits = client.call("GET", "/admin/v1/limits", None).await;
    are_known(&arguments.limits, &has_limits.unwrap_or_default())?;
    // The total is of all keys, and with a filter or another order those to show may be among any of them.
    let path = format!("/admin/v1/top?limit={KEYS_MAX}&{}", arguments.nodes.query());
    let mut frame = TopFrame { arguments, url: client.url(), before: KeyDecisions::new(), rows: None };
    let mut answer = client.call("GET", &path, None).await?;
    if arguments.once {
        frame.show(&answer, console);
        return Ok(SUCCESS);
    }
    let mut screen = Screen::open();
    loop {
        if screen.is_watched {
            frame.rows = Some(screen.rows());
        }
        if screen.is_watched && !arguments.server.json {
            console.text(CLEAR);
        }
        frame.show(&answer, console);
        console.flush();
        if console.is_closed() {
            return Ok(SUCCESS);
        }
        frame.before = counts(&answer);
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

/// Checks that the limits exist, with the nearest name for one that does not.
pub(super) fn are_known(given: &[String], answer: &Value) -> Result<(), String> {
    let names: Vec<&str> = list(answer, "limits").iter().map(|limit| text(limit, "name")).collect();
    // Rules of other programs have no list of names.
    let Some(unknown) = given.iter().find(|name| !names.is_empty() && !names.contains(&name.as_str())) else {
        return Ok(());
    };
    Err(plain(&unknown_name(&format!("--limit: the policy has no limit {unknown:?}"), unknown, &names)))
}

/// The last counts of each key: all decisions, and those of each source.
type KeyDecisions = HashMap<(String, String), (u64, Value)>;

fn counts(answer: &Value) -> KeyDecisions {
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

/// One picture of `top`, and what it needs of the one before.
struct TopFrame<'a> {
    arguments: &'a TopArguments,
    url: &'a str,
    before: KeyDecisions,
    /// The rows of the terminal that shows it again and again.
    rows: Option<usize>,
}

impl TopFrame<'_> {
    /// Prints the keys with their decisions in the window and since the last frame.
    fn show(&self, answer: &Value, console: &mut Console) {
        let keys = self.chosen(answer);
        let wanted = usize::try_from(self.arguments.keys).unwrap_or(usize::MAX);
        if self.arguments.server.json {
            let mut answer = answer.clone();
            answer["keys"] = keys.into_iter().take(wanted).cloned().collect::<Vec<Value>>().into();
            console.line(answer);
            return;
        }
        let head = console.captured(|console| self.head(answer, console));
        let foot = console.captured(|console| {
            if keys.iter().take(wanted).any(|key| key["estimated"] == true) {
                console.line(ESTIMATED);
            }
            show::nodes(answer, "the sums of", console);
        });
        let others = console.rows_of(&head) + console.rows_of(&foot) + TABLE_LINES;
        let fitting = self.rows.map_or(wanted, |rows| rows.saturating_sub(others).min(wanted));
        console.text(head);
        self.table(&keys, fitting, console);
        if keys.is_empty() {
            let what = if list(answer, "keys").is_empty() {
                "was counted in the last two minutes"
            } else {
                "passes the filter"
            };
            console.line(format_args!("no key {what}"));
        }
        let hidden = keys.len().saturating_sub(fitting);
        if hidden > 0 {
            // The server lists no more keys, but may know more.
            let is_whole = u64::try_from(list(answer, "keys").len()).is_ok_and(|listed| listed < KEYS_MAX);
            let least = if is_whole { "" } else { "at least " };
            let cure = if fitting == wanted { "; --keys N shows more" } else { "" };
            console.line(format_args!("and {least}{}{cure}", counted(hidden, "more key")));
        }
        console.text(foot);
    }

    /// Prints the lines above the table.
    fn head(&self, answer: &Value, console: &mut Console) {
        let window = answer["since"]
            .as_str()
            .map_or_else(String::new, |since| format!("  decisions since {}", show::time_of_day(since)));
        let at = text(answer, "at");
        let title = if self.arguments.once {
            format!("{}  {}{window}", plain(at), plain(self.url))
        } else {
            format!("{}  {}{window}  (q to leave)", show::time_of_day(at), plain(self.url))
        };
        console.row(&title);
        console.line("");
        show::policy_trouble(answer, console);
    }

    /// Prints the first of the keys, and the total of all.
    fn table(&self, keys: &[&Value], fitting: usize, console: &mut Console) {
        let mut rows: Vec<Vec<String>> =
            keys.iter().take(fitting).map(|key| self.row(key, console)).collect();
        if keys.len() > 1 {
            rows.push(self.total(keys));
        }
        let mut titles =
            vec!["limit", "decisions", "last second", "denied", "would deny", "share", "source", "key"];
        if self.arguments.denied {
            titles.insert(LAST_DENIED, "last denied");
        }
        let titles = self.fitting(titles);
        show::lines(&titles, &rows, &["share", "source", "would deny", "last second"], console);
        if keys.len() > 1 {
            console.line("a request counts once for each limit that applies to it");
        }
    }

    /// The keys that pass the filters, in the chosen order.
    fn chosen<'v>(&self, answer: &'v Value) -> Vec<&'v Value> {
        let limits = &self.arguments.limits;
        let is_chosen = |key: &&Value| {
            let is_limit = limits.is_empty() || limits.iter().any(|limit| limit == text(key, "limit"));
            is_limit && (!self.arguments.denied || denials(key) > 0)
        };
        let mut keys: Vec<&Value> = list(answer, "keys").iter().filter(is_chosen).collect();
        let most_first =
            |number: fn(&Value) -> u64| move |key: &&Value| (std::cmp::Reverse(number(key)), named(key));
        match self.arguments.sort {
            TopSorting::Decisions => {}
            // The first frame has no rates: it keeps the server's order, the most decisions first.
            TopSorting::Rate if self.before.is_empty() => {}
            TopSorting::Rate => {
                keys.sort_by_key(|key| (std::cmp::Reverse(self.since(key).unwrap_or(0)), named(key)))
            }
            TopSorting::Denied => keys.sort_by_key(most_first(denials)),
            TopSorting::Share => keys.sort_by_key(most_first(|key| percent(denials(key), key))),
            TopSorting::Name => keys.sort_by_key(|key| named(key)),
        }
        keys
    }

    /// Decisions since the last frame.
    fn since(&self, key: &Value) -> Option<u64> {
        let (known, _) = self.before.get(&named(key))?;
        Some(count(key, "decisions").saturating_sub(*known))
    }

    fn row(&self, key: &Value, console: &Console) -> Vec<String> {
        let about = if key["estimated"] == true { "~" } else { "" };
        let painted = |name: &str, style: Style| {
            let number = count(key, name);
            let shown = format!("{about}{}", grouped(number));
            if number > 0 { console.painted(&shown, style) } else { shown }
        };
        let mut row = vec![
            cell(text(key, "limit")),
            format!("{about}{}", grouped(count(key, "decisions"))),
            self.since(key).map_or_else(|| "-".to_owned(), grouped),
            painted("denied", Style::Bad),
            painted("would_deny", Style::Doubtful),
            format!("{} %", percent(denials(key), key)),
            decided(key, self.before.get(&named(key)).map(|(_, sources)| sources)),
            cell(text(key, "key")),
        ];
        if self.arguments.denied {
            row.insert(LAST_DENIED, last_denied(&key["last_denied"]));
        }
        self.fitting(row)
    }

    /// The sums of the keys, also of those that are not shown.
    fn total(&self, keys: &[&Value]) -> Vec<String> {
        let sum = |number: &dyn Fn(&Value) -> u64| keys.iter().map(|key| number(key)).sum::<u64>();
        let (decisions, denied) = (sum(&|key| count(key, "decisions")), sum(&|key| count(key, "denied")));
        let rate = sum(&|key| self.since(key).unwrap_or(0));
        let rate = if self.before.is_empty() { "-".to_owned() } else { grouped(rate) };
        let share = sum(&denials).saturating_mul(100).checked_div(decisions).unwrap_or(0);
        let would_deny = grouped(sum(&|key| count(key, "would_deny")));
        let keys = counted(keys.len(), "key");
        let mut texts = vec!["total".to_owned(), grouped(decisions), rate, grouped(denied), would_deny];
        texts.extend([format!("{share} %"), String::new(), keys]);
        if self.arguments.denied {
            texts.insert(LAST_DENIED, String::new());
        }
        self.fitting(texts)
    }

    /// The columns of a frame. A single one has no last second.
    fn fitting<T>(&self, mut cells: Vec<T>) -> Vec<T> {
        if self.arguments.once {
            cells.remove(LAST_SECOND);
        }
        cells
    }
}

fn count(key: &Value, name: &str) -> u64 {
    key[name].as_u64().unwrap_or_default()
}

/// Denials, and those that a limit in shadow would have made.
fn denials(key: &Value) -> u64 {
    count(key, "denied").saturating_add(count(key, "would_deny"))
}

/// The time of the latest denial, and when the caller may come back.
fn last_denied(denial: &Value) -> String {
    let time = |name: &str| denial[name].as_str().map(show::time_of_day);
    match (time("at"), time("retry_at")) {
        (Some(at), Some(retry)) => format!("{at} until {retry}"),
        (Some(at), None) => at,
        (None, _) => "-".to_owned(),
    }
}

/// The share of some of a key's decisions, in per cent.
fn percent(some: u64, key: &Value) -> u64 {
    some.saturating_mul(100).checked_div(count(key, "decisions")).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::io;

    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command, OperateCommand};

    fn frame(answer: &Value, before: &KeyDecisions) -> String {
        frame_with(&[], answer, before)
    }

    fn frame_with(flags: &[&str], answer: &Value, before: &KeyDecisions) -> String {
        frame_on(None, flags, answer, before)
    }

    /// A frame on a terminal with these columns and rows, or in a file.
    fn frame_on(
        terminal: Option<(usize, usize)>,
        flags: &[&str],
        answer: &Value,
        before: &KeyDecisions,
    ) -> String {
        let cli = Cli::try_parse_from([&["tollgate", "top"], flags].concat()).unwrap();
        let Command::Operate(OperateCommand::Top(arguments)) = cli.command else { panic!("not top") };
        let mut console = Console::new(io::sink(), io::sink());
        if let Some((width, _)) = terminal {
            console = console.with_width(width);
        }
        let (url, rows) = ("http://127.0.0.1:8080", terminal.map(|(_, rows)| rows));
        let frame = TopFrame { arguments: &arguments, url, before: before.clone(), rows };
        console.captured(|console| frame.show(answer, console))
    }

    /// A frame shows the keys in order with their counts since the last frame, as many as fit. No key can act on the
    /// terminal.
    #[test]
    fn a_frame_of_top() {
        let at = "2026-11-17T00:03:48.100Z";
        let first = serde_json::json!({ "at": at, "since": "2026-11-17T00:01:56.000Z", "keys": [
            { "limit": "per-key", "key": "k\u{1b}[2J", "decisions": 100, "denied": 25, "would_deny": 3,
              "sources": { "exact": 90, "lease": 10 } },
            { "limit": "all", "key": "", "decisions": 90, "denied": 0 },
        ]});
        let mut second = first.clone();
        second["keys"][0]["decisions"] = 130.into();
        second["keys"][0]["sources"] = serde_json::json!({ "deny-cache": 3, "exact": 90, "lease": 37 });
        let seen = frame(&second, &counts(&first));
        assert_eq!(
            seen,
            "00:03:48Z  http://127.0.0.1:8080  decisions since 00:01:56Z  (q to leave)\n\n\
             limit    decisions  last second  denied  would deny  share  source      key\n\
             per-key  130        30           25      3           21 %   lease 90 %  k\\u{1b}[2J\n\
             all      90         0            0       0           0 %    -\n\
             total    220        30           25      3           12 %               2 keys\n\
             a request counts once for each limit that applies to it\n"
        );
        // The first frame covers everything counted so far. A frame without new requests repeats the earlier source.
        for before in [KeyDecisions::new(), counts(&first)] {
            assert!(frame(&first, &before).contains("exact 90 %"));
        }
        let once = frame_with(&["--once", "--keys", "1"], &second, &KeyDecisions::new());
        assert!(
            once.starts_with("2026-11-17T00:03:48.100Z  http://127.0.0.1:8080  decisions since"),
            "{once}"
        );
        assert!(!once.contains("\nall  ") && once.contains("\ntotal    220"), "{once}");
        assert!(once.ends_with("applies to it\nand 1 more key; --keys N shows more\n"), "{once}");
        assert!(
            frame(&serde_json::json!({ "at": "T", "keys": [] }), &KeyDecisions::new())
                .contains("no key was counted in the last two minutes")
        );
    }

    /// The story: with 120 keys the total was that of the keys that fit the window, and a frame with estimates or nodes
    /// was higher than the terminal, which scrolled each second.
    #[test]
    fn a_frame_fits_its_terminal_and_totals_all_keys() {
        let key = |number: u32| {
            serde_json::json!({ "limit": "per-key", "key": format!("api_key=k{number}"), "decisions": 2,
                "denied": 1, "estimated": number == 0 })
        };
        let mut answer = serde_json::json!({ "at": "2026-11-17T00:03:48.100Z",
            "since": "2026-11-17T00:01:56.000Z", "keys": (0..120).map(key).collect::<Vec<_>>() });
        let high = |answer: &Value, width: usize, rows: usize| {
            let seen = frame_on(Some((width, rows)), &["--keys", "100"], answer, &counts(answer));
            let rows_of = |line: &str| crate::console::columns(line).div_ceil(width).max(1);
            // The cursor stands below the last line.
            (seen.lines().map(rows_of).sum::<usize>() + 1, seen)
        };
        for step in 0..3 {
            match step {
                1 => {
                    answer["nodes"] = serde_json::json!([{ "name": "a", "answered": true },
                    { "name": "b", "answered": false, "problem": "it cannot be reached: ".repeat(9) }])
                }
                2 => {
                    answer["policy"] = serde_json::json!({ "name": "policy.yaml", "error": {
                    "at": "2026-11-17T00:03:00Z", "text": "policy.yaml:1:1: wrong\npolicy.yaml:2:1: wrong" } })
                }
                _ => {}
            }
            for (width, rows) in [(80, 24), (60, 40), (200, 30)] {
                let (taken, seen) = high(&answer, width, rows);
                assert_eq!(taken, rows, "{width}: {seen}");
                assert!(seen.contains("\ntotal    240") && seen.contains("~ estimated"), "{seen}");
                assert!(seen.lines().next().is_some_and(|title| title.chars().count() <= width), "{seen}");
                let shown = seen.matches("api_key=k").count();
                assert!(seen.contains(&format!("and {} more keys\n", 120 - shown)), "{seen}");
            }
        }
        let seen = frame_with(&["--once"], &answer, &KeyDecisions::new());
        assert!(
            seen.contains("and 100 more keys; --keys N shows more\n") && seen.contains("120 keys"),
            "{seen}"
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
        let seen = frame(&answer, &KeyDecisions::new());
        assert!(seen.contains("~32") && seen.contains("~16") && !seen.contains("~2 "), "{seen}");
        assert!(seen.contains("~ estimated"), "{seen}");
        let counted = serde_json::json!({ "at": "T", "keys": [answer["keys"][1]] });
        assert!(!frame(&counted, &KeyDecisions::new()).contains("estimated"));
    }

    /// Keys are filtered by limit and by denials, and sorted as asked.
    #[test]
    fn keys_are_filtered_and_sorted() {
        let answer = serde_json::json!({ "at": "T", "keys": [
            { "limit": "b", "key": "k=1", "decisions": 9, "denied": 1 },
            { "limit": "a", "key": "k=2", "decisions": 5, "denied": 0 },
            { "limit": "a", "key": "k=3", "decisions": 4, "denied": 4,
              "last_denied": { "at": "2026-11-17T00:03:48.100Z", "retry_at": "2026-11-17T00:04:42.000Z" } },
            { "limit": "c", "key": "k=4", "decisions": 3, "denied": 0, "would_deny": 3 },
        ]});
        let keys = |flags: &[&str]| -> Vec<String> {
            let seen = frame_with(flags, &answer, &KeyDecisions::new());
            let keys = seen.split_whitespace().filter_map(|word| word.strip_prefix("k="));
            keys.map(str::to_owned).collect()
        };
        assert_eq!(keys(&[]), ["1", "2", "3", "4"]);
        assert_eq!(keys(&["--sort", "denied"]), ["3", "4", "1", "2"]);
        assert_eq!(keys(&["--denied"]), ["1", "3", "4"]);
        assert_eq!(keys(&["--sort", "name"]), ["2", "3", "1", "4"]);
        assert_eq!(keys(&["--limit", "a", "--denied"]), ["3"]);
        assert_eq!(keys(&["--keys", "1", "--sort", "share"]), ["3"]);
        // Regression: what a limit in shadow would deny did not count.
        assert_eq!(keys(&["--sort", "share"]), ["3", "4", "1", "2"]);
        // Regression: a frame without rates was sorted by name. It keeps the order of the server.
        assert_eq!(keys(&["--once", "--sort", "rate"]), ["1", "2", "3", "4"]);
        assert!(!frame_with(&["--once"], &answer, &KeyDecisions::new()).contains("last second"));
        let seen = frame_with(&["--denied", "--limit", "a"], &answer, &KeyDecisions::new());
        assert!(seen.contains("last denied") && seen.contains("00:03:48Z until 00:04:42Z"), "{seen}");
        assert!(
            frame_with(&["--limit", "d"], &answer, &KeyDecisions::new()).contains("no key passes the filter")
        );
        let known = serde_json::json!({ "limits": [{ "name": "per-key" }] });
        assert!(
            are_known(&["per-kee".to_owned()], &known)
                .is_err_and(|text| text.contains("did you mean per-key?"))
        );
    }
}
