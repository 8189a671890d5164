//! How commands find a server of the same user on this machine: a running server keeps a file with its addresses and its
//! admin token in the user's runtime directory, or among the temporary files where the session has none, and holds a lock
//! on it. Commands look in both places. A file without a lock is one of a server that is gone.
//!
//! The directory and the file are readable by their owner only. A directory or a file of another user, a symbolic link,
//! and a file that others could read are never used.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use crate::disk::{DIRECTORY_MODE, FILE_MODE};

/// The directory of a user's session.
const RUNTIME_VARIABLE: &str = "XDG_RUNTIME_DIR";
/// Maximum size of a file, and maximum number of files that are looked at.
const FILE_BYTES_MAX: u64 = 16 << 10;
const FILES_MAX: usize = 1_000;

/// The announcement of a running server.
#[derive(Clone, Deserialize, Serialize)]
pub(crate) struct Announcement {
    /// The id of its process.
    pub(crate) pid: u32,
    /// When it started, in microseconds since 1970.
    pub(crate) started: u64,
    /// The URL of its admin interface.
    pub(crate) admin: String,
    /// Its admin token, if it is not in a file of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<String>,
    /// The file with its admin token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_file: Option<PathBuf>,
    /// Its listeners.
    pub(crate) http: SocketAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) grpc: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) resp: Option<SocketAddr>,
}

/// The announcement of this process. Dropping it removes the file.
pub(crate) struct Announced {
    path: PathBuf,
    /// Holds the lock.
    _file: File,
}

impl Announced {
    /// Announces a server.
    ///
    /// # Errors
    /// When there is no directory that only this user can change. The server runs all the same.
    pub(crate) fn new(announcement: &Announcement) -> io::Result<Self> {
        let [directory, _] = directories();
        Self::within(&directory, announcement)
    }

    fn within(directory: &Path, announcement: &Announcement) -> io::Result<Self> {
        DirBuilder::new().mode(DIRECTORY_MODE).create(directory).or_else(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Ok(()),
            _ => Err(error),
        })?;
        is_private(directory)?;
        let path = directory.join(format!("{}.json", announcement.pid));
        // One of an earlier process with this id.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&path)?;
        // Locked before it has content, so that no reader takes it for one that was left behind.
        file.lock()?;
        let text = serde_json::to_vec(announcement).map_err(io::Error::other)?;
        file.write_all(&text)?;
        Ok(Self { path, _file: file })
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        // Without the lock it would be ignored anyway.
        let _ = fs::remove_file(&self.path);
    }
}

/// The running servers of this user, the newest first.
pub(crate) fn running() -> Vec<Announcement> {
    running_within(&directories())
}

fn running_within(directories: &[PathBuf]) -> Vec<Announcement> {
    let private = directories.iter().filter(|directory| is_private(directory).is_ok());
    let entries = private.filter_map(|directory| fs::read_dir(directory).ok()).flatten();
    let paths = entries.filter_map(Result::ok).map(|entry| entry.path()).take(FILES_MAX);
    let mut found: Vec<Announcement> = paths.filter_map(|path| announced(&path)).collect();
    found.sort_by_key(|found| (std::cmp::Reverse(found.started), found.pid));
    found
}

/// The announcement in a file, if its server runs.
fn announced(path: &Path) -> Option<Announcement> {
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).ok()?;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let about = file.metadata().ok()?;
    if !about.is_file() || !is_own(&about) || about.len() > FILE_BYTES_MAX {
        return None;
    }
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => {}
        // No process holds it: its server was killed.
        Ok(()) if about.len() > 0 => {
            let _ = fs::remove_file(path);
            return None;
        }
        // A server is about to lock it.
        Ok(()) | Err(TryLockError::Error(_)) => return None,
    }
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Whether only this user may read it.
fn is_own(about: &fs::Metadata) -> bool {
    about.uid() == geteuid().as_raw() && about.mode() & 0o077 == 0
}

/// Whether a directory is this user's, and no other user can change it or look into it.
fn is_private(directory: &Path) -> io::Result<()> {
    let about = fs::symlink_metadata(directory)?;
    if about.is_dir() && is_own(&about) {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "{} is no directory of this user with mode 700; remove it, or set {RUNTIME_VARIABLE}",
        directory.display()
    )))
}

fn directories() -> [PathBuf; 2] {
    let runtime = std::env::var_os(RUNTIME_VARIABLE).map(PathBuf::from).filter(|path| path.is_absolute());
    directories_of(geteuid().as_raw(), runtime, &std::env::temp_dir())
}

/// The directories for announcements: one in the runtime directory of the session, and one for this user among the
/// temporary files. The first is for a new announcement. A command may run without a session where its server has one, as
/// with sudo and cron, or the other way round.
fn directories_of(user: u32, runtime: Option<PathBuf>, temporary: &Path) -> [PathBuf; 2] {
    let temporary = temporary.join(format!("tollgate-{user}"));
    match runtime {
        Some(runtime) => [runtime.join("tollgate"), temporary],
        // Where the sessions of systemd have theirs.
        None => [temporary, Path::new("/run/user").join(user.to_string()).join("tollgate")],
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use tollgate_testkit::Scratch;

    use super::*;

    fn announcement(pid: u32, started: u64) -> Announcement {
        let http = "127.0.0.1:8080".parse().unwrap();
        Announcement {
            pid,
            started,
            admin: format!("http://127.0.0.1:{pid}"),
            token: Some("tg_0123456789abcdef".to_owned()),
            token_file: None,
            http,
            grpc: None,
            resp: None,
        }
    }

    fn running_in(directory: &Path) -> Vec<Announcement> {
        running_within(&[directory.to_owned()])
    }

    /// A command finds the server of the same user, whichever of the two has a session.
    #[test]
    fn commands_look_where_servers_announce() {
        let temporary = Path::new("/tmp");
        let (session, none) = (Some(PathBuf::from("/run/user/7")), None);
        for (server, command) in [(&session, &session), (&session, &none), (&none, &session), (&none, &none)]
        {
            let [announced, _] = directories_of(7, server.clone(), temporary);
            let searched = directories_of(7, command.clone(), temporary);
            assert!(searched.contains(&announced), "{announced:?} is not in {searched:?}");
        }
    }

    /// The servers of both directories are found together, and a directory that is missing is passed over.
    #[test]
    fn directories_are_searched_together() {
        let folder = Scratch::new();
        let directories = ["session", "temporary", "missing"].map(|name| folder.path(name));
        let held = [(0, 1), (1, 2), (0, 3)].map(|(directory, pid)| {
            Announced::within(&directories[directory], &announcement(pid, pid.into())).unwrap()
        });
        let pids: Vec<u32> = running_within(&directories).iter().map(|found| found.pid).collect();
        assert_eq!(pids, [3, 2, 1]);
        drop(held);
    }

    /// Running servers are found, the newest first. One that ended is not, even if it left its file behind.
    #[test]
    fn running_servers_are_found() {
        let folder = Scratch::new();
        let directory = folder.path("run");
        let older = Announced::within(&directory, &announcement(1, 10)).unwrap();
        let newer = Announced::within(&directory, &announcement(2, 20)).unwrap();
        let pids = || running_in(&directory).iter().map(|found| found.pid).collect::<Vec<_>>();
        assert_eq!(pids(), [2, 1]);
        drop(newer);
        assert_eq!(pids(), [1]);
        let left = fs::read(&older.path).unwrap();
        drop(older);
        let stale = directory.join("3.json");
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&stale).unwrap();
        fs::write(&stale, left).unwrap();
        assert_eq!(pids(), Vec::<u32>::new());
        assert!(!stale.exists(), "a file that was left behind is removed");
    }

    /// Links, files that others can read, and directories that others can change are never used.
    #[test]
    fn only_private_files_are_trusted() {
        let folder = Scratch::new();
        let directory = folder.path("run");
        let held = Announced::within(&directory, &announcement(1, 10)).unwrap();
        symlink(&held.path, directory.join("2.json")).unwrap();
        assert_eq!(running_in(&directory).len(), 1);
        fs::set_permissions(&held.path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(running_in(&directory).is_empty());
        fs::set_permissions(&held.path, fs::Permissions::from_mode(0o600)).unwrap();
        let linked = folder.path("linked");
        symlink(&directory, &linked).unwrap();
        assert!(running_in(&linked).is_empty());
        assert!(Announced::within(&linked, &announcement(4, 40)).is_err());
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(running_in(&directory).is_empty());
        assert!(Announced::within(&directory, &announcement(3, 30)).is_err());
    }
}
