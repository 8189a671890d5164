//! Files with credentials of a store.

use std::path::Path;

use crate::disk;

/// Maximum size of a file with a password, a secret or certificates.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads a file of one line, such as a password, without the line's end.
///
/// # Errors
/// When it cannot be read, or is empty.
pub(super) fn word(path: &Path) -> Result<String, String> {
    let text = String::from_utf8(bytes(path)?).map_err(|_| format!("{}: no UTF-8", path.display()))?;
    let word = text.trim_end_matches(['\r', '\n']);
    if word.is_empty() || word.contains('\n') {
        return Err(format!("{}: accepted: one line that is not empty", path.display()));
    }
    Ok(word.to_owned())
}

/// Reads a file.
///
/// # Errors
/// When it cannot be read, or is too large.
pub(crate) fn bytes(path: &Path) -> Result<Vec<u8>, String> {
    let name = path.display();
    let bytes = disk::read(path, FILE_BYTES_MAX).map_err(|error| disk::unreadable(path, &error))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("{name}: more than {FILE_BYTES_MAX} bytes"));
    }
    Ok(bytes)
}
