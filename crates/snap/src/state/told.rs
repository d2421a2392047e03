//! What the system tells of a process and of its threads to nobody but themselves: they ask, all at the same time.
//!
//! Room for the answers in the stub's scratch memory:
//!
//! ```text
//!   │ 64 bytes for each of as many threads as ask at once │ actions of signals │ three timers │ subreaper … │ timers of timer_create │
//! ```

use super::process::{PosixTimer, Process, SIGNALS, posix_timers, text};
use super::settings::{self, Settings};
use super::thread::Thread;
use crate::error::{Error, Refusal, Result};
use crate::freeze::Frozen;
use crate::remote::{AT_ONCE, Call, SCRATCH_LEN, Stub, TOGETHER};
use crate::sys::ptrace::Tid;
use crate::sys::{machine, memory};

/// What only a process and its threads are told.
pub struct Told {
    process: ProcessTold,
    threads: Vec<ThreadTold>,
}

impl Told {
    /// With what anybody may see of the same process, which still stands still. Its pending signals `quiet` are the tool's own.
    pub fn look(self, frozen: &Frozen, quiet: i32) -> Result<(Process, Vec<Thread>)> {
        // SAFETY: numbers only.
        let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) } as u32;
        let process = Process::look(frozen.pid(), self.process, quiet)?;
        let threads = frozen.threads().iter().zip(self.threads).map(|(tid, told)| Thread::look(*tid, told, quiet, online));
        Ok((process, threads.collect::<Result<_>>()?))
    }
}

/// What only the process is told.
pub(super) struct ProcessTold {
    pub actions: Vec<[u64; 4]>,
    pub interval_timers: [(u64, u64); 3],
    pub timers: Vec<PosixTimer>,
    pub dumpable: u64,
    pub subreaper: bool,
    pub no_huge_pages: bool,
    pub membarrier: u64,
    pub brk: u64,
    pub register_sets: u64,
    pub deny_write_execute: u64,
    pub merge_memory: bool,
}

/// What only a thread is told.
pub(super) struct ThreadTold {
    pub altstack: (u64, i32, u64),
    pub tid_address: u64,
    pub death_signal: i32,
    pub settings: Settings,
}

/// Calls, of which so many must succeed: of the others, what an older kernel or another processor does not know, nobody has.
struct Questions {
    calls: Vec<Call>,
    sure: usize,
}

impl Questions {
    fn check(&self, stub: &Stub, results: &[i64]) -> Result<()> {
        for (call, result) in self.calls.iter().zip(results).take(self.sure) {
            stub.checked(call.number, *result)?;
        }
        Ok(())
    }
}

/// A copy of some scratch memory.
struct Answers(Vec<u8>);

impl Answers {
    fn read(pid: Tid, stub: &Stub, len: u64) -> Result<Answers> {
        let mut bytes = vec![0u8; len as usize];
        memory::read(pid, stub.scratch(), &mut bytes)?;
        Ok(Answers(bytes))
    }

    fn word(&self, offset: u64) -> u64 {
        u64::from_le_bytes(self.0[offset as usize..][..8].try_into().expect("eight bytes"))
    }

    fn four(&self, offset: u64) -> [u64; 4] {
        [0, 8, 16, 24].map(|at| self.word(offset + at))
    }
}

/// Has a process that stands still, and all its threads, ask.
pub fn ask(frozen: &Frozen, stub: &mut Stub) -> Result<Told> {
    let pid = frozen.pid();
    let timers = posix_timers(&text(pid, "timers").unwrap_or_default());
    let of_process = process_questions(pid, &timers, stub.scratch())?;
    let (mut process, mut threads) = (None, Vec::with_capacity(frozen.threads().len()));
    // Many timers take a table of their own.
    let each = thread_questions(0);
    if of_process.calls.len() + TOGETHER * each.calls.len() > AT_ONCE {
        process = Some(stub.run(pid, &of_process.calls)?);
    }
    let mut answers = Answers::read(pid, stub, if process.is_some() { answers_of(&timers) } else { 0 })?;
    for some in frozen.threads().chunks(TOGETHER) {
        let asks = |(tid, n): (&Tid, u64)| (*tid, thread_questions(stub.scratch() + n * THREAD).calls);
        let mut jobs: Vec<(Tid, Vec<Call>)> = some.iter().zip(0..).map(asks).collect();
        let with_process = process.is_none();
        if with_process {
            jobs[0].1.extend(&of_process.calls);
        }
        let mut results = stub.run_each(&jobs)?;
        let told = Answers::read(pid, stub, if with_process { answers_of(&timers) } else { PROCESS })?;
        if with_process {
            process = Some(results[0].split_off(each.calls.len()));
        }
        for ((tid, n), results) in some.iter().zip(0..).zip(&results) {
            each.check(stub, results)?;
            threads.push(thread_told(*tid, &results[each.sure..], &told, n * THREAD)?);
        }
        if with_process {
            answers = told;
        }
    }
    let results = process.expect("a process has a thread");
    of_process.check(stub, &results)?;
    Ok(Told { process: process_told(pid, timers, &results[of_process.sure..], &answers)?, threads })
}

const ALTSTACK: u64 = 0;
const TID_ADDRESS: u64 = 24;
const DEATH_SIGNAL: u64 = 32;
const SETTINGS: u64 = 40;
/// Bytes of a thread's answers.
const THREAD: u64 = 64;
const _: () = assert!(SETTINGS + settings::SCRATCH <= THREAD);

fn thread_questions(at: u64) -> Questions {
    let mut calls = vec![
        Call::new(libc::SYS_sigaltstack, &[0, at + ALTSTACK]),
        Call::new(libc::SYS_prctl, &[libc::PR_GET_TID_ADDRESS as u64, at + TID_ADDRESS]),
        Call::new(libc::SYS_prctl, &[libc::PR_GET_PDEATHSIG as u64, at + DEATH_SIGNAL]),
    ];
    let sure = calls.len();
    calls.extend(settings::calls(at + SETTINGS));
    Questions { calls, sure }
}

fn thread_told(tid: Tid, results: &[i64], answers: &Answers, at: u64) -> Result<ThreadTold> {
    let word = |offset: u64| answers.word(at + offset);
    Ok(ThreadTold {
        altstack: (word(ALTSTACK), word(ALTSTACK + 8) as i32, word(ALTSTACK + 16)),
        tid_address: word(TID_ADDRESS),
        death_signal: word(DEATH_SIGNAL) as i32,
        settings: Settings::of(tid, results, word(SETTINGS))?,
    })
}

const PROCESS: u64 = TOGETHER as u64 * THREAD;
const INTERVALS: u64 = PROCESS + SIGNALS * 32;
const SUBREAPER: u64 = INTERVALS + 3 * 32;
const REGISTER_SETS: u64 = SUBREAPER + 8;
const TAG_MASK: u64 = SUBREAPER + 16;
const TIMERS: u64 = SUBREAPER + 32;

const ARCH_GET_XCOMP_PERM: u64 = 0x1022;
const ARCH_GET_UNTAG_MASK: u64 = 0x4001;
const PR_GET_MEMORY_MERGE: u64 = 68;
const MEMBARRIER_GET_REGISTRATIONS: u64 = 1 << 9;

fn answers_of(timers: &[PosixTimer]) -> u64 {
    TIMERS + timers.len() as u64 * 32
}

fn process_questions(pid: Tid, timers: &[PosixTimer], scratch: u64) -> Result<Questions> {
    if answers_of(timers) > SCRATCH_LEN {
        let what = vec![Refusal { place: "timers".into(), what: "more than 500 timers".into() }];
        return Err(Error::Refused { pid, what });
    }
    let at = |offset| scratch + offset;
    let action = |n| Call::new(libc::SYS_rt_sigaction, &[n + 1, 0, at(PROCESS + n * 32), 8]);
    let mut calls: Vec<Call> = (0..SIGNALS).map(action).collect();
    calls.extend((0..3).map(|n| Call::new(libc::SYS_getitimer, &[n, at(INTERVALS + n * 32)])));
    calls.push(Call::new(libc::SYS_prctl, &[libc::PR_GET_CHILD_SUBREAPER as u64, at(SUBREAPER)]));
    let gettime = |(timer, n): (&PosixTimer, u64)| Call::new(libc::SYS_timer_gettime, &[timer.id as u64, at(TIMERS + n * 32)]);
    calls.extend(timers.iter().zip(0..).map(gettime));
    let sure = calls.len();
    calls.push(Call::new(libc::SYS_prctl, &[libc::PR_GET_DUMPABLE as u64]));
    calls.push(Call::new(libc::SYS_prctl, &[libc::PR_GET_THP_DISABLE as u64]));
    calls.push(Call::new(libc::SYS_membarrier, &[MEMBARRIER_GET_REGISTRATIONS]));
    calls.push(Call::new(libc::SYS_brk, &[0]));
    calls.push(Call::new(machine::SYS_ARCH_PRCTL, &[ARCH_GET_XCOMP_PERM, at(REGISTER_SETS)]));
    calls.push(Call::new(machine::SYS_ARCH_PRCTL, &[ARCH_GET_UNTAG_MASK, at(TAG_MASK)]));
    calls.push(Call::new(libc::SYS_prctl, &[libc::PR_GET_MDWE as u64]));
    calls.push(Call::new(libc::SYS_prctl, &[PR_GET_MEMORY_MERGE]));
    Ok(Questions { calls, sure })
}

/// `results`: of those questions that need not succeed.
fn process_told(pid: Tid, mut timers: Vec<PosixTimer>, results: &[i64], answers: &Answers) -> Result<ProcessTold> {
    for (timer, n) in timers.iter_mut().zip(0..) {
        let [interval, interval_rest, value, value_rest] = answers.four(TIMERS + n * 32);
        (timer.interval_ns, timer.value_ns) = (interval * 1_000_000_000 + interval_rest, value * 1_000_000_000 + value_rest);
    }
    let interval = |n: u64| {
        let [interval, interval_rest, value, value_rest] = answers.four(INTERVALS + n * 32);
        ((value * 1_000_000 + value_rest) * 1000, (interval * 1_000_000 + interval_rest) * 1000)
    };
    let told = |n: usize| results[n].max(0) as u64;
    if results[5] == 0 && answers.word(TAG_MASK) != u64::MAX {
        let what = "it keeps marks of its own in addresses (ARCH_ENABLE_TAGGED_ADDR), which cannot be kept";
        return Err(Error::Refused { pid, what: vec![Refusal { place: "process".into(), what: what.into() }] });
    }
    Ok(ProcessTold {
        actions: (0..SIGNALS).map(|n| answers.four(PROCESS + n * 32)).collect(),
        interval_timers: [interval(0), interval(1), interval(2)],
        timers,
        dumpable: told(0),
        subreaper: answers.word(SUBREAPER) as u32 != 0,
        no_huge_pages: told(1) != 0,
        membarrier: told(2),
        brk: told(3),
        register_sets: if results[4] == 0 { answers.word(REGISTER_SETS) } else { 0 },
        deny_write_execute: told(6),
        merge_memory: told(7) != 0,
    })
}
