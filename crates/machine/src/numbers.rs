//! The numbers that the Lease, the volumes and the members' messages carry. Each is checked where it comes in: what is out of range is
//! refused there, and named. Nothing wraps, and nothing that is out of range counts as 0.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// How far a number in a message may be above the one in the Lease. Each step is one take of the Lease, and whoever is behind learns of
/// those from the Lease: a message that is further ahead comes from nobody who has read it.
pub const REACH: u32 = 1_000;

/// So many timelines in a row may have been reserved and never used. Each election whose promotion comes to nothing leaves one; at one a
/// minute that is a week. Beyond it the number on record is no election's, and a promotion would have to write a file for each.
pub const UNUSED: u32 = 10_000;

/// A number that no database of ours has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {value} is out of range: the highest is {highest}")]
pub struct OutOfRange {
    /// Which number it was to be.
    pub what: &'static str,
    /// What it is.
    pub value: u64,
    /// The highest that there is.
    pub highest: u64,
}

/// Counts changes of the holder; the Lease's `leaseTransitions`, which is an `int32`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64")]
pub struct Epoch(pub u64);

impl Epoch {
    /// The highest epoch. Nobody takes the lease after it.
    pub const MAX: Self = Self(i32::MAX as u64);

    /// Checks a number from outside.
    ///
    /// # Errors
    /// If it is above [`Epoch::MAX`].
    pub const fn new(value: u64) -> Result<Self, OutOfRange> {
        let highest = Self::MAX.0;
        match value > highest {
            true => Err(OutOfRange {
                what: "epoch",
                value,
                highest,
            }),
            false => Ok(Self(value)),
        }
    }

    /// The epoch after this one; `None` if there is none.
    pub const fn next(self) -> Option<Self> {
        match self.0 < Self::MAX.0 {
            true => Some(Self(self.0 + 1)),
            false => None,
        }
    }

    /// Elections since `known` may have led here, without the Lease's having told of them.
    pub const fn is_in_reach_of(self, known: Self) -> bool {
        self.0 <= known.0.saturating_add(REACH as u64)
    }

    /// As `leaseTransitions`. What is above [`Epoch::MAX`] becomes that, never 0.
    pub fn transitions(self) -> i32 {
        i32::try_from(self.0).unwrap_or(i32::MAX)
    }
}

impl TryFrom<u64> for Epoch {
    type Error = OutOfRange;

    fn try_from(value: u64) -> Result<Self, OutOfRange> {
        Self::new(value)
    }
}

/// A PostgreSQL timeline number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64")]
pub struct Timeline(pub u32);

impl Timeline {
    /// The highest timeline. PostgreSQL would count on; no database of ours comes near it.
    pub const MAX: Self = Self(i32::MAX.unsigned_abs());

    /// Checks a number from outside.
    ///
    /// # Errors
    /// If it is above [`Timeline::MAX`].
    pub fn new(value: u64) -> Result<Self, OutOfRange> {
        let highest = u64::from(Self::MAX.0);
        let fits = u32::try_from(value).ok().filter(|fits| *fits <= Self::MAX.0);
        fits.map(Self).ok_or(OutOfRange {
            what: "timeline",
            value,
            highest,
        })
    }

    /// The timeline after this one; `None` if there is none.
    pub const fn next(self) -> Option<Self> {
        match self.0 < Self::MAX.0 {
            true => Some(Self(self.0 + 1)),
            false => None,
        }
    }

    /// Elections since `known` was reserved may have led here, without the Lease's having told of them.
    pub const fn is_in_reach_of(self, known: Self) -> bool {
        self.0 <= known.0.saturating_add(REACH)
    }
}

impl TryFrom<u64> for Timeline {
    type Error = OutOfRange;

    fn try_from(value: u64) -> Result<Self, OutOfRange> {
        Self::new(value)
    }
}

/// A WAL position, in bytes; written as PostgreSQL does (`16/B374D848`). Each number is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

/// Not a WAL position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no WAL position (such as 16/B374D848)")]
pub struct InvalidLsn(String);

/// So much of a text that is no WAL position is repeated in words.
const SHOWN: usize = 40;

impl Lsn {
    /// The WAL from `earlier` to this position; none if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Bytes {
        Bytes(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

impl FromStr for Lsn {
    type Err = InvalidLsn;

    fn from_str(text: &str) -> Result<Self, InvalidLsn> {
        let half = |digits: &str| {
            let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            u32::from_str_radix(digits, 16).ok().filter(|_| plain)
        };
        let parse = || {
            let (high, low) = text.split_once('/')?;
            Some(Lsn(u64::from(half(high)?) << 32 | u64::from(half(low)?)))
        };
        parse().ok_or_else(|| InvalidLsn(text.chars().take(SHOWN).collect()))
    }
}

impl Serialize for Lsn {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Lsn {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lsn_reads_what_it_writes() {
        let lsn = Lsn(0x16_B374_D848);
        assert_eq!(lsn.to_string(), "16/B374D848");
        assert_eq!("16/B374D848".parse(), Ok(lsn));
        for wrong in [
            "16B374D848",
            "1/100000000",
            "+1/2",
            "1/-2",
            "/",
            "1/",
            "",
            " 1/2",
            "1/2/3",
        ] {
            assert!(wrong.parse::<Lsn>().is_err(), "{wrong}");
        }
        let long = "9".repeat(1 << 20).parse::<Lsn>().unwrap_err();
        assert!(long.to_string().len() < 120);
    }

    #[test]
    fn the_last_number_has_no_successor() {
        assert_eq!(Epoch(0).next(), Some(Epoch(1)));
        assert_eq!(Epoch(Epoch::MAX.0 - 1).next(), Some(Epoch::MAX));
        assert_eq!((Epoch::MAX.next(), Epoch(u64::MAX).next()), (None, None));
        assert_eq!(Timeline(Timeline::MAX.0 - 1).next(), Some(Timeline::MAX));
        assert_eq!((Timeline::MAX.next(), Timeline(u32::MAX).next()), (None, None));
        assert_eq!((Epoch(7).transitions(), Epoch(u64::MAX).transitions()), (7, i32::MAX));
    }

    proptest! {
        #[test]
        fn a_number_is_taken_as_it_is_or_refused_by_name(value in prop_oneof![
            prop::sample::select(vec![0, 1, i32::MAX as u64, i32::MAX as u64 + 1, u64::from(u32::MAX), u64::MAX]),
            any::<u64>(),
            0..=u64::from(u32::MAX),
        ]) {
            let fits = value <= i32::MAX as u64;
            let text = value.to_string();
            match (serde_json::from_str::<Epoch>(&text), serde_json::from_str::<Timeline>(&text)) {
                (Ok(epoch), Ok(timeline)) => {
                    prop_assert!(fits);
                    prop_assert_eq!((epoch.0, u64::from(timeline.0)), (value, value));
                    prop_assert_eq!(serde_json::to_string(&epoch).unwrap(), text);
                }
                (Err(epoch), Err(timeline)) => {
                    prop_assert!(!fits);
                    prop_assert!(epoch.to_string().contains("epoch") && epoch.to_string().contains(&text));
                    prop_assert!(timeline.to_string().contains("timeline") && timeline.to_string().contains(&text));
                }
                other => prop_assert!(false, "{other:?}"),
            }
        }

        #[test]
        fn what_is_in_reach_is_at_most_so_far_above(known: u32, value: u32) {
            let far = value.saturating_sub(known) > REACH;
            prop_assert_eq!(Timeline(value).is_in_reach_of(Timeline(known)), !far);
            prop_assert_eq!(Epoch(value.into()).is_in_reach_of(Epoch(known.into())), !far);
        }

        #[test]
        fn any_text_is_a_position_as_postgresql_writes_it_or_none(text in "\\PC{0,40}|[0-9A-Fa-f]{0,9}/[0-9A-Fa-f]{0,9}") {
            if let Ok(lsn) = text.parse::<Lsn>() {
                prop_assert_eq!(lsn.to_string().parse::<Lsn>(), Ok(lsn));
            }
        }
    }
}
