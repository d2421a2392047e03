//! The instructions that move bytes from the CPU to durable memory, behind one interface.
//!
//! ```text
//!   store(dst, src)      cached, whole aligned 8-byte words       then write_back(dst, len), then fence()
//!   stream(dst, src)     past the cache                           then fence()
//!
//!         dst ──┐ head: cached + write_back     whole lines: non-temporal     tail: cached + write_back
//!         ......[####|################################|################|##]......
//!              line boundary                                         line boundary
//! ```
//!
//! What must always hold: an aligned 8-byte word is written by one store instruction, so that a crash never tears it; nothing
//! here returns before its instructions are issued in program order (the assembly blocks clobber memory); only [`fence`]
//! waits. Which instructions exist is found once, at first use: CLWB, else CLFLUSHOPT, else CLFLUSH on x86-64; DC CVAP, else
//! DC CVAC on aarch64. Elsewhere (and under Miri) write-backs do nothing, and [`write_back_method`] says so: such a CPU can run
//! every medium but `dax`.

use crate::LINE;

/// Copies `src` to `dst` with cached stores, one instruction per aligned 8-byte word.
///
/// # Safety
/// `dst` must be valid for writes of `src.len()` bytes, which no other thread accesses meanwhile, and must not overlap `src`.
#[inline]
pub unsafe fn store(dst: *mut u8, src: &[u8]) {
    let head = dst.align_offset(8).min(src.len());
    let words = (src.len() - head) / 8;
    let tail = head + words * 8;
    let from = src.as_ptr();
    // SAFETY: every access lies in `dst..dst + src.len()` and `src`, by the caller's promise and the three lengths above;
    // `dst + head` is 8-byte aligned whenever `words > 0`. Volatile, because a copy routine may tear words that it covers
    // with two unaligned stores.
    unsafe {
        for i in 0..head {
            dst.add(i).write_volatile(*from.add(i));
        }
        let (to, from_words) = (dst.add(head).cast::<u64>(), from.add(head).cast::<u64>());
        for i in 0..words {
            to.add(i).write_volatile(from_words.add(i).read_unaligned());
        }
        for i in tail..src.len() {
            dst.add(i).write_volatile(*from.add(i));
        }
    }
}

/// Stores the words of a line whose bits `mask` has, one instruction each, the lower first.
///
/// # Safety
/// `line` must be aligned to 8 and valid for writes of a line, whose words in `mask` no other thread accesses meanwhile.
#[inline]
pub unsafe fn store_words(line: *mut u64, words: &[u64; LINE / 8], mask: u8) {
    // SAFETY: within the line, by the caller's promise. Volatile, as in `store`.
    let store = |at: usize| unsafe { line.add(at).write_volatile(words[at]) };
    if mask == u8::MAX {
        return (0..LINE / 8).for_each(store);
    }
    let mut left = mask;
    while left != 0 {
        store(left.trailing_zeros() as usize);
        left &= left - 1;
    }
}

/// Copies `src` to `dst` past the cache: whole lines with non-temporal stores, an unaligned head and tail with cached stores
/// that are written back. Durable after [`fence`]; visible to other threads in order after it too.
///
/// # Safety
/// As for [`store`].
#[inline]
pub unsafe fn stream(dst: *mut u8, src: &[u8]) {
    let head = dst.align_offset(LINE).min(src.len());
    let lines = (src.len() - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: the three parts partition `dst..dst + src.len()`, valid by the caller's promise; `dst + head` is line-aligned
    // whenever `lines > 0`.
    unsafe {
        if head > 0 {
            store(dst, &src[..head]);
            write_back(dst, head);
        }
        if lines > 0 {
            arch::stream_lines(dst.add(head), src.as_ptr().add(head), lines);
        }
        if tail < src.len() {
            store(dst.add(tail), &src[tail..]);
            write_back(dst.add(tail), src.len() - tail);
        }
    }
}

/// Starts writing back the lines that hold `ptr..ptr + len`; returns how many. Done when [`fence`] returns.
///
/// # Safety
/// The range must be mapped.
#[inline]
pub unsafe fn write_back(ptr: *const u8, len: usize) -> usize {
    if len == 0 {
        return 0;
    }
    let first = ptr.addr() & !(LINE - 1);
    let lines = lines_of(ptr.addr(), len);
    // SAFETY: the lines that hold a mapped range are mapped, because a page is a multiple of a line.
    unsafe { arch::write_back_lines(ptr.with_addr(first), lines) };
    lines
}

/// How many lines hold `addr..addr + len`.
#[inline]
pub(crate) fn lines_of(addr: usize, len: usize) -> usize {
    if len == 0 { 0 } else { (addr + len - 1) / LINE - addr / LINE + 1 }
}

/// Asks for the line at `address`, which is going to be written. A hint: any address will do.
#[inline(always)]
pub fn prefetch_to_write(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch of any address is harmless.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_ET0>(address.cast());
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    let _ = address;
}

/// Fetches the line at `address` into the cache while the caller does something else. A hint: any address is allowed, and where
/// there is no such instruction nothing happens.
#[inline(always)]
pub fn prefetch(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch of any address is harmless.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    let _ = address;
}

/// Waits until everything this thread streamed, or stored and wrote back, has reached durable memory.
#[inline]
pub fn fence() {
    arch::fence();
}

/// The write-back instruction in use: `clwb`, `clflushopt`, `clflush`, `dc cvap`, `dc cvac`, or `none`.
pub fn write_back_method() -> &'static str {
    arch::write_back_method()
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod arch {
    use crate::LINE;
    use std::arch::asm;
    use std::arch::x86_64::*;
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

    const UNKNOWN: u8 = 0;
    const CLFLUSH: u8 = 1;
    const CLFLUSHOPT: u8 = 2;
    const CLWB: u8 = 3;
    /// Write-back instruction, found at first use. A race finds the same answer twice.
    static METHOD: AtomicU8 = AtomicU8::new(UNKNOWN);

    #[inline]
    fn method() -> u8 {
        match METHOD.load(Relaxed) {
            UNKNOWN => find(),
            known => known,
        }
    }

    #[cold]
    fn find() -> u8 {
        use crate::detect::{CLFLUSHOPT as HAS_CLFLUSHOPT, CLWB as HAS_CLWB, extended_features};
        let features = extended_features();
        // CLFLUSH came with SSE2, which every x86-64 has.
        let found = if features & HAS_CLWB != 0 {
            CLWB
        } else if features & HAS_CLFLUSHOPT != 0 {
            CLFLUSHOPT
        } else {
            CLFLUSH
        };
        METHOD.store(found, Relaxed);
        found
    }

    pub fn write_back_method() -> &'static str {
        match method() {
            CLWB => "clwb",
            CLFLUSHOPT => "clflushopt",
            _ => "clflush",
        }
    }

    #[inline]
    pub unsafe fn write_back_lines(first: *const u8, lines: usize) {
        let method = method();
        for i in 0..lines {
            let line = first.wrapping_add(i * LINE);
            // SAFETY: the line is mapped (caller), and the CPU has the instruction (`method`).
            unsafe {
                match method {
                    CLWB => asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)),
                    CLFLUSHOPT => {
                        asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags))
                    }
                    _ => asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags)),
                }
            }
        }
    }

    #[inline]
    pub fn fence() {
        // SAFETY: SFENCE has no precondition. In assembly, so that no store is moved across it by the compiler.
        unsafe { asm!("sfence", options(nostack, preserves_flags)) }
    }

    /// `dst` is line-aligned; `src` need not be.
    #[inline]
    pub unsafe fn stream_lines(dst: *mut u8, src: *const u8, lines: usize) {
        // SAFETY: the caller's promise, and AVX is there in the first arm.
        unsafe {
            if is_x86_feature_detected!("avx") {
                stream_lines_avx(dst, src, lines);
            } else {
                stream_lines_sse2(dst, src, lines);
            }
        }
    }

    #[target_feature(enable = "avx")]
    unsafe fn stream_lines_avx(dst: *mut u8, src: *const u8, lines: usize) {
        for i in 0..lines {
            // SAFETY: line `i` of both ranges is inside them; `dst` is 64-byte aligned, the loads are unaligned ones.
            unsafe {
                let (to, from) = (dst.add(i * LINE).cast::<__m256i>(), src.add(i * LINE).cast::<__m256i>());
                let (a, b) = (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1)));
                _mm256_stream_si256(to, a);
                _mm256_stream_si256(to.add(1), b);
            }
        }
    }

    pub(super) unsafe fn stream_lines_sse2(dst: *mut u8, src: *const u8, lines: usize) {
        for i in 0..lines * 4 {
            // SAFETY: quarter-line `i` of both ranges is inside them; `dst` is 64-byte aligned, the load is an unaligned one.
            unsafe {
                let piece = _mm_loadu_si128(src.cast::<__m128i>().add(i));
                _mm_stream_si128(dst.cast::<__m128i>().add(i), piece);
            }
        }
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
mod arch {
    use crate::LINE;
    use std::arch::asm;
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

    const UNKNOWN: u8 = 0;
    const CVAC: u8 = 1;
    const CVAP: u8 = 2;
    static METHOD: AtomicU8 = AtomicU8::new(UNKNOWN);

    #[inline]
    fn method() -> u8 {
        match METHOD.load(Relaxed) {
            UNKNOWN => find(),
            known => known,
        }
    }

    #[cold]
    fn find() -> u8 {
        // SAFETY: reads this process' auxiliary vector.
        let caps = unsafe { libc::getauxval(libc::AT_HWCAP) };
        let found = if caps & libc::HWCAP_DCPOP != 0 { CVAP } else { CVAC };
        METHOD.store(found, Relaxed);
        found
    }

    pub fn write_back_method() -> &'static str {
        if method() == CVAP { "dc cvap" } else { "dc cvac" }
    }

    #[inline]
    pub unsafe fn write_back_lines(first: *const u8, lines: usize) {
        let method = method();
        for i in 0..lines {
            let line = first.wrapping_add(i * LINE);
            // SAFETY: the line is mapped (caller). The system-instruction forms of DC CVAP and DC CVAC, which every assembler
            // knows; Linux enables both at user level where they exist.
            unsafe {
                if method == CVAP {
                    asm!("sys #3, c7, c12, #1, {}", in(reg) line, options(nostack, preserves_flags));
                } else {
                    asm!("sys #3, c7, c10, #1, {}", in(reg) line, options(nostack, preserves_flags));
                }
            }
        }
    }

    #[inline]
    pub fn fence() {
        // SAFETY: a barrier has no precondition.
        unsafe { asm!("dsb sy", options(nostack, preserves_flags)) }
    }

    #[inline]
    pub unsafe fn stream_lines(dst: *mut u8, src: *const u8, lines: usize) {
        // SAFETY: the caller's promise for both ranges. Non-temporal pairs on this architecture are hints that order nothing
        // with DC CVAP, so a cached copy that is written back is the dependable form.
        unsafe {
            super::store(dst, std::slice::from_raw_parts(src, lines * LINE));
            write_back_lines(dst, lines);
        }
    }
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod arch {
    use crate::LINE;

    pub fn write_back_method() -> &'static str {
        "none"
    }

    pub unsafe fn write_back_lines(_first: *const u8, _lines: usize) {}

    pub fn fence() {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }

    pub unsafe fn stream_lines(dst: *mut u8, src: *const u8, lines: usize) {
        // SAFETY: the caller's promise for both ranges.
        unsafe { super::store(dst, std::slice::from_raw_parts(src, lines * LINE)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A buffer whose line offsets are known.
    #[repr(align(64))]
    struct Aligned([u8; 1024]);

    type Copy = unsafe fn(*mut u8, &[u8]);

    #[test]
    fn copies_every_alignment_and_nothing_beside() {
        let src: Vec<u8> = (0..600u32).map(|i| (i * 7 + 1) as u8).collect();
        for copy in [store as Copy, stream as Copy] {
            for off in 0..70 {
                for len in [0, 1, 7, 8, 9, 63, 64, 65, 127, 128, 200, 256, 511] {
                    for src_off in [0, 1, 8] {
                        let mut to = Aligned([0xEE; 1024]);
                        let from = &src[src_off..src_off + len];
                        // SAFETY: `off + len` is less than 1024, and nobody else knows `to`.
                        unsafe { copy(to.0.as_mut_ptr().add(off), from) };
                        fence();
                        assert_eq!(&to.0[off..off + len], from, "off {off} len {len}");
                        assert!(to.0[..off].iter().chain(&to.0[off + len..]).all(|b| *b == 0xEE), "off {off} len {len}");
                    }
                }
            }
        }
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[test]
    fn the_sse2_way_copies_too() {
        let src: Vec<u8> = (0..257u32).map(|i| i as u8).collect();
        let mut to = Aligned([0; 1024]);
        // SAFETY: both ranges hold four lines.
        unsafe { arch::stream_lines_sse2(to.0.as_mut_ptr(), src.as_ptr().add(1), 4) };
        fence();
        assert_eq!(to.0[..256], src[1..]);
        assert_eq!(to.0[256], 0);
    }

    #[test]
    fn counts_lines() {
        for (addr, len, lines) in [(0, 0, 0), (0, 1, 1), (63, 1, 1), (63, 2, 2), (64, 64, 1), (1, 64, 2), (0, 4096, 64)] {
            assert_eq!(lines_of(addr, len), lines, "{addr} {len}");
        }
        let buffer = Aligned([0; 1024]);
        // SAFETY: the range is inside the buffer.
        assert_eq!(unsafe { write_back(buffer.0.as_ptr().add(60), 70) }, 3);
        assert!(!write_back_method().is_empty());
    }
}
