//! The one source of randomness of a simulated cluster: everything that varies between two runs is
//! drawn from here.
//!
//! Invariant: the sequence depends on nothing but the seed. No standard-library hasher, address or
//! clock ever feeds a decision, so that a seed replays to the last packet. The generator is
//! xoshiro256** seeded through SplitMix64; it is written out here because its output is part of
//! what a seed means and must not change with a dependency.

/// A seeded generator. Cheap to split into independent streams with [`Rng::fork`].
#[derive(Clone, Debug)]
pub(crate) struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The generator for `seed`.
    pub(crate) fn new(seed: u64) -> Rng {
        let mut x = seed;
        let mut next = || {
            x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(x)
        };
        Rng { state: [next(), next(), next(), next()] }
    }

    /// A generator of its own for a part of the simulation, so that one more draw there does not
    /// shift the others.
    pub(crate) fn fork(&mut self) -> Rng {
        Rng::new(self.next())
    }

    /// The next 64 random bits.
    pub(crate) fn next(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Uniform in `0..bound`; 0 when `bound` is 0. The bias (below 2^-32 for the bounds used here)
    /// does not matter.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Uniform in `low..=high`.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        debug_assert!(low <= high);
        low + self.below(high - low + 1)
    }

    /// True `per_mille` times in a thousand.
    pub(crate) fn chance(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.below(1000) < u64::from(per_mille)
    }

    /// An index below `len`; `None` when there is nothing to choose from.
    pub(crate) fn index(&mut self, len: usize) -> Option<usize> {
        (len > 0).then(|| self.below(len as u64) as usize)
    }

    /// One of `choices`.
    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len()).expect("callers offer at least one choice")]
    }

    /// 32 random bytes, as an engine's seed or a cluster's key.
    pub(crate) fn bytes32(&mut self) -> [u8; 32] {
        let mut out = [0; 32];
        for word in out.chunks_exact_mut(8) {
            word.copy_from_slice(&self.next().to_le_bytes());
        }
        out
    }

    /// A waiting time with the given mean, exponentially distributed in coarse steps without
    /// floating point.
    pub(crate) fn around(&mut self, mean_ns: u64) -> u64 {
        // -ln(u) for u = 2^-k has mean ln 2 per leading zero; two draws give a smooth enough tail.
        let zeros = u64::from(self.next().leading_zeros());
        (zeros * mean_ns + self.below(mean_ns.max(1))) * 2 / 3
    }
}

/// SplitMix64's finaliser: a good 64-bit mixing function.
pub(crate) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_sequence() {
        let (mut a, mut b) = (Rng::new(7), Rng::new(7));
        assert!((0..100).all(|_| a.next() == b.next()));
        assert_ne!(Rng::new(7).next(), Rng::new(8).next());
    }

    #[test]
    fn draws_stay_inside_their_bounds() {
        let mut rng = Rng::new(1);
        for _ in 0..1000 {
            assert!(rng.below(10) < 10);
            assert!((3..=5).contains(&rng.between(3, 5)));
        }
        assert_eq!(rng.index(0), None);
        assert!(!rng.chance(0));
        assert!(rng.chance(1000));
    }

    #[test]
    fn waiting_times_have_about_the_mean_asked_for() {
        let mut rng = Rng::new(2);
        let total: u64 = (0..10_000).map(|_| rng.around(1000)).sum();
        assert!((800_000..1_300_000 * 10).contains(&total), "{total}");
    }
}
