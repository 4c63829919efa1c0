//! Lengths of time and amounts of data. Each unit has its own type, so that the compiler refuses a mix-up.

use std::fmt;
use std::ops::{Add, Div, Mul};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A length of time, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub u64);

impl Millis {
    /// No time.
    pub const ZERO: Self = Self(0);

    /// That many seconds.
    pub const fn seconds(seconds: u64) -> Self {
        Self(seconds * 1_000)
    }

    /// That many minutes.
    pub const fn minutes(minutes: u64) -> Self {
        Self::seconds(minutes * 60)
    }

    /// This share of it, in percent; less than a millisecond is left out.
    pub const fn percent(self, percent: u64) -> Self {
        Self(self.0 * percent / 100)
    }

    /// A back-off that begins with this time and doubles `times` times, at most 16 times and at most up to `longest`.
    pub fn doubled(self, times: u32, longest: Self) -> Self {
        Self(self.0 << times.min(16)).min(longest)
    }

    /// The difference; zero if `other` is longer.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The same as the standard library's type.
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }

    /// Whole seconds, rounded up.
    pub const fn in_seconds(self) -> u64 {
        self.0.div_ceil(1_000)
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0)
    }
}

impl Add for Millis {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl Mul<u64> for Millis {
    type Output = Self;

    fn mul(self, times: u64) -> Self {
        Self(self.0 * times)
    }
}

impl Div<u64> for Millis {
    type Output = Self;

    fn div(self, parts: u64) -> Self {
        Self(self.0 / parts)
    }
}

/// An amount of data, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// No data.
    pub const ZERO: Self = Self(0);

    /// More than there is.
    pub const MAX: Self = Self(u64::MAX);

    /// That many MiB.
    pub const fn mib(mib: u64) -> Self {
        Self(mib << 20)
    }

    /// That many GiB.
    pub const fn gib(gib: u64) -> Self {
        Self(gib << 30)
    }

    /// Whole MiB, rounded down.
    pub const fn in_mib(self) -> u64 {
        self.0 >> 20
    }

    /// Whole GiB, rounded down.
    pub const fn in_gib(self) -> u64 {
        self.0 >> 30
    }
}

impl Bytes {
    /// With one decimal and a unit, for people: `0 B`, `512 B`, `3.2 KiB`, `16 MiB`.
    #[allow(clippy::cast_precision_loss, reason = "one decimal is shown")]
    pub fn rounded(self) -> String {
        let (mut value, mut unit) = (self.0 as f64, "B");
        for next in ["KiB", "MiB", "GiB", "TiB"] {
            if value < 1_024.0 {
                break;
            }
            (value, unit) = (value / 1_024.0, next);
        }
        let text = format!("{value:.1}");
        format!("{} {unit}", text.strip_suffix(".0").unwrap_or(&text))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_back_off_doubles_up_to_its_limit() {
        let (first, longest) = (Millis(200), Millis::seconds(10));
        let waits = [0, 1, 5, 6, u32::MAX].map(|times| first.doubled(times, longest));
        assert_eq!(waits, [200, 400, 6_400, 10_000, 10_000].map(Millis));
        assert_eq!(Millis::minutes(1).doubled(0, longest), longest);
    }

    #[test]
    fn parts_are_rounded_as_their_names_say() {
        assert_eq!(Millis(999).percent(45), Millis(449));
        assert_eq!([0, 1, 1_000, 1_001].map(|time| Millis(time).in_seconds()), [0, 1, 1, 2]);
        assert_eq!(Millis(5).saturating_sub(Millis(7)), Millis::ZERO);
        assert_eq!(Bytes((3 << 20) - 1).in_mib(), 2);
        assert_eq!((Bytes::mib(2_047).in_gib(), Bytes::gib(2)), (1, Bytes::mib(2_048)));
    }

    #[test]
    fn sizes_have_one_decimal_at_most() {
        assert_eq!(Bytes::ZERO.rounded(), "0 B");
        assert_eq!(Bytes(1_536).rounded(), "1.5 KiB");
        assert_eq!(Bytes::mib(16).rounded(), "16 MiB");
        assert_eq!(Bytes::MAX.rounded(), "16777216 TiB");
    }

    #[test]
    fn records_hold_plain_numbers() {
        let (time, data) = (Millis::seconds(2), Bytes::mib(1));
        assert_eq!(serde_json::to_string(&(time, data)).unwrap(), "[2000,1048576]");
        assert_eq!(
            serde_json::from_str::<(Millis, Bytes)>("[2000,1048576]").unwrap(),
            (time, data)
        );
        assert_eq!(
            (time.to_string(), data.to_string()),
            ("2000 ms".to_owned(), "1048576 bytes".to_owned())
        );
    }
}
