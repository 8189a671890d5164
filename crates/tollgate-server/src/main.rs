//! The program `tollgate`. The library of this crate does all the work.

use std::process::ExitCode;

fn main() -> ExitCode {
    tollgate_server::run(std::env::args_os())
}
