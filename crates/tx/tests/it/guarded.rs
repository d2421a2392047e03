//! Transactions on words that versions guard: beside each other, beside those that versions do not show, and what becomes of bodies that do
//! what only others may.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::ways::ways;
use towa_media::RamMedium;
use towa_tx::{Abort, Addr, Commit, Error, Options, Pool, Root, Thread, TmChoice, Tx};

const ACCOUNTS: u64 = 8;
const TOTAL: u64 = ACCOUNTS * 1000;

fn options() -> Options {
    Options { heap_len: 16 << 20, lanes: 8, lane_len: 64 << 10, ..Options::default() }
}

/// Accounts of a line each: version, balance, and the same with every bit turned; a number, and the same with every bit turned.
#[derive(Clone, Copy)]
struct Bank(Addr);

impl Bank {
    fn open(thread: &mut Thread) -> Bank {
        let at = thread.transaction_guarded(|tx| {
            let at = tx.alloc(ACCOUNTS as usize * 64)?;
            let words: Vec<u64> = (0..ACCOUNTS).flat_map(|_| [0, 1000, !1000, 0, !0, 0, 0, 0]).collect();
            tx.init(at, &words)?;
            let ptr = NonNull::new(at as *mut u8).expect("an address");
            tx.set_root("bank", Some(Root { ptr, type_tag: 7, size: ACCOUNTS * 64 }))?;
            Ok(at)
        });
        Bank(at.unwrap())
    }

    fn found(pool: &Pool) -> Bank {
        Bank(pool.root("bank").expect("a root").ptr.as_ptr() as Addr)
    }

    fn version(self, account: u64) -> Addr {
        self.0 + account % ACCOUNTS * 64
    }

    fn balance(self, account: u64) -> Addr {
        self.version(account) + 8
    }

    /// The balance of an account under its version. Others have the time to change it meanwhile.
    fn read(self, tx: &mut Tx<'_>, account: u64) -> Result<u64, Abort> {
        tx.read_version(self.version(account))?;
        let now = tx.read_guarded(self.balance(account))?;
        give_way();
        let turned = tx.read_guarded(self.balance(account) + 8)?;
        // What is seen in the midst of a body counts, too: a body may be led astray by what never was.
        assert_eq!(turned, !now, "account {account}");
        Ok(now)
    }

    fn change(self, tx: &mut Tx<'_>, account: u64, by: i64) -> Result<(), Abort> {
        let now = self.read(tx, account)?;
        self.put(tx, account, now.wrapping_add_signed(by))
    }

    fn put(self, tx: &mut Tx<'_>, account: u64, balance: u64) -> Result<(), Abort> {
        tx.write_guarded(self.balance(account), balance)?;
        tx.write_guarded(self.balance(account) + 8, !balance)?;
        tx.touch(self.version(account))
    }

    /// A new block that holds `words`, to which the first account's balance leads from then on.
    fn add(self, thread: &mut Thread, words: &[u64]) -> Result<Addr, Error> {
        thread.transaction_guarded_software(|tx| {
            tx.read_version(self.version(0))?;
            let block = tx.alloc(words.len() * 8)?;
            tx.init(block, words)?;
            tx.write_guarded(self.balance(0), block)?;
            tx.touch(self.version(0))?;
            Ok(block)
        })
    }

    /// All balances.
    fn sum(self, tx: &mut Tx<'_>) -> Result<u64, Abort> {
        (0..ACCOUNTS).try_fold(0, |sum: u64, account| Ok(sum.wrapping_add(self.read(tx, account)?)))
    }

    /// The same outside of transactions. (Some are below zero.)
    fn load(self, thread: &Thread) -> u64 {
        (0..ACCOUNTS).fold(0, |sum: u64, account| sum.wrapping_add(thread.load(self.balance(account))))
    }
}

/// A new pool with a bank in it.
struct Opened {
    medium: Arc<RamMedium>,
    options: Options,
    pool: Pool,
    thread: Thread,
    bank: Bank,
}

fn opened(tm: TmChoice) -> Opened {
    let (medium, options) = (RamMedium::anonymous(), Options { tm, ..options() });
    let pool = Pool::create_on(medium.clone(), &options).unwrap();
    let mut thread = pool.register().unwrap();
    let bank = Bank::open(&mut thread);
    Opened { medium, options, pool, thread, bank }
}

/// Now and then another thread gets this core.
fn give_way() {
    thread_local!(static CALLS: Cell<u32> = const { Cell::new(0) });
    CALLS.set(CALLS.get() + 1);
    if CALLS.get().is_multiple_of(8) {
        std::thread::yield_now();
    }
}

/// Every body sees one state, whichever way it and those beside it run: by versions, without any, and changing from one to the other.
#[test]
fn everybody_sees_one_state() {
    for tm in ways() {
        for commit in [Commit::Strict, Commit::Buffered] {
            let medium = RamMedium::anonymous();
            let options = Options { commit, tm, ..options() };
            let pool = Pool::create_on(medium.clone(), &options).unwrap();
            let bank = Bank::open(&mut pool.register().unwrap());
            std::thread::scope(|scope| {
                for worker in 0..4u64 {
                    let pool = &pool;
                    scope.spawn(move || worker_of(pool, bank, worker));
                }
            });
            if commit == Commit::Buffered {
                pool.sync().unwrap();
            }
            pool.abandon();
            let pool = Pool::open_on(medium, &options).unwrap();
            assert_eq!(Bank::found(&pool).load(&pool.register().unwrap()), TOTAL);
        }
    }
}

fn worker_of(pool: &Pool, bank: Bank, worker: u64) {
    let mut thread = pool.register().unwrap();
    for n in 0..6000u64 {
        let (from, to) = (n * 7 + worker, n * 5 + worker * 3 + 1);
        let moves = |tx: &mut Tx<'_>| {
            bank.change(tx, from, -1)?;
            bank.change(tx, to, 1)
        };
        let looks = |tx: &mut Tx<'_>| {
            let sum = bank.sum(tx)?;
            assert_eq!(sum, TOTAL, "{:?}, worker {worker}", pool.tm());
            Ok(())
        };
        let done = match n % 16 {
            0 => thread.transaction_guarded(looks),
            1 => thread.transaction(looks),
            // No version shows that these read and write; whoever trusts versions must see them all the same, as they touch them.
            2..6 if worker.is_multiple_of(2) => thread.transaction(|tx| {
                let (a, b) = (tx.read(bank.balance(from))?, tx.read(bank.balance(to))?);
                if bank.balance(from) != bank.balance(to) {
                    for (account, balance) in [(from, a.wrapping_sub(1)), (to, b.wrapping_add(1))] {
                        tx.write(bank.balance(account), balance)?;
                        tx.write(bank.balance(account) + 8, !balance)?;
                    }
                }
                tx.touch(bank.version(from))?;
                tx.touch(bank.version(to))
            }),
            // It begins under versions, and cannot end so.
            6 => thread.transaction_guarded(|tx| {
                moves(tx)?;
                tx.read(bank.balance(from)).map(|_| ())
            }),
            7 => thread.transaction_guarded_software(moves),
            // What it found outside, put back: lost is what changed in between, if it is not noticed.
            8..11 => put_back(&mut thread, bank, from),
            _ => thread.transaction_guarded(moves),
        };
        done.unwrap();
    }
}

/// Changes an account to what it is, as read outside of transactions, and its number to the next.
fn put_back(thread: &mut Thread, bank: Bank, account: u64) -> Result<(), Error> {
    loop {
        let Some(version) = thread.load_version(bank.version(account)) else {
            std::thread::yield_now();
            continue;
        };
        let at = bank.balance(account);
        let (now, number) = (thread.load(at), thread.load(at + 16) + 1);
        give_way();
        let words = [(at, now), (at + 8, !now), (at + 16, number), (at + 24, !number)];
        match thread.change_guarded(bank.version(account), version, words) {
            Err(Error::Stale) => {}
            done => return done,
        }
    }
}

/// A change without a body is refused, and leaves nothing, where one with a body would be.
#[test]
fn a_change_without_a_body_is_one_with_a_body() {
    for tm in ways() {
        let Opened { medium, options, pool, mut thread, bank } = opened(tm);
        let (at, balance) = (bank.version(1), bank.balance(1));
        let was = thread.load_version(at).expect("nobody has it");
        thread.change_guarded(at, was, [(balance, 7)]).unwrap();
        let is = thread.load_version(at).expect("nobody has it");
        assert!(is != was && thread.load(balance) == 7, "{tm:?}");
        // Another version; a locked one; a word of the pool's own; inside a body.
        assert!(matches!(thread.change_guarded(at, was, [(balance, 8)]), Err(Error::Stale)));
        assert!(matches!(thread.change_guarded(at, is | 1, [(balance, 8)]), Err(Error::Stale)));
        assert!(matches!(thread.change_guarded(at, is, [(balance, 8), (bank.0 & !0xFFF_FFFF, 0)]), Err(Error::Usage(_))));
        let mut other = pool.register().unwrap();
        let nested = thread.transaction_software(|_| Ok(other.change_guarded(at, is, [(balance, 8)])));
        assert!(matches!(nested.unwrap(), Err(Error::Usage(_))));
        assert_eq!((thread.load(balance), thread.load_version(at)), (7, Some(is)), "{tm:?}");
        // Many of them: they wait for room in the log.
        for n in 0..5000 {
            let version = thread.load_version(at).expect("nobody has it");
            thread.change_guarded(at, version, [(balance, n), (balance + 8, !n)]).unwrap();
        }
        drop((thread, other));
        pool.abandon();
        let pool = Pool::open_on(medium, &options).unwrap();
        let thread = pool.register().unwrap();
        assert_eq!((thread.load(balance), thread.load(balance + 8)), (4999, !4999), "{tm:?}");
        drop(thread);
        let mut late = pool.register().unwrap();
        pool.close().unwrap();
        let version = late.load_version(at).expect("nobody has it");
        assert!(matches!(late.change_guarded(at, version, [(balance, 1)]), Err(Error::Poisoned { .. })));
    }
}

/// A software transaction, which looks at no version, sees all of such a change or nothing.
#[test]
fn a_change_without_a_body_shows_itself_to_software_transactions() {
    for tm in ways().into_iter().filter(|tm| *tm != TmChoice::Lock) {
        let Opened { pool, mut thread, bank, .. } = opened(tm);
        let at = bank.balance(1) + 16;
        let (has_read, has_changed) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let seen = pool.register().unwrap().transaction_software(|tx| {
                    let number = tx.read(at)?;
                    has_read.store(true, Relaxed);
                    while !has_changed.load(Relaxed) {
                        std::thread::yield_now();
                    }
                    let turned = tx.read(at + 8)?;
                    assert_eq!(turned, !number, "{tm:?}");
                    Ok(number)
                });
                assert_eq!(seen.unwrap(), 5);
            });
            while !has_read.load(Relaxed) {
                std::thread::yield_now();
            }
            let version = thread.load_version(bank.version(1)).expect("nobody has it");
            thread.change_guarded(bank.version(1), version, [(at, 5), (at + 8, !5)]).unwrap();
            has_changed.store(true, Relaxed);
        });
    }
}

/// Of two transactions each of which reads what the other writes, one sees the other.
#[test]
fn what_is_only_read_is_as_it_was_when_it_takes_effect() {
    const ROUNDS: u64 = 3000;
    for tm in ways() {
        let pool = Pool::create_on(RamMedium::anonymous(), &Options { tm, ..options() }).unwrap();
        let bank = Bank::open(&mut pool.register().unwrap());
        let [came, done, seen] = [const { AtomicU64::new(0) }; 3];
        std::thread::scope(|scope| {
            for mine in 0..2u64 {
                let (pool, came, done, seen) = (&pool, &came, &done, &seen);
                scope.spawn(move || {
                    let mut thread = pool.register().unwrap();
                    for round in 1..=ROUNDS {
                        let mut is_first = true;
                        let others = thread.transaction_guarded(|tx| {
                            bank.read(tx, mine)?;
                            let others = bank.read(tx, 1 - mine)?;
                            if std::mem::take(&mut is_first) {
                                came.fetch_add(1, Relaxed);
                                // Not for ever: in hardware neither sees the other here.
                                (0..2000).take_while(|_| came.load(Relaxed) < 2 * round).for_each(|_| std::hint::spin_loop());
                            }
                            bank.put(tx, mine, round)?;
                            Ok(others)
                        });
                        seen.fetch_add(u64::from(others.unwrap() == round), Relaxed);
                        done.fetch_add(1, Relaxed);
                        while done.load(Relaxed) < 2 * round {
                            std::thread::yield_now();
                        }
                    }
                });
            }
        });
        assert!(seen.load(Relaxed) >= ROUNDS, "{tm:?}: in {ROUNDS} rounds {seen:?} saw the other");
    }
}

/// What leads to a new block may be stamped before its own version is: until then nobody may take that for one that nobody has.
#[test]
fn a_new_block_is_its_makers_until_it_is_stamped() {
    const BETWEEN: u64 = 48;
    for tm in ways() {
        let pool = Pool::create_on(RamMedium::anonymous(), &Options { tm, ..options() }).unwrap();
        let mut thread = pool.register().unwrap();
        // Of each line the first word is a version: of the parent, whose next word leads to the child, and of many others.
        let parent = thread
            .transaction(|tx| {
                let at = tx.alloc((BETWEEN as usize + 1) * 64)?;
                tx.init(at, &[0; 8 * (BETWEEN as usize + 1)]).map(|()| at)
            })
            .unwrap();
        let grow = |tx: &mut Tx<'_>| {
            for line in 0..=BETWEEN {
                tx.read_version(parent + line * 64)?;
                tx.touch(parent + line * 64)?;
            }
            let child = tx.alloc(64)?;
            tx.init(child, &[0; 8])?;
            tx.touch(child)?;
            tx.write_guarded(parent + 8, child)
        };
        thread.transaction_guarded_software(grow).unwrap();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut thread = pool.register().unwrap();
                while !is_done.load(Relaxed) {
                    let seen = thread.transaction_guarded(|tx| {
                        tx.read_version(parent)?;
                        let child = tx.read_guarded(parent + 8)?;
                        tx.read_version(child)
                    });
                    assert_ne!(seen.unwrap(), 0, "{tm:?}: the version of a block that was stamped");
                }
            });
            (0..20_000).for_each(|_| thread.transaction_guarded_software(grow).unwrap());
            is_done.store(true, Relaxed);
        });
    }
}

/// Chunks that they were the first to use are in use when the pool is opened again.
#[test]
fn what_they_allocated_stays_theirs() {
    for tm in ways() {
        let Opened { medium, options, pool, mut thread, bank } = opened(tm);
        let before: Vec<Addr> = (0..100).map(|n| bank.add(&mut thread, &[n; 2000]).unwrap()).collect();
        let offset = |pool: &Pool, block: Addr| block - Bank::found(pool).0;
        let offsets: Vec<u64> = before.iter().map(|&block| offset(&pool, block)).collect();
        drop(thread);
        let used = pool.heap().allocator().used_bytes();
        pool.abandon();
        let pool = Pool::open_on(medium, &options).unwrap();
        let mut thread = pool.register().unwrap();
        let bank = Bank::found(&pool);
        assert!(pool.heap().allocator().used_bytes() >= used);
        for n in 0..100 {
            let more = thread.transaction(|tx| {
                let block = tx.alloc(16_000)?;
                tx.init(block, &[n + 1000; 2000]).map(|()| block)
            });
            assert!(!offsets.contains(&(more.unwrap() - bank.0)));
        }
        for (n, offset) in offsets.iter().enumerate() {
            let words = thread.load_all(bank.0 + offset, 2000);
            assert!(words.iter().all(|word| *word == n as u64), "{tm:?}: block {n}");
        }
    }
}

#[test]
fn a_body_reads_what_it_wrote() {
    for tm in ways() {
        let Opened { mut thread, bank, .. } = opened(tm);
        let (was, is) = thread
            .transaction_guarded(|tx| {
                tx.read_version(bank.version(0))?;
                let was = tx.read_guarded(bank.balance(0))?;
                tx.write_guarded(bank.balance(0), 1)?;
                tx.write_guarded(bank.balance(0), 2)?;
                tx.touch(bank.version(0))?;
                Ok((was, tx.read_guarded(bank.balance(0))?))
            })
            .unwrap();
        assert_eq!((was, is, thread.load(bank.balance(0))), (1000, 2, 2));
        let version = thread.load_version(bank.version(0)).expect("nobody has it");
        assert!(thread.validate(bank.version(0), version));
    }
}

type Body<'b> = &'b dyn Fn(&mut Tx<'_>) -> Result<(), Abort>;

/// What has no version, more than is noted, blocks to free: all of it takes effect, elsewhere.
#[test]
fn what_versions_do_not_guard_takes_effect_all_the_same() {
    for tm in ways() {
        let Opened { medium, options, pool, mut thread, bank } = opened(tm);
        let block = thread.transaction_guarded_software(|tx| tx.alloc(8000)).unwrap();
        // Written under a version, which is not touched; touched, but never read; nothing but written.
        let written: [Body<'_>; 4] = [
            &|tx| {
                tx.read_version(bank.version(1))?;
                tx.write_guarded(bank.balance(1), 7)
            },
            &|tx| {
                tx.write_guarded(bank.balance(2), 7)?;
                tx.touch(bank.version(2))
            },
            &|tx| tx.write(bank.balance(3), 7),
            &|tx| {
                tx.read_version(bank.version(4))?;
                (0..1000).try_for_each(|word| tx.write_guarded(block + word * 8, word))?;
                tx.write_guarded(bank.balance(4), 7)?;
                tx.touch(bank.version(4))
            },
        ];
        for body in written {
            thread.transaction_guarded(body).unwrap();
        }
        thread.transaction_guarded(|tx| tx.free(block)).unwrap();
        assert!(matches!(thread.transaction_guarded(|tx| tx.free(block)), Err(Error::Usage(_))));
        assert!(matches!(thread.transaction_guarded(|tx| tx.write_guarded(bank.0 & !0xFFF_FFFF, 0)), Err(Error::Usage(_))));
        drop(thread);
        pool.abandon();
        let pool = Pool::open_on(medium, &options).unwrap();
        let (bank, thread) = (Bank::found(&pool), pool.register().unwrap());
        (1..=4).for_each(|account| assert_eq!(thread.load(bank.balance(account)), 7, "{tm:?}: {account}"));
    }
}

/// Given up, failed, panicked: nothing of it is left, its blocks are free, and everybody else goes on.
#[test]
fn what_does_not_take_effect_leaves_nothing() {
    for tm in ways() {
        let Opened { pool, thread, bank, .. } = opened(tm);
        drop(thread);
        let used = pool.heap().allocator().used_bytes();
        let mut thread = pool.register().unwrap();
        for n in 0..300u64 {
            let begin = |tx: &mut Tx<'_>| {
                bank.change(tx, n, 1)?;
                let block = tx.alloc(if n % 3 == 0 { 300_000 } else { 64 << (n % 5) })?;
                tx.init(block, &[n, n, n])
            };
            let ended = catch_unwind(AssertUnwindSafe(|| {
                thread.transaction_guarded_software(|tx| {
                    begin(tx)?;
                    match n % 4 {
                        0 => tx.stale(),
                        1 => tx.abort("a test"),
                        2 => tx.init(bank.0, &[1]),
                        _ => panic!("a test"),
                    }
                })
            }));
            match ended {
                Err(_) => assert_eq!(n % 4, 3),
                Ok(Err(Error::Stale)) => assert_eq!(n % 4, 0),
                Ok(Err(Error::Aborted(_))) => assert_eq!(n % 4, 1),
                Ok(Err(Error::Usage(_))) => assert_eq!(n % 4, 2),
                Ok(other) => panic!("{other:?}"),
            }
            assert_eq!(bank.load(&thread), TOTAL);
            // Nobody waits for what has ended.
            let other = pool.register().unwrap().transaction(|tx| tx.read(bank.balance(n)));
            assert_eq!(other.unwrap(), 1000);
        }
        drop(thread);
        assert_eq!(pool.heap().allocator().used_bytes(), used, "{tm:?}: what was allocated is free again");
    }
}

/// Records with new blocks take more of the log than there may be at the moment, or ever.
#[test]
fn it_waits_for_room_in_the_log_and_says_when_there_never_will_be_any() {
    for tm in ways() {
        let Opened { medium, options, pool, mut thread, bank } = opened(tm);
        for n in 0..200 {
            let block = bank.add(&mut thread, &vec![7; 1000 + n]).unwrap();
            thread.transaction(|tx| tx.free(block)).unwrap();
        }
        assert!(matches!(bank.add(&mut thread, &[7; 20_000]), Err(Error::TooLarge { .. })));
        let last = bank.add(&mut thread, &[3000; 3000]).unwrap();
        drop(thread);
        pool.abandon();
        let pool = Pool::open_on(medium, &options).unwrap();
        let (bank, thread) = (Bank::found(&pool), pool.register().unwrap());
        assert_eq!(thread.load(bank.balance(0)), last);
        (0..3000).for_each(|word| assert_eq!(thread.load(last + word * 8), 3000));
    }
}

/// A thread that lies in the midst of such a transaction's body holds up the software path, and nobody who trusts versions.
#[test]
fn who_trusts_versions_waits_for_no_other_body() {
    let Opened { pool, mut thread, bank, .. } = opened(TmChoice::Stm);
    let (is_inside, may_end) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut thread = pool.register().unwrap();
            let done = thread.transaction_guarded(|tx| {
                is_inside.store(true, Relaxed);
                while !may_end.load(Relaxed) {
                    std::thread::yield_now();
                }
                bank.change(tx, 0, 1)?;
                bank.change(tx, 1, -1)
            });
            done.unwrap();
        });
        while !is_inside.load(Relaxed) {
            std::thread::yield_now();
        }
        for n in 0..100 {
            thread
                .transaction_guarded(|tx| {
                    bank.change(tx, n, 1)?;
                    bank.change(tx, n + 1, -1)
                })
                .unwrap();
        }
        may_end.store(true, Relaxed);
    });
    assert_eq!(bank.load(&thread), TOTAL);
}
