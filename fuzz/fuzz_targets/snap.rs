//! A directory of checkpoints, fed with manifests and indexes of which anything may be changed, with sums that fit: it is looked at to the
//! end, or refused; never a panic, never for long.
//!
//! The first byte of the input says which file, and whether its header stays as it is. Then edits (place: two bytes, what is done, value:
//! one): a byte is changed, or a word of 8 bytes is made small, huge, or what another word of the file is, since lengths, places and numbers
//! of files refer to each other. The manifest's own bytes describe a process, so that what reads that has something to do.
#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use towa_snap::state::State;
use towa_snap::store::{Base, Store, Which};
use xxhash_rust::xxh3::xxh3_64_with_seed;

const HEADER: usize = 80;

/// A description of a process, as a checkpoint has it.
const PROCESS: &str = include_str!("bytes/snap-process.json");

struct Sound {
    dir: PathBuf,
    files: [(&'static str, Vec<u8>); 2],
}

/// Two checkpoints, the second on the first, with files of the process.
fn sound() -> &'static Sound {
    static SOUND: OnceLock<Sound> = OnceLock::new();
    SOUND.get_or_init(|| {
        let dir = std::env::temp_dir().join(format!("towa-fuzz-snap-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let store = Store::open_or_create(&dir).unwrap();
        let mut base = Base::Empty;
        for first in [3, 20] {
            let mut draft = store.begin(base).unwrap();
            draft.write(first, &[first as u8; 9 * 4096]).unwrap();
            draft.forget(5..7);
            draft.attach_caught(5000, &vec![(0, vec![1; 4096]), (4096, vec![2; 904])], "inode-1-2").unwrap();
            base = Base::On(draft.finish(PROCESS.as_bytes()).unwrap());
        }
        let read = |name| (name, fs::read(dir.join(name)).unwrap());
        Sound { files: [read("2/manifest"), read("2/index")], dir: dir.clone() }
    })
}

fn edit(bytes: &mut Vec<u8>, edits: &[u8]) {
    for edit in edits.chunks_exact(4) {
        let at = usize::from(u16::from_le_bytes([edit[0], edit[1]])) % bytes.len().max(1);
        let word = at / 8 * 8..(at / 8 * 8 + 8).min(bytes.len());
        let small = u64::from(edit[3]).to_le_bytes();
        let value = match edit[2] % 7 {
            0 => {
                bytes[at] ^= edit[3];
                continue;
            }
            1 => small,
            2 => (u64::MAX - u64::from(edit[3])).to_le_bytes(),
            3 => (1_u64 << (edit[3] % 64)).to_le_bytes(),
            4 => {
                let from = usize::from(edit[3]) * 8 % bytes.len();
                let mut value = small;
                let len = (bytes.len() - from).min(8);
                value[..len].copy_from_slice(&bytes[from..from + len]);
                value
            }
            5 => {
                bytes.truncate(at);
                if bytes.is_empty() {
                    return;
                }
                continue;
            }
            _ => {
                bytes.extend_from_slice(&small);
                continue;
            }
        };
        let len = word.len();
        bytes[word].copy_from_slice(&value[..len]);
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((&how, edits)) = input.split_first() else { return };
    let Sound { dir, files } = sound();
    let (name, bytes) = &files[usize::from(how & 1)];
    let mut header = bytes[..HEADER].to_vec();
    let mut body = bytes[HEADER..].to_vec();
    if how & 2 == 0 {
        edit(&mut body, edits);
    } else {
        edit(&mut header, edits);
        header.resize(HEADER, 0);
    }
    let seed = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    if how & 4 == 0 {
        header[56..64].copy_from_slice(&(body.len() as u64).to_le_bytes());
        header[64..72].copy_from_slice(&xxh3_64_with_seed(&body, seed).to_le_bytes());
    }
    let sum = xxh3_64_with_seed(&header[..72], seed);
    header[72..80].copy_from_slice(&sum.to_le_bytes());
    fs::write(dir.join(name), [header, body].concat()).unwrap();

    let store = Store::open(dir).unwrap();
    let list = store.list().unwrap();
    assert_eq!(list.iter().map(|item| item.number).collect::<Vec<_>>(), [1, 2]);
    assert!(list[0].damaged.is_none());
    if let Ok(checkpoint) = store.open_checkpoint(Which::Number(2)) {
        let verified = checkpoint.verify(|done, all| assert!(done <= all));
        let mut page = [0; 4096];
        for stretch in checkpoint.runs(0..u64::MAX / 4096).take(50) {
            let read = checkpoint.read_checked(stretch.pages.start, &mut page);
            assert!(read.is_ok() || verified.is_err());
        }
        for file in checkpoint.attachments() {
            assert!(checkpoint.attached(&file.name).is_some());
        }
        if let Ok(state) = State::decode(checkpoint.manifest()) {
            for descriptor in &state.descriptors.table {
                let _ = &state.descriptors.files[descriptor.file];
            }
            for region in &state.regions {
                checkpoint.runs(region.pages.clone()).for_each(|run| assert!(!run.pages.is_empty() && region.len() > 0));
            }
            assert_eq!(State::decode(&state.encode()).unwrap(), state);
        }
    }
});
