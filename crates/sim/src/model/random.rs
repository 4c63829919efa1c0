//! Random choices that a seed decides.

/// SplitMix64 (Steele, Lea and Flood, 2014): the same seed gives the same sequence.
pub(super) struct Random(pub u64);

impl Random {
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((z ^ z >> 31) % bound as u64).unwrap_or(0)
    }

    /// Picks an index of `weights`, with a probability in proportion to its weight.
    pub(super) fn pick(&mut self, weights: &[usize]) -> usize {
        let all = weights.iter().sum::<usize>();
        if all == 0 {
            return self.below(weights.len());
        }
        let mut left = self.below(all);
        for (place, weight) in weights.iter().enumerate() {
            if left < *weight {
                return place;
            }
            left -= weight;
        }
        0
    }
}
