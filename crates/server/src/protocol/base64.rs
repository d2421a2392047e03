//! Base64 of keys (the meta commands' `b` flag), with memcached's leniency: characters outside the alphabet are skipped, what
//! is left must be whole groups of four.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const SKIP: u8 = 0x80;

const VALUES: [u8; 256] = {
    let mut table = [SKIP; 256];
    let mut i = 0;
    while i < 64 {
        table[ALPHABET[i] as usize] = i as u8;
        i += 1;
    }
    table[b'=' as usize] = 0;
    table
};

/// Appends the encoding of `bytes`.
pub fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    for group in bytes.chunks(3) {
        let (a, b, c) = (group[0], group.get(1).copied().unwrap_or(0), group.get(2).copied().unwrap_or(0));
        let word = u32::from(a) << 16 | u32::from(b) << 8 | u32::from(c);
        let sextet = |shift: u32| ALPHABET[(word >> shift & 63) as usize];
        out.extend_from_slice(&[
            sextet(18),
            sextet(12),
            if group.len() > 1 { sextet(6) } else { b'=' },
            if group.len() > 2 { sextet(0) } else { b'=' },
        ]);
    }
}

/// Decodes into `out`, which is at least as long as `text`; the length, or `None` where memcached refuses.
pub fn decode(text: &[u8], out: &mut [u8]) -> Option<usize> {
    let count = text.iter().filter(|b| VALUES[**b as usize] != SKIP).count();
    if count == 0 || !count.is_multiple_of(4) {
        return None;
    }
    let (mut len, mut filled, mut pads) = (0usize, 0, 0);
    let mut block = [0u8; 4];
    for &b in text {
        let value = VALUES[b as usize];
        if value == SKIP {
            continue;
        }
        pads += usize::from(b == b'=');
        block[filled] = value;
        filled += 1;
        if filled < 4 {
            continue;
        }
        filled = 0;
        out[len] = block[0] << 2 | block[1] >> 4;
        out[len + 1] = block[1] << 4 | block[2] >> 2;
        out[len + 2] = block[2] << 6 | block[3];
        len += 3;
        if pads > 0 {
            len = if pads <= 2 { len - pads } else { 0 };
            break;
        }
    }
    (len > 0).then_some(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(text: &[u8]) -> Option<Vec<u8>> {
        let mut out = [0; 256];
        decode(text, &mut out).map(|len| out[..len].to_vec())
    }

    #[test]
    fn round_trip() {
        for len in 1..100usize {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 37 + len) as u8).collect();
            let mut text = Vec::new();
            encode(&bytes, &mut text);
            assert_eq!(decoded(&text), Some(bytes));
        }
    }

    #[test]
    fn refuses_and_skips_as_memcached_does() {
        assert_eq!(decoded(b""), None);
        assert_eq!(decoded(b"abc"), None);
        assert_eq!(decoded(b"Zm9v"), Some(b"foo".to_vec()));
        assert_eq!(decoded(b"Zm\x809v"), Some(b"foo".to_vec()));
        assert_eq!(decoded(b"Zg=="), Some(b"f".to_vec()));
        assert_eq!(decoded(b"Z==="), None);
        assert_eq!(decoded(b"===="), None);
    }
}
