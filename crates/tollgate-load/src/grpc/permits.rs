//! The limits of the server: how many concurrent calls, and how many bytes.

use super::frame::{Broken, PAYLOAD_BYTES_MAX};
use super::request::WINDOW_BYTES;

/// The identifiers of the settings that are used.
const CALLS: u16 = 3;
const CALL_BYTES: u16 = 4;

/// The limits of the server.
#[derive(Debug)]
pub(super) struct Permits {
    /// Whether its settings have come.
    pub(super) is_settled: bool,
    /// Whether it accepts no further calls.
    pub(super) is_leaving: bool,
    /// Concurrent calls.
    calls: u32,
    /// Bytes of one call.
    call_bytes: u32,
    /// Bytes of all calls together, until the server widens the window.
    bytes: i64,
}

impl Permits {
    /// The defaults of HTTP/2.
    pub(super) fn new() -> Self {
        Self {
            is_settled: false,
            is_leaving: false,
            calls: u32::MAX,
            call_bytes: WINDOW_BYTES,
            bytes: i64::from(WINDOW_BYTES),
        }
    }

    /// Applies the settings of a frame.
    pub(super) fn settle(&mut self, payload: &[u8]) -> Result<(), Broken> {
        let (settings, cut) = payload.as_chunks();
        if !cut.is_empty() {
            return Err(Broken::Ill("settings that are cut off"));
        }
        for &[high, low, a, b, c, d] in settings {
            let value = u32::from_be_bytes([a, b, c, d]);
            match u16::from_be_bytes([high, low]) {
                CALLS => self.calls = value,
                CALL_BYTES => self.call_bytes = value,
                _ => {}
            }
        }
        self.is_settled = true;
        Ok(())
    }

    /// Widens the window by this many bytes.
    pub(super) fn widen(&mut self, bytes: u32) {
        self.bytes = self.bytes.saturating_add(i64::from(bytes));
    }

    /// Takes what one more call needs, in addition to the open ones, if it is allowed now.
    pub(super) fn spend(&mut self, open: usize, bytes: u32) -> Result<bool, Broken> {
        // A call is sent in one frame.
        let most = self.call_bytes.min(PAYLOAD_BYTES_MAX);
        if bytes > most {
            return Err(Broken::Large { bytes, most });
        }
        let is_permitted = open < self.calls as usize && i64::from(bytes) <= self.bytes && !self.is_leaving;
        if is_permitted {
            self.bytes -= i64::from(bytes);
        }
        Ok(is_permitted)
    }
}
