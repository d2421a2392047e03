//! Records each instruction that stores into some files that are mapped, in the order of the program.
//!
//! ```text
//!   a store into a watched page, which may only be read ──SIGSEGV──► the page may be written; one step
//!                                        the store is done ──SIGTRAP──► what changed is recorded; the page may only be read
//! ```
//!
//! What must always hold: one thread stores at a time; one recording runs in the process at a time; a fault elsewhere is what it was.
//!
//! A copy by one instruction (`rep movs`) is as many stores as it has steps.

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicPtr, Ordering::*};

use parking_lot::{Mutex, MutexGuard};
use towa_media::PAGE;

use super::files::Event;

/// The one recording that there may be.
static ONE: Mutex<()> = Mutex::new(());
/// Where the handlers find it.
static CURRENT: AtomicPtr<State> = AtomicPtr::new(std::ptr::null_mut());

/// A range of addresses that shows a file from an offset on.
#[derive(Clone, Copy)]
struct Watched {
    first: usize,
    len: usize,
    file: u32,
}

#[derive(Default)]
struct State {
    ranges: Vec<Watched>,
    /// Pages of files as they were after the last store that was recorded.
    known: HashMap<(u32, usize), Vec<u8>>,
    events: Vec<Event>,
    /// Pages that may be written at this moment, for one instruction: two at most.
    open: Vec<usize>,
    /// What handled the signals before.
    former: Option<[libc::sigaction; 2]>,
}

/// A recording, until it is dropped.
pub struct Recorder {
    state: Box<UnsafeCell<State>>,
    _one: MutexGuard<'static, ()>,
}

impl Recorder {
    /// Begins; waits for one that runs.
    pub fn start() -> Recorder {
        let one = ONE.lock();
        let recorder = Recorder { state: Box::new(UnsafeCell::new(State::default())), _one: one };
        CURRENT.store(recorder.state.get(), Release);
        recorder.with(|state| state.former = Some([handle(libc::SIGSEGV, fault), handle(libc::SIGTRAP, step)]));
        recorder
    }

    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        // SAFETY: the handlers look at it only when a store faults, and what is done here stores into no watched page.
        work(unsafe { &mut *self.state.get() })
    }

    /// From now on stores into `len` bytes from address `first` on, which are those of `file` from its beginning on, are recorded.
    pub fn watch(&self, file: u32, first: usize, len: usize) {
        self.with(|state| {
            // What is mapped there now counts, not what was there before.
            state.ranges.insert(0, Watched { first, len: len.next_multiple_of(PAGE), file });
        });
        protect(first, len.next_multiple_of(PAGE), false);
    }

    /// Something that is no store.
    pub fn record(&self, event: Event) {
        self.with(|state| state.events.push(event));
    }

    /// How many events there are.
    pub fn events(&self) -> usize {
        self.with(|state| state.events.len())
    }

    /// All of them.
    pub fn taken(&self) -> Vec<Event> {
        self.with(|state| state.events.clone())
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        CURRENT.store(std::ptr::null_mut(), Release);
        let former = self.with(|state| state.former.take());
        for (signal, action) in [libc::SIGSEGV, libc::SIGTRAP].into_iter().zip(former.into_iter().flatten()) {
            // SAFETY: what was in force before.
            unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
        }
    }
}

type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

/// Has `handler` called for `signal`; gives what was called before.
fn handle(signal: libc::c_int, handler: Handler) -> libc::sigaction {
    // SAFETY: all zeros are such structures; the handler is a function that lives for ever.
    unsafe {
        let (mut action, mut former): (libc::sigaction, libc::sigaction) = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(signal, &raw const action, &raw mut former);
        former
    }
}

/// Lets `len` bytes at `first` be written, or only read. Whether that could be done.
fn protect(first: usize, len: usize, may_write: bool) -> bool {
    let protection = libc::PROT_READ | if may_write { libc::PROT_WRITE } else { 0 };
    // SAFETY: a page of a watched mapping, which stays readable; where nothing is mapped any more this is an error.
    unsafe { libc::mprotect(std::ptr::without_provenance_mut(first), len, protection) == 0 }
}

/// Sets or clears the processor's flag for single steps in the interrupted thread.
fn one_step(context: *mut libc::c_void, on: bool) {
    const TRAP_FLAG: i64 = 0x100;
    // SAFETY: the kernel gives handlers with SA_SIGINFO such a context, which is theirs to change.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        let flags = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_EFL as usize];
        *flags = if on { *flags | TRAP_FLAG } else { *flags & !TRAP_FLAG };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (context, on, TRAP_FLAG);
}

impl State {
    fn range_of(&self, address: usize) -> Option<Watched> {
        self.ranges.iter().copied().find(|range| address.wrapping_sub(range.first) < range.len)
    }

    /// A store into the page at `page` is about to be done.
    fn begin(&mut self, page: usize) -> bool {
        let Some(range) = self.range_of(page) else { return false };
        if self.open.contains(&page) || !protect(page, PAGE, true) {
            return false;
        }
        self.known.entry((range.file, page - range.first)).or_insert_with(|| bytes_at(page).to_vec());
        self.open.push(page);
        true
    }

    /// It was done.
    fn end(&mut self) {
        for page in std::mem::take(&mut self.open) {
            let range = self.range_of(page).expect("an open page is watched");
            let (now, at) = (bytes_at(page), page - range.first);
            let known = self.known.get_mut(&(range.file, at)).expect("known since the store began");
            let differs = |i: &usize| known[*i] != now[*i];
            if let Some(first) = (0..PAGE).find(differs) {
                let last = (0..PAGE).rev().find(differs).unwrap_or(first);
                let bytes = now[first..=last].to_vec();
                known[first..=last].copy_from_slice(&bytes);
                self.events.push(Event::Store { file: range.file, off: (at + first) as u64, bytes });
            }
            protect(page, PAGE, false);
        }
    }
}

fn bytes_at(page: usize) -> &'static [u8] {
    // SAFETY: a page of a watched mapping, which can be read. The thread that stores there is the one that runs this.
    unsafe { std::slice::from_raw_parts(std::ptr::without_provenance(page), PAGE) }
}

/// The recording, in a handler: the thread that it interrupted was storing into memory of a pool, so it holds no lock of the allocator.
fn current() -> Option<&'static mut State> {
    // SAFETY: a recording lives until it is taken out of CURRENT; one thread at a time stores.
    unsafe { CURRENT.load(Acquire).as_mut() }
}

extern "C" fn fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives handlers with SA_SIGINFO such a record.
    let page = unsafe { (*info).si_addr() }.addr() & !(PAGE - 1);
    if current().is_some_and(|state| state.begin(page)) {
        one_step(context, true);
    } else {
        let_it_kill(signal);
    }
}

extern "C" fn step(signal: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    one_step(context, false);
    match current() {
        Some(state) if !state.open.is_empty() => state.end(),
        _ => let_it_kill(signal),
    }
}

/// Not one of ours: it happens again, and ends the process as it would have.
fn let_it_kill(signal: libc::c_int) {
    // SAFETY: the default action is always there.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}
