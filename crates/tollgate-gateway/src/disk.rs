//! Reads whole files, bounded in size and in time.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use tollgate::policy::source::plain_cause;

/// Timeout for reading a file: a pipe without a writer, or a file system that hangs, would never end.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads a file. Of a larger file it reads only `bytes_max` bytes and one more, which is enough to refuse it. A pipe is
/// read to its end, so that another program can provide a secret or a config.
///
/// # Errors
/// When it cannot be read, or not within 10 seconds.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    read_within(path, bytes_max, READ_TIMEOUT)
}

fn read_within(path: &Path, bytes_max: u64, timeout: Duration) -> io::Result<Vec<u8>> {
    let path = path.to_owned();
    within(timeout, "no program writes to the pipe, or its file system does not answer", move || {
        let mut bytes = Vec::new();
        File::open(path)?.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
        Ok(bytes)
    })
}

/// Why a file cannot be read, in plain words, and the cure.
#[must_use]
pub fn refusal(error: &io::Error) -> (String, &'static str) {
    match error.kind() {
        io::ErrorKind::NotFound => ("no such file".to_owned(), "check the path"),
        io::ErrorKind::PermissionDenied => ("permission denied".to_owned(), "make it readable for this user"),
        io::ErrorKind::IsADirectory => ("is a directory".to_owned(), "name a file in it"),
        _ => (plain_cause(error), "name a file that can be read"),
    }
}

/// That a file cannot be read: its path, the cause and the cure.
#[must_use]
pub fn unreadable(path: &Path, error: &io::Error) -> String {
    let (cause, cure) = refusal(error);
    format!("{}: {cause}; {cure}", path.display())
}

/// Checks that the file system of a path answers. One that hangs would stop the process for good.
///
/// # Errors
/// When it does not answer within 10 seconds. A path that is missing is no error.
pub fn answers(path: &Path) -> io::Result<()> {
    let path = path.to_owned();
    within(READ_TIMEOUT, "its file system does not answer", move || {
        let _ = fs::metadata(path); // Those who use the path report what is wrong with it.
        Ok(())
    })
}

/// Calls the system in a separate thread, because its calls have no deadline. A thread that hangs ends with the process.
fn within<T: Send + 'static>(
    timeout: Duration,
    cause: &str,
    call: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (sender, receiver) = mpsc::channel();
    std::thread::Builder::new().name("tollgate-read".to_owned()).spawn(move || {
        let _ = sender.send(call()); // The receiver may have given up.
    })?;
    receiver.recv_timeout(timeout).unwrap_or_else(|_| {
        Err(io::Error::other(format!("not read within {} s: {cause}", timeout.as_secs())))
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use tollgate_testkit::Scratch;

    use super::*;

    fn pipe(scratch: &Scratch, name: &str) -> PathBuf {
        let path = scratch.path(name);
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        path
    }

    /// A hung mount under `--state-dir` stopped a start for good, without a word.
    #[test]
    fn a_file_system_that_hangs_is_an_error() {
        let (_never, hangs) = mpsc::channel::<()>();
        let hung = within(Duration::from_millis(20), "its file system does not answer", move || {
            let _ = hangs.recv();
            Ok(())
        });
        assert!(hung.unwrap_err().to_string().ends_with("its file system does not answer"));
        let scratch = Scratch::new();
        answers(&scratch.path("missing")).unwrap();
    }

    /// Reading a pipe without a writer times out, and a pipe with a writer is read to its end.
    #[test]
    fn a_pipe_is_read_within_a_deadline() {
        let scratch = Scratch::new();
        let error =
            read_within(&pipe(&scratch, "silent"), 10, Duration::from_millis(20)).unwrap_err().to_string();
        assert!(error.contains("no program writes to the pipe"), "{error}");
        let path = pipe(&scratch, "written");
        let writing = path.clone();
        let writer = std::thread::spawn(move || fs::write(writing, "0123456789abc"));
        assert_eq!(read(&path, 10).unwrap(), b"0123456789a", "and one byte more than it may have");
        // The write may have failed because the reader closed.
        let _ = writer.join();
    }

    /// A person reads what is wrong with a file and what to do, and no number of the system.
    #[test]
    fn unreadable_files_are_explained() {
        for (path, expected) in [
            ("/nowhere/file", "/nowhere/file: no such file; check the path"),
            ("/", "/: is a directory; name a file in it"),
            ("/dev/null/file", "/dev/null/file: not a directory; name a file that can be read"),
        ] {
            let error = read(Path::new(path), 1).unwrap_err();
            assert_eq!(unreadable(Path::new(path), &error), expected);
        }
    }
}
