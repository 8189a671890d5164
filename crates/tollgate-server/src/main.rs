//! The program `tollgate`. All it does is in the library of this crate.

use std::process::ExitCode;

fn main() -> ExitCode {
    tollgate_server::run(std::env::args_os())
}
