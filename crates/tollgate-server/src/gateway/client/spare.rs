//! Buffers that the connections of a thread take turns with, so that a request allocates none and a connection that rests has none. Heads
//! that were read lie one behind the other in one piece of memory, which is used again when all of them are gone.

use std::cell::Cell;

use bytes::BytesMut;

/// Largest buffer that is kept.
const KEPT_BYTES_MAX: usize = 64 << 10;

thread_local! {
    static READ: Cell<BytesMut> = Cell::default();
    static WRITE: Cell<BytesMut> = Cell::default();
}

/// An empty buffer to read into.
pub(super) fn take_read() -> BytesMut {
    READ.take()
}

/// Gives back an empty one.
pub(super) fn give_read(buffer: BytesMut) {
    if buffer.capacity() <= KEPT_BYTES_MAX {
        READ.set(buffer);
    }
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
