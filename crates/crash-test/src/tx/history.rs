//! What transactions did, and which states a crash may leave of it.
//!
//! ```text
//!   cell c:   base ──T1──► T1 ──T4──► T4 ──T7──► T7        every change is read first, and leaves a number of its own:
//!   cell d:   base ──T4──► T4 ──T5──► T5                   so the order of the changes of each cell is known
//! ```
//!
//! A recovered state names for each cell the transaction that changed it last; that one and those before it in the cell's chain are there,
//! those behind it are not. What must always hold: a transaction is there in all its cells or in none; one that returned is there
//! (buffered commits: one that returned before a `sync` that returned); with one that is there, all whose values it saw are. With buffered
//! commits, moreover, nothing is there whose predecessors in the order of effect, as far as they are known, are not.

use std::collections::HashMap;

/// Number of cells.
pub const CELLS: usize = 16;

/// A cell, as stored. All zero: never written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// The transaction that changed it last.
    pub id: u64,
    /// Address of the object; 0: none.
    pub ptr: u64,
    /// Its bytes.
    pub size: u64,
    /// The transaction that made it.
    pub object: u64,
    /// Words of it that were written over later.
    pub filled: u64,
    /// By this transaction.
    pub filler: u64,
    /// The transaction that set the cell's root; 0: it has none.
    pub rooted: u64,
}

/// All cells.
pub type Cells = [Cell; CELLS];

/// Word `at` of an object that transaction `id` filled.
pub fn pattern(id: u64, cell: usize, at: u64) -> u64 {
    (id ^ (cell as u64) << 56)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .rotate_left(29)
        .wrapping_add(at.wrapping_mul(0x0123_4567_89AB_CDEF))
}

/// A transaction that took effect, or may have.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// Its number in the notes.
    pub note: u64,
    /// Its number in the cells.
    pub id: u64,
    /// Cells that it read, those that it changed too, with who had changed them.
    pub reads: Vec<(usize, u64)>,
    /// What it made of cells.
    pub writes: Vec<(usize, Cell)>,
    /// It did not return.
    pub unknown: bool,
    /// It saw what no transaction wrote.
    pub torn: Option<String>,
}

impl Record {
    /// Who had changed a cell before this transaction did.
    fn before(&self, cell: usize) -> u64 {
        self.reads.iter().find(|read| read.0 == cell).expect("what is changed was read").1
    }
}

/// Notes in a trace: what happened before a crash, as far as the program knows.
pub mod note {
    const KIND: u32 = 60;
    /// A transaction is called.
    pub const INVOKED: u64 = 1;
    /// It returned.
    pub const RETURNED: u64 = 2;
    /// A sync is called.
    pub const SYNCING: u64 = 3;
    /// It returned.
    pub const SYNCED: u64 = 4;
    /// The pool is open.
    pub const OPENED: u64 = 5;
    /// The cells are there.
    pub const ROOTED: u64 = 6;
    /// The pool is closed.
    pub const CLOSED: u64 = 7;
    /// The next process begins to recover what a killed one left.
    pub const OPENING: u64 = 8;
    /// It has recovered it.
    pub const RECOVERED: u64 = 9;

    /// A note; `what`: thread and number.
    pub fn of(kind: u64, what: u64) -> u64 {
        kind << KIND | what
    }

    /// Kind and what.
    pub fn parts(note: u64) -> (u64, u64) {
        (note >> KIND, note & ((1 << KIND) - 1))
    }
}

/// Where a generation began.
#[derive(Clone, Copy, Debug, Default)]
pub struct Base {
    /// The pool was there.
    pub opened: bool,
    /// The cells, if they were there.
    pub cells: Option<Cells>,
}

/// One generation's transactions.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Where it began.
    pub base: Base,
    /// Commits are buffered.
    pub buffered: bool,
    /// Notes of generations before, in the same trace.
    pub notes_before: usize,
    records: Vec<Record>,
    by_note: HashMap<u64, usize>,
    /// Per cell: where in its chain each transaction stands.
    places: Vec<HashMap<u64, usize>>,
    /// Per cell: what it was like, along the chain.
    chains: Vec<Vec<Cell>>,
    /// Where several transactions failed that saw the same, any one of them may have taken effect: the other ways.
    otherwise: Vec<History>,
}

impl History {
    /// Puts the chains together.
    ///
    /// # Errors
    /// No order of transactions explains what they saw.
    pub fn new(base: Base, buffered: bool, notes_before: usize, records: Vec<Record>) -> Result<History, String> {
        if let Some(torn) = records.iter().find_map(|r| r.torn.as_ref()) {
            return Err(format!("not isolated: {torn}"));
        }
        let (known, mut unknown): (Vec<_>, Vec<_>) = records.into_iter().partition(|r| !r.unknown);
        let mut ways = Vec::new();
        for _ in 0..unknown.len().max(1) {
            ways.push(Self::of_known_and(base, buffered, notes_before, known.clone(), unknown.clone()));
            let by = unknown.len().min(1);
            unknown.rotate_left(by);
        }
        let first = ways.iter().position(Result::is_ok).unwrap_or(0);
        let mut history = ways.swap_remove(first)?;
        history.otherwise = ways.into_iter().filter_map(Result::ok).collect();
        Ok(history)
    }

    /// Those that are `unknown` took effect, if they did, in this order.
    fn of_known_and(
        base: Base,
        buffered: bool,
        notes_before: usize,
        mut known: Vec<Record>,
        unknown: Vec<Record>,
    ) -> Result<History, String> {
        let mut next: Vec<HashMap<u64, Cell>> = vec![HashMap::new(); CELLS];
        for record in &known {
            for (cell, new) in &record.writes {
                if let Some(other) = next[*cell].insert(record.before(*cell), *new) {
                    return Err(format!("not isolated: {:#x} and {:#x} both changed cell {cell}", other.id, new.id));
                }
            }
        }
        // What failed took effect, if it did, behind all that returned: it comes last, and only where no other transaction is.
        for record in unknown {
            if record.writes.iter().all(|(cell, _)| !next[*cell].contains_key(&record.before(*cell))) {
                record.writes.iter().for_each(|(cell, new)| _ = next[*cell].insert(record.before(*cell), *new));
                known.push(record);
            }
        }
        let records = known;
        let first = base.cells.unwrap_or_default();
        let chains: Vec<Vec<Cell>> = (0..CELLS)
            .map(|cell| std::iter::successors(Some(first[cell]), |last| next[cell].get(&last.id).copied()).collect())
            .collect();
        let place = |chain: &Vec<Cell>| chain.iter().enumerate().map(|(at, cell)| (cell.id, at)).collect();
        let places: Vec<HashMap<u64, usize>> = chains.iter().map(place).collect();
        for record in &records {
            for (cell, id) in record.reads.iter().copied().chain(record.writes.iter().map(|w| (w.0, w.1.id))) {
                if !places[cell].contains_key(&id) {
                    return Err(format!("not isolated: {:#x} saw {id:#x} in cell {cell}, which nobody wrote there", record.id));
                }
            }
        }
        let by_note = records.iter().enumerate().map(|(at, r)| (r.note, at)).collect();
        Ok(History { base, buffered, notes_before, records, by_note, places, chains, otherwise: Vec::new() })
    }

    /// The transactions.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// The cells as the last transactions left them.
    pub fn newest(&self) -> Cells {
        std::array::from_fn(|cell| *self.chains[cell].last().expect("a chain has its base"))
    }

    /// Whether a crash may have left `found` when these notes had been taken. `None`: there were no cells.
    pub fn judge(&self, found: Option<&Cells>, notes: &[u64]) -> Result<(), String> {
        self.judge_this(found, notes).or_else(|why| {
            let explained = self.otherwise.iter().any(|other| other.judge_this(found, notes).is_ok());
            if explained { Ok(()) } else { Err(why) }
        })
    }

    fn judge_this(&self, found: Option<&Cells>, notes: &[u64]) -> Result<(), String> {
        let notes = &notes[self.notes_before.min(notes.len())..];
        let Some(found) = found else {
            let promised = self.base.cells.is_some() || notes.iter().any(|n| note::parts(*n).0 == note::ROOTED);
            return if promised { Err("the cells are gone".into()) } else { Ok(()) };
        };
        let mut reached = [0; CELLS];
        for (cell, (now, reached)) in found.iter().zip(&mut reached).enumerate() {
            let place = self.places[cell].get(&now.id);
            *reached = *place.ok_or_else(|| format!("cell {cell} was changed by {:#x}, which did not commit", now.id))?;
            let then = &self.chains[cell][*reached];
            if now != then {
                return Err(format!("cell {cell} is not as {:#x} left it: {now:x?}, should be {then:x?}", now.id));
            }
        }
        let holds = |cell: usize, id: u64| self.places[cell][&id] <= reached[cell];
        let is_there = self.records.iter().map(|record| {
            let mut cells = record.writes.iter().map(|(cell, new)| (cell, holds(*cell, new.id)));
            let Some((first, there)) = cells.next() else { return Ok(true) };
            match cells.find(|(_, other)| *other != there) {
                Some((other, _)) => {
                    let (with, without) = if there { (first, other) } else { (other, first) };
                    Err(format!("{:#x} is torn: it is in cell {with}, and not in cell {without}", record.id))
                }
                None => Ok(there),
            }
        });
        let is_there = is_there.collect::<Result<Vec<bool>, String>>()?;
        for (record, _) in self.records.iter().zip(&is_there).filter(|(r, there)| **there && !r.writes.is_empty()) {
            if let Some((cell, id)) = record.reads.iter().find(|(cell, id)| !holds(*cell, *id)) {
                return Err(format!("{:#x} is there, but not {id:#x}, whose value it saw in cell {cell}", record.id));
            }
        }
        self.judge_promises(notes, &is_there, &holds)?;
        if self.buffered { self.judge_order(notes, &is_there, &reached) } else { Ok(()) }
    }

    /// What returned is there, and what it saw.
    fn judge_promises(&self, notes: &[u64], is_there: &[bool], holds: &dyn Fn(usize, u64) -> bool) -> Result<(), String> {
        let mut called = vec![false; self.records.len()];
        let mut returned = Vec::new();
        // Syncs that were called: how many had returned then.
        let mut syncs: HashMap<u64, usize> = HashMap::new();
        let mut durable = 0;
        for n in notes {
            let (kind, what) = note::parts(*n);
            let record = self.by_note.get(&what).copied();
            match kind {
                note::INVOKED => record.into_iter().for_each(|r| called[r] = true),
                note::RETURNED => returned.extend(record),
                note::SYNCING => {
                    syncs.insert(what, returned.len());
                }
                note::SYNCED => durable = durable.max(syncs[&what]),
                note::CLOSED => durable = returned.len(),
                _ => {}
            }
        }
        let promised = if self.buffered { &returned[..durable] } else { &returned[..] };
        for &r in promised {
            let record = &self.records[r];
            if !is_there[r] {
                return Err(format!("{:#x} had returned, and is not there", record.id));
            }
            if let Some((cell, id)) = record.reads.iter().find(|(cell, id)| !holds(*cell, *id)) {
                return Err(format!("a transaction returned that had seen {id:#x} in cell {cell}, which is not there"));
            }
        }
        let early = (0..self.records.len()).find(|r| is_there[*r] && !called[*r] && !self.records[*r].writes.is_empty());
        early.map_or(Ok(()), |r| Err(format!("{:#x} is there before it was called", self.records[r].id)))
    }

    /// What is there is a prefix of the order in which transactions took effect, as far as that is known: by who saw what, and by who
    /// had returned when others were called.
    fn judge_order(&self, notes: &[u64], is_there: &[bool], reached: &[usize; CELLS]) -> Result<(), String> {
        let mut missing = None;
        for n in notes {
            let (kind, what) = note::parts(*n);
            let Some(&r) = self.by_note.get(&what).filter(|r| !self.records[**r].writes.is_empty()) else { continue };
            match (kind, missing) {
                (note::RETURNED, None) if !is_there[r] => missing = Some(r),
                (note::INVOKED, Some(first)) if is_there[r] => {
                    let (id, first) = (self.records[r].id, self.records[first].id);
                    return Err(format!("no prefix: {id:#x} is there, but not {first:#x}, which had returned when it was called"));
                }
                _ => {}
            }
        }
        for record in self.records.iter().zip(is_there).filter(|(_, there)| !**there).map(|(r, _)| r) {
            if let Some((cell, _)) = record.reads.iter().find(|(cell, id)| reached[*cell] > self.places[*cell][id]) {
                return Err(format!("no prefix: {:#x} is not there, but a later change of cell {cell}, which it read", record.id));
            }
        }
        Ok(())
    }
}
