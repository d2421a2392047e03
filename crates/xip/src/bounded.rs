//! Programs that are started for the sake of another user's file: ld.so, which reads it, and the file itself, as far as its loader goes.
//!
//! What must hold: however such a program behaves, or its user makes it behave (a named pipe in the place of a library, a stopped process,
//! output without end), the caller goes on after [`PATIENCE`], with at most [`OUTPUT_MAX`] bytes of each of its outputs.

use std::io::{self, ErrorKind, Read};
use std::process::{Child, Command, ExitStatus, Output};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// What such a program takes is milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);
/// The list of a program's libraries, or an error message, is far shorter.
const OUTPUT_MAX: u64 = 1 << 20;

/// As [`Command::output`], within these bounds; of the outputs those that the command pipes.
///
/// # Errors
/// It cannot be started; [`ErrorKind::TimedOut`]: it did not end in time, and was killed.
pub fn output(command: &mut Command) -> io::Result<Output> {
    output_within(command, PATIENCE)
}

fn output_within(command: &mut Command, patience: Duration) -> io::Result<Output> {
    let mut child = command.spawn()?;
    let (stdout, stderr) = (child.stdout.take().map(beginning), child.stderr.take().map(beginning));
    let status = match wait(&mut child, patience) {
        Ok(Some(status)) => status,
        Ok(None) => {
            child.kill()?;
            wait(&mut child, patience)?;
            let why = format!("it did not end within {} s, and was killed", patience.as_secs_f32());
            return Err(io::Error::new(ErrorKind::TimedOut, why));
        }
        Err(e) => {
            child.kill()?;
            child.wait()?;
            return Err(e);
        }
    };
    let taken = |pipe: Option<Receiver<Vec<u8>>>| {
        // Something that it started may hold the pipe.
        let late = || io::Error::new(ErrorKind::TimedOut, "it ended, and another process keeps its output");
        pipe.map_or(Ok(Vec::new()), |pipe| pipe.recv_timeout(patience).map_err(|_| late()))
    };
    Ok(Output { status, stdout: taken(stdout)?, stderr: taken(stderr)? })
}

/// Reads what a program writes; more than [`OUTPUT_MAX`] bytes are not taken from it.
fn beginning(pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (give, take) = sync_channel(1);
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.take(OUTPUT_MAX).read_to_end(&mut bytes);
        give.send(bytes)
    });
    take
}

/// Waits until a child has ended, or for so long.
fn wait(child: &mut Child, patience: Duration) -> io::Result<Option<ExitStatus>> {
    let pid = Pid::from_raw(child.id() as i32).ok_or(ErrorKind::NotFound)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: i64::from(patience.subsec_nanos()) };
    loop {
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => {}
            done => return done.map_err(io::Error::from).and_then(|_| child.try_wait()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    fn shell(script: &str, patience: u64) -> io::Result<Output> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        output_within(&mut command, Duration::from_millis(patience))
    }

    #[test]
    fn what_a_program_says_and_how_it_ends_is_told() {
        let told = shell("echo yes; echo no >&2; exit 3", 20_000).unwrap();
        assert_eq!((told.status.code(), &told.stdout[..], &told.stderr[..]), (Some(3), &b"yes\n"[..], &b"no\n"[..]));
    }

    #[test]
    fn a_program_that_does_not_end_is_not_waited_for() {
        for script in ["exec sleep 1000", "kill -STOP $$", "sleep 5 & exit 0"] {
            let began = std::time::Instant::now();
            let error = shell(script, 300).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{script}");
            assert!(began.elapsed() < Duration::from_secs(60), "{script}");
        }
    }

    #[test]
    fn output_without_end_is_cut() {
        let told = shell("exec yes", 20_000).unwrap();
        assert_eq!(told.stdout.len() as u64, OUTPUT_MAX);
    }
}
