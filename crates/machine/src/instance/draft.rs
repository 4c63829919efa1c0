//! What decision rules read in addition to what is observed, and when they want the next decision.

use super::memo::Memo;
use crate::timing::BootTime;

/// What decision rules read in addition to what is observed, and when they want the next decision.
///
/// The time is not part of a verdict, because a decision rule that decides nothing may need it: its wait may end by the
/// clock alone. The earliest time that any decision rule asks for counts. A decision rule has no other side effect.
pub struct Draft<'a> {
    pub(super) memo: &'a Memo,
    pub(super) wake: Option<BootTime>,
}

impl<'a> Draft<'a> {
    pub(super) fn new(memo: &'a Memo) -> Self {
        Self { memo, wake: None }
    }
    /// Asks for another decision at `at`.
    pub(super) fn wake(&mut self, at: BootTime) {
        self.wake = Some(self.wake.map_or(at, |before| before.min(at)));
    }
}
