//! A pool of buffers and header maps for each thread, so that requests allocate little and an idle connection holds no
//! memory. Parsed heads lie one after the other in a few blocks of memory. A block is reused when all of its heads are
//! gone.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use bytes::BytesMut;
use http::{Extensions, HeaderMap};

/// Largest buffer that the pool keeps, and its maximum number of read buffers.
const KEPT_BYTES_MAX: usize = 64 << 10;
const READ_MAX: usize = 8;
/// A buffer with less free capacity goes to the end of the pool, and is used again when its memory is free.
pub(crate) const READ_ROOM_BYTES: usize = 4 << 10;
/// Maximum maps that the pool keeps, and the maximum capacity of one.
const MAPS_MAX: usize = 128;
const FIELDS_MAX: usize = 48;

thread_local! {
    static READ: RefCell<VecDeque<BytesMut>> = RefCell::default();
    static WRITE: Cell<BytesMut> = Cell::default();
    static MAPS: RefCell<Vec<HeaderMap>> = RefCell::default();
    static EXTENSIONS: RefCell<Vec<Extensions>> = RefCell::default();
}

/// Takes an empty buffer to read into.
pub(crate) fn take_read() -> BytesMut {
    READ.with_borrow_mut(VecDeque::pop_front).unwrap_or_default()
}

/// Returns an empty read buffer.
pub(crate) fn give_read(buffer: BytesMut) {
    if buffer.capacity() > KEPT_BYTES_MAX {
        return;
    }
    READ.with_borrow_mut(|all| match buffer.capacity() {
        _ if all.len() >= READ_MAX => {}
        READ_ROOM_BYTES.. => all.push_front(buffer),
        _ => all.push_back(buffer),
    });
}

/// Takes an empty buffer to write from.
pub(crate) fn take_write() -> BytesMut {
    WRITE.take()
}

/// Returns a buffer that was written completely.
pub(crate) fn give_write(mut buffer: BytesMut) {
    buffer.clear();
    if buffer.capacity() <= KEPT_BYTES_MAX {
        WRITE.set(buffer);
    }
}

/// Takes an empty map with capacity for this many fields.
pub(crate) fn take_fields(capacity: usize) -> HeaderMap {
    let mut fields = MAPS.with_borrow_mut(Vec::pop).unwrap_or_default();
    fields.reserve(capacity);
    fields
}

/// Returns a map that is no longer used.
pub(crate) fn give_fields(mut fields: HeaderMap) {
    if (1..=FIELDS_MAX).contains(&fields.capacity()) {
        fields.clear();
        MAPS.with_borrow_mut(|all| {
            if all.len() < MAPS_MAX {
                all.push(fields)
            }
        });
    }
}

/// Takes an empty set of extensions for a request.
pub(crate) fn take_extensions() -> Extensions {
    EXTENSIONS.with_borrow_mut(Vec::pop).unwrap_or_default()
}

/// Returns the extensions of a request.
pub(crate) fn give_extensions(mut extensions: Extensions) {
    extensions.clear();
    EXTENSIONS.with_borrow_mut(|all| {
        if all.len() < MAPS_MAX {
            all.push(extensions)
        }
    });
}
