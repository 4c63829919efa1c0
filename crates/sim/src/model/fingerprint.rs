//! A fast hash of small fields: eight bytes are gathered, then folded in by one multiplication of 128 bits, as `wyhash` does.

use std::hash::{BuildHasherDefault, Hasher};

/// Two odd constants with half of their bits set (wyhash, Wang Yi).
const MULTIPLIER: u64 = 0xA076_1D64_78BD_642F;
const START: u64 = 0xE703_7ED1_A0B4_28DB;

/// The hasher.
#[derive(Clone, Copy)]
pub struct Fingerprint {
    state: u64,
    gathered: u64,
    bits: u32,
}

/// Maps by this hash.
pub type Build = BuildHasherDefault<Fingerprint>;

impl Default for Fingerprint {
    fn default() -> Self {
        Self {
            state: START,
            gathered: 0,
            bits: 0,
        }
    }
}

#[inline]
fn fold(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    (product >> 64) as u64 ^ product as u64
}

impl Hasher for Fingerprint {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u8(*byte);
        }
    }
    #[inline]
    fn write_u8(&mut self, byte: u8) {
        self.gathered |= u64::from(byte) << self.bits;
        self.bits += 8;
        if self.bits == 64 {
            self.state = fold(self.state ^ self.gathered, MULTIPLIER);
            (self.gathered, self.bits) = (0, 0);
        }
    }
    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.state = fold(self.state ^ number, MULTIPLIER);
    }
    /// Discriminants of enums and lengths of arrays: all below 256 here.
    #[inline]
    fn write_isize(&mut self, number: isize) {
        self.write_u8(number as u8);
    }
    #[inline]
    fn write_usize(&mut self, number: usize) {
        self.write_u8(number as u8);
    }
    #[inline]
    fn finish(&self) -> u64 {
        fold(
            self.state ^ self.gathered ^ u64::from(self.bits) << 56,
            MULTIPLIER ^ START,
        )
    }
}

/// For keys that are fingerprints already.
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
