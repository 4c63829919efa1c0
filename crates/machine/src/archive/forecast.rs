//! When WAL that waits for the archive will have used up its room.

use std::collections::VecDeque;

use chrono::{DateTime, TimeDelta, Utc};

use super::{PRIMARY_GIVES_UP, Room};
use crate::timing::BootTime;
use crate::units::{Bytes, Millis};

/// The growth of so long a time is taken to go on.
const WINDOW: Millis = Millis(10 * 60 * 1_000);
/// Within less nothing is forecast: a burst of writes is archived a little later.
const LEAST: Millis = Millis(60 * 1_000);
/// Nothing is forecast farther ahead.
const FARTHEST: TimeDelta = TimeDelta::days(1);
/// A time that was told is not told anew for less.
const SETTLED: TimeDelta = TimeDelta::seconds(30);
/// So often what waits is noted.
const APART: Millis = Millis(5_000);

/// What was seen to wait for the archive of a primary, in the order of time.
#[derive(Clone, Debug, Default)]
pub struct Forecast {
    seen: VecDeque<(BootTime, Bytes)>,
    told: Option<DateTime<Utc>>,
}

impl Forecast {
    /// Takes note of what waits, and says when the first segment will be given up ([`PRIMARY_GIVES_UP`]) if it goes on growing like that.
    /// `None` if it does not grow, or if that is more than a day ahead. The answer changes only if it is off by more than a fifth of the
    /// time that is left, and by half a minute, since each one is written where everybody sees it.
    ///
    /// `now` is the clock by which growth is measured, `clock` the time of day.
    pub fn full(&mut self, room: Room, now: BootTime, clock: DateTime<Utc>) -> Option<DateTime<Utc>> {
        while self.seen.front().is_some_and(|(time, _)| now.since(*time) > WINDOW) {
            self.seen.pop_front();
        }
        if self.seen.back().is_none_or(|(time, _)| now.since(*time) >= APART) {
            self.seen.push_back((now, room.waiting));
        }
        let left = self.time_left(room, now);
        let is_close = self
            .told
            .zip(left)
            .is_some_and(|(told, left)| (told - (clock + left)).abs() <= SETTLED.max(left / 5));
        if !is_close {
            self.told = left.map(|left| clock + left);
        }
        self.told
    }

    fn time_left(&self, room: Room, now: BootTime) -> Option<TimeDelta> {
        let (begun, first) = *self.seen.front()?;
        let passed = now.since(begun);
        let grown = room.waiting.0.checked_sub(first.0).filter(|grown| *grown > 0)?;
        if passed < LEAST || !self.grows() {
            return None;
        }
        let space = u128::from(room.left.0) + u128::from(room.waiting.0);
        let bound = space * u128::from(PRIMARY_GIVES_UP) / 100;
        let bytes = bound.saturating_sub(u128::from(room.waiting.0));
        let millis = bytes * u128::from(passed.0) / u128::from(grown);
        let left = TimeDelta::try_milliseconds(i64::try_from(millis).ok()?)?;
        (left <= FARTHEST).then_some(left)
    }

    /// Whether no less waited at any time of the newer half than at any time of the older one. What a usual archiver has before it comes and
    /// goes.
    fn grows(&self) -> bool {
        let half = self.seen.len() / 2;
        let most = self.seen.iter().take(half).map(|(_, waiting)| *waiting).max();
        let least = self.seen.iter().skip(half).map(|(_, waiting)| *waiting).min();
        most.zip(least).is_some_and(|(most, least)| most <= least)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START: &str = "2027-01-01T00:00:00Z";

    fn clock(seconds: u64) -> DateTime<Utc> {
        START.parse::<DateTime<Utc>>().unwrap() + TimeDelta::seconds(i64::try_from(seconds).unwrap())
    }

    /// 100 MiB, of which so many wait.
    fn room(mib: u64) -> Room {
        Room {
            left: Bytes::mib(100 - mib),
            waiting: Bytes::mib(mib),
        }
    }

    /// What is told at the end, if so much waits at each second.
    fn told(seconds: u64, waiting: impl Fn(u64) -> u64) -> (Option<DateTime<Utc>>, usize) {
        let mut forecast = Forecast::default();
        let (mut last, mut changes) = (None, 0);
        for second in 0..=seconds {
            let next = forecast.full(room(waiting(second)), BootTime(1_000 * second), clock(second));
            changes += usize::from(next != last);
            last = next;
        }
        (last, changes)
    }

    #[test]
    fn steady_growth_is_carried_on_to_where_segments_are_given_up() {
        // 1 MiB each 10 s: 90 MiB after 900 s.
        let (full, changes) = told(300, |second| second / 10);
        let off = full.expect("it grows") - clock(900);
        assert!(off.abs() < TimeDelta::seconds(120), "{off}");
        assert_eq!(changes, 1, "it is told once");
    }

    #[test]
    fn nothing_is_told_of_a_burst_of_what_comes_and_goes_and_of_what_shrinks() {
        assert_eq!(told(59, |second| second / 2), (None, 0), "too short a time");
        assert_eq!(
            told(600, |second| second % 40),
            (None, 0),
            "it is archived again and again"
        );
        assert_eq!(told(600, |second| 60 - second / 10), (None, 0));
        assert_eq!(told(600, |_| 50), (None, 0));
    }

    #[test]
    fn a_store_that_is_back_ends_the_forecast() {
        let (full, changes) = told(1_300, |second| if second < 300 { second / 10 } else { 0 });
        assert_eq!((full, changes), (None, 2));
    }

    #[test]
    fn faster_writes_are_told_anew() {
        let (full, changes) = told(600, |second| {
            if second < 300 {
                second / 10
            } else {
                30 + (second - 300) / 6
            }
        });
        assert!(changes > 1, "{changes}");
        assert!(full.expect("it grows") < clock(900), "{full:?}");
    }

    #[test]
    fn what_is_full_already_is_told_as_now() {
        let (full, _) = told(96, |second| second);
        assert!(full.expect("it grows") <= clock(96));
    }

    proptest! {
        #[test]
        fn whatever_is_seen_it_is_told_seldom_and_never_far_ahead(
            steps in prop::collection::vec((0u64..120_000, any::<u64>(), any::<u64>()), 1..200)
        ) {
            let (mut forecast, mut now) = (Forecast::default(), 0);
            for (pause, left, waiting) in steps {
                now += pause;
                let room = Room { left: Bytes(left), waiting: Bytes(waiting) };
                let time = clock(now / 1_000);
                if let Some(full) = forecast.full(room, BootTime(now), time) {
                    // What was told before may be a fifth off.
                    prop_assert!(full - time <= FARTHEST * 6 / 5);
                }
                prop_assert!(forecast.seen.len() <= 122);
            }
        }
    }
}
