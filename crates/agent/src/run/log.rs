//! Decisions in the log: what changes, and why.

use machine::instance::{Action, Purpose};

/// Logs decisions that differ from the one before, and waits for something else than the last one; what comes again and
/// again only at level debug.
#[derive(Default)]
pub(super) struct Decisions {
    last: Option<(&'static str, String)>,
    last_wait: String,
}

impl Decisions {
    pub(super) fn decision(&mut self, rule: &'static str, action: &Action, because: &str) {
        if is_routine(action, because) {
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
        if *action == Action::Wait {
            if self.last_wait == because {
                return;
            }
            because.clone_into(&mut self.last_wait);
        }
        tracing::info!(rule, action = name(action), because, "decided");
    }
}

fn is_routine(action: &Action, because: &str) -> bool {
    match action {
        Action::WriteLease {
            purpose: Purpose::Renew,
            ..
        } => because == "the lease is due for renewal",
        Action::Report { .. } => true,
        _ => false,
    }
}

/// The action without its content.
fn name(action: &Action) -> String {
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
    use machine::instance::Stop;

    #[test]
    fn actions_have_short_names_without_content() {
        assert_eq!(name(&Action::Stop(Stop::Kill)), "StopKill");
        let secret = Action::Initdb {
            cluster_uid: "c0ffee".to_owned(),
        };
        assert_eq!(name(&secret), "Initdb");
        assert_eq!(name(&Action::Exit), "Exit");
    }
}
