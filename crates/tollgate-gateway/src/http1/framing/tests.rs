//! Which bytes are read as requests, and which are not.

use bytes::Bytes;
use http::header::HOST;
use proptest::collection::vec;
use proptest::prelude::*;

use super::head::HEAD_BYTES_MAX;
use super::*;

/// Reads bytes that come at once.
fn read(bytes: impl AsRef<[u8]>) -> Reader {
    parts([bytes])
}

/// Reads bytes that come in parts.
fn parts(all: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Reader {
    let mut reader = Reader::new();
    all.into_iter().for_each(|part| reader.feed(part.as_ref()));
    reader
}

fn bytewise(text: &str) -> Reader {
    parts(text.as_bytes().chunks(1))
}

/// The state of a reader as text: the requests, the bytes consumed, and why it stopped.
fn shown(reader: &Reader) -> String {
    let Reader { requests, taken, is_broken, has_asked, .. } = reader;
    format!("{requests:?} {taken} {is_broken} {has_asked}")
}

/// Requests that every server reads alike pass, one after the other.
#[test]
fn strict_framing_passes() {
    let requests = [
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "\r\nGET / HTTP/1.0\r\n\r\n",
        "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab\ncd",
        "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
        "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n5;a=\"b\"\r\nab\n\r\n\r\n0\r\n\r\n",
        "POST /x HTTP/1.1\r\ntransfer-encoding:chunked\r\n\r\nA\r\n0123456789\r\n000\r\nX-Sum: 1\r\nY: 2\r\n\r\n",
        "GET / HTTP/1.1\r\nX: caf\u{e9}\t \r\nEmpty:\r\n\r\n",
    ];
    let all = requests.concat();
    let reader = read(&all);
    assert!(reader.taken == all.len() && !reader.is_broken && reader.requests.len() == requests.len());
    for request in requests {
        // At once, and byte by byte; then a malformed one, which shows that the end was found.
        let reader = bytewise(request);
        assert!(!reader.is_broken && reader.requests.iter().all(|read| read.is_whole), "{request}");
        let reader = read(format!("{request}\n"));
        assert!(reader.is_broken && reader.taken == request.len(), "{request}: {}", shown(&reader));
    }
}

/// A request is read with its request line, its fields unchanged, its body without chunk framing, and its trailers.
#[test]
fn requests_are_read() {
    let reader = read(
        "POST /a?b HTTP/1.1\r\nHost: a.test\r\nX-A: \t caf\u{e9} \r\nx-a:2\r\nTransfer-Encoding: chunked\r\n\r\n\
         5;x\r\nhello\r\n6\r\n world\r\n0\r\nX-Sum: 1\r\n\r\n",
    );
    let [read] = &reader.requests[..] else { panic!("{}", shown(&reader)) };
    assert_eq!((read.request.method().as_str(), read.request.uri().to_string()), ("POST", "/a?b".to_owned()));
    let values: Vec<&[u8]> =
        read.request.headers().get_all("x-a").iter().map(|value| value.as_bytes()).collect();
    assert_eq!(values, ["caf\u{e9}".as_bytes(), b"2"]);
    assert_eq!(read.request.headers()[HOST], "a.test");
    assert_eq!((&read.body[..], &read.trailers["x-sum"]), (&b"hello world"[..], &"1".parse().unwrap()));
}

/// A head says whether the client keeps the connection, waits for `100 Continue`, or accepts trailers.
#[test]
fn heads_are_parsed() {
    let head = |line: &str, fields: &str| {
        let head = RequestHead::read(Bytes::from(format!("{line}\r\n{fields}\r\n\r\n"))).unwrap();
        (head.is_kept, head.is_waiting, head.takes_trailers)
    };
    let (new, old) = ("POST / HTTP/1.1", "POST / HTTP/1.0");
    let body = "Content-Length: 1\r\nExpect: 100-Continue\r\nTE: gzip, Trailers;q=1";
    assert_eq!(head(new, body), (true, true, true));
    assert_eq!(head(new, "Expect: 100-continue"), (true, false, false), "no body is awaited");
    assert_eq!(head(new, "Connection: te, Close"), (false, false, false));
    assert_eq!(head(old, body), (false, false, false));
    assert_eq!(head(old, "Connection: Keep-Alive"), (true, false, false));
    assert_eq!(head(old, "Connection: keep-alive\r\nConnection: close"), (false, false, false));
}

/// A request is rejected if two servers could disagree on where it ends or what follows it.
#[test]
fn loose_framing_is_refused() {
    let head = |fields: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
    let chunked = |body: &str| format!("{}{body}", head("Transfer-Encoding: chunked"));
    let cases = [
        head("Content-Length: 5\r\nTransfer-Encoding: chunked"),
        head("Transfer-Encoding: chunked\r\nContent-Length: 5"),
        head("Content-Length: 5\r\nContent-Length: 5"),
        head("Content-Length: 5, 5"),
        head("Content-Length: +5"),
        head("Content-Length: -5"),
        head("Content-Length: 0x5"),
        head("Content-Length: 5 5"),
        head("Content-Length:"),
        head("Content-Length: 9999999999999999999"),
        head("Transfer-Encoding: gzip, chunked"),
        head("Transfer-Encoding: chunked, chunked"),
        head("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"),
        head("Transfer-Encoding: identity"),
        head("Transfer-Encoding: xchunked"),
        head("Transfer-Encoding: \"chunked\""),
        head("Transfer-Encoding:\u{b}chunked"),
        head("Transfer-Encoding : chunked"),
        head(" Transfer-Encoding: chunked"),
        head("X: a\r\n Transfer-Encoding: chunked"),
        head("X: a\r\n\tb"),
        head("X: a\rTransfer-Encoding: chunked"),
        head("X: a\nTransfer-Encoding: chunked"),
        head("X: a\0b"),
        head("no colon"),
        head(": no name"),
        "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
        "POST / HTTP/1.1\nHost: a\n\n".to_owned(),
        "POST /  HTTP/1.1\r\n\r\n".to_owned(),
        "POST / a HTTP/1.1\r\n\r\n".to_owned(),
        "POST / HTTP/1.2\r\n\r\n".to_owned(),
        "POST /\r\n\r\n".to_owned(),
        chunked("5\nabcde\r\n0\r\n\r\n"),
        chunked("5\r\nabcde0\r\n\r\n"),
        chunked("5\r\nabcde\n0\r\n\r\n"),
        chunked("0x5\r\nabcde\r\n0\r\n\r\n"),
        chunked("5 \r\nabcde\r\n0\r\n\r\n"),
        chunked("5;a\nb\r\nabcde\r\n0\r\n\r\n"),
        chunked("5;a\rb\r\nabcde\r\n0\r\n\r\n"),
        chunked("-1\r\n"),
        chunked("ffffffffffffffff\r\n"),
        chunked("\r\n"),
        chunked("0\r\nX : a\r\n\r\n"),
        chunked("0\r\nX: a\n\r\n"),
        chunked("0\r\n\n"),
    ];
    for case in cases {
        let text = format!("{case}GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n");
        let reader = read(&text);
        assert!(reader.is_broken && reader.taken < case.len(), "{case:?}: {}", shown(&reader));
        assert!(reader.requests.iter().all(|read| !read.is_whole), "{case:?}: {}", shown(&reader));
        assert_eq!(shown(&bytewise(&text)), shown(&reader), "{case:?}");
    }
}

/// After an upgrade request the next bytes are not parsed until the upgrade is granted. An upgrade request with a body
/// is an ordinary request.
#[test]
fn upgrades_ask() {
    let head = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let reader = read(format!("{head}\0\0"));
    assert!(reader.has_asked && !reader.is_broken && reader.taken == head.len());
    let whole = |text: &str| read(text).requests.iter().all(|read| read.is_whole) && !read(text).has_asked;
    assert!(whole("POST / HTTP/1.1\r\nUpgrade: x\r\nContent-Length: 1\r\n\r\nx"));
    assert!(whole("GET / HTTP/1.0\r\nUpgrade: x\r\n\r\n"));
}

/// Heads and trailer sections are bounded in bytes and in fields.
#[test]
fn heads_are_bounded() {
    let line = format!("X: {}\r\n", "a".repeat(1_000));
    let fed = |first: &str| {
        let mut reader = read(first);
        (0..1_000)
            .take_while(|_| {
                reader.feed(line.as_bytes());
                !reader.is_broken
            })
            .count()
            * line.len()
    };
    assert!((HEAD_BYTES_MAX - 2 * line.len()..HEAD_BYTES_MAX).contains(&fed("GET / HTTP/1.1\r\n")));
    assert!((14 << 10..16 << 10).contains(&fed("GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n")));
    let many = |count| format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(count));
    assert!(!read(many(100)).is_broken && read(many(101)).is_broken);
    assert_eq!(RequestHead::read(Bytes::from(many(101))).unwrap_err(), Flaw::TooLarge);
}

/// Pieces from which the test builds requests.
const WORDS: [&str; 24] = [
    "GET / HTTP/1.1\r\n",
    "POST /x HTTP/1.1\r\n",
    "GET / HTTP/1.0\r\n",
    "Host: a\r\n",
    "Content-Length: 5\r\n",
    "Content-Length: 0\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Connection: close\r\n",
    "X: y\r\n",
    "\r\n",
    "\n",
    "\r",
    "0\r\n\r\n",
    "5\r\nhello\r\n",
    "a;b=c\r\n0123456789\r\n",
    "0\r\nX-Sum: 1\r\n\r\n",
    "hello",
    " ",
    ":",
    "\0",
    "\u{e9}",
    "%",
    "ffffffffffffffff",
    "Upgrade: x\r\n",
];

proptest! {
    /// Any split of the bytes yields the same requests, and no bytes make the reader panic.
    #[test]
    fn any_split_reads_the_same(words in vec(0..WORDS.len(), 0..40), noise in vec((any::<u16>(), any::<u8>()), 0..3), cuts in vec(any::<u16>(), 0..12)) {
        let mut bytes: Vec<u8> = words.iter().flat_map(|&word| WORDS[word].bytes()).collect();
        for (at, byte) in noise {
            if !bytes.is_empty() {
                let at = usize::from(at) % bytes.len();
                bytes[at] = byte;
            }
        }
        let whole = read(&bytes);
        prop_assert!(whole.taken <= bytes.len());
        let mut cuts: Vec<usize> = cuts.iter().map(|&cut| usize::from(cut) % (bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let split = parts(cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]));
        prop_assert_eq!(shown(&split), shown(&whole));
        prop_assert_eq!(shown(&parts(bytes.chunks(1))), shown(&whole));
    }

    /// A generated request is read back unchanged.
    #[test]
    fn requests_come_through(
        path in "/[a-z0-9/._~-]{0,40}",
        fields in vec(("x-[a-z]{1,12}", "[!-~]([ -~]{0,30}[!-~])?"), 0..8),
        chunks in vec(vec(any::<u8>(), 1..60), 0..6),
        is_chunked in any::<bool>(),
        cut in any::<u16>(),
    ) {
        let mut bytes = format!("PUT {path} HTTP/1.1\r\nHost: a\r\n").into_bytes();
        for (name, value) in &fields {
            bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        let body = chunks.concat();
        if is_chunked {
            bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
            for chunk in &chunks {
                bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                bytes.extend_from_slice(chunk);
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(b"0\r\n\r\n");
        } else {
            bytes.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
            bytes.extend_from_slice(&body);
        }
        let twice = [&bytes[..], &bytes[..]].concat();
        let (front, back) = twice.split_at(usize::from(cut) % twice.len());
        let reader = parts([front, back]);
        prop_assert_eq!((reader.taken, reader.is_broken, reader.requests.len()), (twice.len(), false, 2));
        for read in &reader.requests {
            prop_assert!(read.is_whole);
            prop_assert_eq!(&read.body, &body);
            prop_assert_eq!(read.request.uri().path(), &path);
            let mut shown: Vec<(String, String)> = read.request.headers().iter().filter(|(name, _)| name.as_str().starts_with("x-")).map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
            let mut sent = fields.clone();
            shown.sort();
            sent.sort();
            prop_assert_eq!(shown, sent);
        }
    }
}
