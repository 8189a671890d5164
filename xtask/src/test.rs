//! `cargo xtask test`, which `./test` runs: every check that CI makes. All steps run, whatever fails, and the last line
//! counts them.
//!
//! [`steps`] says what each step does, [`install`] what is installed, and [`program`] how the built program is tried.
//! The step `tools` installs programs beside the steps that need only Rust; the results are printed in order.

mod version;
mod totals;
mod summary;
mod shell;
mod install;
mod program;
mod package;
mod semver;
mod steps;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread;
use std::time::Duration;

pub(crate) use semver::semver;
use shell::{Directories, STEP_TIMEOUT, Shell, now};
use steps::{LONG_STEPS, Needs, STEPS, Step};
use summary::{StepResult, complaints, table};

/// How often a step that runs shows that it does.
const HEARTBEAT: Duration = Duration::from_secs(60);

/// Runs the steps that the arguments name, and returns the exit status.
pub(crate) fn run(arguments: &[String]) -> Result<u8, String> {
    let mut out = io::stdout();
    let Some(chosen) = choose(arguments)? else {
        return out.write_all(usage().as_bytes()).map(|()| 0).map_err(|error| error.to_string());
    };
    let started = now();
    let results = run_steps(&chosen, &Directories::find()?, &mut out).map_err(|error| error.to_string())?;
    let closing = table(&results, started.elapsed().as_secs());
    out.write_all(closing.as_bytes()).map_err(|error| error.to_string())?;
    Ok(u8::from(results.iter().any(|result| !result.is_ok)))
}

fn usage() -> String {
    format!(
        "\
Usage: ./test [--long] [STEP...]

Makes every check that CI makes. All steps run, whatever fails; the last line counts them.

  STEP       run only these steps
  --long     run also the steps that take minutes each

It needs Rust and a C compiler to link with. The step tools installs what else is missing: system packages with apt-get,
everything else under .cache. Logs are in target/test-logs.

Steps: {}
With --long also: {}
",
        names(STEPS),
        names(LONG_STEPS)
    )
}

fn names(steps: &[Step]) -> String {
    steps.iter().map(|step| step.name).collect::<Vec<_>>().join(" ")
}

/// The steps that the arguments name; `None` if they ask for help.
fn choose(arguments: &[String]) -> Result<Option<Vec<&'static Step>>, String> {
    let (mut chosen, mut is_long) = (Vec::new(), false);
    for argument in arguments {
        match argument.as_str() {
            "--long" => is_long = true,
            "help" | "--help" | "-h" => return Ok(None),
            name => {
                let found = STEPS.iter().chain(LONG_STEPS).find(|step| step.name == name);
                chosen.push(found.ok_or_else(|| {
                    let (steps, long) = (names(STEPS), names(LONG_STEPS));
                    format!("unknown step {name}; there are: {steps}, and with --long {long}")
                })?);
            }
        }
    }
    if is_long && !chosen.is_empty() {
        return Err("--long runs all steps: name no step beside it".to_owned());
    }
    if chosen.is_empty() {
        chosen.extend(STEPS);
        chosen.extend(LONG_STEPS.iter().filter(|_| is_long));
    }
    Ok(Some(chosen))
}

/// How a step ended, and what to show of its log.
struct Finished {
    result: StepResult,
    complaints: String,
}

/// Runs steps, and prints how each ended in the given order. If what all rely on fails, the others do not run.
fn run_steps(
    chosen: &[&'static Step],
    directories: &Directories,
    out: &mut impl Write,
) -> io::Result<Vec<StepResult>> {
    let started = now();
    let (sender, finished) = channel();
    let is_stopped = Arc::new(AtomicBool::new(false));
    let lane =
        start(chosen, &Runner { directories: directories.clone(), is_stopped: is_stopped.clone() }, &sender);
    drop(sender);
    let (mut results, mut early) = (Vec::new(), BTreeMap::new());
    for (index, step) in chosen.iter().enumerate() {
        let (number, count, after) = (index + 1, chosen.len(), started.elapsed().as_secs());
        writeln!(out, "[{number}/{count}] {} (after {after} s)", step.name)?;
        let Finished { result, complaints } = await_step(index, step, &finished, &mut early, out)?;
        write!(out, "{complaints}{}", result.line())?;
        let is_useless_to_go_on = step.first.is_some() && !result.is_ok;
        results.push(result);
        if is_useless_to_go_on {
            is_stopped.store(true, Ordering::Relaxed);
            break;
        }
    }
    let _ = lane.join();
    Ok(results)
}

/// Starts the step that the others rely on, and beside it the others one after the other.
fn start(
    chosen: &[&'static Step],
    runner: &Runner,
    finished: &Sender<(usize, Finished)>,
) -> thread::JoinHandle<()> {
    let numbered = || chosen.iter().copied().enumerate();
    let mut readiness = Readiness { news: None, reached: None };
    if let Some((index, step)) = numbered().find(|(_, step)| step.first.is_some()) {
        let (ready, news) = channel();
        let (runner, finished) = (runner.clone(), finished.clone());
        readiness.news = Some(news);
        thread::spawn(move || {
            let done = runner.perform(step, &ready);
            let is_ok = done.result.is_ok;
            // The receivers are gone only if the run has ended.
            let _ = finished.send((index, done));
            if is_ok {
                let _ = ready.send(Needs::Programs);
            }
        });
    }
    let others: Vec<_> = numbered().filter(|(_, step)| step.first.is_none()).collect();
    let (runner, finished) = (runner.clone(), finished.clone());
    thread::spawn(move || {
        let (ready, _unread) = channel();
        for (index, step) in others {
            if !readiness.wait_for(step.needs) {
                return;
            }
            let _ = finished.send((index, runner.perform(step, &ready)));
        }
    })
}

/// The preparations of the step that the others rely on.
struct Readiness {
    /// `None` if that step is not chosen: then everything is taken to be there.
    news: Option<Receiver<Needs>>,
    reached: Option<Needs>,
}

impl Readiness {
    /// Waits until a step may start. Returns false if it never may, because the step that it relies on failed.
    fn wait_for(&mut self, needs: Needs) -> bool {
        let Some(news) = &self.news else { return true };
        while self.reached < Some(Needs::Programs) {
            let heard = if self.reached < Some(needs) {
                news.recv().map_err(|_| TryRecvError::Disconnected)
            } else {
                news.try_recv()
            };
            match heard {
                Ok(reached) => self.reached = Some(reached),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
        true
    }
}

/// Runs single steps.
#[derive(Clone)]
struct Runner {
    directories: Directories,
    /// Ends what is running, because its result is of no use.
    is_stopped: Arc<AtomicBool>,
}

impl Runner {
    /// Runs one step, and sends what it makes ready.
    fn perform(&self, step: &Step, ready: &Sender<Needs>) -> Finished {
        let started = now();
        let mut result = StepResult { name: step.name, is_ok: false, seconds: 0, note: String::new() };
        let mut shell = match Shell::new(&self.directories, step.name, &self.is_stopped) {
            Ok(shell) => shell,
            Err(note) => {
                return Finished { result: StepResult { note, ..result }, complaints: String::new() };
            }
        };
        let first = step.first.map_or(Ok(()), |first| first(&mut shell));
        let done = first.and_then(|()| {
            let _ = ready.send(Needs::Toolchain);
            (step.run)(&mut shell)
        });
        result.seconds = started.elapsed().as_secs();
        result.note = std::mem::take(&mut shell.note);
        result.is_ok = done.is_ok();
        let mut shown = String::new();
        if let Err(error) = done {
            if shell.is_overdue() {
                result.note = format!("took longer than {} s", STEP_TIMEOUT.as_secs());
            }
            shell.print(&format!("error: {error}"));
            shown = complaints(&shell.log_text(), shell.log_path());
        }
        Finished { result, complaints: shown }
    }
}

/// Waits for a step, and shows each minute that it still runs. Steps that end before their turn are kept in `early`.
fn await_step(
    index: usize,
    step: &Step,
    finished: &Receiver<(usize, Finished)>,
    early: &mut BTreeMap<usize, Finished>,
    out: &mut impl Write,
) -> io::Result<Finished> {
    out.flush()?;
    let (started, mut heartbeats) = (now(), 1);
    loop {
        if let Some(done) = early.remove(&index) {
            return Ok(done);
        }
        let next = started + HEARTBEAT * heartbeats;
        match finished.recv_timeout(next.saturating_duration_since(now())) {
            Ok((other, done)) => {
                early.insert(other, done);
            }
            Err(RecvTimeoutError::Timeout) => {
                let waited = (HEARTBEAT * heartbeats).as_secs();
                writeln!(out, "      {}: {waited} s and counting", step.name)?;
                out.flush()?;
                heartbeats += 1;
            }
            Err(RecvTimeoutError::Disconnected) => {
                let note = "it stopped without a result".to_owned();
                let result = StepResult { name: step.name, is_ok: false, seconds: 0, note };
                return Ok(Finished { result, complaints: String::new() });
            }
        }
    }
}

#[cfg(test)]
mod tests;
