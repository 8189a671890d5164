//! Fields: RFC 9113, sections 8.2 and 8.3. A request that is not well formed is no request: the upstream never hears of it.

use super::talk::{DATA, END_STREAM, block, frame, headers, line, open};
use super::{Case, PROTOCOL, Want};

const MALFORMED: Want = Want::Malformed(&[PROTOCOL]);

pub(super) fn cases() -> Vec<Case> {
    [fields(), one_hop(), pseudo(), lengths()].into_iter().flatten().collect()
}

/// A whole request with more fields.
fn with(more: &[(&str, &str)]) -> [Vec<u8>; 1] {
    [headers(1, &block(&[&line("GET", "/")[..], more].concat()))]
}

/// A whole request of these fields.
fn of(fields: &[(&str, &str)]) -> [Vec<u8>; 1] {
    [headers(1, &block(fields))]
}

fn fields() -> Vec<Case> {
    let c = Case::new;
    vec![
        c("8.2", "a name with a large letter", &with(&[("X-Test", "ok")]), MALFORMED),
        c("8.2.1", "an empty name", &with(&[("", "ok")]), MALFORMED),
        c("8.2.1", "a name with a space", &with(&[("x test", "ok")]), MALFORMED),
        c("8.2.1", "a name with a colon", &with(&[("x:test", "ok")]), MALFORMED),
        c("8.2.1", "a name with a control character", &with(&[("x\x01", "ok")]), MALFORMED),
        c("8.2.1", "a name with a letter beyond ASCII", &with(&[("x\u{e9}", "ok")]), MALFORMED),
        c("8.2.1", "a value with NUL", &with(&[("x", "a\0b")]), MALFORMED),
        c("8.2.1", "a value with CR", &with(&[("x", "a\rb")]), MALFORMED),
        c("8.2.1", "a value with LF", &with(&[("x", "a\nb")]), MALFORMED),
        c("8.2.1", "a value with a tab inside", &with(&[("x", "a\tb")]), Want::Status(200)),
        c("8.2.1", "a value that begins with a space", &with(&[("x", " a")]), Want::Status(200))
            .accepted("HTTP/1.1 cuts it off, and so does who reads attributes: nothing is hidden by it"),
        c("8.2.1", "an empty value", &with(&[("x", "")]), Want::Status(200)),
        c(
            "8.2.3",
            "cookies in several fields",
            &with(&[("cookie", "a=1"), ("cookie", "b=2")]),
            Want::Status(200),
        ),
    ]
}

fn one_hop() -> Vec<Case> {
    let c = Case::new;
    vec![
        c("8.2.2", "connection", &with(&[("connection", "keep-alive")]), MALFORMED),
        c("8.2.2", "keep-alive", &with(&[("keep-alive", "timeout=5")]), MALFORMED),
        c("8.2.2", "proxy-connection", &with(&[("proxy-connection", "close")]), MALFORMED),
        c("8.2.2", "transfer-encoding", &with(&[("transfer-encoding", "chunked")]), MALFORMED),
        c("8.2.2", "upgrade", &with(&[("upgrade", "websocket")]), MALFORMED),
        c("8.2.2", "te with anything but trailers", &with(&[("te", "trailers, deflate;q=0.5")]), MALFORMED),
        c("8.2.2", "te with trailers", &with(&[("te", "trailers")]), Want::Status(200)),
    ]
}

fn pseudo() -> Vec<Case> {
    let c = Case::new;
    let [method, scheme, authority, path] = line("GET", "/");
    vec![
        c("8.3", "an unknown one", &with(&[(":test", "ok")]), MALFORMED),
        c("8.3", "one of responses", &with(&[(":status", "200")]), MALFORMED),
        c(
            "8.3",
            "an unknown one, first",
            &of(&[(":test", "ok"), method, scheme, authority, path]),
            MALFORMED,
        ),
        c("8.3", "one after a field", &of(&[method, scheme, authority, ("x-test", "ok"), path]), MALFORMED),
        c("8.3.1", "no :method", &of(&[scheme, authority, path]), MALFORMED),
        c("8.3.1", "no :scheme", &of(&[method, authority, path]), MALFORMED),
        c("8.3.1", "no :path", &of(&[method, scheme, authority]), MALFORMED),
        c("8.3.1", "an empty :path", &of(&[method, scheme, authority, (":path", "")]), MALFORMED),
        c(
            "8.3.1",
            ":path that does not begin with a slash",
            &of(&[method, scheme, authority, (":path", "x")]),
            Want::Malformed(&[PROTOCOL]),
        ),
        c("8.3.1", ":path with a space", &of(&[method, scheme, authority, (":path", "/a b")]), MALFORMED),
        c("8.3.1", ":method twice", &of(&[method, method, scheme, authority, path]), MALFORMED),
        c("8.3.1", ":scheme twice", &of(&[method, scheme, scheme, authority, path]), MALFORMED),
        c("8.3.1", ":path twice", &of(&[method, scheme, authority, path, path]), MALFORMED),
        c("8.3.1", ":authority twice", &of(&[method, scheme, authority, authority, path]), MALFORMED),
        c(
            "8.3.1",
            ":authority with a name and a password",
            &of(&[method, scheme, (":authority", "u:p@a"), path]),
            Want::Status(400),
        ),
        c("8.3.1", "another host than :authority", &with(&[("host", "b")]), Want::Status(400)),
        c("8.3.1", "host without :authority", &of(&[method, scheme, path, ("host", "a")]), Want::Status(200)),
        c("8.3.1", ":method that is none", &of(&[(":method", "G T"), scheme, authority, path]), MALFORMED),
        c(
            "8441 4",
            ":protocol without CONNECT",
            &of(&[method, scheme, authority, path, (":protocol", "websocket")]),
            MALFORMED,
        ),
        c(
            "8441 4",
            "an extended CONNECT without a path",
            &of(&[(":method", "CONNECT"), scheme, authority, (":protocol", "websocket")]),
            MALFORMED,
        ),
        c("8.5", "CONNECT with a path", &of(&[(":method", "CONNECT"), scheme, authority, path]), MALFORMED),
    ]
}

fn lengths() -> Vec<Case> {
    let c = Case::new;
    let asked = |path: &'static str, length: &str| {
        open(1, &block(&[&line("POST", path)[..], &[("content-length", length)]].concat()))
    };
    vec![
        c(
            "8.1.1",
            "a length that is right",
            &[asked("/x", "3"), frame(DATA, 0, 1, b"ab"), frame(DATA, END_STREAM, 1, b"c")],
            Want::Status(200),
        ),
        c(
            "8.1.1",
            "a length above that of DATA",
            &[asked("/hang", "4"), frame(DATA, END_STREAM, 1, b"abc")],
            Want::Stream(&[PROTOCOL]),
        ),
        c(
            "8.1.1",
            "a length below that of DATA",
            &[asked("/hang", "1"), frame(DATA, END_STREAM, 1, b"abc")],
            Want::Stream(&[PROTOCOL]),
        ),
        c(
            "8.1.1",
            "a length below that of several DATA",
            &[asked("/hang", "4"), frame(DATA, 0, 1, b"abc"), frame(DATA, END_STREAM, 1, b"de")],
            Want::Stream(&[PROTOCOL]),
        ),
        c("8.1.1", "a length without a body", &with(&[("content-length", "3")]), MALFORMED),
        c(
            "8.1.1",
            "a length that is no number",
            &[asked("/x", "+3"), frame(DATA, END_STREAM, 1, b"abc")],
            MALFORMED,
        ),
        c(
            "8.1.1",
            "two lengths that differ",
            &[
                open(
                    1,
                    &block(
                        &[&line("POST", "/x")[..], &[("content-length", "3"), ("content-length", "4")]]
                            .concat(),
                    ),
                ),
                frame(DATA, END_STREAM, 1, b"abc"),
            ],
            MALFORMED,
        ),
    ]
}
