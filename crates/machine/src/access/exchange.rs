//! What operator and agents tell each other: the operator writes what is declared into the Secret `NAME-access`, the primary's agent
//! what became of it into the ConfigMap of that name. Both have one key for each DatabaseUser, Database and Pooler, its UID.

use api::declared::{Drift, PlannedStatement};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::declared::Declared;

/// An entry of the Secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Published {
    /// When it was written. A report that names another time is about another entry.
    pub at: DateTime<Utc>,
    /// What is declared, with a verifier and without a password.
    pub declared: Declared,
}

/// An entry of the ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The time of the entry that it is about.
    pub of: DateTime<Utc>,
    /// The OID of what was made for the resource, if there is something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oid: Option<u32>,
    /// PostgreSQL could not be looked at: that there is no `oid` says nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unseen: bool,
    /// Why nothing can be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// `refusal` is something that is not there yet: what can be done without it is done, and the rest when it is there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waits: bool,
    /// Why not all of it was done, in PostgreSQL's words. It is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The statements that are missing still, the first ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plan: Vec<PlannedStatement>,
    /// How many are missing beyond these.
    #[serde(default)]
    pub more: u32,
    /// PostgreSQL has had all of the entry, now or earlier.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub had_all: bool,
    /// What was run after it had had all of the entry, the last time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<Drift>,
}

impl Report {
    /// Goes on from the report before: what was run for this one is drift if PostgreSQL had had all of the same entry before.
    #[must_use]
    pub fn after(mut self, before: Option<&Self>) -> Self {
        let had_all = before.is_some_and(|before| before.of == self.of && before.had_all);
        let is_whole = self.refusal.is_none() && self.error.is_none() && self.plan.is_empty() && self.more == 0;
        self.had_all = had_all || is_whole;
        let ran = self.drift.take().filter(|_| had_all);
        self.drift = ran.or_else(|| before.and_then(|before| before.drift.clone()));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minute: u32) -> DateTime<Utc> {
        format!("2027-01-01T00:{minute:02}:00Z").parse().expect("a time")
    }

    fn drift(minute: u32) -> Option<Drift> {
        Some(Drift {
            at: at(minute),
            statements: Vec::new(),
            more: None,
        })
    }

    #[test]
    fn only_what_postgresql_had_and_has_lost_is_drift() {
        let ran = |of: u32, ran_at: u32| Report {
            of: at(of),
            drift: drift(ran_at),
            ..Report::default()
        };
        let new = ran(1, 2).after(None);
        assert_eq!((new.had_all, &new.drift), (true, &None), "it is new");
        assert_eq!(ran(3, 4).after(Some(&new)).drift, None, "the spec has changed");
        let lacks: [fn(&mut Report); 4] = [
            |report| (report.refusal, report.waits) = (Some("there is no database".to_owned()), true),
            |report| report.error = Some("it is locked".to_owned()),
            |report| report.plan.push(PlannedStatement::default()),
            |report| report.more = 1,
        ];
        for lack in lacks {
            let mut lacking = ran(1, 2);
            lack(&mut lacking);
            let first = lacking.clone().after(None);
            assert!(!first.had_all, "{first:?}");
            assert_eq!(ran(1, 3).after(Some(&first)).drift, None, "it has never had all");
            // What could not be mended at once is drift all the same.
            let later = lacking.after(Some(&new));
            assert_eq!(ran(1, 5).after(Some(&later)).drift, drift(5));
        }
        let mended = ran(1, 5).after(Some(&new));
        assert_eq!(mended.drift, drift(5));
        // It is told until there is another one.
        let nothing = Report {
            of: at(6),
            ..Report::default()
        };
        let later = nothing.after(Some(&mended));
        assert_eq!(later.drift, drift(5));
        assert_eq!(ran(6, 7).after(Some(&later)).drift, drift(7));
    }
}
