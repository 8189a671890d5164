//! What the requests of a thread take turns with, so that they allocate little and a connection that rests holds nothing: buffers, and maps of
//! fields. Heads that were read lie one behind the other in a few pieces of memory, each of which is used again when all of its heads are gone.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use bytes::BytesMut;
use http::{Extensions, HeaderMap};

/// Largest buffer that is kept, and how many are to read into.
const KEPT_BYTES_MAX: usize = 64 << 10;
const READ_MAX: usize = 8;
/// A buffer with less room is used when its memory is free again.
pub(super) const READ_ROOM_BYTES: usize = 4 << 10;
/// Most maps that are kept, and most fields that one has room for.
const MAPS_MAX: usize = 128;
const FIELDS_MAX: usize = 48;

thread_local! {
    static READ: RefCell<VecDeque<BytesMut>> = RefCell::default();
    static WRITE: Cell<BytesMut> = Cell::default();
    static MAPS: RefCell<Vec<HeaderMap>> = RefCell::default();
    static EXTENSIONS: RefCell<Vec<Extensions>> = RefCell::default();
}

/// An empty buffer to read into.
pub(super) fn take_read() -> BytesMut {
    READ.with_borrow_mut(VecDeque::pop_front).unwrap_or_default()
}

/// Gives back an empty one.
pub(super) fn give_read(buffer: BytesMut) {
    if buffer.capacity() > KEPT_BYTES_MAX {
        return;
    }
    READ.with_borrow_mut(|all| match buffer.capacity() {
        _ if all.len() >= READ_MAX => {}
        READ_ROOM_BYTES.. => all.push_front(buffer),
        _ => all.push_back(buffer),
    });
}

/// An empty buffer to write from.
pub(super) fn take_write() -> BytesMut {
    WRITE.take()
}

/// Gives back one of which everything is written.
pub(super) fn give_write(mut buffer: BytesMut) {
    buffer.clear();
    if buffer.capacity() <= KEPT_BYTES_MAX {
        WRITE.set(buffer);
    }
}

/// An empty map with room for so many fields.
pub(super) fn take_fields(room: usize) -> HeaderMap {
    let mut fields = MAPS.with_borrow_mut(Vec::pop).unwrap_or_default();
    fields.reserve(room);
    fields
}

/// Gives back a map that nobody reads any more.
pub(super) fn give_fields(mut fields: HeaderMap) {
    if (1..=FIELDS_MAX).contains(&fields.capacity()) {
        fields.clear();
        MAPS.with_borrow_mut(|all| {
            if all.len() < MAPS_MAX {
                all.push(fields)
            }
        });
    }
}

/// What travels with a request, and is nothing yet.
pub(super) fn take_extensions() -> Extensions {
    EXTENSIONS.with_borrow_mut(Vec::pop).unwrap_or_default()
}

/// Gives back what travelled with a request.
pub(super) fn give_extensions(mut extensions: Extensions) {
    extensions.clear();
    EXTENSIONS.with_borrow_mut(|all| {
        if all.len() < MAPS_MAX {
            all.push(extensions)
        }
    });
}
