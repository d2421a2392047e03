//! A change of several nodes, put together outside of transactions and made in one.
//!
//! ```text
//!   copies of nodes, under versions ─► what they shall be ─► transaction: versions still the same? ─► new nodes and blobs ─► words
//!                                                                │ no: stale                            that differ, touch
//!                                                                └─► begin anew
//! ```
//!
//! The transaction so reads a handful of versions instead of all the nodes, and logs of an old node only the words that differ.
//!
//! What must always hold: every node that the change was worked out from, and every node whose range of keys it changes, is in it with
//! its version, and is touched. New nodes carry version 0 in the log: it is the working copy's alone.

use towa_tx::{Abort, Addr, Tx};

use super::layout::{Draft, SLACK, Shape, VERSION, WORD_1, Word, aligned, header};

/// A node that is there.
#[derive(Debug)]
struct Old {
    at: Addr,
    version: u64,
    /// It leaves the tree: into the free list of this level's nodes.
    retired: Option<u64>,
}

#[derive(Debug)]
struct New {
    level: u64,
    draft: Draft,
}

/// What a transaction is to change.
#[derive(Debug, Default)]
pub(super) struct Change {
    old: Vec<Old>,
    /// Words of old nodes.
    edits: Vec<(Addr, Word)>,
    new: Vec<New>,
    blobs: Vec<Vec<u64>>,
    free_blobs: Vec<Addr>,
    // Of the run: where new nodes and blobs came to lie, and of each node whether nothing ever lay there.
    nodes: Vec<(Addr, bool)>,
    keys: Vec<Addr>,
}

impl Change {
    /// An existing node that is `was` becomes as drafted. `has` says of a node's words which of them count: one that comes to count is
    /// written in any case, for what is the same here may be another in the image.
    pub fn rewrite(&mut self, at: Addr, version: u64, was: &[u64], draft: Draft, has: impl Fn(&[u64], usize) -> bool) {
        let words = &draft.words;
        let is_new = |i: &usize| has(words, *i) && !(has(was, *i) && words[*i] == was[*i]);
        let new = (1..words.len()).filter(is_new).map(|i| (i, Word::Is(words[i])));
        self.edit(at, version, new.chain(draft.late));
    }

    /// Words of an existing node become others.
    pub fn edit(&mut self, at: Addr, version: u64, words: impl IntoIterator<Item = (usize, Word)>) {
        self.old.push(Old { at, version, retired: None });
        self.edits.extend(words.into_iter().map(|(i, word)| (at + 8 * i as u64, word)));
    }

    /// A node of that level leaves the tree.
    pub fn retire(&mut self, at: Addr, version: u64, level: u64) {
        self.old.push(Old { at, version, retired: Some(level) });
    }

    /// A new node: its number.
    pub fn add(&mut self, level: u64, draft: Draft) -> Word {
        self.new.push(New { level, draft });
        Word::Node(self.new.len() - 1)
    }

    /// A new blob: its number.
    pub fn add_blob(&mut self, words: &[u64]) -> Word {
        self.blobs.push(words.to_vec());
        Word::Blob(self.blobs.len() - 1)
    }

    /// A blob that nothing names any more.
    pub fn free_blob(&mut self, at: Addr) {
        self.free_blobs.push(at);
    }

    /// Makes the change.
    pub fn apply<const L: usize, const I: usize>(&mut self, tx: &mut Tx<'_>, tree: Addr) -> Result<(), Abort> {
        for old in &self.old {
            if tx.read_version(old.at + VERSION)? != old.version {
                return tx.stale();
            }
        }
        self.keys.clear();
        for blob in &self.blobs {
            let at = tx.alloc(blob.len() * 8)?;
            tx.init(at, blob)?;
            self.keys.push(at);
        }
        self.nodes.clear();
        for new in &self.new {
            self.nodes.push(take_node::<L, I>(tx, tree, new.level, new.draft.words.len())?);
        }
        for (new, &(at, fresh)) in self.new.iter_mut().zip(&self.nodes) {
            // Drafted anew for each run: earlier runs' addresses are overwritten.
            for &(i, word) in &new.draft.late {
                new.draft.words[i] = resolve(word, &self.nodes, &self.keys);
            }
            if fresh {
                tx.init(at, &new.draft.words)?;
            } else {
                for (a, &word) in (at..).step_by(8).zip(&new.draft.words).skip(1) {
                    tx.write_guarded(a, word)?;
                }
            }
            tx.touch(at + VERSION)?;
        }
        for old in &self.old {
            tx.touch(old.at + VERSION)?;
            if let Some(level) = old.retired {
                give_node(tx, tree, old.at, level)?;
            }
        }
        for &(at, word) in &self.edits {
            tx.write_guarded(at, resolve(word, &self.nodes, &self.keys))?;
        }
        for &blob in &self.free_blobs {
            tx.free(blob)?;
        }
        Ok(())
    }
}

#[inline]
fn resolve(word: Word, nodes: &[(Addr, bool)], blobs: &[Addr]) -> u64 {
    match word {
        Word::Is(value) => value,
        Word::Node(number) => nodes[number].0,
        Word::Blob(number) => blobs[number],
    }
}

fn free_list(tree: Addr, level: u64) -> Addr {
    tree + if level == 0 { header::FREE_LEAVES } else { header::FREE_INNERS }
}

/// A node out of the tree's own free list, or a [new](new_node) one: whether it is new.
fn take_node<const L: usize, const I: usize>(
    tx: &mut Tx<'_>,
    tree: Addr,
    level: u64,
    filled: usize,
) -> Result<(Addr, bool), Abort> {
    let list = free_list(tree, level);
    // The header's version guards both lists and what is in them: so a split waits for nobody's record but those it builds on.
    tx.read_version(tree + header::VERSION)?;
    let first = tx.read_guarded(list)?;
    if first != 0 {
        tx.read_version(first + VERSION)?;
        let next = tx.read_guarded(first + WORD_1)?;
        tx.touch(tree + header::VERSION)?;
        tx.write_guarded(list, next)?;
        return Ok((first, false));
    }
    Ok((new_node::<L, I>(tx, level, filled)?, true))
}

/// A new node, of which the first `filled` words will be initialised.
pub(super) fn new_node<const L: usize, const I: usize>(tx: &mut Tx<'_>, level: u64, filled: usize) -> Result<Addr, Abort> {
    let slack = SLACK as usize;
    let block = tx.alloc_partly(8 * Shape::<L, I>::words(level) + slack, 8 * filled + slack)?;
    // What is logged beside the node should be no one's old bytes.
    let (node, zeros) = (aligned(block), [0; SLACK as usize / 8]);
    let before = (node - block) as usize / 8;
    tx.init(block, &zeros[..before])?;
    tx.init(node + 8 * filled as u64, &zeros[before..])?;
    Ok(node)
}

fn give_node(tx: &mut Tx<'_>, tree: Addr, node: Addr, level: u64) -> Result<(), Abort> {
    let list = free_list(tree, level);
    tx.read_version(tree + header::VERSION)?;
    let first = tx.read_guarded(list)?;
    tx.touch(tree + header::VERSION)?;
    tx.write_guarded(node + WORD_1, first)?;
    tx.write_guarded(list, node)
}
