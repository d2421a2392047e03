//! Pages of another process are read.
//!
//! The fast way is process_vm_readv, a thousand pieces a call. It respects the permissions of mappings; what it refuses is read from
//! `/proc/PID/mem`, which does not (PROT_NONE memory has content, too). What neither can read is not there any more: the process has
//! unmapped it since it was looked for. While the process runs that is nothing to worry about, its next round will tell; the caller
//! decides.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;

use crate::error::{Error, Refusal, Result};
use crate::pages::{PAGE, PageSet, Pages};
use crate::sys::vm;

/// Pages side by side, and where they go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The pages.
    pub pages: Pages,
    /// The first page of the buffer that they are read into.
    pub to: u64,
}

impl Piece {
    /// Number of pages.
    pub fn count(&self) -> u64 {
        self.pages.end - self.pages.start
    }
}

/// Whether it is one: the kernel says so in its flags.
fn is_kernel_thread(pid: i32) -> bool {
    const PF_KTHREAD: u64 = 0x0020_0000;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Its name may hold anything; behind the last bracket there are state, five numbers, and flags.
    let flags = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(6)?.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & PF_KTHREAD != 0)
}

/// Reads the memory that a process has when it is made.
pub struct Reader {
    pid: i32,
    mem: File,
}

impl Reader {
    /// For process `pid`.
    pub fn open(pid: i32) -> Result<Reader> {
        let path = format!("/proc/{pid}/mem");
        let mem = File::open(&path).map_err(|err| match err.kind() {
            ErrorKind::NotFound => Error::Gone { pid },
            ErrorKind::PermissionDenied => {
                Error::NotPermitted { pid, what: "reading its memory", remedy: "be the same user and allowed to trace it, or root" }
            }
            // It is there, and has none: so has one that is just ending.
            _ if err.raw_os_error() == Some(libc::ESRCH) && is_kernel_thread(pid) => {
                let what = "has no memory of its own: a kernel thread";
                Error::Refused { pid, what: vec![Refusal { place: "process".into(), what: what.into() }] }
            }
            _ if err.raw_os_error() == Some(libc::ESRCH) => Error::Gone { pid },
            _ => Error::io(path, err),
        })?;
        Ok(Reader { pid, mem })
    }

    /// Reads `ranges` into `into`, one behind the other. The pages that could not be read are told; their bytes in `into` mean nothing.
    pub fn read(&self, ranges: &[Pages], into: &mut [u8]) -> Result<PageSet> {
        let mut to = 0;
        let behind = |pages: &Pages| {
            let piece = Piece { pages: pages.clone(), to };
            to += piece.count();
            piece
        };
        self.read_to(&ranges.iter().map(behind).collect::<Vec<_>>(), into)
    }

    /// Reads each piece to its place in `into`; ascending, no page twice.
    pub fn read_to(&self, pieces: &[Piece], into: &mut [u8]) -> Result<PageSet> {
        let mut missed = PageSet::new();
        for batch in pieces.chunks(vm::MOST_PIECES) {
            self.batch(batch, into, &mut missed)?;
        }
        Ok(missed)
    }

    fn batch(&self, pieces: &[Piece], into: &mut [u8], missed: &mut PageSet) -> Result<()> {
        let read = match vm::read_pages(self.pid, pieces, into) {
            Ok(bytes) => bytes,
            Err(err) => match err.raw_os_error() {
                Some(libc::EFAULT) => 0,
                Some(libc::ESRCH) => return Err(Error::Gone { pid: self.pid }),
                _ => return Err(Error::io(format!("reading memory of process {}", self.pid), err)),
            },
        };
        let mut done = read as u64 / PAGE; // a page that was read in part is read again
        for (index, piece) in pieces.iter().enumerate() {
            if done >= piece.count() {
                done -= piece.count();
                continue;
            }
            // The piece that could not be read is read to its end in the other way, then the fast way goes on.
            let bytes = ((piece.to + done) * PAGE) as usize..((piece.to + piece.count()) * PAGE) as usize;
            self.forced(piece.pages.start + done..piece.pages.end, &mut into[bytes], missed)?;
            let rest = &pieces[index + 1..];
            return if rest.is_empty() { Ok(()) } else { self.batch(rest, into, missed) };
        }
        Ok(())
    }

    /// Through `/proc/PID/mem`, whatever the permissions.
    fn forced(&self, pages: Pages, into: &mut [u8], missed: &mut PageSet) -> Result<()> {
        let mut page = pages.start;
        while page < pages.end {
            let at = ((page - pages.start) * PAGE) as usize;
            match self.mem.read_at(&mut into[at..], page * PAGE) {
                Ok(bytes) if bytes as u64 >= PAGE => page += bytes as u64 / PAGE,
                // Nothing there; no bytes at all if the process has called exec or ended.
                Ok(_) => {
                    missed.push(page..page + 1);
                    page += 1;
                }
                Err(err) if matches!(err.raw_os_error(), Some(libc::EIO | libc::EFAULT)) => {
                    missed.push(page..page + 1);
                    page += 1;
                }
                Err(err) => return Err(Error::io(format!("reading memory of process {}", self.pid), err)),
            }
        }
        Ok(())
    }
}
