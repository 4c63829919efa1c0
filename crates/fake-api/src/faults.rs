//! What goes wrong between clients and the API server, by a seed: the same seed and the same requests, the same faults.

use std::time::Duration;

use fastrand::Rng;

use crate::request::Verb;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is carried out and answered.
    Answered,
    /// It is refused with this HTTP status code.
    Refused(u16),
    /// It is carried out, and answered with this HTTP status code.
    CarriedOut(u16),
    /// It never arrives, and is never answered.
    Lost,
    /// It is carried out, and never answered.
    AnswerLost,
}

/// What becomes of a watch that is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchFate {
    /// Which API server serves it: each is behind by a time of its own.
    pub server: usize,
    /// The connection breaks after this.
    pub breaks_after: Option<Duration>,
    /// It delivers nothing from the first to the second time after it was opened, and then continues.
    pub frozen: Option<(Duration, Duration)>,
}

/// How much goes wrong; all chances are in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// A request fails in some way.
    pub request: u32,
    /// A watch breaks within half a minute.
    pub broken: u32,
    /// A watch is frozen for up to 20 s.
    pub frozen: u32,
    /// How far the watch caches of the two API servers are behind, in milliseconds.
    pub lag: [u64; 2],
    /// How long a request and its answer are on their way each, in milliseconds: at least, less than. Nothing: by chance.
    pub slow: [u64; 2],
    /// A request is refused with 429, whatever else.
    pub throttled: u32,
}

impl Rates {
    /// Nothing goes wrong.
    pub const NONE: Self = Self {
        request: 0,
        broken: 0,
        frozen: 0,
        lag: [0, 0],
        slow: [0, 0],
        throttled: 0,
    };

    /// What this seed's run suffers from: not everything at once, so that some runs get far (swarm testing).
    pub fn swarm(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x5EED_0F5A);
        let mut some = |most: u32| if rng.bool() { rng.u32(1..=most) } else { 0 };
        let (request, broken, frozen) = (some(150), some(700), some(300));
        Self {
            request,
            broken,
            frozen,
            lag: [u64::from(some(500)), u64::from(some(5_000))],
            ..Self::NONE
        }
    }
}

/// The faults of a run.
#[derive(Clone, Debug)]
pub struct Faults {
    rates: Rates,
    requests: Rng,
    watches: Rng,
    delays: Rng,
}

impl Faults {
    /// No faults; every answer takes a millisecond.
    pub fn none() -> Self {
        Self::new(0, Rates::NONE)
    }

    /// Faults by this seed. Each sort has its own stream of random numbers, so that one does not shift the others.
    pub fn new(seed: u64, rates: Rates) -> Self {
        Self {
            rates,
            requests: Rng::with_seed(seed),
            watches: Rng::with_seed(seed.wrapping_add(1 << 32)),
            delays: Rng::with_seed(seed.wrapping_add(2 << 32)),
        }
    }

    /// From now on nothing goes wrong; a watch that is frozen stays so for its time.
    pub fn stop(&mut self) {
        self.rates = Rates::NONE;
    }

    /// How long a request is on its way: mostly a few milliseconds.
    pub fn delay(&mut self) -> Duration {
        if self.rates == Rates::NONE {
            return Duration::from_millis(1);
        }
        if self.rates.slow[1] > 0 {
            return Duration::from_millis(self.delays.u64(self.rates.slow[0]..self.rates.slow[1]));
        }
        let slow = self.delays.u32(0..50) == 0;
        Duration::from_millis(if slow {
            self.delays.u64(100..3_000)
        } else {
            self.delays.u64(1..20)
        })
    }

    /// What becomes of this request.
    pub fn request(&mut self, verb: Verb) -> Fate {
        if self.rates.throttled > 0 && self.requests.u32(0..1_000) < self.rates.throttled {
            return Fate::Refused(429);
        }
        if self.requests.u32(0..1_000) >= self.rates.request {
            return Fate::Answered;
        }
        let fates = [
            Fate::Refused(429),
            Fate::Refused(500),
            Fate::Refused(504),
            Fate::CarriedOut(500),
            Fate::CarriedOut(504),
            Fate::Lost,
            Fate::AnswerLost,
        ];
        // A list or read that is lost after it was made is lost before.
        let count = if verb.writes() { fates.len() } else { 3 };
        fates[self.requests.usize(0..count)]
    }

    /// What becomes of a watch that is opened now.
    pub fn watch(&mut self) -> WatchFate {
        let mut chance = |thousandths: u32| self.watches.u32(0..1_000) < thousandths;
        let (broken, frozen) = (chance(self.rates.broken), chance(self.rates.frozen));
        let mut seconds = |range: std::ops::Range<u64>| Duration::from_millis(self.watches.u64(range));
        let breaks_after = broken.then(|| seconds(10..30_000));
        let frozen = frozen.then(|| {
            let from = seconds(0..5_000);
            (from, from + seconds(100..20_000))
        });
        WatchFate {
            server: self.watches.usize(0..2),
            breaks_after,
            frozen,
        }
    }

    /// How far this API server's watch caches are behind.
    pub fn lag(&self, server: usize) -> Duration {
        Duration::from_millis(self.rates.lag[server % 2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_faults_and_all_sorts_of_them() {
        let run = |seed| {
            let mut faults = Faults::new(
                seed,
                Rates {
                    request: 500,
                    broken: 500,
                    frozen: 500,
                    lag: [1, 2],
                    ..Rates::NONE
                },
            );
            (0..500)
                .map(|_| {
                    format!(
                        "{:?} {:?} {:?}",
                        faults.request(Verb::Apply),
                        faults.watch(),
                        faults.delay()
                    )
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
        let all = run(7).join("\n");
        for fate in [
            "Refused(429)",
            "Refused(504)",
            "CarriedOut(500)",
            "Lost",
            "AnswerLost",
            "frozen: Some",
            "server: 1",
        ] {
            assert!(all.contains(fate), "{fate}");
        }
        let mut faults = Faults::new(7, Rates::swarm(7));
        faults.stop();
        assert!((0..500).all(|_| faults.request(Verb::Apply) == Fate::Answered && faults.watch().frozen.is_none()));
    }
}
