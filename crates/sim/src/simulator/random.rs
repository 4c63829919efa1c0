//! Named streams of random numbers: one more draw from one stream changes no other.

/// One stream (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream called `name` of `seed`.
    pub fn of(seed: u64, name: &str) -> Self {
        let mixed = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let mut random = Self(mixed ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        random.next();
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `count`; 0 if that is 0.
    pub fn below(&mut self, count: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(count)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True with a probability of `thousandths` per thousand.
    pub fn chance(&mut self, thousandths: u64) -> bool {
        self.below(1_000) < thousandths
    }

    /// One of `all`, which is not empty.
    pub fn one<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// The streams of a run.
#[derive(Clone, Debug)]
pub struct Streams {
    /// Delays and losses between members.
    pub network: Random,
    /// Delays and failures of the API server.
    pub api: Random,
    /// How long the disk takes.
    pub disk: Random,
    /// How long programs take: starts, tools, the kubelet.
    pub work: Random,
    /// When applications write.
    pub clients: Random,
    /// The operator's requests and watches, controllers and kubelets.
    pub operator: Random,
    /// How long the store of archived WAL takes, and whether it answers.
    pub store: Random,
}

impl Streams {
    /// All streams of `seed`.
    pub fn of(seed: u64) -> Self {
        Self {
            network: Random::of(seed, "network"),
            api: Random::of(seed, "api"),
            disk: Random::of(seed, "disk"),
            work: Random::of(seed, "work"),
            clients: Random::of(seed, "clients"),
            operator: Random::of(seed, "operator"),
            store: Random::of(seed, "store"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_one_seed_differ_and_are_the_same_each_time() {
        let draw = |seed: u64, name: &str| {
            let mut random = Random::of(seed, name);
            [(); 4].map(|()| random.below(1 << 40))
        };
        assert_eq!(draw(7, "network"), draw(7, "network"));
        assert_ne!(draw(7, "network"), draw(7, "api"));
        assert_ne!(draw(7, "network"), draw(8, "network"));
    }

    #[test]
    fn numbers_stay_within_their_bounds_and_reach_them() {
        let mut random = Random::of(1, "bounds");
        let drawn: Vec<_> = (0..1_000).map(|_| random.between(3, 6)).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&3), Some(&6)));
        assert!(!random.chance(0) && random.chance(1_000));
    }
}
