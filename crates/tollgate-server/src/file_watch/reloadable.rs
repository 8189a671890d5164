//! Files beside the policy that a server reads again when they change: the callers file and the certificates. While the
//! files on disk are wrong, or the disk does not answer, the content before stays in use, and the status says why.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use tollgate::Timestamp;

use super::{
    DISK_TIMEOUT, Debounce, DiskTask, DiskTaskOutcome, FileReload, FileWatcher, ReloadMode, Seen, Version,
    hangs,
};
use crate::failure::Failure;

/// Content that is read from files, and from their next version when they change.
pub(crate) trait Reloadable: Send + Sync + 'static {
    /// The state of the files.
    fn files(&self) -> &ReloadableFiles;

    /// Reads the files and puts their content to use. Returns what the message of the reload adds.
    ///
    /// # Errors
    /// Why the files cannot be used. Nothing has changed then.
    fn load(&self) -> Result<String, String>;
}

/// How messages name the files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileWords {
    /// The files with their verb: "the certificates were".
    pub(crate) were: &'static str,
    /// The verb of the content before: "stay in use".
    pub(crate) stay: &'static str,
}

/// The state of the content.
#[derive(Clone, Debug)]
pub(crate) struct FileStatus {
    /// The version in use, a hash of the files.
    pub(crate) version: Option<Version>,
    pub(crate) loaded_at: Timestamp,
    /// Why the files on disk are not in use, while that is so.
    error: Option<Failure>,
    /// Why the state of the disk is unknown, while a look has not ended.
    stuck: Option<Failure>,
}

impl FileStatus {
    fn new(seen: &Seen, now: Timestamp) -> Self {
        Self { version: seen.version(), loaded_at: now, error: None, stuck: None }
    }

    /// Why the content in use may differ from the files on disk.
    pub(crate) fn trouble(&self) -> Option<&Failure> {
        self.stuck.as_ref().or(self.error.as_ref())
    }
}

/// The watched files with their status.
pub(crate) struct ReloadableFiles {
    words: FileWords,
    /// The paths, for messages.
    paths: String,
    status: ArcSwap<FileStatus>,
    watch: Mutex<(FileWatcher, Debounce)>,
}

impl ReloadableFiles {
    /// Looks at the files. The caller reads them afterwards, so that no later change is missed.
    pub(crate) fn new(words: FileWords, paths: Vec<PathBuf>, now: Timestamp) -> Self {
        let shown: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        let (mut watcher, mut watch) = (FileWatcher::new(paths), Debounce::default());
        let seen = watcher.scan();
        let status = ArcSwap::from_pointee(FileStatus::new(&seen, now));
        watch.acted(seen);
        Self { words, paths: shown.join(", "), status, watch: Mutex::new((watcher, watch)) }
    }

    /// The state of the content.
    pub(crate) fn status(&self) -> Arc<FileStatus> {
        self.status.load_full()
    }

    fn run_cycle(
        &self,
        mode: ReloadMode,
        now: Timestamp,
        load: impl FnOnce() -> Result<String, String>,
    ) -> Result<FileReload, String> {
        // Cycles run one after the other. The lock only satisfies the compiler.
        let (watcher, watch) = &mut *self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = watcher.scan();
        if !watch.saw(&seen) && mode == ReloadMode::OnChange {
            return Ok(FileReload::Nothing);
        }
        watch.acted(seen.clone());
        let before = self.status.load_full();
        let loaded = match &seen {
            Seen::Version(_) => load(),
            // A pipe, or another file that cannot be watched: reading it would wait.
            Seen::Unreadable(error) => Err(error.clone()),
        };
        let FileWords { were, stay } = self.words;
        match loaded {
            Ok(added) => {
                self.status.store(Arc::new(FileStatus::new(&seen, now)));
                if before.error.is_none() && before.version == seen.version() {
                    return Ok(FileReload::Nothing);
                }
                let message = format!("{were} reloaded{added}");
                tracing::info!("{message}");
                Ok(FileReload::Read(message))
            }
            Err(error) => {
                let failure = Some(Failure::new(error.clone(), now));
                self.status.store(Arc::new(FileStatus { error: failure, ..(*before).clone() }));
                tracing::error!(error, "{were} not reloaded: those before {stay}");
                Err(format!("{were} not reloaded, and those before {stay}: {error}"))
            }
        }
    }

    /// Records and logs that a look at the disk has not ended in time, once while that lasts. Returns the text.
    fn late(&self, now: Timestamp) -> String {
        if let Some(stuck) = &self.status.load().stuck {
            return stuck.text.clone();
        }
        let text = hangs(&self.paths, DISK_TIMEOUT);
        let stuck = Some(Failure::new(text.clone(), now));
        self.status.rcu(|status| FileStatus { stuck: stuck.clone(), ..(**status).clone() });
        let FileWords { were, stay } = self.words;
        tracing::error!(error = text, "{were} not read in time: those before {stay}");
        text
    }

    /// Records that a look has ended: if the disk did not answer before, it does now.
    fn answers(&self) {
        if self.status.load().stuck.is_some() {
            self.status.rcu(|status| FileStatus { stuck: None, ..(**status).clone() });
            tracing::info!("{} read again", self.words.were);
        }
    }
}

/// Reloads the files if they changed, on the thread of `looks`.
///
/// # Errors
/// Why the files on disk are not in use.
pub(crate) async fn reload_files<R: Reloadable>(
    content: Option<&Arc<R>>,
    looks: &mut DiskTask<Result<FileReload, String>>,
    mode: ReloadMode,
    now: impl Fn() -> Timestamp,
) -> Result<FileReload, String> {
    let Some(content) = content else { return Ok(FileReload::Nothing) };
    let (looking, started_at, files) = (Arc::clone(content), now(), content.files());
    match looks.run(move || looking.files().run_cycle(mode, started_at, || looking.load())).await {
        DiskTaskOutcome::Done(result) => {
            files.answers();
            result
        }
        DiskTaskOutcome::Failed(how) => {
            let were = files.words.were;
            tracing::error!(how, "{were} not reloaded; please report this");
            Err(format!("{were} not reloaded: {how}"))
        }
        DiskTaskOutcome::TimedOut => Err(files.late(now())),
    }
}
