//! Whether the thread-local storage of a program's libraries leaves room for an audit object, which maps their text from a store.
//!
//! ```text
//!   a program as ever        │ storage of all libraries it starts with │ to spare │           laid out when all are loaded
//!   one that ld.so audits    │ to spare: libraries that must be in here │                    laid out before any is loaded
//! ```
//!
//! Only what is reached at a fixed distance from the thread pointer must lie in there (glibc: "static TLS block"); ld.so finds another place for
//! the rest. Which of it that is, the relocations say, of a library about its own storage, and of the program and other libraries by name.
//!
//! What must hold: a program that would not start with an audit object is told; what cannot be read counts as reached that way.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use object::elf;
use object::read::elf::ElfFile64;
use object::{LittleEndian, Object as _, ObjectSymbol as _, ObjectSymbolTable as _, RelocationFlags, RelocationTarget, SymbolKind};

use crate::file;

/// Most static storage of its libraries, in bytes with their alignments, and its largest alignment, with which a program may be audited: glibc
/// has about 1700 bytes to spare in every version, also for libraries that are loaded later.
const MOST: (u64, u64) = (1024, 64);

/// Relocations to a distance from the thread pointer. Descriptors (TLSDESC) are none of them: ld.so has a second way for those.
const TO_A_DISTANCE: [u32; 3] = [elf::R_X86_64_TPOFF64, elf::R_X86_64_TPOFF32, elf::R_AARCH64_TLS_TPREL];

/// What the storage of a program or a library asks for.
#[derive(Debug, Default)]
struct Storage {
    /// Bytes and alignment; none, if it has no storage.
    size: Option<(u64, u64)>,
    /// Reaches its own at a distance; or nobody knows.
    is_static: bool,
    /// Names of storage, wherever it is, that it reaches at a distance.
    reaches: HashSet<Vec<u8>>,
    /// Names of its own storage.
    has: HashSet<Vec<u8>>,
    /// What it reaches cannot be read.
    reaches_any: bool,
}

impl Storage {
    fn of(path: &Path) -> Storage {
        let read = file::read(path).ok().and_then(|bytes| Storage::read(&bytes));
        read.unwrap_or(Storage { is_static: true, reaches_any: true, ..Storage::default() })
    }

    fn read(bytes: &[u8]) -> Option<Storage> {
        let file = ElfFile64::<LittleEndian>::parse(bytes).ok()?;
        let header = file.elf_program_headers().iter().find(|header| header.p_type.get(LittleEndian) == elf::PT_TLS);
        let size = header.map(|header| (header.p_memsz.get(LittleEndian), header.p_align.get(LittleEndian)));
        let mut storage = Storage { size, ..Storage::default() };
        let (Some(symbols), Some(relocations)) = (file.dynamic_symbol_table(), file.dynamic_relocations()) else {
            (storage.is_static, storage.reaches_any) = (true, true);
            return Some(storage);
        };
        let named = symbols.symbols().filter(|symbol| symbol.kind() == SymbolKind::Tls && !symbol.is_undefined());
        storage.has = named.filter_map(|symbol| Some(symbol.name_bytes().ok()?.to_vec())).collect();
        for (_, relocation) in relocations {
            let RelocationFlags::Elf { r_type } = relocation.flags() else { continue };
            if !TO_A_DISTANCE.contains(&r_type) {
                continue;
            }
            // A name of its own may be found elsewhere, too.
            match relocation.target() {
                RelocationTarget::Symbol(index) => {
                    let symbol = symbols.symbol_by_index(index).ok()?;
                    storage.is_static |= !symbol.is_undefined();
                    storage.reaches.insert(symbol.name_bytes().ok()?.to_vec());
                }
                _ => storage.is_static = true,
            }
        }
        Some(storage)
    }
}

/// Why the program at `program`, which starts with `libraries`, could not be started if it were audited.
pub fn hindrance(program: &Path, libraries: &[PathBuf]) -> Option<String> {
    let of_program = Storage::of(program);
    let of_libraries: Vec<Storage> = libraries.iter().map(|path| Storage::of(path)).collect();
    let all = || of_libraries.iter().chain([&of_program]);
    let is_reached = |storage: &Storage| all().any(|other| other.reaches_any || !other.reaches.is_disjoint(&storage.has));
    let mut sum = 0u64;
    for (path, storage) in libraries.iter().zip(&of_libraries) {
        let Some((len, align)) = storage.size else { continue };
        if !storage.is_static && !is_reached(storage) {
            continue;
        }
        sum = sum.saturating_add(len).saturating_add(align);
        if align > MOST.1 || sum > MOST.0 {
            let name = path.display();
            return Some(format!(
                "{name} may need more static thread-local storage than ld.so has for it in a program that it audits"
            ));
        }
    }
    None
}
