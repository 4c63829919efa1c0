//! What is asked for by an operation that is noted and has not ended.

use api::operation::{Action as Asked, Request};

use super::Facts;

/// The request that is noted, asked for, and has not ended.
pub(in crate::cluster) fn open_request<'a>(facts: &Facts<'a>) -> Option<&'a Request> {
    let noted = facts.status.memo.request.as_ref()?;
    let open = facts.wanted.request == Some(&noted.request) && noted.outcome.is_none();
    open.then_some(&noted.request)
}

/// A lost Lease is to be made again by a request that is still open.
pub(in crate::cluster) fn asks_for_a_lease(facts: &Facts<'_>) -> bool {
    open_request(facts).is_some_and(|request| matches!(request.action, Asked::RecreateLease(_)))
}

/// The instance that is to be the primary by a request that is still open.
pub(in crate::cluster) fn open<'a>(facts: &Facts<'a>) -> Option<&'a str> {
    match &open_request(facts)?.action {
        Asked::Switchover(switchover) => Some(&switchover.to),
        Asked::TakeImage(_)
        | Asked::Restart(_)
        | Asked::AcceptLoss(_)
        | Asked::DiscardQuarantined(_)
        | Asked::RecreateLease(_)
        | Asked::Recover(_)
        | Asked::UndoRecovery(_)
        | Asked::ConfirmRecovery(_)
        | Asked::RotateAuthority(_) => None,
    }
}
