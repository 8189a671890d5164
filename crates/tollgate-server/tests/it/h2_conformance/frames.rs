//! The preface, and frames one by one: RFC 9113, sections 3 to 4, and 6.

use super::talk::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PADDED, PING, PRIORITY, PUSH_PROMISE,
    RST_STREAM, SETTINGS, WINDOW_UPDATE, WITH_PRIORITY, frame, get, headers, open, post, reset, settings,
    window,
};
use super::{Case, FLOW_CONTROL, FRAME_SIZE, NO_ERROR, PROTOCOL, Want};

/// The largest window.
const WINDOW_MAX: u32 = (1 << 31) - 1;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(super) fn cases() -> Vec<Case> {
    [preface(), format(), data(), priority_and_reset(), all_settings(), ping_and_goaway(), windows()]
        .into_iter()
        .flatten()
        .collect()
}

fn preface() -> Vec<Case> {
    let c = Case::new;
    vec![
        c(
            "3.4",
            "the server's first frame is SETTINGS",
            &[],
            Want::So(|heard| heard.kinds.first() == Some(&SETTINGS)),
        ),
        c(
            "3.4",
            "an invalid preface is no HTTP/2",
            &[b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n".to_vec()],
            Want::So(|heard| heard.is_closed && heard.kinds.is_empty()),
        )
        .bare(),
        c(
            "3.4",
            "garbage is no HTTP/2",
            &[b"INVALID CONNECTION PREFACE\r\n\r\n".to_vec()],
            Want::So(|heard| heard.is_closed && heard.kinds.is_empty()),
        )
        .bare(),
        c(
            "3.4",
            "a preface in parts",
            &[PREFACE[..10].to_vec(), PREFACE[10..].to_vec(), settings(&[]), headers(1, &get("/"))],
            Want::Status(200),
        )
        .bare(),
        c(
            "3.4",
            "the first frame is not SETTINGS",
            &[PREFACE.to_vec(), frame(PING, 0, 0, &[0; 8])],
            Want::Alive,
        )
        .bare()
        .accepted(
            "h2 takes frames before SETTINGS as if SETTINGS had been empty, which is what they stand for",
        ),
        c("3.4", "requests before the server's settings", &[headers(1, &get("/"))], Want::Status(200)),
    ]
}

fn format() -> Vec<Case> {
    let c = Case::new;
    let large = vec![b'x'; (1 << 14) + 1];
    vec![
        c("4.1", "a frame of an unknown kind is ignored", &[frame(0x16, 0, 0, &[0; 8])], Want::Alive),
        c(
            "4.1",
            "a frame of an unknown kind on a stream that is idle",
            &[frame(0x16, 0xff, 7, &[0; 8])],
            Want::Alive,
        ),
        c(
            "4.1",
            "undefined flags are ignored",
            &[frame(PING, 0x16, 0, &[1; 8])],
            Want::So(|heard| heard.pongs == [[1; 8]]),
        ),
        c(
            "4.1",
            "the reserved bit is ignored",
            &[frame(PING, 0, 1 << 31, &[2; 8])],
            Want::So(|heard| heard.pongs == [[2; 8]]),
        ),
        c(
            "4.2",
            "DATA of 2^14 bytes",
            &[open(1, &post("/x")), frame(DATA, END_STREAM, 1, &large[1..])],
            Want::Status(200),
        ),
        c(
            "4.2",
            "DATA of more",
            &[open(1, &post("/x")), frame(DATA, END_STREAM, 1, &large)],
            Want::Stream(&[FRAME_SIZE]),
        ),
        c("4.2", "HEADERS of more", &[headers(1, &large)], Want::Connection(&[FRAME_SIZE])),
        c(
            "4.2",
            "CONTINUATION of more",
            &[frame(HEADERS, END_STREAM, 1, &get("/")), frame(CONTINUATION, END_HEADERS, 1, &large)],
            Want::Connection(&[FRAME_SIZE]),
        ),
        c("4.2", "an unknown frame of more", &[frame(0x16, 0, 0, &large)], Want::Connection(&[FRAME_SIZE])),
        c(
            "5.5",
            "an unknown frame inside a head",
            &[frame(HEADERS, END_STREAM, 1, &get("/")), frame(0x16, 0, 0, &[])],
            Want::Connection(&[PROTOCOL]),
        ),
        c(
            "5.5",
            "an unknown setting is ignored",
            &[settings(&[(0x99, 1)])],
            Want::So(|heard| heard.acks == 2),
        ),
        c(
            "8.4",
            "PUSH_PROMISE from a client",
            &[frame(PUSH_PROMISE, END_HEADERS, 1, &[&[0, 0, 0, 2], &get("/")[..]].concat())],
            Want::Connection(&[PROTOCOL]),
        ),
        c(
            "8.4",
            "PUSH_PROMISE on an open stream",
            &[
                open(1, &post("/hang")),
                frame(PUSH_PROMISE, END_HEADERS, 1, &[&[0, 0, 0, 2], &get("/")[..]].concat()),
            ],
            Want::Connection(&[PROTOCOL]),
        ),
    ]
}

fn data() -> Vec<Case> {
    let c = Case::new;
    let padded = |length: u8, text: &[u8]| [&[length], text].concat();
    vec![
        c("6.1", "DATA on stream 0", &[frame(DATA, END_STREAM, 0, b"x")], Want::Connection(&[PROTOCOL])),
        c(
            "6.1",
            "DATA with padding",
            &[open(1, &post("/x")), frame(DATA, END_STREAM | PADDED, 1, &padded(2, b"xy\0\0"))],
            Want::Status(200),
        ),
        c(
            "6.1",
            "DATA that is all padding",
            &[open(1, &post("/x")), frame(DATA, END_STREAM | PADDED, 1, &padded(3, b"\0\0\0"))],
            Want::Status(200),
        ),
        c(
            "6.1",
            "DATA with more padding than it has",
            &[open(1, &post("/x")), frame(DATA, END_STREAM | PADDED, 1, &padded(5, b"xyz"))],
            Want::Connection(&[PROTOCOL]),
        ),
        c(
            "6.1",
            "DATA without the length of its padding",
            &[open(1, &post("/x")), frame(DATA, END_STREAM | PADDED, 1, &[])],
            Want::Connection(&[PROTOCOL, FRAME_SIZE]),
        ),
        c(
            "6.2",
            "HEADERS with padding",
            &[frame(HEADERS, END_HEADERS | END_STREAM | PADDED, 1, &[&[1], &get("/")[..], &[0]].concat())],
            Want::Status(200),
        ),
        c(
            "6.2",
            "HEADERS with more padding than it has",
            &[frame(HEADERS, END_HEADERS | END_STREAM | PADDED, 1, &padded(200, &get("/")))],
            Want::Connection(&[PROTOCOL]),
        ),
        c("6.2", "HEADERS on stream 0", &[headers(0, &get("/"))], Want::Connection(&[PROTOCOL])),
        c(
            "6.2",
            "HEADERS with a priority",
            &[frame(
                HEADERS,
                END_HEADERS | END_STREAM | WITH_PRIORITY,
                1,
                &[&[0, 0, 0, 0, 15], &get("/")[..]].concat(),
            )],
            Want::Status(200),
        ),
        c(
            "6.2",
            "HEADERS too short for its priority",
            &[frame(HEADERS, END_HEADERS | END_STREAM | WITH_PRIORITY, 1, &[0; 3])],
            Want::Connection(&[PROTOCOL, FRAME_SIZE]),
        ),
    ]
}

fn priority_and_reset() -> Vec<Case> {
    let c = Case::new;
    vec![
        c("6.3", "PRIORITY on an idle stream", &[frame(PRIORITY, 0, 7, &[0, 0, 0, 0, 15])], Want::Alive),
        c(
            "6.3",
            "PRIORITY on stream 0",
            &[frame(PRIORITY, 0, 0, &[0, 0, 0, 1, 15])],
            Want::Connection(&[PROTOCOL]),
        ),
        c(
            "6.3",
            "PRIORITY of four bytes",
            &[open(1, &post("/hang")), frame(PRIORITY, 0, 1, &[0; 4])],
            Want::Stream(&[FRAME_SIZE]),
        )
        .general(),
        c(
            "5.3.1",
            "HEADERS that depend on themselves",
            &[frame(
                HEADERS,
                END_HEADERS | END_STREAM | WITH_PRIORITY,
                1,
                &[&[0, 0, 0, 1, 15], &get("/")[..]].concat(),
            )],
            Want::Stream(&[PROTOCOL]),
        )
        .accepted("RFC 9113 has no priorities any more, RFC 7540 asked for this error; either is right"),
        c(
            "5.3.1",
            "PRIORITY that depends on itself",
            &[frame(PRIORITY, 0, 5, &[0, 0, 0, 5, 15])],
            Want::Stream(&[PROTOCOL]),
        )
        .accepted("the same"),
        c("6.4", "RST_STREAM on stream 0", &[reset(0, 8)], Want::Connection(&[PROTOCOL])),
        c(
            "6.4",
            "RST_STREAM of three bytes",
            &[open(1, &post("/hang")), frame(RST_STREAM, 0, 1, &[0; 3])],
            Want::Connection(&[FRAME_SIZE]),
        )
        .general(),
        c("7", "RST_STREAM with an unknown code", &[open(1, &post("/hang")), reset(1, 0xff)], Want::Alive),
    ]
}

fn all_settings() -> Vec<Case> {
    let c = Case::new;
    vec![
        c(
            "6.5",
            "SETTINGS are acknowledged",
            &[settings(&[(1, 4_096), (3, 7), (6, 1 << 16)])],
            Want::So(|heard| heard.acks == 2),
        ),
        c("6.5", "an ACK with content", &[frame(SETTINGS, ACK, 0, &[0; 6])], Want::Connection(&[FRAME_SIZE]))
            .general(),
        c(
            "6.5",
            "SETTINGS on a stream",
            &[frame(SETTINGS, 0, 1, &[0, 3, 0, 0, 0, 9])],
            Want::Connection(&[PROTOCOL]),
        ),
        c(
            "6.5",
            "SETTINGS of three bytes",
            &[frame(SETTINGS, 0, 0, &[0, 3, 0])],
            Want::Connection(&[FRAME_SIZE]),
        )
        .general(),
        c("6.5.2", "ENABLE_PUSH of 2", &[settings(&[(2, 2)])], Want::Connection(&[PROTOCOL])),
        c(
            "6.5.2",
            "INITIAL_WINDOW_SIZE of 2^31",
            &[settings(&[(4, 1 << 31)])],
            Want::Connection(&[FLOW_CONTROL]),
        )
        .general(),
        c(
            "6.5.2",
            "MAX_FRAME_SIZE of 2^14 - 1",
            &[settings(&[(5, (1 << 14) - 1)])],
            Want::Connection(&[PROTOCOL]),
        ),
        c("6.5.2", "MAX_FRAME_SIZE of 2^24", &[settings(&[(5, 1 << 24)])], Want::Connection(&[PROTOCOL])),
        c(
            "6.5.3",
            "of one setting twice the last holds",
            &[settings(&[(4, 100), (4, 2)]), headers(1, &get("/"))],
            Want::So(|heard| heard.parts == [2]),
        ),
        c(
            "8441 3",
            "the server takes an extended CONNECT",
            &[],
            Want::So(|heard| heard.settings.contains(&(8, 1))),
        ),
        c("8441 3", "ENABLE_CONNECT_PROTOCOL of 2", &[settings(&[(8, 2)])], Want::Connection(&[PROTOCOL])),
    ]
}

fn ping_and_goaway() -> Vec<Case> {
    let c = Case::new;
    vec![
        c(
            "6.7",
            "PING is answered as it came",
            &[frame(PING, 0, 0, b"opaque\0\x01")],
            Want::So(|heard| heard.pongs == [b"opaque\0\x01"]),
        ),
        c(
            "6.7",
            "an answer to no PING is not answered",
            &[frame(PING, ACK, 0, b"nobody's"), frame(PING, 0, 0, b"somebody")],
            Want::So(|heard| heard.pongs == [b"somebody"]),
        ),
        c("6.7", "PING on a stream", &[frame(PING, 0, 1, &[0; 8])], Want::Connection(&[PROTOCOL])),
        c("6.7", "PING of six bytes", &[frame(PING, 0, 0, &[0; 6])], Want::Connection(&[FRAME_SIZE]))
            .general(),
        c("6.8", "GOAWAY on a stream", &[frame(GOAWAY, 0, 1, &[0; 8])], Want::Connection(&[PROTOCOL])),
        c("6.8", "GOAWAY of four bytes", &[frame(GOAWAY, 0, 0, &[0; 4])], Want::Connection(&[FRAME_SIZE]))
            .general(),
        c(
            "6.8",
            "GOAWAY leaves what is under way",
            &[headers(1, &get("/")), frame(GOAWAY, 0, 0, &[0; 8])],
            Want::Status(200),
        ),
        c(
            "7",
            "GOAWAY with an unknown code",
            &[frame(GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 0xff])],
            Want::So(|heard| heard.is_closed && matches!(heard.goaway, None | Some(NO_ERROR | 0xff))),
        ),
        c(
            "5.4.1",
            "a connection that is in error ends",
            &[frame(PING, 0, 1, &[0; 8])],
            Want::So(|heard| heard.is_closed && heard.goaway == Some(PROTOCOL)),
        ),
    ]
}

fn windows() -> Vec<Case> {
    let c = Case::new;
    let small = settings(&[(4, 1)]);
    let none = settings(&[(4, 0)]);
    vec![
        c("6.9", "WINDOW_UPDATE of 0 on the connection", &[window(0, 0)], Want::Connection(&[PROTOCOL])),
        c(
            "6.9",
            "WINDOW_UPDATE of 0 on a stream",
            &[open(1, &post("/hang")), window(1, 0)],
            Want::Stream(&[PROTOCOL]),
        ),
        c(
            "6.9",
            "WINDOW_UPDATE of three bytes",
            &[frame(WINDOW_UPDATE, 0, 0, &[0; 3])],
            Want::Connection(&[FRAME_SIZE]),
        )
        .general(),
        c(
            "6.9.1",
            "no more is sent than the window has",
            &[small.clone(), headers(1, &get("/"))],
            Want::So(|heard| heard.parts == [1]),
        ),
        c(
            "6.9.1",
            "a window of the connection beyond 2^31 - 1",
            &[window(0, WINDOW_MAX), window(0, WINDOW_MAX)],
            Want::Connection(&[FLOW_CONTROL]),
        ),
        c(
            "6.9.1",
            "a window of a stream beyond 2^31 - 1",
            &[open(1, &post("/hang")), window(1, WINDOW_MAX), window(1, WINDOW_MAX)],
            Want::Stream(&[FLOW_CONTROL]),
        ),
        c(
            "6.9.2",
            "a window that grows later",
            &[none.clone(), headers(1, &get("/")), settings(&[(4, 3)])],
            Want::So(|heard| heard.parts == [3]),
        ),
        c(
            "6.9.2",
            "a window that was negative",
            &[settings(&[(4, 3)]), headers(1, &get("/")), none, window(1, 2)],
            Want::So(|heard| {
                heard.parts.iter().sum::<usize>() == 3 || heard.parts.iter().sum::<usize>() == 2
            }),
        ),
        c(
            "6.9.2",
            "a change that makes a window too large",
            &[open(1, &post("/hang")), window(1, WINDOW_MAX - 65_535), settings(&[(4, 65_536)])],
            Want::Stream(&[FLOW_CONTROL]),
        ),
    ]
}
