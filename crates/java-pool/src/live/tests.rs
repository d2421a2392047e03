//! A program that is none, at the other end: what is right, what is rubbish, and what comes to no end.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use super::*;

/// A pool's file, and the socket beside it.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        let vector = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/java-pool/graph.towa");
        let mut bytes = std::fs::read(vector).unwrap();
        // So small that even more than all its pages, in all rounds, are soon sent.
        for slot in [0, 4096] {
            bytes[slot + 40..slot + 48].copy_from_slice(&(1u64 << 20).to_le_bytes());
            let sum = u64::from(crc32c::crc32c(&bytes[slot..slot + 248]));
            bytes[slot + 248..slot + 256].copy_from_slice(&sum.to_le_bytes());
        }
        std::fs::write(dir.path().join("pool"), bytes).unwrap();
        Place { dir }
    }

    fn pool(&self) -> Pool {
        Pool::open(&self.dir.path().join("pool")).unwrap()
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("pool.sock")
    }

    fn copy(&self) -> File {
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(self.dir.path().join("copy")).unwrap()
    }

    /// A program that takes one connection and says this, whatever it is told.
    fn says(&self, words: Vec<u8>) -> std::thread::JoinHandle<()> {
        let listener = UnixListener::bind(self.socket()).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read_exact(&mut [0; 16]);
            let _ = stream.write_all(&words);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            // Until the tool has gone: what it did not read would break off what it does.
            let _ = stream.read_to_end(&mut Vec::new());
        })
    }

    /// What comes of a conversation with a program that says this. It ends soon.
    fn followed(&self, words: Vec<u8>) -> Result<Followed> {
        let program = self.says(words);
        let began = Instant::now();
        let result = Live::begin(&self.pool(), "process 7").and_then(|live| live.finish(&self.copy(), &mut |_| ()));
        program.join().unwrap();
        assert!(began.elapsed() < Duration::from_secs(5));
        std::fs::remove_file(self.socket()).unwrap();
        result
    }

    fn capacity(&self) -> u64 {
        u64_of(&self.pool().identity().unwrap(), 32)
    }
}

fn message(kind: u32, body: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &(body.len() as u32).to_le_bytes(), body].concat()
}

fn begun(place: &Place) -> Vec<u8> {
    message(BEGUN, &place.pool().identity().unwrap())
}

fn pages(numbers: &[u64]) -> Vec<u8> {
    let mut body: Vec<u8> = numbers.iter().flat_map(|number| (*number as u32).to_le_bytes()).collect();
    numbers.iter().for_each(|number| body.extend([*number as u8; PAGE as usize]));
    message(PAGES, &body)
}

fn end(pages: u64) -> Vec<u8> {
    message(END, &[pages, 2, 5000].map(u64::to_le_bytes).concat())
}

#[test]
fn the_pages_that_come_are_laid_over_the_copy() {
    let place = Place::new();
    let followed = place.followed([begun(&place), pages(&[3, 4, 9]), pages(&[4]), end(4)].concat()).unwrap();
    assert_eq!((followed.pages, followed.rounds, followed.pause), (4, 2, Duration::from_micros(5)));
    let copy = std::fs::read(place.dir.path().join("copy")).unwrap();
    for (number, byte) in [(2, 0), (3, 3), (4, 4), (5, 0), (9, 9)] {
        assert!(copy[number * 4096..][..4096].iter().all(|it| *it == byte), "page {number}");
    }
}

#[test]
fn rubbish_is_an_error_and_nothing_of_it_is_written() {
    let place = Place::new();
    let last = place.capacity() / PAGE;
    let [begun, one] = [begun(&place), pages(&[5])];
    let rubbish: [(&str, Vec<u8>); 12] = [
        ("http", b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
        ("a beginning that is too long", message(BEGUN, &[0; 48])),
        ("an end for a beginning", end(0)),
        ("two beginnings", [&begun[..], &begun].concat()),
        ("pages of the superblock", [&begun[..], &pages(&[5, 1]), &end(2)].concat()),
        ("pages behind the capacity", [&begun[..], &pages(&[last]), &end(1)].concat()),
        ("neighbours behind the capacity", [&begun[..], &pages(&[last - 1, last]), &end(2)].concat()),
        ("no pages", [&begun[..], &message(PAGES, &[]), &end(0)].concat()),
        ("a page that is short", [&begun[..], &message(PAGES, &[0; 4000]), &end(1)].concat()),
        ("more than 256 pages", [&begun[..], &PAGES.to_le_bytes(), &u32::MAX.to_le_bytes(), &one].concat()),
        ("an end that has another number", [&begun[..], &one, &end(2)].concat()),
        ("a refusal without a reason", message(REFUSED, &[1, 2])),
    ];
    for (what, words) in rubbish {
        let error = place.followed(words).unwrap_err();
        assert!(matches!(error, Error::Babble { .. }), "{what}: {error}");
        assert!(error.to_string().contains("pool: the program that has it open sent"), "{error}");
    }
}

#[test]
fn a_conversation_that_is_broken_off_is_no_copy() {
    let place = Place::new();
    let whole = [begun(&place), pages(&[5, 6]), end(2)].concat();
    for len in [0, 4, 8, 30, 48, 52, 60, 4000, whole.len() - 24, whole.len() - 1] {
        let error = place.followed(whole[..len].to_vec()).unwrap_err();
        assert!(matches!(error, Error::Gone { closed: false, .. }), "{len}: {error}");
    }
    let closing = message(REFUSED, &[&CLOSING.to_le_bytes()[..], b"closed"].concat());
    let error = place.followed([begun(&place), closing].concat()).unwrap_err();
    assert!(matches!(error, Error::Gone { closed: true, .. }), "{error}");
    let busy = message(REFUSED, &[&BUSY.to_le_bytes()[..], b"p: another backup"].concat());
    let error = place.followed(busy).unwrap_err();
    assert!(matches!(&error, Error::Refused { what, busy: true } if what == "p: another backup"), "{error}");
}

/// A program that goes on for ever is left, after as much as the pool could change in all rounds.
#[test]
fn pages_without_end_come_to_an_end() {
    let place = Place::new();
    let some: Vec<u64> = (2..256).collect();
    let most = ROUNDS * place.capacity() / PAGE;
    let words = [begun(&place), pages(&some).repeat(most as usize / some.len() + 2)].concat();
    let error = place.followed(words).unwrap_err();
    assert!(error.to_string().contains("pages without end"), "{error}");
}

#[test]
fn another_pools_program_is_not_believed() {
    let place = Place::new();
    for at in [0, 20, 30, 38] {
        let mut identity = place.pool().identity().unwrap();
        identity[at] ^= 1;
        let error = place.followed(message(BEGUN, &identity)).unwrap_err();
        assert!(error.to_string().contains("has another pool open"), "{error}");
    }
}

#[test]
fn a_socket_that_is_none_or_anothers_is_not_connected_to() {
    let place = Place::new();
    let refusal = || Live::begin(&place.pool(), "process 7").unwrap_err().to_string();
    assert!(refusal().contains("in use by process 7, which cannot be asked for a copy") && refusal().contains("is not there"));
    std::fs::write(place.socket(), "").unwrap();
    assert!(refusal().contains("is no socket"), "{}", refusal());
    std::fs::remove_file(place.socket()).unwrap();
    std::os::unix::fs::symlink("elsewhere", place.socket()).unwrap();
    assert!(refusal().contains("is no socket"), "{}", refusal());
    std::fs::remove_file(place.socket()).unwrap();
    drop(UnixListener::bind(place.socket()).unwrap());
    assert!(refusal().contains("was left by an earlier program"), "{}", refusal());
    std::fs::remove_file(place.socket()).unwrap();
    let _listener = UnixListener::bind(place.socket()).unwrap();
    assert!(connect(&place.socket(), &[me()]).is_ok());
    let why = connect(&place.socket(), &[me() + 1]).unwrap_err();
    assert!(why.0.contains("who is neither the pool's owner nor this user"), "{why:?}");
}
