//! Calls of the system that need `unsafe`, or that several crates make alike.
//!
//! Invariant: nothing here knows what it is called for; an error is that of the kernel.

pub mod aio;
pub mod pipes;
pub mod tcp;
pub mod threads;
pub mod zero_copy;

use std::io::Read;

/// 32 random bytes of the kernel, fit for secrets.
///
/// # Errors
/// When there is no `/dev/urandom`, or no descriptor is left.
pub fn random_bytes() -> std::io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    fill_random(&mut bytes)?;
    Ok(bytes)
}

fn fill_random(bytes: &mut [u8]) -> std::io::Result<()> {
    std::fs::File::open("/dev/urandom")?.read_exact(bytes)
}

/// Random words of the kernel, fit for secrets, some hundred of them at a time.
#[derive(Default)]
pub struct RandomWords(Vec<u64>);

/// Words that are asked for at a time: a system call for each would cost more than what a key is
/// for.
const WORDS_AT_ONCE: usize = 512;

impl RandomWords {
    /// One more.
    ///
    /// # Errors
    /// As of [`random_bytes`].
    #[allow(clippy::should_implement_trait)] // it has no end, and may fail
    pub fn next(&mut self) -> std::io::Result<u64> {
        if self.0.is_empty() {
            let mut bytes = [0; 8 * WORDS_AT_ONCE];
            fill_random(&mut bytes)?;
            let words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
            self.0.extend(words);
        }
        Ok(self.0.pop().expect("it was filled"))
    }
}
