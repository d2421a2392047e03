//! The terminal that a restarted program finds: its modes (raw, no echo, ...) are the terminal's, not the program's, so a program that
//! had set them would not get its keys.

use std::os::fd::BorrowedFd;

use crate::state::State;
use crate::state::descriptors::{Kind, OpenFile};
use crate::state::thread::unhex;
use crate::sys::fd::{TERMINAL_MODES, set_terminal_modes, terminal_modes};
use crate::sys::ptrace::Tid;

type Modes = [u8; TERMINAL_MODES];

/// The standard streams' terminal as it was before; it is so again when this is dropped.
#[derive(Debug, Default)]
pub struct Terminal(Vec<(i32, Modes)>);

fn stream(number: i32) -> BorrowedFd<'static> {
    // SAFETY: the standard streams are open as long as this process is.
    unsafe { BorrowedFd::borrow_raw(number) }
}

impl Terminal {
    /// Gives the standard streams that are a terminal the modes that the program's had. Where that cannot be (a terminal that is another
    /// program's now) it is left as it is.
    pub fn for_program(state: &State) -> Terminal {
        let mut before = Vec::new();
        for file in &state.descriptors.files {
            let Kind::Standard { stream: number, terminal } = &file.kind else { continue };
            let wanted: Option<Modes> = unhex(terminal).and_then(|bytes| bytes.try_into().ok());
            let (Some(wanted), Ok(modes)) = (wanted, terminal_modes(stream(*number))) else { continue };
            if set_terminal_modes(stream(*number), &wanted).is_ok() {
                before.push((*number, modes));
            }
        }
        Terminal(before)
    }
}

/// Has a program that was on a terminal, and is on one again, draw itself anew when it goes on.
pub fn announce(state: &State, pid: Tid) {
    let had = |file: &OpenFile| matches!(&file.kind, Kind::Standard { terminal, .. } if !terminal.is_empty());
    if state.descriptors.files.iter().any(had) && (0..3).any(|number| terminal_modes(stream(number)).is_ok()) {
        // SAFETY: numbers only; it stands still, and is ours.
        unsafe { libc::kill(pid, libc::SIGWINCH) };
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The last one first: several streams may be one terminal.
        self.0.iter().rev().for_each(|(number, modes)| drop(set_terminal_modes(stream(*number), modes)));
    }
}
