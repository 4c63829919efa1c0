//! Logging refused messages of peers, no more often than somebody reads.

use std::collections::BTreeMap;

use machine::timing::BootTime;
use machine::units::Millis;

/// The pause between two lines about one kind of message.
const PAUSE: Millis = Millis::seconds(10);

/// The refused messages that were not logged yet.
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
    /// Logs that a message of this kind was refused, or counts it for the next line.
    pub fn tell(&mut self, kind: &'static str, reason: &str, now: BootTime) {
        if let Some(left_out) = self.due(kind, now) {
            tracing::warn!(kind, left_out, "refused a peer's message: {reason}");
        }
    }

    /// If a line is due, returns how many were left out since the last one.
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
    fn each_kind_of_refusal_is_logged_once_in_ten_seconds() {
        let mut refusals = Refusals::default();
        assert_eq!(refusals.due("report", BootTime(0)), Some(0));
        assert_eq!(refusals.due("report", BootTime(PAUSE.0 - 1)), None);
        assert_eq!(refusals.due("promise", BootTime(PAUSE.0 - 1)), Some(0));
        assert_eq!(refusals.due("report", BootTime(PAUSE.0)), Some(1));
    }
}
