//! A pool in place whose file system is full when a transaction needs more of the undo log than it may.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::ptr::NonNull;

use towa_epoch::{Error, Options, Pool, Root};

const NAME: &str = "without_space_for_old_lines_the_process_ends_and_nothing_is_torn";
/// Where the small file system is, and who does what there.
const DIR: &str = "TOWA_TEST_SMALL_DIR";
const WRITER: &str = "TOWA_TEST_WRITER";
const BLOCKS: usize = 10;

fn rerun(dir: &Path, writes: bool) -> ExitStatus {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", NAME, "--nocapture"]).env(DIR, dir);
    if writes {
        child.env(WRITER, "1");
    }
    child.status().unwrap()
}

/// Gives this process a tmpfs of its own at `path`: of 21 MiB.
fn mount(path: &Path) -> std::io::Result<()> {
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes())?;
    let none = std::ptr::null();
    let or_errno = |rc| {
        if rc == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: plain system calls with terminated strings; they change this process' view of the mounts only.
    unsafe {
        or_errno(libc::unshare(libc::CLONE_NEWNS))?;
        or_errno(libc::mount(c"none".as_ptr(), c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, none.cast()))?;
        or_errno(libc::mount(c"tmpfs".as_ptr(), path.as_ptr(), c"tmpfs".as_ptr(), 0, c"size=21m".as_ptr().cast()))
    }
}

fn options() -> Options {
    let medium = Some(towa_media::Kind::Ram);
    Options { heap_len: 64 << 20, log_len: Some(8 << 20), medium, in_place: true, manual: true, ..Options::default() }
}

/// Fills blocks of a mebibyte with ones, durably, and then with nines in one transaction that reserves nothing.
fn write(dir: &Path) {
    let pool = Pool::create(dir, &options()).unwrap();
    let mut thread = pool.register().unwrap();
    let mut blocks = Vec::new();
    for number in 0..BLOCKS {
        let tx = thread.begin_reserving(2 << 20).unwrap();
        let block = tx.alloc(1 << 20).unwrap();
        // SAFETY: a new block, marked, which the root names from now on.
        unsafe {
            block.write_bytes(1, 1 << 20);
            tx.set_root(&number.to_string(), Some(Root { ptr: block, type_tag: 1, size: 1 << 20 })).unwrap();
        }
        tx.commit();
        pool.checkpoint().unwrap();
        blocks.push(block);
    }
    let tx = thread.begin().unwrap();
    for block in blocks {
        // SAFETY: this thread's block.
        unsafe {
            tx.mark(block.as_ptr(), 1 << 20);
            block.write_bytes(9, 1 << 20);
        }
    }
    panic!("there was space for {BLOCKS} blocks' old lines");
}

/// What the next process finds.
fn check(dir: &Path) {
    let pool = Pool::open(dir, &options()).unwrap();
    assert!(pool.recovery().lines_replayed > 8 << 20 >> 7, "{:?}", pool.recovery());
    for number in 0..BLOCKS {
        let block: NonNull<u8> = pool.root(&number.to_string()).unwrap().ptr;
        // SAFETY: a live block, which no thread writes.
        let bytes = unsafe { std::slice::from_raw_parts(block.as_ptr(), 1 << 20) };
        assert!(bytes.iter().all(|byte| *byte == 1), "block {number}");
    }
    pool.close().unwrap();
    // A heap that does not fit is refused, and leaves nothing.
    let refused = Pool::create(&dir.join("other"), &Options { log_len: Some(64 << 20), ..options() }).unwrap_err();
    assert!(matches!(refused, Error::Heap(towa_heap::Error::Media(towa_media::Error::Full { .. }))), "{refused}");
    assert_eq!(std::fs::read_dir(dir.join("other")).map_or(0, Iterator::count), 0);
}

#[test]
fn without_space_for_old_lines_the_process_ends_and_nothing_is_torn() {
    let Some(dir) = std::env::var_os(DIR) else {
        let dir = tempfile::tempdir().unwrap();
        assert!(rerun(dir.path(), false).success());
        return;
    };
    let pool = Path::new(&dir).join("pool");
    if std::env::var_os(WRITER).is_some() {
        return write(&pool);
    }
    if let Err(e) = mount(Path::new(&dir)) {
        println!("SKIP: no small file system to fill, because mounting is not permitted here: {e}");
        return;
    }
    assert_eq!(rerun(Path::new(&dir), true).signal(), Some(libc::SIGABRT));
    check(&pool);
}
