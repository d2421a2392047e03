//! Work, not greetings: split programs with split libraries do it as whole ones do, to the byte. Each program is a copy, split in place.

mod sweep_support;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sweep_support::{Outcome, Place, command, program, run};
use towa_xip::split::AbcHead;

const LIMIT: Duration = Duration::from_secs(120);

/// A place, and in it a split copy of each program; `None`, said aloud, if one is not here.
fn with<const N: usize>(names: [&str; N]) -> Option<(Place, [PathBuf; N], [PathBuf; N])> {
    let whole = names.map(|name| program(name).ok_or(name));
    if let Some(missing) = whole.iter().find_map(|found| found.as_ref().err()) {
        eprintln!("SKIP: no program {missing}");
        return None;
    }
    let whole = whole.map(|found| found.expect("looked at above"));
    let mut place = Place::new();
    let split = whole.each_ref().map(|program| split_copy(&mut place, program, "programs"));
    Some((place, whole, split))
}

fn split_copy(place: &mut Place, program: &Path, folder: &str) -> PathBuf {
    let copy = place.copy(program, folder);
    place.split_in_place(&copy);
    assert!(AbcHead::find(&fs::read(&copy).unwrap()).is_ok());
    copy
}

/// What a program does with these arguments in a new directory `home`; where it is, is left out of it.
fn work(place: &Place, home: &str, program: &Path, arguments: &[&str]) -> Outcome {
    let home = place.folder(home, true);
    run(command(program, arguments, &home), LIMIT).replacing(program, "@program").replacing(&home, "@home")
}

/// Both do the same, each in a directory of its own, and successfully; gives what the split one did.
fn same(place: &Place, whole: &Path, split: &Path, arguments: &[&str]) -> Outcome {
    let of_whole = work(place, "of-whole", whole, arguments);
    assert!(of_whole.is_success(), "the whole program, {arguments:?}: {}", of_whole.brief());
    let of_split = work(place, "of-split", split, arguments);
    assert!(of_whole == of_split, "{arguments:?}\nwhole: {}\nsplit: {}", of_whole.brief(), of_split.brief());
    of_split
}

/// All files below `folder`, with what is in them.
fn tree(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()) {
        if entry.file_type().unwrap().is_dir() {
            files.extend(tree(&entry.path()));
        } else {
            files.push((entry.path(), fs::read(entry.path()).unwrap()));
        }
    }
    files.sort();
    files
}

/// The files that both have left in their directories are the same.
fn same_files(place: &Place) -> usize {
    let [whole, split] = ["of-whole", "of-split"].map(|home| {
        let home = place.at(home);
        let all = tree(&home).into_iter();
        all.map(|(path, bytes)| (path.strip_prefix(&home).unwrap().to_owned(), bytes)).collect::<Vec<_>>()
    });
    for (a, b) in whole.iter().zip(&split) {
        assert!(a == b, "{} and {} are not the same", a.0.display(), b.0.display());
    }
    assert_eq!(whole.len(), split.len());
    whole.len()
}

/// Lines of text, 5 MB of them.
fn much_text(place: &Place) -> String {
    let mut rng = SmallRng::seed_from_u64(5);
    let line = |_| format!("{:08x} {} leaf of a tree\n", rng.random::<u32>(), rng.random_range(0..5000));
    let path = place.folder("input", false).join("text");
    fs::write(&path, (0..170_000).map(line).collect::<String>()).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn gcc_compiles_the_same_objects() {
    let Some(gcc) = program("gcc") else { return eprintln!("SKIP: no gcc") };
    let mut place = Place::new();
    let named = |tool: &str| {
        let told = work(&place, "ask", &gcc, &[&format!("-print-prog-name={tool}")]);
        let path = PathBuf::from(String::from_utf8(told.out).unwrap().trim());
        path.canonicalize().ok().or_else(|| program(tool))
    };
    let tools: Vec<(&str, PathBuf)> = ["cc1", "as", "ld"].into_iter().filter_map(|tool| Some((tool, named(tool)?))).collect();
    if tools.len() < 3 {
        return eprintln!("SKIP: no compiler behind gcc, but {tools:?}");
    }
    let folder = place.folder("tools", false);
    for (tool, path) in &tools {
        let copy = folder.join(tool);
        fs::copy(path, &copy).unwrap();
        place.split_in_place(&copy);
    }
    let prefix = format!("-B{}/", folder.display());
    let told = work(&place, "ask", &gcc, &[&prefix, "-print-prog-name=cc1"]);
    assert_eq!(Path::new(String::from_utf8(told.out).unwrap().trim()), folder.join("cc1"), "gcc takes another compiler");

    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = ["loader/loader.c", "loader/audit.c", "tests/programs/everything.c", "tests/programs/maps.c"]
        .map(|name| sources.join(name));
    for file in &files {
        let file = file.to_str().unwrap();
        for level in ["-O0", "-O2"] {
            // Not the options that gcc was given: -B is another.
            let debug = ["-g", "-gno-record-gcc-switches"];
            compiled_the_same(&place, &gcc, &prefix, &[&debug[..], &["-w", level, "-c", file, "-o", "made"]].concat());
        }
    }
    let everything = files[2].to_str().unwrap();
    compiled_the_same(&place, &gcc, &prefix, &["-w", everything, "-o", "made", "-pthread", "-lm", "-ldl"]);
}

/// With the split tools behind it, gcc makes the same file. Its directory is in there: it is the same one.
fn compiled_the_same(place: &Place, gcc: &Path, prefix: &str, arguments: &[&str]) {
    let make = |arguments: &[&str]| {
        let did = work(place, "made-here", gcc, arguments);
        assert!(did.is_success(), "{arguments:?}: {}", did.brief());
        let file = place.at("made-here/made");
        let made = fs::read(&file).unwrap();
        fs::remove_file(file).unwrap();
        made
    };
    let (whole, split) = (make(arguments), make(&[&[prefix], arguments].concat()));
    assert!(whole == split, "{arguments:?}: not the same file");
}

#[test]
fn python_passes_its_own_tests() {
    let names = ["python3", "python3.14", "python3.13", "python3.12", "python3.11", "python3.10"];
    let Some(name) = names.into_iter().find(|name| program(name).is_some()) else { return eprintln!("SKIP: no python3") };
    let Some((mut place, [whole], [split])) = with([name]) else { return };
    add_modules(&mut place, &whole);
    // Where CPython's own tests are not installed, its modules at least, and something done with them. (Not `re`: its tests measure time.)
    let own = ["json", "struct", "zlib", "bz2", "hashlib", "math", "array", "ctypes", "mmap"];
    if work(&place, "ask", &whole, &["-c", "import test.test_json, test.test_struct"]).is_success() {
        let passes = |python: &Path, home: &str, module: &str| {
            work(&place, home, python, &["-m", "unittest", "-q", &format!("test.test_{module}")])
        };
        let (mut passed, mut left_out) = (0, Vec::new());
        for module in own {
            if !passes(&whole, "of-whole", module).is_success() {
                left_out.push(module);
                continue;
            }
            let ran = passes(&split, "of-split", module);
            assert!(ran.is_success(), "{module}: {}", ran.brief());
            passed += 1;
        }
        println!("{passed} of CPython's own test modules passed; the whole python does not pass {left_out:?}");
        assert!(passed >= 6, "the whole python does not pass {left_out:?}");
    } else {
        eprintln!("SKIP: CPython's own tests are not installed: a script instead");
    }
    let script = "
import importlib, sys
names = '''abc argparse ast asyncio base64 binascii bisect bz2 calendar cmath collections codecs configparser contextlib copy csv ctypes
datetime decimal difflib dis email enum fractions functools gzip hashlib heapq html http inspect io ipaddress itertools json locale logging
lzma math multiprocessing operator pathlib pickle platform queue random re sched secrets select shelve shutil socket sqlite3 ssl
statistics string struct subprocess tarfile tempfile textwrap threading timeit traceback typing unicodedata unittest urllib.request uuid
xml.etree.ElementTree zipfile zlib'''.split()
count = 0
for name in names:
    try:
        importlib.import_module(name)
        count += 1
    except ImportError as why:
        print(name, why)
assert count >= 50, count
import json, re, sqlite3, zlib, lzma, bz2, hashlib, decimal, threading, ctypes, pickle
data = json.dumps([{'n': n, 'square': n * n, 'text': str(n) * 3} for n in range(5000)]).encode()
for codec in (zlib, lzma, bz2):
    assert codec.decompress(codec.compress(data)) == data
base = sqlite3.connect(':memory:')
base.execute('create table t (n integer, s text)')
base.executemany('insert into t values (?, ?)', ((n, str(n)) for n in range(10000)))
print(count, hashlib.sha256(data).hexdigest(), base.execute('select sum(n), max(s) from t').fetchone())
decimal.getcontext().prec = 60
print(decimal.Decimal(2).sqrt(), len(re.findall(rb'[0-9]+', data)), pickle.loads(pickle.dumps({1: 'x'})))
results = []
threads = [threading.Thread(target=lambda n=n: results.append(sum(range(n * 1000)))) for n in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda n: n + 1)
print(sorted(results), callback(41))
try:
    1 / 0
except ZeroDivisionError as why:
    print(why)
";
    same(&place, &whole, &split, &["-c", script]);
}

/// Puts the text of the modules that it loads by itself into the store, too: python's own are libraries without a build-id, or with one.
fn add_modules(place: &mut Place, python: &Path) {
    let told = work(place, "ask", python, &["-c", "import _ctypes, _json; print(_ctypes.__file__); print(_json.__file__)"]);
    for module in String::from_utf8_lossy(&told.out).lines().map(Path::new).filter(|module| module.is_file()) {
        let done = sweep_support::patiently(|| towa_xip::install::split(&place.store, module, None, sweep_support::LIBS));
        println!("{}: {}", module.display(), done.map_or_else(|why| why.to_string(), |done| done.text.display().to_string()));
    }
}

#[test]
fn git_makes_the_same_history() {
    let Some((place, [whole], [split])) = with(["git"]) else { return };
    let work_in = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.invalid", "-c", "init.defaultBranch=main"];
    let git = |arguments: &[&str]| same(&place, &whole, &split, &[&work_in[..], arguments].concat());
    git(&["init", "-q", "."]);
    for commit in 0..5 {
        for home in ["of-whole", "of-split"] {
            for file in 0..20 {
                fs::write(place.at(home).join(format!("file-{file}")), format!("{commit} {}\n", file * commit).repeat(200))
                    .unwrap();
            }
        }
        git(&["add", "-A"]);
        // The time is in the hash of a commit, and git knows no option for that of the committer.
        let tree = git(&["write-tree"]);
        assert_eq!(tree.out.trim_ascii().len(), 40);
        for (home, program) in [("of-whole", &whole), ("of-split", &split)] {
            let home = place.at(home);
            let message = format!("commit {commit}");
            let mut command = command(program, &[&work_in[..], &["commit", "-q", "-m", &message]].concat(), &home);
            command.env("GIT_AUTHOR_DATE", "2000-01-01T00:00:00Z").env("GIT_COMMITTER_DATE", "2000-01-01T00:00:00Z");
            let done = run(command, LIMIT);
            assert!(done.is_success(), "{}", done.brief());
        }
    }
    let log = git(&["log", "--stat", "-p"]);
    assert!(log.out.windows(6).filter(|bytes| *bytes == b"commit").count() >= 5, "{}", log.brief());
    git(&["fsck", "--strict"]);
    git(&["repack", "-a", "-d", "-q"]);
    git(&["diff", "HEAD~3", "HEAD~1"]);
    git(&["archive", "--format=tar", "HEAD"]);
}

#[test]
fn sqlite_makes_the_same_database() {
    let Some((place, [whole], [split])) = with(["sqlite3"]) else { return };
    let insert = "create table t (n integer primary key, s text); create index i on t (s); begin;
        with recursive c(n) as (select 1 union all select n + 1 from c where n < 10000)
        insert into t select n, hex(n * 7919 % 10007) from c; commit;
        select count(*), sum(n), max(s), group_concat(substr(s, 1, 1), '') from t; pragma integrity_check;";
    let told = same(&place, &whole, &split, &["base", insert]);
    assert!(told.out.starts_with(b"10000|50005000|") && told.out.ends_with(b"ok\n"), "{}", told.brief());
    same(&place, &whole, &split, &["base", "update t set s = upper(s) || n where n % 3 = 0; vacuum; select * from t order by s"]);
    assert_eq!(same_files(&place), 1);
}

#[test]
fn sorting_packing_and_hashing_give_the_same() {
    let Some((place, whole, split)) = with(["sort", "xz", "gzip", "openssl", "tar"]) else { return };
    let text = much_text(&place);
    let both = |index: usize, arguments: &[&str]| same(&place, &whole[index], &split[index], arguments);
    for arguments in [&["-k2,2n", "-k1,1"][..], &["-r", "--parallel=2", "-S", "1M"], &["-u", "-k3"]] {
        let sorted = both(0, &[arguments, &[&text]].concat());
        assert!(!sorted.out.is_empty());
    }
    for (index, pack, unpack) in [(1, &["-2", "-T2", "-c"][..], &["-dc"][..]), (2, &["-6", "-n", "-c"], &["-dc"])] {
        let packed = both(index, &[pack, &[&text]].concat());
        let file = place.at("input/packed").with_extension(["", "xz", "gz"][index]);
        fs::write(&file, &packed.out).unwrap();
        let unpacked = both(index, &[unpack, &[file.to_str().unwrap()]].concat());
        assert!(unpacked.out == fs::read(&text).unwrap(), "not what was packed");
    }
    for hash in ["-sha256", "-sha3-512", "-blake2b512", "-md5"] {
        both(3, &["dgst", hash, &text]);
    }
    let key = ["-K", "000102030405060708090a0b0c0d0e0f", "-iv", "0f0e0d0c0b0a09080706050403020100"];
    let hidden = both(3, &[&["enc", "-aes-128-cbc", "-in", &text][..], &key].concat());
    let file = place.at("input/hidden");
    fs::write(&file, &hidden.out).unwrap();
    let shown = both(3, &[&["enc", "-d", "-aes-128-cbc", "-in", file.to_str().unwrap()][..], &key].concat());
    assert!(shown.out == fs::read(&text).unwrap(), "not what was encrypted");
    both(4, &["-cf", "archive.tar", "--mtime=@0", "-C", place.at("input").to_str().unwrap(), "text"]);
    same_files(&place);
}

#[test]
fn perl_computes_the_same() {
    let Some((place, [whole], [split])) = with(["perl"]) else { return };
    let script = "use strict; use POSIX; use List::Util qw(sum); use Digest::MD5 qw(md5_hex); use Data::Dumper; $Data::Dumper::Sortkeys = 1;
        my %h; $h{md5_hex($_)} = $_ for 1 .. 20000; my $text = join ',', sort keys %h;
        my $count = () = $text =~ /[a-f]{3,}/g; print md5_hex($text), \" $count \", sum(values %h), \"\\n\", POSIX::floor(-3.5), \"\\n\";
        eval { die { code => 7 } }; print Dumper($@); my $pid = fork; if (!$pid) { exit 9 } waitpid $pid, 0; print $? >> 8, \"\\n\";
        local $SIG{ALRM} = sub { print \"alarm\\n\" }; kill ALRM => $$; print `echo from a shell`; open my $f, '>', 'out' or die; print $f $text;";
    let told = same(&place, &whole, &split, &["-e", script]);
    assert!(told.out.ends_with(b"9\nalarm\nfrom a shell\n"), "{}", told.brief());
    assert_eq!(same_files(&place), 1);
}
