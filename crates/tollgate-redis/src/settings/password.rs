//! A password, given directly or in a file. The file is read for each connection, so that a password is rotated without
//! a restart: let the store accept both, replace the file, then remove the old password.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use tokio::sync::oneshot;

use super::SettingsError;
use tollgate::policy::source::plain_cause;

/// Maximum size of a password file.
const PASSWORD_BYTES_MAX: u64 = 1 << 20;
/// How long reading the file may take before the last password is used. Less than the connect timeout.
const READ_TIMEOUT: Duration = Duration::from_millis(100);
/// How long the first reading may take. A pipe that a program writes to is read to its end.
const START_READ_TIMEOUT: Duration = Duration::from_secs(10);

/// A password's source. Has no `Debug`, because it must not be printed.
#[derive(Clone)]
pub(crate) enum Password {
    /// Given directly.
    Plain(String),
    /// Read from a file.
    File(Arc<PasswordFile>),
}

/// A password file, and what was last read from it.
pub(crate) struct PasswordFile {
    path: PathBuf,
    last: Mutex<LastRead>,
}

struct LastRead {
    password: String,
    /// Why the last attempt to read the file failed.
    read_error: Option<String>,
    /// Set while a thread reads. A blocked file system gets one thread at most.
    is_reading: bool,
}

impl Password {
    /// The password that was last read.
    pub(crate) fn last_read(&self) -> String {
        match self {
            Password::Plain(password) => password.clone(),
            Password::File(file) => file.last().password.clone(),
        }
    }

    /// Reads the password again. Returns the last one if the file cannot be read.
    pub(crate) async fn read(&self) -> String {
        if let Password::File(file) = self {
            Arc::clone(file).read_again().await;
        }
        self.last_read()
    }

    /// Why the file cannot be read.
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
    /// When it cannot be read, or does not hold one line.
    pub(crate) fn new(path: &Path) -> Result<Self, SettingsError> {
        let password = read_line(path).map_err(SettingsError::PasswordFile)?;
        let last = Mutex::new(LastRead { password, read_error: None, is_reading: false });
        Ok(Self { path: path.to_owned(), last })
    }

    fn last(&self) -> std::sync::MutexGuard<'_, LastRead> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the file on its own thread, and waits up to [`READ_TIMEOUT`].
    async fn read_again(self: Arc<Self>) {
        if std::mem::replace(&mut self.last().is_reading, true) {
            return;
        }
        let (sender, read) = oneshot::channel();
        let file = Arc::clone(&self);
        let started = std::thread::Builder::new().name("tollgate-password".to_owned()).spawn(move || {
            file.finish_read(read_file(&file.path));
            let _ = sender.send(()); // The caller may have timed out.
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
            // The read may have finished meanwhile.
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
                tracing::info!("the store's password file has a new password: new connections use it");
            }
            (last.password, last.read_error) = (password, None);
        }
        Err(read_error) => {
            if last.read_error.as_ref() != Some(&read_error) {
                tracing::warn!(
                    read_error,
                    "the store's password file cannot be read: the last password is used"
                );
            }
            last.read_error = Some(read_error);
        }
    }
}

fn read_file(path: &Path) -> Result<String, String> {
    let found =
        std::fs::metadata(path).map_err(|error| format!("{}: {}", path.display(), plain_cause(&error)))?;
    if !found.is_file() {
        return Err(format!("{}: it is no file any more", path.display()));
    }
    read_line(path)
}

/// The bytes of a file, one more than it may have at most. On a thread of its own: opening a pipe that no program writes to would
/// hold up the start without end.
fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    let path = path.to_owned();
    std::thread::Builder::new().name("tollgate-read".to_owned()).spawn(move || {
        let mut bytes = Vec::new();
        let read = File::open(path)
            .and_then(|file| file.take(PASSWORD_BYTES_MAX + 1).read_to_end(&mut bytes))
            .map(|_| bytes);
        let _ = sender.send(read); // The reader may have given up.
    })?;
    receiver.recv_timeout(START_READ_TIMEOUT).unwrap_or_else(|_| {
        let seconds = START_READ_TIMEOUT.as_secs();
        Err(io::Error::other(format!(
            "not read within {seconds} s: no program writes to the pipe, or its file system does not answer"
        )))
    })
}

/// The content of a file of one line, without its line end.
fn read_line(path: &Path) -> Result<String, String> {
    let name = path.display();
    let bytes = read_bytes(path)
        .map_err(|error| format!("{name}: {}; name a file that can be read", plain_cause(&error)))?;
    if bytes.len() as u64 > PASSWORD_BYTES_MAX {
        return Err(format!("{name}: more than {PASSWORD_BYTES_MAX} bytes"));
    }
    let text = String::from_utf8(bytes).map_err(|_| format!("{name}: no UTF-8"))?;
    let word = text.trim_end_matches(['\r', '\n']);
    if word.is_empty() || word.contains('\n') {
        return Err(format!("{name}: accepted: one line that is not empty"));
    }
    Ok(word.to_owned())
}
