//! The preface, and frames one by one: RFC 9113, sections 3, 4, and 6.1 to 6.4.

use super::talk::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PADDED, PING, PRIORITY, PUSH_PROMISE, RST_STREAM,
    SETTINGS, WITH_PRIORITY, frame, get, headers, open, post, reset, settings,
};
use super::{Case, FRAME_SIZE, PROTOCOL, Want};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(super) fn cases() -> Vec<Case> {
    [preface(), format(), data(), priority_and_reset()].into_iter().flatten().collect()
}

fn preface() -> Vec<Case> {
    let c = Case::new;
    vec![
        c(
            "3.4",
            "the server's first frame is SETTINGS",
            &[],
            Want::So(|received| received.kinds.first() == Some(&SETTINGS)),
        ),
        c(
            "3.4",
            "an invalid preface is no HTTP/2",
            &[b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n".to_vec()],
            Want::So(|received| received.is_closed && received.kinds.is_empty()),
        )
        .bare(),
        c(
            "3.4",
            "garbage is no HTTP/2",
            &[b"INVALID CONNECTION PREFACE\r\n\r\n".to_vec()],
            Want::So(|received| received.is_closed && received.kinds.is_empty()),
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
            Want::So(|received| received.is_closed && received.pongs.is_empty()),
        )
        .bare(),
        c(
            "3.4",
            "the first frame is a request",
            &[PREFACE.to_vec(), headers(1, &get("/"))],
            Want::So(|received| received.is_closed && received.statuses.is_empty()),
        )
        .bare(),
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
            Want::So(|received| received.pongs == [[1; 8]]),
        ),
        c(
            "4.1",
            "the reserved bit is ignored",
            &[frame(PING, 0, 1 << 31, &[2; 8])],
            Want::So(|received| received.pongs == [[2; 8]]),
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
            Want::So(|received| received.acks == 2),
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
