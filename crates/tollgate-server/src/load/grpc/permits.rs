//! What the other side permits: how many calls at once, and how many bytes.

use super::frame::{Broken, PAYLOAD_BYTES_MAX};
use super::request::WINDOW_BYTES;

/// The settings that are heeded, by number.
const CALLS: u16 = 3;
const CALL_BYTES: u16 = 4;

/// What the other side permits.
#[derive(Debug)]
pub(super) struct Permits {
    /// Whether it said anything yet.
    pub(super) is_settled: bool,
    /// Whether it said that no call is to follow.
    pub(super) is_leaving: bool,
    /// Calls at once.
    calls: u32,
    /// Bytes of one call.
    call_bytes: u32,
    /// Bytes of all calls together, until it permits more.
    bytes: i64,
}

impl Permits {
    /// What is permitted where nothing was said.
    pub(super) fn new() -> Self {
        Self {
            is_settled: false,
            is_leaving: false,
            calls: u32::MAX,
            call_bytes: WINDOW_BYTES,
            bytes: i64::from(WINDOW_BYTES),
        }
    }

    /// Takes the settings of a frame.
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

    /// Permits so many bytes more.
    pub(super) fn widen(&mut self, bytes: u32) {
        self.bytes = self.bytes.saturating_add(i64::from(bytes));
    }

    /// Uses what one more call takes, beside those that are open, if it is permitted now.
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
