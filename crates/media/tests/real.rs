//! The media that machines have: the same behaviour of `file`, `ram` in a directory, anonymous `ram`, and `dax` where there is
//! any (`TOWA_TEST_DAX` names a directory on one), and what is particular to each.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use towa_media::*;

/// Every medium that can be had here, each in its own fresh directory.
fn media() -> Vec<(Arc<dyn Medium>, Option<tempfile::TempDir>)> {
    let on_disk = || tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut media: Vec<(Arc<dyn Medium>, Option<tempfile::TempDir>)> = vec![(RamMedium::anonymous(), None)];
    let dir = on_disk();
    media.push((open_dir(dir.path(), Some(Kind::File), false).unwrap(), Some(dir)));
    let dir = on_disk();
    media.push((open_dir(dir.path(), Some(Kind::Ram), false).unwrap(), Some(dir)));
    if Path::new("/dev/shm").is_dir() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        media.push((open_dir(dir.path(), None, false).unwrap(), Some(dir)));
    } else {
        println!("SKIP: no /dev/shm, so no tmpfs to try");
    }
    match std::env::var_os("TOWA_TEST_DAX") {
        Some(dax) => {
            let dir = tempfile::tempdir_in(dax).unwrap();
            media.push((open_dir(dir.path(), Some(Kind::Dax), false).unwrap(), Some(dir)));
        }
        None => {
            println!("SKIP: dax, because TOWA_TEST_DAX names no directory on a DAX file system")
        }
    }
    media
}

#[test]
fn what_is_written_is_read_by_every_way() {
    for (medium, _dir) in media() {
        let region = medium.create("r", 100_000, Allocation::Sparse).unwrap();
        region.reserve(0, 100_000).unwrap();
        assert_eq!((region.len(), region.is_empty()), (100_000, false));
        let data: Vec<u8> = (0..5000u32).map(|i| (i % 251) as u8).collect();
        for (off, len) in [(0, 64), (64, 64), (1000, 1), (3, 4000), (4096, 4096), (95_003, 4997)] {
            region.store(off, &data[..len]).unwrap();
            region.write_back(off, len as u64);
            region.fence().unwrap();
            let mut read = vec![0; len];
            region.read(off, &mut read).unwrap();
            assert_eq!(read, data[..len], "{medium:?} store {off}+{len}");
            region.stream(off, &data[5000 - len..]).unwrap();
            region.fence().unwrap();
            medium.open("r", Access::ReadOnly).unwrap().read(off, &mut read).unwrap();
            assert_eq!(read, data[5000 - len..], "{medium:?} stream {off}+{len}");
            if let Some(bytes) = region.bytes() {
                // SAFETY: nobody writes the region now.
                let bytes = unsafe { bytes.as_ref() };
                assert_eq!(bytes.len(), 100_000);
                assert_eq!(bytes[off as usize..][..len], data[5000 - len..]);
            }
        }
        assert_eq!(region.bytes().is_some(), medium.durability() == Durability::Line);
        assert!(region.file().is_some());
    }
}

/// And counted, in one call or in those that it stands for.
#[test]
fn words_of_a_line_are_stored_and_no_others() {
    let sim: Arc<dyn Medium> = Arc::new(SimMedium::new(sim::Model::Line));
    for (medium, _dir) in media().into_iter().chain([(sim, None)]) {
        let region = medium.create("r", 4096, Allocation::Full).unwrap();
        let words = std::array::from_fn(|word| 0x0101_0101_0101_0101 * (word as u64 + 1));
        for mask in 0..=u8::MAX {
            region.store(0, &[0xFF; 256]).unwrap();
            let before = medium.counters().values();
            let writes_back = mask == u8::MAX;
            match writes_back {
                true => region.store_line(64, &words).unwrap(),
                false => region.store_words(64, &words, mask).unwrap(),
            }
            let after = medium.counters().values();
            let lines = u64::from(writes_back && medium.durability() == Durability::Line);
            assert_eq!(after.bytes_stored - before.bytes_stored, 8 * u64::from(mask.count_ones()), "{medium:?} {mask:#b}");
            assert_eq!(after.write_backs - before.write_backs, lines);
            let mut read = [0; 256];
            region.read(0, &mut read).unwrap();
            for (at, byte) in read.iter().enumerate() {
                let word = at.wrapping_sub(64) / 8;
                let is_stored = word < 8 && mask >> word & 1 == 1;
                assert_eq!(*byte, if is_stored { word as u8 + 1 } else { 0xFF }, "{medium:?} {mask:#b} byte {at}");
            }
        }
        let read_only = medium.open("r", Access::ReadOnly).unwrap();
        for store in
            [|r: &dyn Region, off, words| r.store_line(off, words), |r: &dyn Region, off, words| r.store_words(off, words, 1)]
        {
            assert!(matches!(store(&*region, 4096, &words), Err(Error::Range { .. })));
            assert!(matches!(store(&*read_only, 0, &words), Err(Error::Range { .. })));
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| store(&*region, 8, &words))).is_err());
        }
    }
}

#[test]
fn what_lies_outside_is_refused() {
    for (medium, _dir) in media() {
        let region = medium.create("r", 4096, Allocation::Full).unwrap();
        let mut byte = [0];
        for (off, len) in [(4096, 1), (4090, 7), (u64::MAX, 2), (u64::MAX - 1, 1)] {
            let bytes = vec![1; len];
            assert!(matches!(region.store(off, &bytes), Err(Error::Range { .. })), "{medium:?} {off}");
            assert!(matches!(region.stream(off, &bytes), Err(Error::Range { .. })));
            assert!(matches!(region.reserve(off, len as u64), Err(Error::Range { .. })));
            assert!(matches!(region.read(off, &mut vec![0; len]), Err(Error::Range { .. })));
        }
        region.store(4096, &[]).unwrap();
        let read_only = medium.open("r", Access::ReadOnly).unwrap();
        assert!(matches!(read_only.store(0, b"x"), Err(Error::Range { .. })));
        assert!(matches!(read_only.stream(0, b"x"), Err(Error::Range { .. })));
        assert!(matches!(read_only.reserve(0, 1), Err(Error::Range { .. })));
        read_only.read(0, &mut byte).unwrap();
        assert_eq!(byte, [0]);
        assert!(medium.create("empty", 0, Allocation::Full).unwrap().is_empty());
    }
}

#[test]
fn names_come_move_and_go() {
    for (medium, dir) in media() {
        medium.create("a", 10, Allocation::Full).unwrap().store(0, b"aaa").unwrap();
        assert!(matches!(medium.create("a", 10, Allocation::Full), Err(Error::Exists { .. })));
        let b = medium.create("b", 20, Allocation::Sparse).unwrap();
        medium.rename("a", "b").unwrap();
        medium.sync_names().unwrap();
        assert!(!medium.exists("a").unwrap() && medium.exists("b").unwrap());
        assert_eq!(medium.open("b", Access::ReadWrite).unwrap().len(), 10);
        b.store(0, b"still there").unwrap();
        medium.remove("b").unwrap();
        assert!(matches!(medium.remove("b"), Err(Error::NotFound { .. })));
        assert!(matches!(medium.rename("b", "c"), Err(Error::NotFound { .. })));
        let error = medium.open("b", Access::ReadWrite).unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }) && error.to_string().contains('b'), "{error}");
        for bad in ["", ".", "..", "a/b", "lock", "nul\0"] {
            assert!(medium.create(bad, 1, Allocation::Sparse).is_err(), "{bad:?}");
        }
        if let Some(dir) = dir {
            medium.create("mode", 1, Allocation::Sparse).unwrap();
            let mode = std::fs::metadata(dir.path().join("mode")).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            std::os::unix::fs::symlink("mode", dir.path().join("link")).unwrap();
            assert!(medium.open("link", Access::ReadOnly).is_err(), "a symbolic link was followed");
            std::fs::create_dir(dir.path().join("sub")).unwrap();
            let error = medium.open("sub", Access::ReadOnly).unwrap_err().to_string();
            assert!(error.contains("regular file"), "{error}");
        }
    }
}

#[test]
fn the_lock_is_one_processs_alone() {
    for (medium, dir) in media() {
        let held = medium.lock().unwrap();
        held.sign();
        let again = match &dir {
            Some(dir) => open_dir(dir.path(), Some(medium.kind()), false).unwrap(),
            None => medium.clone(),
        };
        let Err(error) = again.lock() else { panic!("{medium:?}: locked twice") };
        assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
        drop(held);
        drop(again.lock().unwrap());
    }
}

#[test]
fn everything_is_counted() {
    for (medium, _dir) in media() {
        let region = medium.create("r", 1 << 20, Allocation::Full).unwrap();
        let before = medium.counters().values();
        assert_eq!(before, CounterValues::default());
        region.store(10, &[1; 100]).unwrap();
        region.write_back(10, 100);
        region.stream(4096, &[2; 300]).unwrap();
        region.fence().unwrap();
        let lines = if medium.durability() == Durability::Line { 2 } else { 0 };
        let expected = CounterValues { bytes_stored: 100, bytes_streamed: 300, write_backs: lines, fences: 1 };
        assert_eq!(medium.counters().values(), expected, "{medium:?}");
    }
}

#[test]
fn more_memory_than_there_is_is_refused_untouched() {
    // Were it not refused, this process should be the one that the kernel kills.
    std::fs::write("/proc/self/oom_score_adj", "1000").unwrap();
    for (medium, dir) in media() {
        let in_memory = match &dir {
            Some(dir) => detect(dir.path()).unwrap().kind == Kind::Ram,
            None => true,
        };
        if !in_memory {
            // A disk would be filled up for real: that is the next test's, on a small one.
            continue;
        }
        let too_much = 1 << 45;
        let region = medium.create("sparse", too_much, Allocation::Sparse).unwrap();
        region.store(0, b"kept").unwrap();
        let error = region.reserve(0, too_much).unwrap_err();
        assert!(matches!(error, Error::Full { wanted, .. } if wanted == too_much), "{medium:?}: {error}");
        let error = medium.create("full", too_much, Allocation::Full).unwrap_err();
        assert!(matches!(error, Error::Full { .. }), "{error}");
        assert!(!medium.exists("full").unwrap());
        let mut read = [0; 4];
        region.read(0, &mut read).unwrap();
        assert_eq!(&read, b"kept");
    }
}

/// Runs the test `name` of this file again as a child with `variable` set to `value`, and gives how it ended.
fn rerun(name: &str, variable: &str, value: &Path) -> std::process::ExitStatus {
    std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(variable, value)
        .status()
        .unwrap()
}

/// Gives this process a mount of its own at `path`, a mebibyte of tmpfs that goes with it.
fn mount_small_tmpfs(path: &Path) -> std::io::Result<()> {
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes())?;
    let none = std::ptr::null();
    let or_errno = |rc| {
        if rc == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: plain system calls with terminated strings; they change this process' view of the mounts only.
    unsafe {
        or_errno(libc::unshare(libc::CLONE_NEWNS)).or_else(|_| or_errno(libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS)))?;
        let private = libc::MS_REC | libc::MS_PRIVATE;
        or_errno(libc::mount(c"none".as_ptr(), c"/".as_ptr(), none, private, none.cast()))?;
        let size = c"size=1m".as_ptr().cast();
        or_errno(libc::mount(c"tmpfs".as_ptr(), path.as_ptr(), c"tmpfs".as_ptr(), 0, size))
    }
}

#[test]
fn a_full_file_system_is_an_error_and_never_a_signal() {
    const CHILD: &str = "TOWA_TEST_SMALL_DIR";
    let Some(dir) = std::env::var_os(CHILD) else {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        assert!(rerun("a_full_file_system_is_an_error_and_never_a_signal", CHILD, dir.path()).success());
        return;
    };
    if let Err(e) = mount_small_tmpfs(Path::new(&dir)) {
        println!("SKIP: no small file system to fill, because mounting is not permitted here: {e}");
        return;
    }
    for kind in [Kind::Ram, Kind::File] {
        let medium = open_dir(Path::new(&dir), Some(kind), false).unwrap();
        assert_eq!(medium.guarantee(), Guarantee::ProcessSafe);
        let good = medium.create("good", 512 << 10, Allocation::Full).unwrap();
        good.store(0, b"kept").unwrap();
        let error = medium.create("big", 768 << 10, Allocation::Full).unwrap_err();
        assert!(matches!(error, Error::Full { .. }), "{error}");
        assert!(!medium.exists("big").unwrap(), "a file that did not fit was left behind");
        let sparse = medium.create("sparse", 8 << 20, Allocation::Sparse).unwrap();
        sparse.reserve(4096, 64 << 10).unwrap();
        assert!(matches!(sparse.reserve(0, 1 << 20), Err(Error::Full { .. })));
        // What was reserved can be written to the last byte, and what was written before is there.
        sparse.stream(4096, &[7; 64 << 10]).unwrap();
        good.stream(4, &[9; (512 << 10) - 4]).unwrap();
        good.fence().unwrap();
        let mut read = [0; 5];
        good.read(0, &mut read).unwrap();
        assert_eq!(&read, b"kept\x09");
        if kind == Kind::File {
            let error = sparse.store(1 << 20, &[1; 1 << 20]).unwrap_err();
            assert!(matches!(error, Error::Full { .. }), "{error}");
        }
        medium.remove("good").unwrap();
        medium.remove("sparse").unwrap();
    }
}

#[test]
fn detection_says_what_is_there_and_leaves_nothing() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let missing = dir.path().join("not/yet/there");
    let found = detect(&missing).unwrap();
    assert_eq!(found.path, dir.path());
    assert!(!found.fs.is_empty() && !found.reason.is_empty());
    assert_eq!(found.kind == Kind::Ram, found.guarantee == Guarantee::ProcessSafe, "{found:?}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    if Path::new("/dev/shm").is_dir() {
        let found = detect(Path::new("/dev/shm")).unwrap();
        assert_eq!((found.kind, found.durability, found.guarantee), (Kind::Ram, Durability::Line, Guarantee::ProcessSafe));
    }
    let features = cpu_features();
    assert!(!features.write_back.is_empty() && features.eadr.is_none());
}

#[test]
fn open_dir_makes_only_what_it_is_asked_to() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let pool = dir.path().join("pool");
    assert!(matches!(open_dir(&pool, Some(Kind::File), false), Err(Error::NotFound { .. })));
    assert!(!pool.exists());
    open_dir(&pool, Some(Kind::File), true).unwrap().create("r", 1, Allocation::Full).unwrap();
    assert_eq!(std::fs::metadata(&pool).unwrap().permissions().mode() & 0o777, 0o700);
    assert!(open_dir(&pool, Some(Kind::File), true).unwrap().exists("r").unwrap());
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let error = open_dir(&file, Some(Kind::File), true).unwrap_err().to_string();
    assert!(error.contains("not a directory"), "{error}");
    assert!(open_dir(&pool, Some(Kind::Sim), false).is_err());
    if detect(&pool).unwrap().kind != Kind::Dax {
        let error = open_dir(&pool, Some(Kind::Dax), false).unwrap_err().to_string();
        assert!(error.contains("not DAX"), "{error}");
    }
}

#[test]
fn regions_outlive_process_death_by_sigkill() {
    let base = if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { env!("CARGO_TARGET_TMPDIR") };
    let dir = tempfile::tempdir_in(base).unwrap();
    let medium = RamMedium::open(dir.path(), false, None).unwrap();
    let region = medium.create("r", 4096, Allocation::Full).unwrap();
    // The child is this very test, told by the environment to write and die.
    const CHILD: &str = "TOWA_TEST_CHILD_DIR";
    if let Some(dir) = std::env::var_os(CHILD) {
        let region = RamMedium::open(Path::new(&dir), false, None).unwrap().open("r", Access::ReadWrite).unwrap();
        region.store(8, b"written by the dead").unwrap();
        // SAFETY: ends this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    let status = rerun("regions_outlive_process_death_by_sigkill", CHILD, dir.path());
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGKILL));
    let mut read = [0; 19];
    region.read(8, &mut read).unwrap();
    assert_eq!(&read, b"written by the dead");
}
