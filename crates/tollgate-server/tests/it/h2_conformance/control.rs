//! Settings, pings, the end of a connection, and windows: RFC 9113, sections 6.5 to 6.9.

use super::talk::{
    ACK, GOAWAY, PING, SETTINGS, WINDOW_UPDATE, frame, get, headers, open, post, settings, window,
};
use super::{Case, FLOW_CONTROL, FRAME_SIZE, NO_ERROR, PROTOCOL, Want};

/// The largest window.
const WINDOW_MAX: u32 = (1 << 31) - 1;

pub(super) fn cases() -> Vec<Case> {
    [all_settings(), ping_and_goaway(), windows()].into_iter().flatten().collect()
}

fn all_settings() -> Vec<Case> {
    let c = Case::new;
    vec![
        c(
            "6.5",
            "SETTINGS are acknowledged",
            &[settings(&[(1, 4_096), (3, 7), (6, 1 << 16)])],
            Want::So(|received| received.acks == 2),
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
            Want::So(|received| received.parts == [2]),
        ),
        c(
            "8441 3",
            "the server takes an extended CONNECT",
            &[],
            Want::So(|received| received.settings.contains(&(8, 1))),
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
            Want::So(|received| received.pongs == [b"opaque\0\x01"]),
        ),
        c(
            "6.7",
            "an answer to no PING is not answered",
            &[frame(PING, ACK, 0, b"unknown!"), frame(PING, 0, 0, b"expected")],
            Want::So(|received| received.pongs == [b"expected"]),
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
            Want::So(|received| {
                received.is_closed && matches!(received.goaway, None | Some(NO_ERROR | 0xff))
            }),
        ),
        c(
            "5.4.1",
            "a connection that is in error ends",
            &[frame(PING, 0, 1, &[0; 8])],
            Want::So(|received| received.is_closed && received.goaway == Some(PROTOCOL)),
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
            Want::So(|received| received.parts == [1]),
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
            Want::So(|received| received.parts == [3]),
        ),
        c(
            "6.9.2",
            "a window that was negative",
            &[settings(&[(4, 3)]), headers(1, &get("/")), none, window(1, 2)],
            Want::So(|received| {
                received.parts.iter().sum::<usize>() == 3 || received.parts.iter().sum::<usize>() == 2
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
