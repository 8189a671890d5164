//! The terminal of a live view: keys are read as they are typed, and the terminal is restored however the view ends.

use std::io::{self, IsTerminal, Read};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::mpsc;

/// Clears the screen and moves the cursor to its top.
pub(super) const CLEAR: &str = "\u{1b}[2J\u{1b}[H";
/// The assumed number of rows of a terminal that does not report it.
const ROWS_DEFAULT: usize = 24;

/// A terminal that reports each key. Dropping it restores the terminal.
pub(super) struct Screen {
    before: Option<Termios>,
    keys: mpsc::UnboundedReceiver<u8>,
    /// Whether the output is a terminal, and not a file or a pipe.
    pub(super) is_watched: bool,
}

impl Screen {
    pub(super) fn open() -> Self {
        let is_watched = io::stdout().is_terminal();
        let (sender, keys) = mpsc::unbounded_channel();
        let before = (is_watched && io::stdin().is_terminal()).then(raw).flatten();
        if before.is_some() {
            // Reading cannot be interrupted, so a separate thread reads. The thread ends with the process, or at the
            // first key after the receiver is gone.
            let reading = move || {
                for key in io::stdin().lock().bytes().map_while(Result::ok) {
                    if sender.send(key).is_err() {
                        break;
                    }
                }
            };
            let _ = std::thread::Builder::new().name("tollgate-keys".to_owned()).spawn(reading);
        }
        Self { before, keys, is_watched }
    }

    /// Waits until the user leaves by q or Ctrl-C.
    pub(super) async fn left(&mut self) {
        let keys = &mut self.keys;
        let quit = async {
            loop {
                match keys.recv().await {
                    Some(b'q' | b'Q') => return,
                    Some(_) => {}
                    None => std::future::pending().await,
                }
            }
        };
        tokio::select! {
            () = quit => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    }

    /// The number of rows that fit.
    pub(super) fn rows(&self) -> usize {
        let size = tcgetwinsize(io::stdout()).ok();
        size.map(|size| usize::from(size.ws_row)).filter(|rows| *rows > 0).unwrap_or(ROWS_DEFAULT)
    }
}

/// Disables line buffering of keys. Ctrl-C stays a signal. Returns the previous settings.
fn raw() -> Option<Termios> {
    let before = tcgetattr(io::stdin()).ok()?;
    let mut changed = before.clone();
    changed.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
    tcsetattr(io::stdin(), OptionalActions::Now, &changed).ok()?;
    Some(before)
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}
