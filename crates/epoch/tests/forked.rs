//! A child that the program forks has neither the heap nor the threads of a pool: what needs them is refused there.

use towa_epoch::{Options, Pool, Result};

/// In the child: 0 if all that would need the pool is refused, and a pool of its own is not.
fn go_on(pool: Pool, mut thread: towa_epoch::Thread) -> i32 {
    let own = Pool::volatile(&Options { heap_len: 4 << 20, ..Options::default() }).unwrap();
    let works = own.register().unwrap().begin().is_ok();
    let asked: [Result<()>; 7] = [
        thread.begin().map(drop),
        thread.begin_reserving(1 << 20).map(drop),
        thread.begin_undoable().map(drop),
        pool.register().map(drop),
        pool.sync().map(drop),
        pool.checkpoint().map(drop),
        pool.clone().close(),
    ];
    let is_refused = |asked: &Result<()>| asked.as_ref().is_err_and(|e| e.to_string().contains("a child of the process"));
    i32::from(!works || !asked.iter().all(is_refused))
}

/// Whether the calling process can read a byte at `address`, by a call that fails where it cannot.
fn can_read(address: usize) -> bool {
    let mut ends = [0; 2];
    // SAFETY: plain calls; `write` fails where there is no memory.
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        let written = libc::write(ends[1], std::ptr::without_provenance(address), 1);
        assert!(ends.iter().all(|end| libc::close(*end) == 0));
        written == 1
    }
}

/// A transaction died at its first access, and `sync` waited for ever for a thread that is not there.
#[test]
fn a_forked_child_that_goes_on_is_refused_by_name() {
    let options = Options { heap_len: 8 << 20, log_len: Some(8 << 20), medium: Some(towa_media::Kind::Ram), ..Options::default() };
    a_child_is_refused(&options);
    // Here the child would tear the pool itself, not a copy of its memory.
    a_child_is_refused(&Options { in_place: true, ..options });
}

fn a_child_is_refused(options: &Options) {
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::create(dir.path(), options).unwrap();
    assert_eq!(pool.is_in_place(), options.in_place);
    let heap = pool.heap_range().0;
    assert!(can_read(heap));
    let mut thread = pool.register().unwrap();
    thread.begin().unwrap().commit();
    // SAFETY: the child uses copies of what the parent has, which refuse, and ends. An alarm ends one that waits.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(20);
            if can_read(heap) {
                libc::_exit(2);
            }
            libc::_exit(go_on(std::ptr::read(&raw const pool), std::ptr::read(&raw const thread)));
        }
        let mut status = 0;
        libc::waitpid(child, &raw mut status, 0);
        status
    };
    assert_eq!(status, 0);
    thread.begin().unwrap().commit();
    pool.sync().unwrap();
}
