//! Calls of the system that need `unsafe`, or that several crates make alike.
//!
//! Invariant: nothing here knows what it is called for; an error is that of the kernel.

pub mod aio;
pub mod pipes;
pub mod tcp;
pub mod threads;
pub mod zero_copy;

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use std::io::Read;

/// 32 random bytes of the kernel, fit for secrets.
///
/// # Errors
/// When there is no `/dev/urandom`, or no descriptor is left.
pub fn random_bytes() -> std::io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Random words, fit for secrets: a stream of ChaCha20, with a key of the kernel for each 65,536
/// words. In the child of a fork they would be those of the parent.
#[derive(Default)]
pub struct RandomWords {
    stream: Option<ChaCha20Rng>,
    /// Words left of this key.
    left: u32,
}

/// Words of one key: asking the kernel for each would cost more than what it is for.
const WORDS_A_KEY: u32 = 1 << 16;

impl RandomWords {
    /// One more.
    ///
    /// # Errors
    /// As of [`random_bytes`].
    #[inline]
    #[allow(clippy::should_implement_trait)] // it has no end, and may fail
    pub fn next(&mut self) -> std::io::Result<u64> {
        let stream = match &mut self.stream {
            Some(stream) if self.left > 0 => stream,
            stale => {
                self.left = WORDS_A_KEY;
                stale.insert(ChaCha20Rng::from_seed(random_bytes()?))
            }
        };
        self.left -= 1;
        Ok(stream.next_u64())
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn words_of_one_stream_or_of_two_have_nothing_in_common() {
        let mut streams = [RandomWords::default(), RandomWords::default()];
        let mut seen = HashSet::new();
        // More than one key gives. Of so many words two are equal in one of some million runs.
        for _ in 0..WORDS_A_KEY + 10 {
            assert!(streams.iter_mut().all(|stream| seen.insert(stream.next().expect("there is /dev/urandom"))));
        }
        assert!(streams.iter().all(|stream| stream.left == WORDS_A_KEY - 10));
    }
}
