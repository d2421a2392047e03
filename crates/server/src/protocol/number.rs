//! Numbers as memcached reads and writes them.
//!
//! memcached reads every number with `strtol`/`strtoul`/`strtoull` of the C library and accepts it when what follows is white
//! space or the end. That lets through more than a strict parser would (leading white space, a sign, `5 abc`, wrap-around to 32
//! bits), and clients have come to depend on some of it, so these functions follow the C library to the letter.
//! What must always hold: no input panics, and nothing here allocates.

fn is_space(b: u8) -> bool {
    matches!(b, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

/// Sign, magnitude and the bytes after the number; `None` when there is no digit or more than 64 bits of them.
fn scan(text: &[u8]) -> Option<(bool, u64, &[u8])> {
    let start = text.iter().position(|b| !is_space(*b))?;
    let (negative, digits) = match text[start] {
        b'-' => (true, &text[start + 1..]),
        b'+' => (false, &text[start + 1..]),
        _ => (false, &text[start..]),
    };
    let len = digits.iter().position(|b| !b.is_ascii_digit()).unwrap_or(digits.len());
    if len == 0 {
        return None;
    }
    let mut value = 0u64;
    for digit in &digits[..len] {
        value = value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    Some((negative, value, &digits[len..]))
}

/// Whether a number may end where `rest` begins.
fn ends(rest: &[u8]) -> bool {
    rest.first().is_none_or(|b| is_space(*b) || *b == 0)
}

fn scan_u64(text: &[u8]) -> Option<u64> {
    let (negative, magnitude, rest) = scan(text)?;
    if !ends(rest) {
        return None;
    }
    let value = if negative { magnitude.wrapping_neg() } else { magnitude };
    // A "negative" number is refused only where it looks negative: the C code tests the sign bit, then searches for a '-'.
    let text_end = text.iter().position(|b| *b == 0).unwrap_or(text.len());
    if (value as i64) < 0 && text[..text_end].contains(&b'-') {
        return None;
    }
    Some(value)
}

/// `safe_strtoull`.
pub fn parse_u64(text: &[u8]) -> Option<u64> {
    scan_u64(text)
}

/// `safe_strtoul`: 64 bits are read, the upper half is dropped.
pub fn parse_u32(text: &[u8]) -> Option<u32> {
    scan_u64(text).map(|value| value as u32)
}

/// `safe_strtol`: 64 bits are read, the upper half is dropped.
pub fn parse_i32(text: &[u8]) -> Option<i32> {
    let (negative, magnitude, rest) = scan(text)?;
    if !ends(rest) {
        return None;
    }
    let value = match negative {
        false => i64::try_from(magnitude).ok()?,
        true if magnitude <= 1 << 63 => (magnitude as i64).wrapping_neg(),
        true => return None,
    };
    Some(value as i32)
}

/// Most digits [`format_u64`] writes.
pub const DIGITS_MAX: usize = 20;

/// Writes `value` in decimal at the end of `into` and returns the digits.
pub fn format_u64(mut value: u64, into: &mut [u8; DIGITS_MAX]) -> &[u8] {
    let mut at = DIGITS_MAX;
    loop {
        at -= 1;
        into[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            return &into[at..];
        }
    }
}

/// Appends `value` in decimal.
pub fn push_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(format_u64(value, &mut [0; DIGITS_MAX]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_the_c_library_accepts() {
        assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_u64(b"18446744073709551616"), None);
        assert_eq!(parse_u64(b" \t12\r\n"), Some(12));
        assert_eq!(parse_u64(b"+5"), Some(5));
        assert_eq!(parse_u64(b"5 abc"), Some(5));
        assert_eq!(parse_u64(b"5abc"), None);
        assert_eq!(parse_u64(b""), None);
        assert_eq!(parse_u64(b"-"), None);
        assert_eq!(parse_u64(b"-1"), None);
        assert_eq!(parse_u64(b"-0"), Some(0));
        assert_eq!(parse_u64(b"-18446744073709551615"), Some(1));
        assert_eq!(parse_u64(b"7\0junk"), Some(7));
    }

    #[test]
    fn narrow_numbers_keep_the_low_half() {
        assert_eq!(parse_u32(b"4294967295"), Some(u32::MAX));
        assert_eq!(parse_u32(b"4294967296"), Some(0));
        assert_eq!(parse_u32(b"-1"), None);
        assert_eq!(parse_i32(b"4294967301"), Some(5));
        assert_eq!(parse_i32(b"-1"), Some(-1));
        assert_eq!(parse_i32(b"9223372036854775807"), Some(-1));
        assert_eq!(parse_i32(b"9223372036854775808"), None);
        assert_eq!(parse_i32(b"-9223372036854775808"), Some(0));
        assert_eq!(parse_i32(b"-9223372036854775809"), None);
    }

    #[test]
    fn writes_decimal() {
        for value in [0, 9, 10, 12345, u64::MAX] {
            let mut out = Vec::new();
            push_u64(&mut out, value);
            assert_eq!(out, value.to_string().into_bytes());
        }
    }
}
