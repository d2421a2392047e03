//! What a draft has changed of its base, by page, while it is being written.
//!
//! What must always hold: pieces do not overlap; the last word on a page counts.

use std::collections::BTreeMap;

use super::index::{Index, Run};
use crate::pages::Pages;

/// What became of a range of pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// They are zeros.
    Gone,
    /// They lie in the draft's own file from page `offset` on, with these checksums.
    Stored { offset: u64, sums: Vec<u32> },
}

#[derive(Debug)]
struct Piece {
    end: u64,
    change: Change,
}

/// The pieces, by their first page.
#[derive(Debug, Default)]
pub(super) struct Overlay(BTreeMap<u64, Piece>);

impl Overlay {
    /// The last word on `pages`.
    pub(super) fn set(&mut self, pages: Pages, change: Change) {
        if pages.is_empty() {
            return;
        }
        if let Change::Stored { sums, .. } = &change {
            debug_assert_eq!(sums.len() as u64, pages.end - pages.start);
        }
        self.cut_at(pages.start);
        self.cut_at(pages.end);
        let covered: Vec<u64> = self.0.range(pages.clone()).map(|(&first, _)| first).collect();
        covered.iter().for_each(|first| drop(self.0.remove(first)));
        self.0.insert(pages.start, Piece { end: pages.end, change });
    }

    /// Makes `page` the first of a piece, if it lies inside of one.
    fn cut_at(&mut self, page: u64) {
        let Some((&first, piece)) = self.0.range_mut(..page).next_back().filter(|(_, piece)| piece.end > page) else { return };
        let change = match &mut piece.change {
            Change::Gone => Change::Gone,
            Change::Stored { offset, sums } => {
                Change::Stored { offset: *offset + (page - first), sums: sums.split_off((page - first) as usize) }
            }
        };
        let end = std::mem::replace(&mut piece.end, page);
        self.0.insert(page, Piece { end, change });
    }

    /// The first of `pages` that are stored here and lie together, and where they do: `(pages, offset)`.
    pub(super) fn first_stored(&self, pages: Pages) -> Option<(Pages, u64)> {
        let before = self.0.range(..pages.start).next_back().filter(|(_, piece)| piece.end > pages.start);
        let inside = before.into_iter().chain(self.0.range(pages.clone()));
        inside.into_iter().find_map(|(&first, piece)| match piece.change {
            Change::Stored { offset, .. } => {
                let start = first.max(pages.start);
                Some((start..piece.end.min(pages.end), offset + (start - first)))
            }
            Change::Gone => None,
        })
    }

    /// Adds to `index` what is left of `base`, and what is stored here as lying in file number `own`; the base's files keep
    /// their numbers.
    pub(super) fn apply(&self, base: &Index, index: &mut Index, own: u32) {
        let mut pieces = self.0.iter().peekable();
        let push_piece = |index: &mut Index, first: u64, piece: &Piece| {
            if let Change::Stored { offset, sums } = &piece.change {
                index.push(Run::new(first, piece.end - first, own, *offset), sums);
            }
        };
        for (run, sums) in base.summed() {
            let mut at = run.first;
            while at < run.end() {
                match pieces.peek() {
                    Some((first, piece)) if piece.end <= at => {
                        push_piece(index, **first, piece);
                        pieces.next();
                    }
                    Some((first, piece)) if **first <= at => at = piece.end,
                    next => {
                        let end = next.map_or(run.end(), |(first, _)| run.end().min(**first));
                        let part = run.clipped(&(at..end));
                        let from = (at - run.first) as usize;
                        index.push(part, &sums[from..from + part.pages as usize]);
                        at = end;
                    }
                }
            }
        }
        pieces.for_each(|(&first, piece)| push_piece(index, first, piece));
    }
}
