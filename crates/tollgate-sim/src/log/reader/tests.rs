//! Whole logs: every format as its server writes it, and bad input of every kind.

use std::io::Cursor;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tollgate::{Ticks, Timestamp};

use super::*;
use crate::log::Stamp;
use crate::log::source::tests::{gzip, zstd};
use crate::log::write::{Style, Truth};

const T0: u64 = 1_709_294_400_000_000;

fn truth(micros: u64) -> Truth {
    Truth::new(Timestamp::from_unix_micros(T0 + micros), IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)))
}

fn reader(bytes: impl Into<Vec<u8>>) -> Reader {
    Reader::stream("log", Cursor::new(bytes.into()), &Mapping::default()).unwrap()
}

/// All requests of a reader: arrival and target.
fn requests(reader: &mut Reader) -> Vec<(u64, String)> {
    let mut requests = Vec::new();
    reader
        .for_each(|record| {
            let target = record.target.map(std::borrow::Cow::into_owned).unwrap_or_default();
            requests.push((record.arrival.unix_micros() - T0, target));
        })
        .unwrap();
    requests
}

/// A line of combined, so many seconds after the start.
fn line(second: u64, target: &str) -> String {
    let mut line = String::new();
    Style::Combined.line(
        &Truth { target: target.to_owned(), duration: Ticks::ZERO, ..truth(second * 1_000_000) },
        &mut line,
    );
    line + "\n"
}

/// A folder of its own for the files of a test, deleted with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tollgate-log-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn any_truth() -> impl Strategy<Value = Truth> {
    let client = prop_oneof![
        any::<u32>().prop_map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))),
        (1_u128..).prop_map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits | 0x2001 << 112))),
    ];
    let text = "[ -~éß☃]{1,12}";
    (
        (0_u64..2_000_000_000, 0_u64..90_000_000, client),
        ("[a-z]{0,6}", "(GET|POST|PROPFIND)", "/[!-~é]{0,20}", "[a-z]{1,8}\\.example"),
        (text, 100_u16..600, 0_u64..1 << 40, text),
    )
        .prop_map(
            |((at, duration, client), (user, method, target, host), (agent, status, bytes, key))| Truth {
                duration: Ticks::from_micros(duration),
                client,
                user,
                method,
                target,
                host,
                user_agent: agent.trim().to_owned(),
                status,
                bytes,
                attributes: vec![("api_key".to_owned(), key.trim().to_owned())],
                ..truth(at)
            },
        )
}

/// The expected record of a request, as far as its format can hold it.
fn compare(style: Style, truth: &Truth, record: &Record<'_>) {
    let unit = style.unit().as_micros();
    let seen = if style.has_duration() { truth.arrival } else { truth.end() };
    let seen = if style == Style::Decisions { truth.arrival } else { seen };
    let difference = seen.unix_micros().abs_diff(record.arrival.unix_micros());
    assert!(difference < 2 * unit, "{style:?}: {difference} µs off: {record:?}");
    assert_eq!(record.precision, style.precision(), "{style:?}");
    if style == Style::Decisions {
        let attribute = |name: &str| {
            record.attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value.to_string())
        };
        assert_eq!(attribute("ip"), Some(truth.client.to_string()));
        assert_eq!(attribute("path").as_ref(), Some(&truth.target));
        assert_eq!(attribute("api_key").as_ref(), Some(&truth.attributes[0].1));
        assert_eq!(record.refused, truth.status == 429);
        return;
    }
    assert_eq!(record.method.as_deref(), Some(truth.method.as_str()), "{style:?}");
    assert_eq!(record.target.as_deref(), Some(truth.target.as_str()), "{style:?}");
    assert_eq!(record.status, Some(truth.status), "{style:?}");
    assert_eq!(record.bytes, Some(truth.bytes), "{style:?}");
    assert_eq!(record.refused, matches!(truth.status, 429 | 503), "{style:?}");
    let client = (style != Style::Har).then(|| truth.client.to_canonical());
    assert_eq!(record.client, client, "{style:?}");
    if style.has_duration() {
        let duration = record.duration.map(Ticks::as_micros).expect("the format has durations");
        let unit = unit.min(1_000);
        assert!(truth.duration.as_micros() - duration < unit, "{style:?}: {duration}");
    }
    let has_agent = !matches!(style, Style::Common | Style::Haproxy | Style::HaproxySyslog);
    if has_agent && !matches!(truth.user_agent.as_str(), "" | "-") {
        assert_eq!(record.user_agent.as_deref(), Some(truth.user_agent.as_str()), "{style:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Every format: what a server writes is detected and read back, plain or compressed.
    #[test]
    fn written_logs_are_read_back(requests in proptest::collection::vec(any_truth(), 1..20), packed in 0..3) {
        for style in Style::ALL {
            let log = style.log(&requests);
            let mut reader = reader(match packed {
                0 => log,
                1 => gzip(&log),
                _ => zstd(&log),
            });
            let detection = reader.files().next().unwrap().detection.clone().unwrap();
            prop_assert_eq!(detection.format, style.format());
            prop_assert_eq!(detection.precision, style.precision(), "{:?}", style);
            prop_assert_eq!(detection.duration, style.has_duration(), "{:?}", style);
            let mut order: Vec<&Truth> = requests.iter().collect();
            match style {
                Style::Har | Style::Decisions => order.sort_by_key(|truth| truth.arrival),
                _ => order.sort_by_key(|truth| truth.end()),
            }
            let mut order = order.into_iter();
            reader.for_each(|record| compare(style, order.next().unwrap(), &record)).unwrap();
            prop_assert_eq!(order.next(), None, "{:?}: {:?}", style, reader.examples());
            prop_assert_eq!(reader.bad_lines(), 0, "{:?}: {:?}", style, reader.examples());
        }
    }

    /// No bytes make a reader panic, and every line that is not blank is a record or a bad line.
    #[test]
    fn any_bytes_end_well(bytes in proptest::collection::vec(any::<u8>(), 0..400), text in "[ -~\n\t\"{}\\[\\]]{0,400}") {
        for bytes in [bytes, text.into_bytes()] {
            for format in Format::ALL {
                if let Ok(mut reader) = Reader::stream_as(format, "x", Cursor::new(bytes.clone()), &Mapping::default()) {
                    reader.for_each(|_| ()).unwrap();
                }
            }
            if let Ok(mut reader) = Reader::stream("x", Cursor::new(bytes), &Mapping::default()) {
                reader.for_each(|_| ()).unwrap();
            }
        }
    }

    /// Changed bytes of a good log end well too: every line is counted, as a record or as a bad one.
    #[test]
    fn damaged_logs_lose_no_line(
        requests in proptest::collection::vec(any_truth(), 1..8),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        for style in Style::ALL {
            let mut log = style.log(&requests);
            for (at, byte) in &changes {
                let at = at.index(log.len());
                log[at] = *byte;
            }
            let blank = |line: &&[u8]| !line.trim_ascii_end().is_empty();
            let lines = log.split(|byte| *byte == b'\n').filter(blank).count();
            let Ok(mut reader) = Reader::stream_as(style.format(), "x", Cursor::new(log), &Mapping::default()) else {
                continue;
            };
            reader.for_each(|_| ()).unwrap();
            if style != Style::Har {
                let header = u64::from(style == Style::Csv);
                let counted = reader.records() + reader.bad_lines() + header;
                prop_assert_eq!(counted, u64::try_from(lines).unwrap(), "{:?}", style);
            }
        }
    }
}

#[test]
fn bad_lines_are_counted_and_shown() {
    let log = format!("{}not a line\x1b[31m\n\n{}{}", line(0, "/a"), line(1, "/b"), "{\"json\":1}\r\n");
    let mut reader = reader(log);
    assert_eq!(requests(&mut reader), [(0, "/a".to_owned()), (1_000_000, "/b".to_owned())]);
    assert_eq!((reader.records(), reader.bad_lines()), (2, 2));
    let shown: Vec<String> = reader.examples().iter().map(BadInput::to_string).collect();
    assert_eq!(
        shown,
        ["log:2: no date in brackets: not a line\\x1b[31m", "log:5: no date in brackets: {\"json\":1}"]
    );
    let report = reader.files().next().unwrap();
    assert_eq!((report.records, report.bad, report.damage.clone()), (2, 2, None));
    assert_eq!(report.detection.as_ref().unwrap().stamp, Stamp::End);
}

#[test]
fn only_the_first_bad_lines_are_kept() {
    let mut reader = reader(line(0, "/a") + &"bad\n".repeat(1_000));
    assert_eq!(requests(&mut reader).len(), 1);
    assert_eq!((reader.bad_lines(), reader.examples().len()), (1_000, EXAMPLES_MAX));
}

#[test]
fn empty_logs_are_no_error() {
    for empty in [&b""[..], b"\n\n  \r\n", &gzip(b""), &zstd(b""), b"\xEF\xBB\xBF"] {
        let mut reader = reader(empty);
        assert_eq!(requests(&mut reader), []);
        let report = reader.files().next().unwrap();
        assert_eq!((report.detection.clone(), report.records, report.bad), (None, 0, 0));
    }
}

/// A gzip that is cut gives what it has, names the cut line, and says that it is damaged.
#[test]
fn a_cut_gzip_gives_what_it_has() {
    let log: String =
        (0..50_000).map(|second| line(second, &format!("/{}", second.wrapping_mul(2_654_435_761)))).collect();
    for packed in [gzip(log.as_bytes()), zstd(log.as_bytes())] {
        let mut reader = reader(&packed[..packed.len() / 2]);
        let read = requests(&mut reader).len();
        assert!(read > 1_000 && read < 50_000, "{read}");
        let damage = reader.files().next().unwrap().damage.clone().expect("it is damaged");
        assert!(damage.contains("cut short") || damage.contains("failed"), "{damage}");
        assert!(reader.bad_lines() <= 1, "{:?}", reader.examples());
    }
    let header_only = reader(&gzip(log.as_bytes())[..8]);
    let mut header_only = header_only;
    assert_eq!(requests(&mut header_only), []);
    assert!(header_only.files().next().unwrap().damage.is_some());
}

#[test]
fn binary_content_is_refused_with_a_reason() {
    let error =
        Reader::stream("core", Cursor::new(b"\x7fELF\x02\0\0".to_vec()), &Mapping::default()).err().unwrap();
    let error = error.to_string();
    assert!(
        error.starts_with("core: the file is not text: it has bytes of zero; accepted: text, plain or"),
        "{error}"
    );
    assert!(error.contains("formats that are read: nginx/Apache common"), "{error}");
    // Zeros in a log that has good lines are bad lines, as after a crash of the machine.
    let zeros = format!("{}{}\n{}", line(0, "/a").repeat(200), "\0".repeat(50), line(1, "/b"));
    let mut reader = reader(zeros);
    assert_eq!(requests(&mut reader).len(), 201);
    assert_eq!(reader.bad_lines(), 1);
}

#[test]
fn a_line_that_is_too_long_is_a_bad_line() {
    let log = format!("{}{}\n{}", line(0, "/a"), "x".repeat(LINE_BYTES_MAX + 5), line(1, "/b"));
    let mut reader = reader(log);
    assert_eq!(requests(&mut reader).len(), 2);
    assert_eq!(reader.examples()[0].reason, "a line of 1048581 bytes, which is more than 1048576");
    assert_eq!(reader.examples()[0].line, 2);
}

/// Rotated files in the order of a shell, and two servers of the same time, come out by their times.
#[test]
fn files_are_read_by_their_times() {
    let folder = Folder::new("times");
    let part = |from: u64, to: u64, name: &str| -> Vec<u8> {
        (from..to).map(|second| line(second, &format!("/{name}/{second}"))).collect::<String>().into_bytes()
    };
    let paths = [
        folder.write("a.log", &part(200, 300, "a")),
        folder.write("a.log.1.gz", &gzip(&part(100, 200, "a"))),
        folder.write("a.log.2.zst", &zstd(&part(0, 100, "a"))),
        folder.write("b.log", &part(0, 300, "b")),
        folder.write("empty.log", b""),
    ];
    let mut reader = Reader::open(&paths, &Mapping::default()).unwrap();
    let total = paths.iter().map(|path| std::fs::metadata(path).unwrap().len()).sum();
    assert_eq!(reader.progress(), Progress { read: 0, total: Some(total) });
    let read = requests(&mut reader);
    assert_eq!(read.len(), 600);
    let disorder = read.windows(2).map(|pair| pair[0].0.saturating_sub(pair[1].0)).max();
    assert!(disorder <= Some(2_000_000), "{disorder:?}");
    assert_eq!(reader.progress(), Progress { read: total, total: Some(total) });
    let counts: Vec<u64> = reader.files().map(|file| file.records).collect();
    assert_eq!(counts, [100, 100, 100, 300, 0]);
}

/// The story: a log that a crash had left with zeros near its start was refused as binary, with all its requests.
#[test]
fn zeros_in_a_log_are_a_bad_line() {
    let mut log = (line(0, "/a") + &line(1, "/b")).into_bytes();
    log.extend([0; 5_000]);
    log.extend(b"\n");
    log.extend(line(2, "/c").into_bytes());
    let mut reader = reader(log);
    assert_eq!(requests(&mut reader).len(), 3);
    assert_eq!(reader.bad_lines(), 1);
    assert!(reader.examples()[0].excerpt.starts_with("\\x00\\x00"), "{}", reader.examples()[0]);
}

/// A file of two formats: the lines of the one that most lines have are read, and the others are named by their format.
#[test]
fn lines_of_another_format_are_called_so() {
    let mut log = line(0, "/a") + &line(1, "/b");
    Style::Envoy.line(&truth(2_000_000), &mut log);
    log += "\nneither\n";
    let mut reader = reader(log);
    assert_eq!((requests(&mut reader).len(), reader.bad_lines()), (2, 2));
    let reasons: Vec<&str> = reader.examples().iter().map(|bad| bad.reason.as_str()).collect();
    let envoy = "it is Envoy JSON, and a file has one format: give it as another file";
    assert_eq!(reasons, [envoy, "no date in brackets"]);
}

/// One line with a wrong clock does not hold up the rest of its file.
#[test]
fn one_wrong_clock_does_not_move_a_file() {
    let folder = Folder::new("clock");
    let half = |name: &str| -> String { (0..100).map(|second| line(second, name)).collect() };
    let jumping = half("/a").replacen(&line(10, "/a"), &line(1_000_000, "/a"), 1);
    let paths = [folder.write("a.log", jumping.as_bytes()), folder.write("b.log", half("/b").as_bytes())];
    let mut reader = Reader::open(&paths, &Mapping::default()).unwrap();
    let read = requests(&mut reader);
    assert_eq!(read.len(), 200);
    let at = |place: usize| read[place..].iter().find(|(at, _)| *at < 1_000_000_000_000).unwrap().0;
    assert!(at(60) > 25_000_000 && at(60) < 35_000_000, "{}", at(60));
}

#[test]
fn formats_may_differ_between_files() {
    let folder = Folder::new("formats");
    let requests: Vec<Truth> = (0..10).map(|second| truth(second * 1_000_000)).collect();
    let paths: Vec<PathBuf> = Style::ALL
        .iter()
        .map(|style| folder.write(&format!("{style:?}.log"), &style.log(&requests)))
        .collect();
    let mut reader = Reader::open(&paths, &Mapping::default()).unwrap();
    let mut count = 0;
    reader.for_each(|_| count += 1).unwrap();
    assert_eq!((count, reader.bad_lines()), (140, 0), "{:?}", reader.examples());
}

#[test]
fn files_that_cannot_be_opened_are_named() {
    let error = Reader::open(&[PathBuf::from("no/such.log")], &Mapping::default()).err().unwrap();
    assert!(error.to_string().starts_with("no/such.log: "), "{error}");
    let folder = Folder::new("folder");
    let error = Reader::open(std::slice::from_ref(&folder.0), &Mapping::default()).err().unwrap();
    assert!(error.to_string().contains("director"), "{error}");
    let odd = folder.write("odd.log", b"hello\n");
    let error = Reader::open(&[odd], &Mapping::default()).err().unwrap();
    assert!(error.to_string().contains("odd.log: the format is unknown"), "{error}");
    assert!(!Path::new("no/such.log").exists());
}

/// Fields that the caller names are found in JSON of any program.
#[test]
fn a_mapping_reads_json_of_a_known_program_as_a_table() {
    let log = Style::Envoy.log(&[truth(0)]);
    let mapping =
        Mapping { time: Some("start_time".to_owned()), ..Mapping::default() }.with_key("route=route_name");
    let mut reader = Reader::stream("envoy", Cursor::new(log), &mapping).unwrap();
    assert_eq!(reader.files().next().unwrap().detection.as_ref().unwrap().format, Format::Ndjson);
    let mut routes = Vec::new();
    reader
        .for_each(|record| {
            assert_eq!(record.precision, Precision::Exact);
            routes.extend(
                record
                    .attributes
                    .iter()
                    .find(|(name, _)| name == "route")
                    .map(|(_, value)| value.to_string()),
            );
        })
        .unwrap();
    assert_eq!(routes, ["httproute/default/api/rule/0"]);
}

/// Programs leave out a fraction of zero; such a stamp is as exact as its neighbours.
#[test]
fn a_stamp_without_a_fraction_among_exact_ones_is_exact() {
    let mut reader = reader("time\tkey\n2024-03-01T12:00:00Z\ta\n2024-03-01T12:00:00.25Z\tb\n");
    let mut precisions = Vec::new();
    reader.for_each(|record| precisions.push(record.precision)).unwrap();
    assert_eq!(precisions, [Precision::Exact; 2]);
}
