//! ThreadSanitizer: where its runtime lets a program map memory.
//!
//! It computes the place of a byte's shadow from the byte's address, and does so for some ranges of addresses only. A mapping
//! anywhere else ends the program. So a fixed address is compared with the low range first.

use std::sync::OnceLock;

/// The end of the low range of x86-64, in which the runtime expects programs that are not position-independent. They leave
/// most of it free.
const LOW_END: usize = 512 << 30;

/// Before which address a mapping at a fixed address must end in this process; `None` if it may lie anywhere.
pub fn fixed_end() -> Option<usize> {
    static FOUND: OnceLock<bool> = OnceLock::new();
    let is_there = || {
        // SAFETY: looks a name up, in the program and its libraries. The name is a string that ends with a zero byte.
        !unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__tsan_init".as_ptr()) }.is_null()
    };
    (cfg!(all(target_arch = "x86_64", not(miri))) && *FOUND.get_or_init(is_there)).then_some(LOW_END)
}

/// Says why addresses that end behind [`fixed_end`] are refused.
pub(crate) fn refused() -> String {
    format!(
        "lie where ThreadSanitizer keeps its own memory; under it a pool must end below {:#x}: make the pool in a program \
         under ThreadSanitizer, or with a base such as 0x4000000000",
        LOW_END
    )
}
