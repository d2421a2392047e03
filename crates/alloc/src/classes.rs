//! The 40 size classes.
//!
//! ```text
//!   segment (4096 bytes, page-aligned):  | block 0 | block 1 | ... | block n-1 | rest |      blocks of one class, from its start
//! ```
//!
//! What must always hold: sizes grow and are multiples of 16; a block whose size is a multiple of a cache line begins at one; the class
//! of a size never changes from one version to the next, for recovery finds a segment's class by the sizes of the blocks it is shown.
//!
//! Up to 256 bytes every multiple of 16 is a class. Above, there is for each number of blocks that fit a segment the largest size, and the
//! multiples of 64 between, for what wants whole lines.

/// Bytes of a segment.
pub const SEGMENT: u64 = 4096;
/// How many classes there are.
pub const CLASSES: usize = 40;
/// Bytes of a block of each class.
pub const SIZES: [u16; CLASSES] = [
    16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256, //
    272, 288, 304, 320, 336, 368, 384, 400, 448, 512, 576, 640, 672, 704, 768, 816, 832, 896, 960, 1024, 1344, 1360, 2048, 4096,
];

/// The class of each size in units of 16 bytes, rounded up.
static CLASS_OF: [u8; SEGMENT as usize / 16 + 1] = {
    let mut table = [0; SEGMENT as usize / 16 + 1];
    let (mut units, mut class) = (0, 0);
    while units < table.len() {
        while (SIZES[class] as usize) < units * 16 {
            class += 1;
        }
        table[units] = class as u8;
        units += 1;
    }
    table
};

/// The class for `size` bytes; `None` for large objects.
#[inline]
pub(crate) fn class_of(size: usize) -> Option<usize> {
    if size > SEGMENT as usize {
        return None;
    }
    let class = CLASS_OF[size.div_ceil(16)] as usize;
    // What is whole lines gets whole lines, on a line's boundary.
    if size.is_multiple_of(64) && !SIZES[class].is_multiple_of(64) {
        return (class..CLASSES).find(|c| SIZES[*c].is_multiple_of(64));
    }
    Some(class)
}

/// Blocks of `class` in a segment.
#[inline]
pub(crate) fn blocks(class: usize) -> usize {
    SEGMENT as usize / SIZES[class] as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_the_smallest_class_that_holds_it() {
        assert!(SIZES.windows(2).all(|w| w[0] < w[1]) && SIZES.iter().all(|s| s.is_multiple_of(16)));
        for size in 0..=SEGMENT as usize {
            let class = class_of(size).unwrap();
            assert!(SIZES[class] as usize >= size);
            let lines = size.is_multiple_of(64);
            let smaller = (0..class).any(|c| SIZES[c] as usize >= size && (!lines || SIZES[c].is_multiple_of(64)));
            assert!(!smaller, "{size}");
            assert!(blocks(class) <= 256);
        }
        assert_eq!(class_of(SEGMENT as usize + 1), None);
        // The leaf of a tree.
        assert_eq!(SIZES[class_of(896).unwrap()], 896);
    }
}
