//! Messages of peers that were refused, in the log: no more often than somebody reads.

use std::collections::BTreeMap;

use machine::timing::BootTime;

/// Distance between two lines about one kind of message, in milliseconds.
const PAUSE: u64 = 10_000;

/// What was refused, and not logged yet.
#[derive(Debug, Default)]
pub struct Refusals {
    kinds: BTreeMap<&'static str, Said>,
}

#[derive(Debug)]
struct Said {
    at: BootTime,
    left_out: u32,
}

impl Refusals {
    /// Logs that a message of this kind was refused, or counts it.
    pub fn tell(&mut self, kind: &'static str, reason: &str, now: BootTime) {
        if let Some(left_out) = self.due(kind, now) {
            tracing::warn!(kind, left_out, "refused a peer's message: {reason}");
        }
    }

    /// If a line is due: how many were left out since the last one.
    fn due(&mut self, kind: &'static str, now: BootTime) -> Option<u32> {
        if let Some(said) = self.kinds.get_mut(kind)
            && now < said.at.plus(PAUSE)
        {
            said.left_out = said.left_out.saturating_add(1);
            return None;
        }
        let before = self.kinds.insert(kind, Said { at: now, left_out: 0 });
        Some(before.map_or(0, |said| said.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_refusals_is_a_line_in_ten_seconds_for_each_kind() {
        let mut refusals = Refusals::default();
        assert_eq!(refusals.due("report", BootTime(0)), Some(0));
        assert_eq!(refusals.due("report", BootTime(PAUSE - 1)), None);
        assert_eq!(refusals.due("promise", BootTime(PAUSE - 1)), Some(0));
        assert_eq!(refusals.due("report", BootTime(PAUSE)), Some(1));
    }
}
