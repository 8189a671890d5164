//! A password, given as it is or kept in a file. A file is read anew for each connection, so that a password is rotated without a
//! restart: let the store accept both, replace the file, then take the old one away.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::SettingsError;

/// Largest file of a password.
const PASSWORD_BYTES_MAX: u64 = 1 << 20;
/// How long reading the file may take before the password read last is used. Less than a connection may take.
const READ_TIMEOUT: Duration = Duration::from_millis(100);

/// Where a password comes from. Has no `Debug`: it must not be printed.
#[derive(Clone)]
pub(crate) enum Password {
    /// Given as it is.
    Plain(String),
    /// What is in a file.
    File(Arc<PasswordFile>),
}

/// A file, and what was read from it last.
pub(crate) struct PasswordFile {
    path: PathBuf,
    last: Mutex<LastRead>,
}

struct LastRead {
    password: String,
    /// Why the file could not be read since.
    read_error: Option<String>,
    /// Set while a thread reads: one that a file system holds up is not followed by another.
    is_reading: bool,
}

impl Password {
    /// The password as it was read last.
    pub(crate) fn last_read(&self) -> String {
        match self {
            Password::Plain(password) => password.clone(),
            Password::File(file) => file.last().password.clone(),
        }
    }

    /// The password as it is now, or as it was read last where the file cannot be read.
    pub(crate) async fn read(&self) -> String {
        if let Password::File(file) = self {
            Arc::clone(file).read_again().await;
        }
        self.last_read()
    }

    /// Why the file could not be read.
    pub(crate) fn read_error(&self) -> Option<String> {
        match self {
            Password::Plain(_) => None,
            Password::File(file) => file.last().read_error.clone(),
        }
    }
}

impl PartialEq for Password {
    fn eq(&self, other: &Self) -> bool {
        self.last_read() == other.last_read()
    }
}

impl Eq for Password {}

impl PasswordFile {
    /// Reads a file for the first time.
    ///
    /// # Errors
    /// When it cannot be read, or is no password.
    pub(crate) fn new(path: &Path) -> Result<Self, SettingsError> {
        let password = read_line(path).map_err(SettingsError::PasswordFile)?;
        let last = Mutex::new(LastRead { password, read_error: None, is_reading: false });
        Ok(Self { path: path.to_owned(), last })
    }

    fn last(&self) -> std::sync::MutexGuard<'_, LastRead> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the file on a thread of its own, and waits for it up to [`READ_TIMEOUT`].
    async fn read_again(self: Arc<Self>) {
        if std::mem::replace(&mut self.last().is_reading, true) {
            return;
        }
        let (sender, read) = oneshot::channel();
        let file = Arc::clone(&self);
        let started = std::thread::Builder::new().name("tollgate-password".to_owned()).spawn(move || {
            file.finish_read(read_file(&file.path));
            let _ = sender.send(()); // Nobody waits any more.
        });
        if started.is_err() {
            self.finish_read(Err("the system gives no thread to read it".to_owned()));
            return;
        }
        if tokio::time::timeout(READ_TIMEOUT, read).await.is_err() {
            let read_error = format!(
                "{}: reading did not end within {} ms, so the file system does not answer",
                self.path.display(),
                READ_TIMEOUT.as_millis()
            );
            let mut last = self.last();
            // It may have ended in this very moment.
            if last.is_reading {
                record_read(&mut last, Err(read_error));
            }
        }
    }

    fn finish_read(&self, read: Result<String, String>) {
        let mut last = self.last();
        last.is_reading = false;
        record_read(&mut last, read);
    }
}

fn record_read(last: &mut LastRead, read: Result<String, String>) {
    match read {
        Ok(password) => {
            if last.password != password {
                tracing::info!("the store's password file has another password: new connections use it");
            }
            (last.password, last.read_error) = (password, None);
        }
        Err(read_error) => {
            if last.read_error.as_ref() != Some(&read_error) {
                tracing::warn!(
                    read_error,
                    "the store's password file cannot be read: the password read before is used"
                );
            }
            last.read_error = Some(read_error);
        }
    }
}

fn read_file(path: &Path) -> Result<String, String> {
    let found = std::fs::metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
    if !found.is_file() {
        return Err(format!("{}: it is no file any more", path.display()));
    }
    read_line(path)
}

/// What is in a file of one line; the line's end does not count.
fn read_line(path: &Path) -> Result<String, String> {
    let name = path.display();
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(PASSWORD_BYTES_MAX + 1).read_to_end(&mut bytes))
        .map_err(|error| format!("{name}: {error}; name a file that can be read"))?;
    if bytes.len() as u64 > PASSWORD_BYTES_MAX {
        return Err(format!("{name}: more than {PASSWORD_BYTES_MAX} bytes"));
    }
    let text = String::from_utf8(bytes).map_err(|_| format!("{name}: no UTF-8"))?;
    let word = text.trim_end_matches(['\r', '\n']);
    if word.is_empty() || word.contains('\n') {
        return Err(format!("{name}: accepted is one line that is not empty"));
    }
    Ok(word.to_owned())
}
