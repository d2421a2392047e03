//! **towa**: the command line of durable memory.
//!
//! ```text
//!   cli ── what can be asked for, and the help that teaches it
//!    ├─ serve, recover            open pools and change them
//!    ├─ backup                    copies a pool, which may be in use
//!    ├─ info, verify, stats       look, and never change anything
//!    ├─ bench, vm, tx_load        measure; write and check a structure that proves itself, for tests that kill and cut power
//!    └─ generate                  man pages and shell completions
//!   failure ── exit codes and messages        pool_dir ── where pools are       report, progress ── what is printed
//! ```
//!
//! What must always hold: what is asked for goes to standard output, everything else to standard error; an error is one line that
//! opens with `towa:` and says what, where and what to do; the exit status is one of [`failure::CODES`].

mod backup;
mod bench;
mod checkpointer;
mod cli;
mod crash_test;
mod failure;
mod generate;
mod info;
mod pool_dir;
mod progress;
mod recover;
mod report;
mod serve;
mod snap;
mod stats;
mod tx_load;
mod verify;
mod vm;
mod xip;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    start_logging(cli.command.verbosity());
    // A limit on the length of files (`ulimit -f`) is an error where it is met, not a death without a word.
    // SAFETY: before any thread is started; ignoring needs no handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    if !cli.command.outlives_its_reader() {
        end_quietly_on_closed_pipe();
    }
    match cli.command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report::say(&failure::message(&error));
            ExitCode::from(failure::code(&error))
        }
    }
}

/// `towa info | head -1` ends like any other command of a pipe: by the signal, without a word. A server lives on, and finds the
/// error where it writes.
fn end_quietly_on_closed_pipe() {
    // SAFETY: before any thread is started; the default action needs no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

fn start_logging(verbosity: u8) {
    let level = match verbosity {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(level))
        .format(|out, record| {
            let text = record.args().to_string();
            writeln!(out, "[{} {:<5}] {}", out.timestamp(), record.level(), report::plain(&text))
        })
        .init();
}
