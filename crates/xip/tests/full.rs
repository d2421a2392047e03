//! File systems that are full, read-only, or must not be executed from, or that give space in small pieces; and libraries with too much
//! thread-local storage. The program is as it was, or split and right.
//!
//! File systems are mounted in a namespace of the test's own thread, and go with it: nothing stays, however it ends. Only root can.

mod sweep_support;

use std::ffi::CString;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sweep_support::{LIBS, Place, TEXT, command, is_root, patiently, program, run};
use towa_xip::split::AbcHead;
use towa_xip::store::{Collect, Store};
use towa_xip::{Error, install};

/// Gives `act` a new directory, and a way to mount a memory file system there with some options.
fn with_mounts(act: impl FnOnce(&Path, &dyn Fn(&Path, u64, &str)) + Send) {
    if !is_root() {
        return eprintln!("SKIP: only root can mount");
    }
    let dir = sweep_support::temp_dir();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: no pointer is passed; it is about this thread alone.
            if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
                return eprintln!("SKIP: no namespace of one's own here: {}", std::io::Error::last_os_error());
            }
            mount(Path::new("/"), libc::MS_REC | libc::MS_PRIVATE, "").unwrap();
            let tmpfs = |at: &Path, flags, options: &str| {
                let _ = fs::create_dir(at);
                mount(at, flags, options).unwrap_or_else(|why| panic!("mounting at {}: {why}", at.display()));
            };
            act(dir.path(), &tmpfs);
            // The directory is removed by another thread, for which nothing is mounted there.
        });
    });
}

/// A mount of memory, or a change of one.
fn mount(at: &Path, flags: u64, options: &str) -> std::io::Result<()> {
    let at = CString::new(at.as_os_str().as_bytes()).unwrap();
    let options = CString::new(options).unwrap();
    for attempt in 0.. {
        // SAFETY: all strings end with a zero byte, and live until it is done.
        let done = unsafe { libc::mount(c"none".as_ptr(), at.as_ptr(), c"tmpfs".as_ptr(), flags, options.as_ptr().cast()) };
        let why = std::io::Error::last_os_error();
        match (done, why.raw_os_error()) {
            (0, _) => break,
            // A process that another test starts has copies of descriptors until its own exec: what was written is open as long.
            (_, Some(libc::EBUSY)) if attempt < 15_000 => std::thread::sleep(Duration::from_millis(2)),
            _ => return Err(why),
        }
    }
    Ok(())
}

fn copy(name: &str, to: &Path) -> Option<(PathBuf, Vec<u8>)> {
    let Some(found) = program(name) else {
        eprintln!("SKIP: no program {name}");
        return None;
    };
    let path = to.join(name);
    fs::copy(found, &path).unwrap();
    let bytes = fs::read(&path).unwrap();
    Some((path, bytes))
}

fn runs(path: &Path) -> bool {
    run(command(path, &["--version"], Path::new("/")), Duration::from_secs(10)).is_success()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_store_that_is_full() {
    with_mounts(|dir, tmpfs| {
        let Some((path, original)) = copy("sort", dir) else { return };
        let (mut full, mut split) = (0, 0);
        // In pages, and in names: everything that is made may be what does not fit.
        let by_size = (0..60).map(|step| format!("size={}k,mode=755", 4 + step * 4));
        let by_names = (1..20).map(|names| format!("nr_inodes={names},mode=755"));
        for (index, options) in by_size.chain(by_names).enumerate() {
            let at = dir.join(format!("store-{index}"));
            tmpfs(&at, 0, &options);
            match Store::open_or_create(&at).and_then(|store| install::split(&store, &path, None, TEXT)) {
                Err(Error::Full { .. }) => {
                    assert!(fs::read(&path).unwrap() == original, "{options}: the program was changed");
                    full += 1;
                }
                Err(other) => panic!("{options}: {other:?}"),
                Ok(_) => {
                    assert!(AbcHead::find(&fs::read(&path).unwrap()).is_ok() && runs(&path), "{options}");
                    install::join(&path, None, None).unwrap();
                    assert!(fs::read(&path).unwrap() == original);
                    split += 1;
                }
            }
            if let Ok(store) = Store::open(&at) {
                store.write().and_then(|writing| writing.collect(Collect::default())).unwrap();
                let left = names(&at).into_iter().filter(|name| name.starts_with(".towa-xip-")).count();
                assert_eq!((left, store.text_paths().unwrap().len()), (0, 0), "{options}");
            }
        }
        println!("full {full}, split {split}");
        assert!(full > 10 && split > 5, "full {full}, split {split}: it hardly was what it was to be");
    });
}

/// Writes a file until nothing more can be written, after a while neither: a process that another test starts may have a file open until its
/// own exec that has no name any more, whose space comes back then.
fn fill(path: &Path) {
    let mut file = fs::File::create(path).unwrap();
    let mut more = || std::iter::from_fn(|| std::io::Write::write_all(&mut file, &[1; 4096]).ok()).count();
    while more() > 0 {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// Gives the space of such a file back: emptied, for a process that another test starts may have it open until its own exec.
fn empty(path: &Path) {
    fs::write(path, []).unwrap();
    fs::remove_file(path).unwrap();
}

#[test]
fn a_disk_that_is_full_of_programs() {
    with_mounts(|dir, tmpfs| {
        let disk = dir.join("disk");
        tmpfs(&disk, 0, "size=1m,mode=755");
        let Some((path, original)) = copy("sort", &disk) else { return };
        let store = Store::open_or_create(&dir.join("store")).unwrap();
        let filler = disk.join("filler");
        fill(&filler);
        let refused = |what: towa_xip::Result<_>| assert!(matches!(what, Err(Error::Full { .. })), "{what:?}");
        refused(install::split(&store, &path, None, TEXT).map(drop));
        assert!(fs::read(&path).unwrap() == original);
        assert_eq!(names(&disk), ["filler", "sort"]);
        empty(&filler);
        install::split(&store, &path, None, TEXT).unwrap();
        let split = fs::read(&path).unwrap();
        fill(&filler);
        refused(install::join(&path, None, None).map(drop));
        assert!(fs::read(&path).unwrap() == split && runs(&path));
        assert_eq!(names(&disk), ["filler", "sort"]);
        empty(&filler);
        install::join(&path, None, None).unwrap();
        assert!(fs::read(&path).unwrap() == original);
    });
}

#[test]
fn a_disk_that_is_read_only() {
    with_mounts(|dir, tmpfs| {
        let [disk, place] = ["disk", "place"].map(|name| dir.join(name));
        for at in [&disk, &place] {
            tmpfs(at, 0, "mode=755");
        }
        let Some((path, original)) = copy("sort", &disk) else { return };
        let store = Store::open_or_create(&place.join("store")).unwrap();
        let set = |at: &Path, flags| tmpfs(at, libc::MS_REMOUNT | flags, "mode=755");
        let is_read_only = |error: Error| match error {
            Error::Io { source, .. } => source.raw_os_error() == Some(libc::EROFS),
            _ => false,
        };
        set(&disk, libc::MS_RDONLY);
        assert!(is_read_only(install::split(&store, &path, None, TEXT).unwrap_err()));
        set(&disk, 0);
        set(&place, libc::MS_RDONLY);
        assert!(is_read_only(install::split(&store, &path, None, TEXT).unwrap_err()));
        assert!(is_read_only(Store::open_or_create(&place.join("other")).unwrap_err()));
        assert!(fs::read(&path).unwrap() == original);
        set(&place, 0);
        assert_eq!(names(&disk), ["sort"]);
        install::split(&store, &path, None, TEXT).unwrap();
        // A split program runs, and can be looked at and joined, with a store that nobody can write to.
        set(&place, libc::MS_RDONLY);
        assert!(runs(&path));
        assert!(store.verify(true, |_, _| {}).unwrap().problems.is_empty());
        install::join(&path, None, None).unwrap();
        assert!(fs::read(&path).unwrap() == original);
    });
}

#[test]
fn a_store_that_must_not_be_executed_from() {
    with_mounts(|dir, tmpfs| {
        let at = dir.join("noexec");
        tmpfs(&at, libc::MS_NOEXEC, "mode=755");
        let refused = Store::open_or_create(&at).unwrap_err();
        assert!(matches!(refused, Error::Unsupported { .. }) && refused.to_string().contains("noexec"), "{refused}");
        assert!(names(&at).is_empty());
        // And later: the store was executable when it was made.
        tmpfs(&at, libc::MS_REMOUNT, "mode=755");
        let store = Store::open_or_create(&at).unwrap();
        let Some((path, original)) = copy("sort", dir) else { return };
        tmpfs(&at, libc::MS_REMOUNT | libc::MS_NOEXEC, "mode=755");
        let refused = install::split(&store, &path, None, TEXT).unwrap_err();
        assert!(matches!(refused, Error::NotUsable { .. } | Error::Io { .. }), "{refused:?}");
        assert!(fs::read(&path).unwrap() == original);
    });
}

/// An ext4 in a file, mounted at `at`.
fn mount_ext4(image: &Path, at: &Path, options: &[&str]) -> bool {
    fs::File::create(image).unwrap().set_len(96 << 20).unwrap();
    fs::create_dir(at).unwrap();
    let quietly = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
    quietly(
        Command::new("mkfs.ext4")
            .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
            .args(["-q", "-F", "-b", "4096"])
            .args(options)
            .arg(image),
    ) && quietly(Command::new("mount").args(["-o", "loop"]).arg(image).arg(at))
}

/// Nothing is free but pieces of 1 MiB.
fn leave_small_pieces(at: &Path) {
    let file = |n: usize| at.join(format!("file-{n}"));
    let mut count = 0;
    while fs::write(file(count), vec![1; 1 << 20]).is_ok() {
        count += 1;
    }
    let all = fs::File::open(at).unwrap();
    // SAFETY: a live descriptor; what was written gets its blocks.
    assert_eq!(unsafe { libc::syncfs(all.as_raw_fd()) }, 0);
    (0..=count).step_by(2).for_each(|n| fs::remove_file(file(n)).unwrap());
    // SAFETY: the same; what was removed is free then.
    assert_eq!(unsafe { libc::syncfs(all.as_raw_fd()) }, 0);
}

#[test]
fn text_lies_where_huge_pages_can_map_it_or_that_is_told() {
    with_mounts(|dir, _| {
        let path = dir.join("large");
        let source = dir.join("large.c");
        fs::write(&source, "int main(void) { return 0; } __asm__(\".text; .skip 9000000, 0x90\");").unwrap();
        let compiled = Command::new("cc").args(["-w", "-o"]).arg(&path).arg(&source).status();
        if !compiled.is_ok_and(|status| status.success()) {
            return eprintln!("SKIP: no C compiler");
        }
        for (name, options, in_pieces) in
            [("made-for-it", &["-E", "stride=512,stripe-width=512"][..], false), ("in-pieces", &[], true)]
        {
            let at = dir.join(name);
            if !mount_ext4(&dir.join(format!("{name}.img")), &at, options) {
                return eprintln!("SKIP: no ext4 in a file here");
            }
            if in_pieces {
                leave_small_pieces(&at);
            }
            let store = Store::open_or_create(&at.join("store")).unwrap();
            let how = install::How { split: towa_xip::split::Options { huge: true, ..TEXT.split }, ..TEXT };
            let out = dir.join(format!("{name}.half"));
            let done = patiently(|| install::split(&store, &path, Some(&out), how)).unwrap();
            assert_eq!(done.notes.iter().any(|note| note.contains("stride=512")), in_pieces, "{name}: {:?}", done.notes);
            assert_eq!(towa_xip::store::Text::open(&done.text).unwrap().lies_in_huge_pages(), Some(!in_pieces));
            assert!(runs(&out), "{name}");
            drop(store);
            let _ = Command::new("umount").arg(&at).status();
        }
    });
}

#[test]
fn libraries_with_much_thread_local_storage() {
    let mut place = Place::new();
    let folder = place.folder("made", false);
    let compile = |name: &str, source: &str, flags: &[&str]| {
        let output = folder.join(name);
        fs::write(folder.join("source.c"), source).unwrap();
        let mut cc = Command::new("cc");
        cc.current_dir(&folder).args(["-O1", "-w", "source.c", "-Wl,--build-id=sha1", "-o"]).arg(&output).args(flags);
        cc.status().is_ok_and(|status| status.success()).then_some(output)
    };
    let (fixed, anywhere) = ("__attribute__((tls_model(\"initial-exec\")))", "__attribute__((tls_model(\"global-dynamic\")))");
    let (by_library, by_program) = ("char *get(void);", "extern _Thread_local char t[]; char *get(void) { return t; }");
    let cases = [
        ("large", fixed, 5000, 8, by_library, false),
        ("aligned", fixed, 16, 128, by_library, false),
        ("small", fixed, 64, 16, by_library, true),
        ("elsewhere", anywhere, 5000, 128, by_library, true),
        ("reached", anywhere, 5000, 8, by_program, false),
    ];
    for (name, model, len, align, getter, audited) in cases {
        let source =
            format!("_Thread_local char t[{len}] {model} __attribute__((aligned({align}))); char *get(void) {{ return t; }}");
        let library = compile(&format!("lib{name}.so"), &source, &["-shared", "-fPIC"]);
        let Some(library) = library else { return eprintln!("SKIP: no C compiler") };
        let main = format!(
            "#include <stdio.h>\n{getter} int main(void) {{ get()[3] = 7; return printf(\"%d\\n\", get()[3]) - 2; }}\n\
            __asm__(\".text; .skip 16384, 0x90\");"
        );
        let rpath = format!("-Wl,-rpath,{}", folder.display());
        let path = compile(name, &main, &[library.to_str().unwrap(), &rpath]).unwrap();
        place.add_libraries(&path);
        let done = patiently(|| install::split(&place.store, &path, None, LIBS)).unwrap();
        assert_eq!(done.notes.is_empty(), audited, "{name}: {:?}", done.notes);
        let does = run(command(&path, &["x"], &folder), Duration::from_secs(10));
        assert!(does.is_success() && does.out == b"7\n", "{name}: {}", does.brief());
        assert_eq!(towa_xip::stat::stat(&path, None).unwrap().libs, audited, "{name}");
    }
}
