//! When to give the application's role the password of the Secret.

use machine::instance::{Mode, Process};
use machine::timing::BootTime;
use machine::units::Millis;

use crate::observe::World;

/// Pause between tries.
const AGAIN: Millis = Millis::seconds(10);

/// The application's password. Each server that serves as primary sets it once, and again when the file changes: the
/// Secret's password is the valid one.
#[derive(Debug, Default)]
pub(super) struct Password {
    /// The file has been read.
    known: bool,
    /// Process id of the primary that has set the file's password.
    given_by: Option<u32>,
    /// Process id of the server that is setting it.
    running: Option<u32>,
    /// The file has changed since setting began.
    changed: bool,
    not_before: BootTime,
}

impl Password {
    /// The file has changed.
    pub(super) fn changed(&mut self) {
        self.known = true;
        self.given_by = None;
        self.changed = true;
    }

    /// True if the password is to be set now. The caller must then set it.
    pub(super) fn is_due(&mut self, world: &World, now: BootTime) -> bool {
        let postgres = &world.observed().postgres;
        let serving = postgres.open && postgres.process == Process::Running { mode: Mode::Primary };
        let Some(pid) = world.server.as_ref().map(|server| server.pid()).filter(|_| serving) else {
            return false;
        };
        self.begins(pid, now)
    }

    fn begins(&mut self, pid: u32, now: BootTime) -> bool {
        let due = self.known && self.running.is_none() && self.given_by != Some(pid) && now >= self.not_before;
        if due {
            self.running = Some(pid);
            self.changed = false;
        }
        due
    }

    /// Takes the result of setting the password.
    pub(super) fn done(&mut self, done: Result<bool, String>, now: BootTime) {
        let by = self.running.take();
        match done {
            Ok(changed) => {
                if changed {
                    tracing::info!("the application's password was changed to that of the Secret");
                }
                self.given_by = by.filter(|_| !self.changed);
            }
            Err(error) => {
                tracing::warn!("set the application's password: {error}");
                self.not_before = now.plus(AGAIN);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_primary_sets_the_password_once_and_after_each_change() {
        let mut password = Password::default();
        assert!(!password.begins(7, BootTime(0)), "the file has not been seen");
        password.changed();
        assert!(password.begins(7, BootTime(0)));
        assert!(!password.begins(7, BootTime(0)), "it is being given");
        password.done(Ok(false), BootTime(1));
        assert!(!password.begins(7, BootTime(2)));
        assert!(password.begins(8, BootTime(2)), "another server");
        password.changed();
        password.done(Ok(true), BootTime(3));
        assert!(
            password.begins(8, BootTime(3)),
            "what was given was read before the change, perhaps"
        );
        password.done(Err("no".to_owned()), BootTime(4));
        assert!(!password.begins(8, BootTime(5)));
        assert!(password.begins(8, BootTime(4).plus(AGAIN)));
    }
}
