//! What the bytes of an operation look like: a keystream from the operation's number, so that any
//! piece of memory can be asked "are you bytes i.. of operation k?" without keeping a copy of what
//! was sent.
//!
//! Invariant: two different operations agree on 8 aligned bytes with probability 2^-64, so a stale,
//! doubled or misplaced deposit cannot pass for the right one unless it is a few bytes long.

use crate::rng::mix;

/// Fills `out` with bytes `at..` of the pattern of `key`.
pub(crate) fn fill(key: u64, at: u64, out: &mut [u8]) {
    let mut i = 0;
    while i < out.len() {
        let position = at + i as u64;
        let word = word(key, position / 8);
        let skip = (position % 8) as usize;
        let n = (8 - skip).min(out.len() - i);
        out[i..i + n].copy_from_slice(&word[skip..skip + n]);
        i += n;
    }
}

/// The first index where `bytes` differs from bytes `at..` of the pattern of `key`.
pub(crate) fn mismatch(key: u64, at: u64, bytes: &[u8]) -> Option<usize> {
    let mut i = 0;
    while i < bytes.len() {
        let position = at + i as u64;
        let word = word(key, position / 8);
        let skip = (position % 8) as usize;
        let n = (8 - skip).min(bytes.len() - i);
        if bytes[i..i + n] != word[skip..skip + n] {
            return (i..i + n).find(|&j| bytes[j] != word[skip + j - i]);
        }
        i += n;
    }
    None
}

/// What the notification of an operation carries.
pub(crate) fn word_of(key: u64) -> u64 {
    mix(key ^ 0x2545_f491_4f6c_dd1d)
}

fn word(key: u64, index: u64) -> [u8; 8] {
    mix(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ mix(index.wrapping_add(0x5851_f42d_4c95_7f2d))).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_piece_is_recognised_and_any_change_is_found() {
        let mut whole = vec![0; 1000];
        fill(42, 0, &mut whole);
        for (at, len) in [(0, 1000), (3, 5), (7, 1), (8, 8), (13, 600)] {
            assert_eq!(mismatch(42, at, &whole[at as usize..][..len]), None);
        }
        assert!(mismatch(43, 0, &whole).is_some());
        whole[501] ^= 1;
        assert_eq!(mismatch(42, 500, &whole[500..]), Some(1));
    }
}
