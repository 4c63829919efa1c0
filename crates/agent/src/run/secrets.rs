//! When a server is to be given what Secrets say: certificates, and the primary the application's password and the roles that are
//! declared.

use machine::instance::{Mode, Process};
use machine::timing::BootTime;
use machine::units::Millis;

use crate::observe::World;

/// First pause after a failure that a server's start or reload ends.
pub(super) const SOON: Millis = Millis::seconds(1);
/// Pause after a failure.
pub(super) const AGAIN: Millis = Millis::seconds(10);

/// Something that each server is given once, and again when it changes.
#[derive(Debug, Default)]
pub(super) struct Duty {
    /// It has been read.
    known: bool,
    /// Process id of the server that has it; 0 if there was none.
    given_to: Option<u32>,
    /// Process id of the server that is being given it.
    running: Option<u32>,
    /// It has changed since that began.
    changed: bool,
    not_before: BootTime,
    /// It is given again then.
    again: Option<BootTime>,
    /// How many times in a row it has failed.
    failures: u32,
}

impl Duty {
    /// It has changed.
    pub(super) fn changed(&mut self) {
        self.known = true;
        self.given_to = None;
        self.changed = true;
        self.failures = 0;
        self.not_before = BootTime::default();
    }

    /// True if the primary is to be given it now. The caller must then do so.
    pub(super) fn is_due(&mut self, world: &World, now: BootTime) -> bool {
        let postgres = &world.observed().postgres;
        let serving = postgres.open && postgres.process == Process::Running { mode: Mode::Primary };
        let Some(pid) = world.server.as_ref().map(|server| server.pid()).filter(|_| serving) else {
            return false;
        };
        self.begins(pid, now)
    }

    /// True if the server of this process id is to be given it now.
    pub(super) fn begins(&mut self, pid: u32, now: BootTime) -> bool {
        let is_given = self.given_to == Some(pid) && self.again.is_none_or(|again| now < again);
        let due = self.known && self.running.is_none() && !is_given && now >= self.not_before;
        if due {
            self.running = Some(pid);
            self.changed = false;
        }
        due
    }

    /// The server has it. It is given again at `again`.
    pub(super) fn done(&mut self, again: Option<BootTime>) {
        self.given_to = self.running.take().filter(|_| !self.changed);
        self.again = again;
        self.failures = 0;
    }

    /// It was not given, or not all of it. It is tried again after `pause`, which grows to a minute, or when it changes.
    pub(super) fn failed(&mut self, now: BootTime, pause: Millis) {
        self.running = None;
        self.given_to = None;
        if !self.changed {
            self.not_before = now.plus(pause.doubled(self.failures, Millis::minutes(1)));
            self.failures = self.failures.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_primary_is_given_it_once_and_after_each_change() {
        let mut duty = Duty::default();
        assert!(!duty.begins(7, BootTime(0)), "it has not been read");
        duty.changed();
        assert!(duty.begins(7, BootTime(0)));
        assert!(!duty.begins(7, BootTime(0)), "it is being given");
        duty.done(None);
        assert!(!duty.begins(7, BootTime(2)));
        assert!(duty.begins(8, BootTime(2)), "another server");
        duty.changed();
        duty.done(None);
        assert!(
            duty.begins(8, BootTime(3)),
            "what was given was read before the change, perhaps"
        );
        duty.failed(BootTime(4), AGAIN);
        assert!(!duty.begins(8, BootTime(5)));
        assert!(duty.begins(8, BootTime(4).plus(AGAIN)));
        for pause in [20, 40, 60, 60] {
            duty.failed(BootTime(0), AGAIN);
            assert!(!duty.begins(8, BootTime(pause * 1_000 - 1)));
            assert!(duty.begins(8, BootTime(pause * 1_000)), "{pause}");
        }
    }

    #[test]
    fn it_is_given_again_at_its_time_and_a_change_does_not_wait_for_a_pause() {
        let mut duty = Duty::default();
        duty.changed();
        assert!(duty.begins(7, BootTime(0)));
        duty.done(Some(BootTime(100)));
        assert!(!duty.begins(7, BootTime(99)));
        assert!(duty.begins(7, BootTime(100)));
        duty.failed(BootTime(101), AGAIN);
        assert!(!duty.begins(7, BootTime(102)));
        duty.changed();
        assert!(duty.begins(7, BootTime(102)));
        duty.changed();
        duty.failed(BootTime(103), AGAIN);
        assert!(duty.begins(7, BootTime(103)), "what failed was of before the change");
    }
}
