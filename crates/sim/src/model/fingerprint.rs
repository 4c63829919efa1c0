//! A fast hash of words: NH (UMAC, RFC 4418) multiplies pairs of words, each with its own keys, and adds the products,
//! so no multiplication waits for the previous one. Two different states have the same sum with a probability of 2^-64.

use std::hash::{BuildHasherDefault, Hasher};

/// No state has more pairs of words. More pairs would use keys twice.
const PAIRS: usize = 128;

/// Keys that look random: the numbers of splitmix64 (Steele, Lea, Flood), starting at 1.
static KEYS: [(u64, u64); PAIRS] = {
    let mut keys = [(0, 0); PAIRS];
    let mut pair = 0;
    while pair < PAIRS {
        keys[pair] = (split(2 * pair as u64 + 1), split(2 * pair as u64 + 2));
        pair += 1;
    }
    keys
};

const fn split(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}

/// The hasher. It is fastest with two words at a time ([`Hasher::write_u128`]).
#[derive(Clone, Copy, Default)]
pub struct Fingerprint {
    sum: u128,
    pairs: usize,
}

/// Builds maps with this hash.
pub type Build = BuildHasherDefault<Fingerprint>;

impl Hasher for Fingerprint {
    #[inline]
    fn write_u128(&mut self, pair: u128) {
        let (one, other) = KEYS[self.pairs % PAIRS];
        let product =
            u128::from((pair as u64).wrapping_add(one)) * u128::from(((pair >> 64) as u64).wrapping_add(other));
        self.sum = self.sum.wrapping_add(product);
        self.pairs += 1;
    }
    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.write_u128(number.into());
    }
    #[inline]
    fn write_u8(&mut self, number: u8) {
        self.write_u128(number.into());
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u8(*byte);
        }
    }
    #[inline]
    fn finish(&self) -> u64 {
        let product =
            (self.sum ^ u128::from(KEYS[0].0)) as u64 as u128 * u128::from((self.sum >> 64) as u64 ^ KEYS[0].1);
        (product >> 64) as u64 ^ product as u64
    }
}

/// A hasher for keys that are fingerprints already.
#[derive(Clone, Copy, Default)]
pub struct Same(u64);

impl Hasher for Same {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0 << 8 | u64::from(*byte);
        }
    }
    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
    fn finish(&self) -> u64 {
        self.0
    }
}
