//! The plan: what is missing of what is declared.

use serde::{Deserialize, Serialize};

use super::statement::Statement;

/// What is missing of what is declared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Statements in their order.
    pub steps: Vec<Step>,
    /// What cannot be: nothing is done for the object then.
    pub refusal: Option<String>,
    /// What is not there yet, and may be made by somebody else at any time. The steps do without it.
    #[serde(default)]
    pub waits: Option<String>,
}

/// A statement, and where it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The database; `None` if any will do, since the statement is about roles or whole databases.
    pub database: Option<String>,
    /// The statement.
    pub statement: Statement,
    /// It takes something away.
    pub takes: bool,
}

/// Steps that take effect together or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch<'a> {
    /// Where they run, as of [`Step`].
    pub database: Option<&'a str>,
    /// The steps.
    pub steps: &'a [Step],
    /// It is one statement that PostgreSQL runs in no transaction block.
    pub alone: bool,
    /// It is about memberships: what PostgreSQL refuses of them, since somebody has made use of them, keeps nothing else from being done.
    pub memberships: bool,
}

impl Plan {
    /// A plan in which nothing is done, for this reason.
    pub(super) fn refused(why: String) -> Self {
        Self {
            refusal: Some(why),
            ..Self::default()
        }
    }

    /// The steps in the transactions in which they run.
    pub fn batches(&self) -> Vec<Batch<'_>> {
        let mut batches = Vec::new();
        let mut rest = self.steps.as_slice();
        while let Some(first) = rest.first() {
            let alone = first.statement.runs_alone();
            let memberships = first.statement.is_membership();
            let joins = |step: &&Step| {
                let is_alike = step.database == first.database && step.statement.is_membership() == memberships;
                is_alike && !step.statement.runs_alone()
            };
            let length = match alone {
                true => 1,
                false => rest.iter().take_while(joins).count(),
            };
            let (steps, later) = rest.split_at(length);
            batches.push(Batch {
                database: first.database.as_deref(),
                steps,
                alone,
                memberships,
            });
            rest = later;
        }
        batches
    }
}
