//! Programs that are started for the sake of another user's file: ld.so, which reads it, and the file itself, as far as its loader goes.
//!
//! What must hold: however such a program behaves, or its user makes it behave (a named pipe in the place of a library, a stopped process,
//! output without end), the caller goes on after [`PATIENCE`], with at most [`OUTPUT_MAX`] bytes of each of its outputs.

use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, Command, ExitStatus, Output};
use std::time::{Duration, Instant};

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
    let until = Instant::now() + patience;
    let told = listen(&mut child, until);
    if !matches!(told, Ok(Some(_))) {
        child.kill()?;
        ended(&mut child, Instant::now() + patience)?;
    }
    match told? {
        Some((status, [stdout, stderr])) => Ok(Output { status, stdout, stderr }),
        None => {
            let why = format!("it, or a process that has its output, did not end within {} s", patience.as_secs_f32());
            Err(io::Error::new(ErrorKind::TimedOut, why))
        }
    }
}

/// Reads what a program writes until it has ended; `None`: it did not in time. An output is closed when so much came that no more is taken.
fn listen(child: &mut Child, until: Instant) -> io::Result<Option<(ExitStatus, [Vec<u8>; 2])>> {
    let mut outputs = [Beginning::of(child.stdout.take()), Beginning::of(child.stderr.take())];
    while outputs.iter().any(|output| output.pipe.is_some()) {
        let pipes: Vec<BorrowedFd<'_>> = outputs.iter().filter_map(|output| Some(output.pipe.as_ref()?.as_fd())).collect();
        let Some(ready) = await_any(&pipes, until)? else { return Ok(None) };
        let open = outputs.iter_mut().filter(|output| output.pipe.is_some());
        open.zip(ready).filter(|(_, ready)| *ready).try_for_each(|(output, _)| output.read())?;
    }
    let status = ended(child, until)?;
    Ok(status.map(|status| (status, outputs.map(|output| output.bytes))))
}

/// The first bytes of an output.
struct Beginning<'p> {
    /// While more is taken from it.
    pipe: Option<Box<dyn Pipe + 'p>>,
    bytes: Vec<u8>,
}

trait Pipe: Read + AsFd {}

impl<T: Read + AsFd> Pipe for T {}

impl<'p> Beginning<'p> {
    fn of(pipe: Option<impl Pipe + 'p>) -> Beginning<'p> {
        Beginning { pipe: pipe.map(|pipe| Box::new(pipe) as Box<dyn Pipe + 'p>), bytes: Vec::new() }
    }

    /// Takes what is there: the pipe is ready, so this waits for nothing.
    fn read(&mut self) -> io::Result<()> {
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        let mut piece = [0; 65536];
        let most = (OUTPUT_MAX - self.bytes.len() as u64).min(piece.len() as u64) as usize;
        match pipe.read(&mut piece[..most]) {
            Ok(0) => self.pipe = None,
            Ok(count) => self.bytes.extend_from_slice(&piece[..count]),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }
}

/// Waits until a child has ended; `None`: it did not in time.
fn ended(child: &mut Child, until: Instant) -> io::Result<Option<ExitStatus>> {
    let pid = Pid::from_raw(child.id() as i32).ok_or(ErrorKind::NotFound)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    await_any(&[process.as_fd()], until)?;
    child.try_wait()
}

/// Waits until one of these is ready: which are; `None`: none was in time.
fn await_any(of: &[BorrowedFd<'_>], until: Instant) -> io::Result<Option<Vec<bool>>> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let mut polled: Vec<_> = of.iter().map(|descriptor| PollFd::from_borrowed_fd(*descriptor, PollFlags::IN)).collect();
        match poll(&mut polled, Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
            Ok(0) => return Ok(None),
            Ok(_) => return Ok(Some(polled.iter().map(|one| !one.revents().is_empty()).collect())),
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
