//! Logging decisions: the action, and why it was decided.

use machine::instance::Action;

/// Logs a decision that differs from the one before, and a wait for another thing than the last wait. Repetitions are
/// logged at level debug only.
#[derive(Default)]
pub(super) struct Decisions {
    last: Option<(&'static str, String)>,
    last_wait: String,
}

impl Decisions {
    /// Logs a decision; `action` is its [`name`].
    pub(super) fn decision(&mut self, rule: &'static str, action: String, because: &str) {
        if is_routine(&action, because) {
            tracing::debug!(rule, because, "decided");
            return;
        }
        if self
            .last
            .as_ref()
            .is_some_and(|(last, why)| *last == rule && why == because)
        {
            return;
        }
        self.last = Some((rule, because.to_owned()));
        if action == WAIT {
            if self.last_wait == because {
                return;
            }
            because.clone_into(&mut self.last_wait);
        }
        tracing::info!(rule, action, because, "decided");
    }
}

/// The name of [`Action::Wait`].
const WAIT: &str = "Wait";

fn is_routine(action: &str, because: &str) -> bool {
    match action {
        "RenewLease" => because == "the lease is due for renewal",
        "Report" | "Ask" | "AskFailsafe" | "ReadLease" => true,
        _ => false,
    }
}

/// The name of the action, without its content.
pub(super) fn name(action: &Action) -> String {
    match action {
        Action::WriteLease { purpose, .. } => format!("{purpose:?}Lease"),
        Action::Stop(stop) => format!("Stop{stop:?}"),
        other => {
            let text = format!("{other:?}");
            text.split([' ', '{', '(']).next().unwrap_or_default().to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machine::instance::{Purpose, Stop};
    use machine::units::Millis;

    #[test]
    fn actions_have_short_names_without_content() {
        assert_eq!(name(&Action::Stop(Stop::Kill)), "StopKill");
        let secret = Action::Initdb {
            cluster_uid: "c0ffee".to_owned(),
            from_backup: None,
        };
        assert_eq!(name(&secret), "Initdb");
        assert_eq!(name(&Action::Exit), "Exit");
        assert_eq!(name(&Action::Wait), WAIT);
        let renew = Action::WriteLease {
            content: Box::new(content()),
            purpose: Purpose::Renew,
            timing: machine::timing::Timing::DEFAULT,
        };
        assert!(is_routine(&name(&renew), "the lease is due for renewal"));
        assert!(!is_routine(&name(&renew), "the report of orders-1 has changed"));
    }

    fn content() -> machine::lease_object::LeaseContent {
        machine::lease_object::LeaseContent {
            uid: "u".to_owned(),
            version: "7".to_owned(),
            holder: None,
            duration: Millis::seconds(10),
            epoch: machine::protocol::Epoch(1),
            system_id: None,
            release: None,
            rule: machine::quorum::SyncRule::default(),
            timeline: None,
            lossy: None,
            history: Vec::new(),
            members: Default::default(),
            positions: Default::default(),
            archive: None,
        }
    }
}
