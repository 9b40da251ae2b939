//! Seeded random numbers (SplitMix64): the same everywhere, for RANDOM replacement, for generated
//! traces, and for tests of all crates.
//!
//! Invariant: the sequence of a seed never changes; golden counts depend on it.

/// A generator.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// From a seed; any will do.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// An index of something of this length, which must not be 0.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// One of these, of which there must be one.
    pub fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.index(all.len())]
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// A number in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_that_of_splitmix64() {
        // The first numbers of the reference, <https://prng.di.unimi.it/splitmix64.c>.
        let mut rng = Rng::new(1_234_567);
        let first = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([(); 3].map(|()| rng.next_u64()), first);
    }

    #[test]
    fn draws_stay_inside_their_bounds_and_reach_all_of_them() {
        let mut rng = Rng::new(1);
        let mut seen = [0; 5];
        for _ in 0..1_000 {
            seen[rng.index(5)] += 1;
            assert!([3, 5].contains(&rng.pick(&[3, 5])));
            assert!((0.0..1.0).contains(&rng.unit()));
            assert!(rng.chance(1.0) && !rng.chance(0.0));
        }
        assert!(seen.iter().all(|count| (100..300).contains(count)), "{seen:?}");
    }
}
