//! Random numbers from the seed: ids, ephemeral keys, tokens. The only source of chance in the
//! engine.

use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// The engine's generator.
pub(crate) struct Rng(ChaCha12Rng);

impl Rng {
    pub(crate) fn new(seed: [u8; 32]) -> Rng {
        Rng(ChaCha12Rng::from_seed(seed))
    }

    pub(crate) fn u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A seed for a generator of its own, as each handshake gets one.
    pub(crate) fn seed(&mut self) -> [u8; 32] {
        let mut seed = [0; 32];
        self.0.fill_bytes(&mut seed);
        seed
    }

    pub(crate) fn fill(&mut self, out: &mut [u8]) {
        self.0.fill_bytes(out);
    }
}
