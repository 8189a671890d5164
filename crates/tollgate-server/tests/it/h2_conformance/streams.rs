//! The states of streams, their numbers, and heads in several frames: RFC 9113, sections 5.1, 6.10 and 8.1.

use super::talk::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PRIORITY, block, frame, get, headers, line, open,
    post, reset, window,
};
use super::{Case, ENHANCE_YOUR_CALM, PROTOCOL, REFUSED_STREAM, STREAM_CLOSED, Want};

pub(super) fn cases() -> Vec<Case> {
    [idle(), half_closed(), closed(), numbers(), continuations(), messages()].into_iter().flatten().collect()
}

fn idle() -> Vec<Case> {
    let c = Case::new;
    vec![
        c("5.1", "idle: DATA", &[frame(DATA, END_STREAM, 1, b"x")], Want::Connection(&[PROTOCOL])),
        c("5.1", "idle: RST_STREAM", &[reset(1, 8)], Want::Connection(&[PROTOCOL])),
        c("5.1", "idle: WINDOW_UPDATE", &[window(1, 100)], Want::Connection(&[PROTOCOL])),
        c(
            "5.1",
            "idle: CONTINUATION",
            &[frame(CONTINUATION, END_HEADERS, 1, &get("/"))],
            Want::Connection(&[PROTOCOL]),
        ),
        c(
            "5.1",
            "idle: DATA on a stream of the server's",
            &[frame(DATA, END_STREAM, 2, b"x")],
            Want::Connection(&[PROTOCOL]),
        ),
        c(
            "5.1",
            "idle: WINDOW_UPDATE on a stream of the server's",
            &[window(2, 1)],
            Want::Connection(&[PROTOCOL]),
        ),
        c(
            "5.1",
            "idle: RST_STREAM on a stream of the server's",
            &[reset(2, 8)],
            Want::Connection(&[PROTOCOL]),
        ),
    ]
}

fn half_closed() -> Vec<Case> {
    let c = Case::new;
    let asked = || headers(1, &get("/hang"));
    vec![
        c(
            "5.1",
            "half-closed: DATA",
            &[asked(), frame(DATA, END_STREAM, 1, b"x")],
            Want::Stream(&[STREAM_CLOSED]),
        )
        .general(),
        c("5.1", "half-closed: HEADERS", &[asked(), headers(1, &get("/"))], Want::Stream(&[STREAM_CLOSED]))
            .general(),
        c(
            "5.1",
            "half-closed: CONTINUATION",
            &[asked(), frame(CONTINUATION, END_HEADERS, 1, &get("/"))],
            Want::Stream(&[STREAM_CLOSED, PROTOCOL]),
        ),
        c("5.1", "half-closed: WINDOW_UPDATE", &[asked(), window(1, 100)], Want::Alive),
        c("5.1", "half-closed: PRIORITY", &[asked(), frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 9])], Want::Alive),
        c("5.1", "half-closed: RST_STREAM", &[asked(), reset(1, 8)], Want::Alive),
    ]
}

fn closed() -> Vec<Case> {
    let c = Case::new;
    let reset_one = || vec![open(1, &post("/hang")), reset(1, 8)];
    let with = |more: Vec<u8>| [reset_one(), vec![more]].concat();
    let over = |what: &'static str, want| c("5.1", what, &[headers(1, &get("/"))], want);
    vec![
        c(
            "5.1",
            "closed by RST_STREAM: DATA",
            &with(frame(DATA, END_STREAM, 1, b"x")),
            Want::Stream(&[STREAM_CLOSED]),
        ),
        c(
            "5.1",
            "closed by RST_STREAM: HEADERS",
            &with(headers(1, &get("/"))),
            Want::Stream(&[STREAM_CLOSED]),
        )
        .general(),
        c(
            "5.1",
            "closed by RST_STREAM: CONTINUATION",
            &with(frame(CONTINUATION, END_HEADERS, 1, &get("/"))),
            Want::Stream(&[STREAM_CLOSED, PROTOCOL]),
        ),
        c("5.1", "closed by RST_STREAM: WINDOW_UPDATE", &with(window(1, 9)), Want::Alive),
        c("5.1", "closed by RST_STREAM: RST_STREAM again", &with(reset(1, 8)), Want::Alive),
        over("closed: DATA", Want::Stream(&[STREAM_CLOSED])).then(&[frame(DATA, END_STREAM, 1, b"x")]),
        over("closed: HEADERS", Want::Stream(&[STREAM_CLOSED])).then(&[headers(1, &get("/"))]).general(),
        over("closed: CONTINUATION", Want::Stream(&[STREAM_CLOSED, PROTOCOL])).then(&[frame(
            CONTINUATION,
            END_HEADERS,
            1,
            &get("/"),
        )]),
        over("closed: WINDOW_UPDATE", Want::Alive).then(&[window(1, 9)]),
        over("closed: PRIORITY", Want::Alive).then(&[frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 9])]),
        over("closed: RST_STREAM", Want::Alive).then(&[reset(1, 8)]),
    ]
}

fn numbers() -> Vec<Case> {
    let c = Case::new;
    let hanging = |count: u32| -> Vec<Vec<u8>> {
        (0..count).map(|number| headers(number * 2 + 1, &get("/hang"))).collect()
    };
    vec![
        c("5.1.1", "a stream with an even number", &[headers(2, &get("/"))], Want::Connection(&[PROTOCOL])),
        c(
            "5.1.1",
            "a number below the last",
            &[headers(5, &get("/hang")), headers(3, &get("/"))],
            Want::Connection(&[PROTOCOL, STREAM_CLOSED]),
        ),
        c(
            "5.1.1",
            "numbers may be left out",
            &[headers(7, &get("/hang")), headers(99, &get("/hang"))],
            Want::Alive,
        ),
        c("5.1.2", "as many streams as may be", &hanging(128), Want::Alive),
        c("5.1.2", "one more", &hanging(129), Want::Stream(&[REFUSED_STREAM, PROTOCOL])),
        c(
            "5.1.2",
            "the setting says how many",
            &[],
            Want::So(|received| received.settings.contains(&(3, 128))),
        ),
    ]
}

fn continuations() -> Vec<Case> {
    let c = Case::new;
    let head = get("/");
    let begun = || frame(HEADERS, END_STREAM, 1, &head[..4]);
    let middle = || frame(CONTINUATION, 0, 1, &head[4..9]);
    let last = || frame(CONTINUATION, END_HEADERS, 1, &head[9..]);
    let endless: Vec<Vec<u8>> = (0..40).map(|_| frame(CONTINUATION, 0, 1, &block(&[("x", "y")]))).collect();
    vec![
        c("6.10", "a head in three parts", &[begun(), middle(), last()], Want::Status(200)),
        c(
            "6.10",
            "a part may be empty",
            &[begun(), frame(CONTINUATION, 0, 1, &[]), middle(), last()],
            Want::Status(200),
        ),
        c(
            "6.2",
            "PRIORITY inside a head",
            &[begun(), frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 9])],
            Want::Connection(&[PROTOCOL]),
        ),
        c(
            "6.2",
            "HEADERS of another stream inside a head",
            &[begun(), headers(3, &get("/"))],
            Want::Connection(&[PROTOCOL]),
        ),
        c(
            "6.10",
            "DATA inside a head",
            &[begun(), frame(DATA, END_STREAM, 1, b"x")],
            Want::Connection(&[PROTOCOL]),
        ),
        c("6.10", "SETTINGS inside a head", &[begun(), frame(4, 0, 0, &[])], Want::Connection(&[PROTOCOL])),
        c(
            "6.10",
            "CONTINUATION of another stream",
            &[begun(), frame(CONTINUATION, END_HEADERS, 3, &head[4..])],
            Want::Connection(&[PROTOCOL]),
        ),
        c(
            "6.10",
            "CONTINUATION on stream 0",
            &[begun(), frame(CONTINUATION, END_HEADERS, 0, &head[4..])],
            Want::Connection(&[PROTOCOL]),
        ),
        c(
            "6.10",
            "CONTINUATION after the end of a head",
            &[open(1, &post("/hang")), frame(CONTINUATION, END_HEADERS, 1, &get("/"))],
            Want::Connection(&[PROTOCOL]),
        ),
        c(
            "6.10",
            "CONTINUATION after the last one",
            &[
                frame(HEADERS, 0, 1, &post("/hang")),
                frame(CONTINUATION, END_HEADERS, 1, &[]),
                frame(CONTINUATION, END_HEADERS, 1, &[]),
            ],
            Want::Connection(&[PROTOCOL]),
        ),
        c(
            "6.10",
            "CONTINUATION after DATA",
            &[open(1, &post("/hang")), frame(DATA, 0, 1, b"x"), frame(CONTINUATION, END_HEADERS, 1, &[])],
            Want::Connection(&[PROTOCOL]),
        ),
        c(
            "10.5.1",
            "a head without end",
            &[vec![begun()], endless].concat(),
            Want::So(|received| received.is_closed && received.statuses.is_empty()),
        )
        .accepted("a flood is cut off without a word: no honest client sends one"),
    ]
}

fn messages() -> Vec<Case> {
    let c = Case::new;
    let trailers = |fields: &[(&str, &str)]| frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(fields));
    vec![
        c("8.1", "a request", &[headers(1, &get("/"))], Want::Status(200)),
        c(
            "8.1",
            "a request with a body",
            &[open(1, &post("/x")), frame(DATA, 0, 1, b"xy"), frame(DATA, END_STREAM, 1, b"z")],
            Want::Status(200),
        ),
        c(
            "8.1",
            "a request with an empty body",
            &[open(1, &post("/x")), frame(DATA, END_STREAM, 1, &[])],
            Want::Status(200),
        ),
        c(
            "8.1",
            "a request with trailers",
            &[open(1, &post("/x")), frame(DATA, 0, 1, b"x"), trailers(&[("x-sum", "1")])],
            Want::Status(200),
        ),
        c(
            "8.1",
            "HEAD",
            &[headers(1, &block(&line("HEAD", "/")))],
            Want::So(|received| {
                received.statuses == [(1, 200)] && received.ended == [1] && received.parts.is_empty()
            }),
        ),
        c(
            "8.1",
            "OPTIONS for the server itself",
            &[headers(1, &block(&line("OPTIONS", "*")))],
            Want::Status(204),
        ),
        c(
            "8.1",
            "trailers without the end of the stream",
            &[
                open(1, &post("/hang")),
                frame(DATA, 0, 1, b"x"),
                frame(HEADERS, END_HEADERS, 1, &block(&[("x-sum", "1")])),
            ],
            Want::Stream(&[PROTOCOL]),
        ),
        c(
            "8.1",
            "DATA after trailers",
            &[open(1, &post("/hang")), trailers(&[("x-sum", "1")]), frame(DATA, END_STREAM, 1, b"x")],
            Want::Stream(&[STREAM_CLOSED, PROTOCOL]),
        ),
        c(
            "8.1",
            "a pseudo field in trailers",
            &[open(1, &post("/trail")), trailers(&[(":method", "GET")])],
            Want::So(|received| received.statuses == [(1, 200)] && received.parts == [1]),
        )
        .accepted("h2 takes it out: the upstream gets no trailer"),
        c(
            "8.2.2",
            "a field of one hop in trailers",
            &[open(1, &post("/hang")), trailers(&[("transfer-encoding", "chunked")])],
            Want::Stream(&[PROTOCOL]),
        ),
        c(
            "8.5",
            "CONNECT is not served",
            &[headers(1, &block(&[(":method", "CONNECT"), (":authority", "a:80")]))],
            Want::Status(405),
        ),
        c(
            "8441 4",
            "a protocol that is not carried",
            &[open(1, &block(&[&line("CONNECT", "/x")[..], &[(":protocol", "connect-udp")]].concat()))],
            Want::Status(501),
        ),
        c(
            "10.5",
            "resets without end",
            &(0..400)
                .flat_map(|number| [headers(number * 2 + 1, &get("/hang")), reset(number * 2 + 1, 8)])
                .collect::<Vec<_>>(),
            Want::So(|received| {
                received.is_closed && matches!(received.goaway, None | Some(ENHANCE_YOUR_CALM))
            }),
        ),
    ]
}
