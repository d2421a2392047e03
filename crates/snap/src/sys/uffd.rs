//! userfaultfd: the two ways it is used here are write-protection that the kernel resolves itself (tracking), and faults of pages that
//! are not there, with the events that say how the memory's layout changes (the pager).
//!
//! The descriptor was made by the process whose memory it is about, and taken over; all calls here are made from outside.

use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use crate::pages::{PAGE, Pages};

/// Feature: a write to a protected page is noted in the page table and goes on; no one is asked.
pub(crate) const WP_ASYNC: u64 = 1 << 15;
/// Feature: pages that are not there can be protected, too.
pub(crate) const WP_UNPOPULATED: u64 = 1 << 13;
/// Features: the layout's changes are told, and wait until they were read.
pub(crate) const EVENTS: u64 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6;

/// What a range is registered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Pages that are not there.
    Missing = 1,
    /// Writes.
    WriteProtect = 2,
}

/// A message of the kernel.
#[derive(Debug)]
pub(crate) enum Event {
    /// A thread waits for this page.
    Fault(u64),
    /// The process forked; this is the child's own userfaultfd.
    Fork(Uffd),
    /// mremap has moved pages.
    Remap { from: Pages, to: u64 },
    /// The content of these is about to be dropped.
    Remove(Pages),
    /// These are no longer mapped.
    Unmap(Pages),
}

#[repr(C)]
#[derive(Default)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Default)]
struct Span {
    start: u64,
    len: u64,
}

impl Span {
    fn of(pages: &Pages) -> Span {
        Span { start: pages.start * PAGE, len: (pages.end - pages.start) * PAGE }
    }
}

/// Of register, zeropage and poison alike: a span, a mode, an answer.
#[repr(C)]
struct SpanMode {
    span: Span,
    mode: u64,
    answer: i64,
}

#[repr(C)]
struct Copy {
    to: u64,
    from: u64,
    len: u64,
    mode: u64,
    copied: i64,
}

const UFFD: u8 = 0xaa;
const API: libc::Ioctl = super::read_write::<Api>(UFFD, 0x3f);
const REGISTER: libc::Ioctl = super::read_write::<SpanMode>(UFFD, 0);
const WAKE: libc::Ioctl = super::read::<Span>(UFFD, 2);
const COPY: libc::Ioctl = super::read_write::<Copy>(UFFD, 3);
const ZEROPAGE: libc::Ioctl = super::read_write::<SpanMode>(UFFD, 4);
const POISON: libc::Ioctl = super::read_write::<SpanMode>(UFFD, 8);

/// A userfaultfd. Closing it takes back all registrations and wakes all who wait.
#[derive(Debug)]
pub(crate) struct Uffd(std::fs::File);

impl Uffd {
    /// Switches a new userfaultfd on. Only once: the kernel refuses a second time.
    pub fn enable(fd: OwnedFd, features: u64) -> io::Result<Uffd> {
        let uffd = Uffd::adopt(fd)?;
        let mut argument = Api { api: 0xaa, features, ioctls: 0 };
        // SAFETY: the argument is this ioctl's, without pointers.
        unsafe { super::ioctl(uffd.0.as_fd(), API, &mut argument) }?;
        Ok(uffd)
    }

    /// With O_NONBLOCK, whoever made it: it is always polled.
    fn adopt(fd: OwnedFd) -> io::Result<Uffd> {
        // SAFETY: no memory is involved.
        match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(Uffd(fd.into())),
        }
    }

    pub fn register(&self, pages: &Pages, mode: Mode) -> io::Result<()> {
        let mut argument = SpanMode { span: Span::of(pages), mode: mode as u64, answer: 0 };
        // SAFETY: the argument is this ioctl's, without pointers.
        unsafe { super::ioctl(self.0.as_fd(), REGISTER, &mut argument) }.map(drop)
    }

    /// Puts `bytes` at page `to` and those behind it, and wakes who waits for them: the number of pages done, and what stopped it.
    pub fn copy(&self, to: u64, bytes: &[u8]) -> (u64, io::Result<()>) {
        assert_eq!(bytes.len() as u64 % PAGE, 0, "whole pages");
        let mut argument = Copy { to: to * PAGE, from: bytes.as_ptr() as u64, len: bytes.len() as u64, mode: 0, copied: 0 };
        // SAFETY: the argument is this ioctl's; the kernel reads `len` bytes of `bytes`, which are there.
        let result = unsafe { super::ioctl(self.0.as_fd(), COPY, &mut argument) };
        (argument.copied.max(0) as u64 / PAGE, result.map(drop))
    }

    /// Puts the page of zeros at `page`, and wakes who waits for it.
    pub fn zero(&self, page: u64) -> io::Result<()> {
        self.span_mode(ZEROPAGE, page)
    }

    /// Makes touching `page` a SIGBUS, and wakes who waits for it. Linux 6.6.
    pub fn poison(&self, page: u64) -> io::Result<()> {
        self.span_mode(POISON, page)
    }

    fn span_mode(&self, number: libc::Ioctl, page: u64) -> io::Result<()> {
        let mut argument = SpanMode { span: Span::of(&(page..page + 1)), mode: 0, answer: 0 };
        // SAFETY: both ioctls have this argument, without pointers.
        unsafe { super::ioctl(self.0.as_fd(), number, &mut argument) }.map(drop)
    }

    /// Lets who waits for `page` try again.
    pub fn wake(&self, page: u64) -> io::Result<()> {
        // SAFETY: the argument is this ioctl's, without pointers.
        unsafe { super::ioctl(self.0.as_fd(), WAKE, &mut Span::of(&(page..page + 1))) }.map(drop)
    }

    /// The next message, if there is one.
    pub fn next(&self) -> io::Result<Option<Event>> {
        let mut message = [0; 32];
        match (&self.0).read(&mut message) {
            Ok(32) => {}
            Ok(0) => return Ok(None),
            Ok(bytes) => return Err(io::Error::other(format!("a message of {bytes} bytes"))),
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(err) => return Err(err),
        }
        let word = |at: usize| u64::from_ne_bytes(message[at..at + 8].try_into().expect("8 bytes"));
        let pages = || word(8) / PAGE..word(16) / PAGE;
        Ok(Some(match message[0] {
            0x12 => Event::Fault(word(16) / PAGE),
            // SAFETY: reading the message made this descriptor for us, nobody else has it.
            0x13 => Event::Fork(Uffd::adopt(unsafe { OwnedFd::from_raw_fd(word(8) as i32) })?),
            0x14 => Event::Remap { from: word(8) / PAGE..(word(8) + word(24)) / PAGE, to: word(16) / PAGE },
            0x15 => Event::Remove(pages()),
            0x16 => Event::Unmap(pages()),
            kind => return Err(io::Error::other(format!("a message of unknown kind {kind:#x}"))),
        }))
    }

    /// Waits until one of `all` has a message, or for `timeout_ms`.
    pub fn wait<'a>(all: impl Iterator<Item = &'a Uffd>, timeout_ms: i32) -> io::Result<()> {
        let mut polled: Vec<libc::pollfd> =
            all.map(|uffd| libc::pollfd { fd: uffd.0.as_raw_fd(), events: libc::POLLIN, revents: 0 }).collect();
        // SAFETY: the kernel writes `revents` of as many entries as there are.
        match unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as u64, timeout_ms) } {
            -1 => match io::Error::last_os_error() {
                err if err.kind() == io::ErrorKind::Interrupted => Ok(()),
                err => Err(err),
            },
            _ => Ok(()),
        }
    }
}
