//! The compression of fields: RFC 7541. An error in it ends the connection, since both sides no longer remember the same fields.

use super::talk::{block, frame, get, headers, line, settings};
use super::{COMPRESSION, Case, PROTOCOL, Want};

const BROKEN: Want = Want::Connection(&[COMPRESSION]);
/// `GET http://…/`, as the static table has it.
const LINE: [u8; 3] = [0x82, 0x86, 0x84];

pub(super) fn cases() -> Vec<Case> {
    let general = |case: Case| if matches!(case.want, Want::Connection(_)) { case.general() } else { case };
    [tables(), sizes(), texts()].into_iter().flatten().map(general).collect()
}

/// A request of these bytes, and an authority before them.
fn with(more: &[u8]) -> [Vec<u8>; 1] {
    [headers(1, &[&LINE[..], &[0x41, 1, b'a'], more].concat())]
}

fn tables() -> Vec<Case> {
    let c = Case::new;
    let remembered = [&LINE[..], &[0x41, 1, b'a'], &[0x40, 1, b'x', 1, b'y']].concat();
    vec![
        c("7541 6.1", "fields of the static table", &with(&[]), Want::Status(200)),
        c(
            "7541 2.3.2",
            "fields that are remembered",
            &[headers(1, &remembered)],
            Want::So(|received| received.statuses.len() == 2),
        )
        .then(&[headers(3, &[&LINE[..], &[0xbf, 0xbe]].concat())]),
        c("7541 6.1", "index 0", &with(&[0x80]), BROKEN),
        c("7541 2.3.3", "an index behind both tables", &with(&[0xff, 0x20]), BROKEN),
        c("7541 2.3.3", "an index of nothing that is remembered", &with(&[0xbf]), BROKEN),
        c("7541 6.2", "a name with an index behind both tables", &with(&[0x0f, 0x7f, 1, b'y']), BROKEN),
        c("7541 6.2.1", "a name behind the one that is remembered", &with(&[0x7f, 0x00, 1, b'y']), BROKEN),
        c(
            "7541 5.1",
            "a number without end",
            &with(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]),
            BROKEN,
        ),
        c("7541 5.1", "a number beyond 32 bits", &with(&[0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]), BROKEN),
        c("7541 5.1", "a number that is cut off", &with(&[0xff, 0x80]), BROKEN),
    ]
}

fn sizes() -> Vec<Case> {
    let c = Case::new;
    let update = |bytes: &[u8]| [headers(1, &[bytes, &LINE[..], &[0x41, 1, b'a']].concat())];
    vec![
        c("7541 4.2", "a smaller table, said first", &update(&[0x20]), Want::Status(200)),
        c("7541 4.2", "a smaller table and a larger one", &update(&[0x20, 0x3f, 0x61]), Want::Status(200)),
        c("7541 4.2", "a size after a field", &with(&[0x20]), BROKEN),
        c("7541 6.3", "a larger table than was offered", &update(&[0x3f, 0xe2, 0x1f]), BROKEN),
        c("7541 6.3", "as large a table as was offered", &update(&[0x3f, 0xe1, 0x1f]), Want::Status(200)),
        c(
            "7541 4.3",
            "a table that forgets",
            &[headers(1, &[&LINE[..], &[0x41, 1, b'a'], &[0x40, 1, b'x', 1, b'y']].concat())],
            BROKEN,
        )
        .then(&[headers(3, &[&[0x20][..], &LINE[..], &[0xbe]].concat())]),
        c(
            "6.5.2",
            "a client that wants no table",
            &[settings(&[(1, 0)]), headers(1, &get("/"))],
            Want::Status(200),
        ),
    ]
}

fn texts() -> Vec<Case> {
    let c = Case::new;
    // `a` is 00011 in Huffman's code, and `/` 011000.
    let value =
        |bytes: &[u8]| with(&[&[0x00, 1, b'x', 0x80 | u8::try_from(bytes.len()).unwrap()], bytes].concat());
    let long = block(&[&line("GET", "/")[..], &[("x", "y")]].concat());
    vec![
        c("7541 5.2", "Huffman's code", &value(&[0b0001_1111]), Want::Status(200)),
        c("7541 5.2", "padding of more than seven bits", &value(&[0b0001_1111, 0xff]), BROKEN),
        c("7541 5.2", "padding of zeros", &value(&[0b0001_1000]), BROKEN),
        c("7541 5.2", "the end of a text inside of it", &value(&[0xff, 0xff, 0xff, 0xff]), BROKEN),
        c("7541 5.2", "a text that is cut off", &with(&[0x00, 1, b'x', 5, b'y']), BROKEN),
        c("7541 5.2", "a name that is cut off", &with(&[0x00, 9, b'x']), BROKEN),
        c(
            "7541 6.2.3",
            "a field that is never remembered",
            &with(&[0x10, 1, b'x', 1, b'y']),
            Want::Status(200),
        ),
        c("4.3", "a head that is no HPACK", &[headers(1, &[0x40])], BROKEN),
        c(
            "4.3",
            "what is broken ends all streams",
            &[frame(1, 4, 1, &get("/hang")), headers(3, &[0x40])],
            BROKEN,
        ),
        c(
            "4.3",
            "a refused head is remembered",
            &[
                headers(1, &[0x82, 0x86, 0x41, 1, b'a', 0x40, 1, b'x', 1, b'y']),
                headers(3, &[&LINE[..], &[0xbf, 0xbe]].concat()),
            ],
            Want::So(|received| {
                received.resets.contains(&(1, PROTOCOL)) && received.statuses.contains(&(3, 200))
            }),
        ),
        c("4.3", "the whole of a head", &[headers(1, &long)], Want::Status(200)),
    ]
}
