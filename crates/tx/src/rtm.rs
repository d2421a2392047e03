//! Intel's restricted transactional memory, in three instructions.
//!
//! ```text
//!   begin() ─► STARTED ... end()      all stores appear at once
//!      └─────► status                 after an abort: memory and registers are as at `begin`, as if nothing had been done
//! ```
//!
//! What must always hold: between `begin` and `end` nothing runs that cannot be undone; the processor aborts at system calls, page
//! faults, write-backs, `pause` and the like. Whether it is there is found by *committing*, for microcode may switch it off while CPUID
//! still shows it.

/// What `begin` returns inside a transaction.
pub const STARTED: u32 = u32::MAX;

/// Reasons in the status of an aborted transaction.
pub mod status {
    /// The program aborted; the code is in the top byte.
    pub const EXPLICIT: u32 = 1;
    /// Another thread touched what this one wrote, or wrote what it read.
    pub const CONFLICT: u32 = 1 << 2;
    /// Too much was read or written.
    pub const CAPACITY: u32 = 1 << 3;
}

/// Begins a transaction.
#[inline(always)]
pub fn begin() -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let mut status = STARTED;
        // SAFETY: falls through with `eax` as it was, or resumes at label 2 with the status in it and everything else as it was;
        // either way the compiler sees one assignment. Memory counts as clobbered.
        unsafe { std::arch::asm!("xbegin 2f", "2:", inout("eax") status, options(nostack)) };
        status
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    0
}

/// Ends the transaction that runs: its stores appear at once.
#[inline(always)]
pub fn end() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: called between a `begin` that returned `STARTED` and here only; outside it would fault, not corrupt.
    unsafe {
        std::arch::asm!("xend", options(nostack))
    };
}

/// Aborts the transaction that runs, with a code.
#[inline(always)]
pub fn abort<const CODE: u8>() -> ! {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: inside a transaction it resumes at `begin`; outside it does nothing.
    unsafe {
        std::arch::asm!("xabort {code}", code = const CODE, options(nostack))
    };
    unreachable!("aborted outside a transaction")
}

/// Whether one runs on this thread. Only where [they commit](commits): older processors do not know the instruction.
#[inline(always)]
pub fn is_inside() -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let inside: u8;
        // SAFETY: looks at the processor's state only; where it is unknown it would fault, not corrupt.
        unsafe { std::arch::asm!("xtest", "setnz {}", out(reg_byte) inside, options(nomem, nostack)) };
        inside != 0
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    false
}

/// Whether transactions commit on this machine.
pub fn commits() -> bool {
    #[cfg(test)]
    if tests::MISSING.get() {
        return false;
    }
    static COMMITS: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *COMMITS.get_or_init(probe)
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn probe() -> bool {
    if !std::is_x86_feature_detected!("rtm") {
        return false;
    }
    let cell = std::sync::atomic::AtomicU64::new(0);
    let commits_one = || {
        let started = begin() == STARTED;
        if started {
            cell.store(cell.load(std::sync::atomic::Ordering::Relaxed) + 1, std::sync::atomic::Ordering::Relaxed);
            end();
        }
        started
    };
    // A neighbour on the core can abort them all for a while: so not all at once.
    (0..20).any(|round| {
        std::thread::sleep(std::time::Duration::from_millis(u64::from(round > 0)));
        (0..1000).any(|_| commits_one())
    })
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn probe() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use crate::{Error, Options, Pool, TmChoice};

    thread_local! {
        /// This thread sees a machine that commits none.
        pub(super) static MISSING: Cell<bool> = const { Cell::new(false) };
    }

    #[test]
    fn hardware_that_is_missing_is_refused_before_anything_is_made() {
        MISSING.set(true);
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("pool");
        let options = |tm| Options { tm, heap_len: 16 << 20, medium: Some(towa_media::Kind::Ram), ..Options::default() };
        let refused = |result: Result<Pool, Error>| match result {
            Err(Error::Usage(why)) => assert!(why.contains("does not commit hardware transactions"), "{why}"),
            other => panic!("{other:?}"),
        };
        refused(Pool::create(&place, &options(TmChoice::Rtm)));
        refused(Pool::open_or_create(&place, &options(TmChoice::Rtm)));
        refused(Pool::volatile(&options(TmChoice::Rtm)));
        assert!(!place.exists());
        Pool::create(&place, &options(TmChoice::Auto)).unwrap().close().unwrap();
        refused(Pool::open(&place, &options(TmChoice::Rtm)));
        Pool::open(&place, &options(TmChoice::Stm)).unwrap().close().unwrap();
    }
}
