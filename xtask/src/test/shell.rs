//! Runs the commands of one step: their output goes to the step's log, and at the step's time limit they end.

use std::env;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest that one step may take: a step that hangs is a step that failed.
pub(crate) const STEP_TIMEOUT: Duration = Duration::from_secs(1_800);
/// How long processes have to end themselves before they are killed.
const GRACE: Duration = Duration::from_secs(10);
/// The pause between two looks at a process.
const POLL_EVERY: Duration = Duration::from_millis(10);

/// The directories that every step uses.
#[derive(Clone, Debug)]
pub(crate) struct Directories {
    pub(crate) root: PathBuf,
    pub(crate) target: PathBuf,
}

impl Directories {
    /// The repository that this program was built from.
    pub(crate) fn find() -> Result<Self, String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("xtask has no parent directory")?;
        let target =
            env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |given| root.join(given));
        Ok(Self { root: root.to_owned(), target })
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.target.join("test-logs")
    }

    /// Where the steps install programs.
    pub(crate) fn tools(&self) -> PathBuf {
        self.root.join(".cache/tools/bin")
    }
}

/// Runs the commands of one step.
pub(crate) struct Shell {
    pub(crate) directories: Directories,
    /// The step's summary, in one line.
    pub(crate) note: String,
    path: PathBuf,
    log: File,
    deadline: Instant,
    is_stopped: Arc<AtomicBool>,
}

impl Shell {
    /// Creates the log of a step. Its time limit starts now. Its commands end early if `is_stopped` becomes true.
    pub(crate) fn new(
        directories: &Directories,
        step: &str,
        is_stopped: &Arc<AtomicBool>,
    ) -> Result<Self, String> {
        let logs = directories.logs();
        let path = logs.join(format!("{step}.log"));
        let failed = |error| format!("cannot write {}: {error}", path.display());
        fs::create_dir_all(&logs).map_err(failed)?;
        let log = File::create(&path).map_err(failed)?;
        let deadline = now() + STEP_TIMEOUT;
        let (directories, is_stopped) = (directories.clone(), is_stopped.clone());
        Ok(Self { directories, note: String::new(), path, log, deadline, is_stopped })
    }

    pub(crate) fn log_path(&self) -> &Path {
        &self.path
    }

    /// The log so far.
    pub(crate) fn log_text(&self) -> String {
        fs::read(&self.path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    pub(crate) fn is_overdue(&self) -> bool {
        now() >= self.deadline
    }

    /// Writes a line to the log.
    pub(crate) fn print(&mut self, line: &str) {
        // The log is for a reader; the result of the step does not depend on it.
        let _ = writeln!(self.log, "{line}");
    }

    /// A command of words without spaces, which runs in the repository as if a developer had typed it.
    pub(crate) fn command(&self, words: &str) -> Command {
        let mut words = words.split_whitespace();
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).current_dir(&self.directories.root).stdin(Stdio::null());
        command.env("CARGO_TERM_COLOR", "never").env("PATH", self.search_path());
        for (name, _) in env::vars_os() {
            if name.to_str().is_some_and(is_kept_from_commands) {
                command.env_remove(name);
            }
        }
        command
    }

    fn search_path(&self) -> std::ffi::OsString {
        let own = env::var_os("PATH").unwrap_or_default();
        let directories = env::split_paths(&own).chain([self.directories.tools()]);
        env::join_paths(directories).unwrap_or(own)
    }

    /// Whether there is a program of this name.
    pub(crate) fn has(&self, program: &str) -> bool {
        env::split_paths(&self.search_path()).any(|directory| directory.join(program).is_file())
    }

    /// Runs a command that must succeed.
    pub(crate) fn run(&mut self, words: &str) -> Result<(), String> {
        let command = self.command(words);
        self.run_command(command)
    }

    /// Runs a command that must succeed.
    pub(crate) fn run_command(&mut self, command: Command) -> Result<(), String> {
        let shown = shown(&command);
        let output = self.log.try_clone().map_err(|error| error.to_string())?;
        let status = self.finish(command, output)?;
        if status.success() { Ok(()) } else { Err(format!("`{shown}` failed: {status}")) }
    }

    /// Runs a command to learn whether it succeeds.
    pub(crate) fn succeeds(&mut self, words: &str) -> bool {
        self.run(words).is_ok()
    }

    /// Runs a command that must succeed, and returns what it prints.
    pub(crate) fn output(&mut self, words: &str) -> Result<String, String> {
        let command = self.command(words);
        self.output_of(command)
    }

    /// Runs a command that must succeed, and returns what it prints.
    pub(crate) fn output_of(&mut self, command: Command) -> Result<String, String> {
        let path = self.path.with_extension("out");
        let printed = self.run_into(command, &path).and_then(|()| {
            fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))
        });
        let _ = fs::remove_file(&path);
        printed
    }

    /// Runs a command that must succeed, and writes what it prints to a file.
    pub(crate) fn run_into(&mut self, command: Command, path: &Path) -> Result<(), String> {
        let shown = shown(&command);
        let output =
            File::create(path).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        let status = self.finish(command, output)?;
        if status.success() { Ok(()) } else { Err(format!("`{shown}` failed: {status}")) }
    }

    fn finish(&mut self, mut command: Command, output: File) -> Result<ExitStatus, String> {
        let shown = shown(&command);
        self.print(&format!("$ {shown}"));
        let errors = self.log.try_clone().map_err(|error| error.to_string())?;
        let spawned = command.stdout(output).stderr(errors).spawn();
        let mut child = spawned.map_err(|error| format!("`{shown}` cannot be started: {error}"))?;
        loop {
            if let Some(status) = wait(&mut child, POLL_EVERY) {
                return Ok(status);
            }
            // Relaxed is enough: the flag announces nothing but itself.
            let is_stopped = self.is_stopped.load(Ordering::Relaxed);
            if is_stopped || self.is_overdue() {
                end(vec![child.id()]);
                let _ = child.wait();
                return Err(format!("`{shown}` was {}", if is_stopped { "stopped" } else { "too slow" }));
            }
        }
    }
}

/// Whether a variable of this program's environment would change what a command does: Tollgate's own settings, and what
/// `cargo run` sets for this program, which would make `cargo` build crates again that read it.
fn is_kept_from_commands(name: &str) -> bool {
    let prefixes = ["TOLLGATE_", "CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"];
    prefixes.iter().any(|prefix| name.starts_with(prefix))
        || ["CARGO", "CARGO_CRATE_NAME", "OUT_DIR"].contains(&name)
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// The time, which limits what this program waits for.
#[allow(clippy::disallowed_methods, reason = "a tool for developers, which waits for other programs")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[allow(clippy::disallowed_methods, reason = "a tool for developers, which waits for other programs")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Waits for a process, for a limited time.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let deadline = now() + limit;
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if now() >= deadline {
            return None;
        }
        pause(POLL_EVERY);
    }
}

/// Asks processes to end.
pub(crate) fn signal(name: &str, processes: &[u32]) {
    let ids: Vec<String> = processes.iter().map(u32::to_string).collect();
    // A process that has ended meanwhile is no error.
    let _ = Command::new("sh")
        .args(["-c", &format!("kill -{name} {}", ids.join(" "))])
        .stderr(Stdio::null())
        .status();
}

/// Ends processes, and every process that they have started.
fn end(mut tree: Vec<u32>) {
    let (killed_from, deadline) = (now() + GRACE, now() + 2 * GRACE);
    while now() < deadline {
        let parents = parents();
        // A process whose parent has ended is no descendant any more, so what was found once stays in the tree.
        for found in tree.clone().into_iter().flat_map(|process| descendants(process, &parents)) {
            if !tree.contains(&found) {
                tree.push(found);
            }
        }
        tree.retain(|process| parents.iter().any(|(running, _)| running == process));
        if tree.is_empty() {
            return;
        }
        signal(if now() < killed_from { "TERM" } else { "KILL" }, &tree);
        pause(GRACE / 20);
    }
}

/// Each running process with its parent, as Linux shows them. Elsewhere there are none to see.
fn parents() -> Vec<(u32, u32)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let stats = entries.flatten().filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    stats.filter_map(|stat| parent(&stat)).collect()
}

/// The process and its parent out of a line such as `42 (a name) S 1 …`. A zombie has ended.
fn parent(stat: &str) -> Option<(u32, u32)> {
    let (process, rest) = stat.split_once(' ')?;
    let (_, rest) = rest.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    if fields.next() == Some("Z") {
        return None;
    }
    Some((process.parse().ok()?, fields.next()?.parse().ok()?))
}

fn descendants(process: u32, parents: &[(u32, u32)]) -> Vec<u32> {
    let children = parents.iter().filter(|(child, parent)| *parent == process && *child != process);
    children.flat_map(|(child, _)| [vec![*child], descendants(*child, parents)].concat()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(step: &str) -> Shell {
        let target = env::temp_dir().join(format!("xtask-{step}-{}", std::process::id()));
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).to_owned();
        Shell::new(&Directories { root, target }, step, &Arc::default()).unwrap()
    }

    #[test]
    fn the_output_of_a_command_is_logged_or_returned() {
        let mut shell = shell("prints");
        shell.run("echo one two").unwrap();
        assert_eq!(shell.output("echo three").unwrap(), "three\n");
        assert_eq!(shell.log_text(), "$ echo one two\none two\n$ echo three\n");
        let error = shell.run("false").unwrap_err();
        assert!(error.starts_with("`false` failed: "), "{error}");
        let error = shell.run("no-such-program now").unwrap_err();
        assert!(error.starts_with("`no-such-program now` cannot be started: "), "{error}");
        assert!(shell.has("sh") && !shell.has("no-such-program"));
        fs::remove_dir_all(&shell.directories.target).unwrap();
    }

    /// At the time limit, a command ends with all that it has started.
    #[test]
    fn a_command_that_hangs_is_ended() {
        let (mut shell, started) = (shell("hangs"), now());
        shell.deadline = started + Duration::from_secs(1);
        let file = shell.directories.target.join("process");
        let mut command = shell.command("sh -c");
        command.arg(format!("sleep 61 & echo $! >{}; wait", file.display()));
        let error = shell.run_command(command).unwrap_err();
        assert!(error.ends_with("was too slow") && shell.is_overdue(), "{error}");
        assert!(started.elapsed() < Duration::from_secs(30));
        let sleeping: u32 = fs::read_to_string(file).unwrap().trim().parse().unwrap();
        assert!(parents().iter().all(|(process, _)| *process != sleeping));
        fs::remove_dir_all(&shell.directories.target).unwrap();
    }

    #[test]
    fn descendants_are_found() {
        let parents = [(1, 0), (10, 1), (11, 10), (12, 11), (20, 1)];
        assert_eq!(descendants(10, &parents), [11, 12]);
        assert_eq!(parent("42 (a (strange) name) S 7 42 42 0"), Some((42, 7)));
        assert_eq!(parent("42 (ended) Z 7 42"), None);
        assert_eq!(parent("nonsense"), None);
    }

    #[test]
    fn commands_do_not_see_what_cargo_run_sets() {
        for name in ["CARGO", "CARGO_PKG_NAME", "CARGO_MANIFEST_DIR", "TOLLGATE_POLICY"] {
            assert!(is_kept_from_commands(name), "{name}");
        }
        for name in ["CARGO_HOME", "CARGO_TARGET_DIR", "CARGO_TERM_COLOR", "PATH"] {
            assert!(!is_kept_from_commands(name), "{name}");
        }
    }
}
