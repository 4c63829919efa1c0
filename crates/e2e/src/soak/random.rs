//! Random numbers that a seed repeats.

use std::ops::RangeInclusive;

/// A stream of random numbers: SplitMix64 (Steele, Lea and Flood, 2014). Good enough to choose faults, and nothing else.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number of the range, which holds at least one.
    pub fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        let size = range.end().saturating_sub(*range.start()).saturating_add(1);
        range.start() + self.draw() % size
    }

    /// True with this percentage.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.draw() % 100 < percent
    }

    /// One of the values; `None` if there are none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        let last = u64::try_from(from.len()).ok()?.checked_sub(1)?;
        from.get(usize::try_from(self.within(0..=last)).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_numbers() {
        // The first numbers of seed 1234567 in the authors' own program.
        let mut random = Random::new(1_234_567);
        assert_eq!(
            [random.draw(), random.draw()],
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]
        );
    }

    #[test]
    fn numbers_stay_in_their_range_and_reach_all_of_it() {
        let mut random = Random::new(1);
        let drawn: std::collections::BTreeSet<u64> = (0..200).map(|_| random.within(3..=7)).collect();
        assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [3, 4, 5, 6, 7]);
        assert_eq!(random.pick::<u8>(&[]), None);
        assert_eq!(random.pick(&["a"]), Some(&"a"));
    }
}
