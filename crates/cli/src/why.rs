//! `why`: the rule that decides about the database now, and what it needs.

use api::Phase;
use api::status::FailureStatus;
use chrono::{DateTime, TimeDelta, Utc};
use machine::cluster::{Action, Decision, Facts, RULES};
use serde::Serialize;

use crate::look::Look;
use crate::text::{Page, Style, Tone, instant, span};
use crate::words;

/// The page.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WhyPage {
    /// The database's name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// When the objects were read.
    pub at: DateTime<Utc>,
    /// The phase by the status.
    pub phase: Option<Phase>,
    /// The rule that decides.
    pub rule: RuleLine,
    /// The fact that makes it decide so.
    pub because: String,
    /// What is done.
    pub action: String,
    /// What is waited for, if it is a wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
    /// Why the database cannot go on: by the status, or else by this decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureStatus>,
    /// When the operator looks again at the latest.
    pub looks_again: DateTime<Utc>,
    /// Passable rules that would act and rest after a failure; the rules behind them go on.
    pub resting: Vec<RuleLine>,
    /// What the answer builds on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A rule.
#[derive(Clone, Debug, Serialize)]
pub struct RuleLine {
    /// Its number in the order of importance, from 1.
    pub number: usize,
    /// Its name.
    pub name: &'static str,
    /// Its family.
    pub family: &'static str,
    /// What it does.
    pub what: &'static str,
}

/// An unmet condition.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    /// The condition.
    #[serde(rename = "for")]
    pub what: String,
    /// Since when it is waited for.
    pub since: DateTime<Utc>,
    /// Who or what can end the wait.
    pub who_can_end_it: String,
    /// When something else is done, or it is said that the wait takes too long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<DateTime<Utc>>,
}

/// The page of one look.
pub fn page(look: &mut Look) -> WhyPage {
    let presumed = look.presume();
    let (decision, status) = (look.decide(), look.status());
    let wait = match &decision.action {
        Action::Wait(waiting) if !waiting.resting => Some(Wait {
            what: waiting.what.to_string(),
            since: waiting.since,
            who_can_end_it: waiting.who_can_end_it.to_string(),
            deadline: waiting.deadline,
        }),
        _ => None,
    };
    let decided = decision.failure.as_ref().map(|failure| FailureStatus {
        reason: failure.reason,
        message: failure.message.to_string(),
    });
    let name = look.db.metadata.name.clone().unwrap_or_default();
    let mut notes = Vec::new();
    let secret = |kind: &&machine::cluster::ChildKind| kind.kind() == "Secret";
    if presumed.iter().any(|kind| secret(&kind)) {
        notes.push("Secrets are never read: they are taken to be as the operator made them.".to_owned());
    }
    let others: Vec<_> = presumed.iter().filter(|kind| !secret(kind)).collect();
    if !others.is_empty() {
        let names: Vec<_> = others
            .iter()
            .map(|kind| format!("{} {name}{}", kind.kind(), kind.suffix()))
            .collect();
        notes.push(format!(
            "Not read, and taken to be as the operator made them: {}.",
            names.join(", ")
        ));
    }
    let unknown = look.unknown();
    if !unknown.is_empty() {
        notes.push(format!("Not read, and counted as unknown: {}.", unknown.join(", ")));
    }
    notes.extend(disagreement(look, &decision, wait.as_ref()));
    WhyPage {
        name: name.clone(),
        namespace: look.namespace().to_owned(),
        at: look.now,
        phase: status.phase,
        rule: line(decision.rule),
        because: decision.because.to_string(),
        action: words::action(&decision.action, &name),
        wait,
        failure: status.failure.or(decided),
        looks_again: decision.wake,
        resting: look.with_facts(|facts| resting(facts, decision.rule)),
        notes,
    }
}

/// What the operator's own status says otherwise.
fn disagreement(look: &Look, decision: &Decision, wait: Option<&Wait>) -> Option<String> {
    let status = look.status();
    let said = status.waiting.as_ref().map(|waiting| waiting.what.as_str());
    let same = said == wait.map(|wait| wait.what.as_str());
    if same && status.phase == Some(decision.phase) {
        return None;
    }
    // An action takes no time; the status speaks of the wait before or after it.
    if wait.is_none() && !matches!(decision.action, Action::Wait(_)) && status.phase == Some(decision.phase) {
        return None;
    }
    let phase = status.phase.map_or("none", Phase::as_str);
    let said = said.map_or_else(|| "waits for nothing".to_owned(), |what| format!("waits for {what}"));
    Some(format!(
        "The operator's status says otherwise: phase {phase}, {said}. It may know of a failed request, be about to look \
         again, be down, or be of another version than this program."
    ))
}

/// The passable rules in front of the one that decides that propose something: had they not to rest, they would decide.
fn resting(facts: &Facts<'_>, decides: &str) -> Vec<RuleLine> {
    let before = RULES.iter().take_while(|rule| rule.name != decides);
    before
        .filter(|rule| rule.passable && (rule.propose)(facts).is_some())
        .map(|rule| line(rule.name))
        .collect()
}

fn line(name: &str) -> RuleLine {
    let found = RULES.iter().enumerate().find(|(_, rule)| rule.name == name);
    // A decision names one of the rules.
    let (index, rule) = found.unwrap_or((RULES.len() - 1, &RULES[RULES.len() - 1]));
    RuleLine {
        number: index + 1,
        name: rule.name,
        family: rule.family,
        what: rule.what,
    }
}

/// The page as text.
pub fn text(page: &WhyPage, style: Style) -> String {
    let mut out = Page::default();
    let name = format!("{} in {}", page.name, page.namespace);
    out.field("Database", style.paint(Tone::Strong, &name));
    out.field("Phase", style.phase(page.phase));
    let rule = format!("{} ({})", page.rule.name, page.rule.family);
    out.field("Rule", style.paint(Tone::Strong, &rule));
    out.field("", page.rule.what);
    out.field("Because", &page.because);
    if let Some(wait) = &page.wait {
        out.field("Waits for", style.paint(Tone::Busy, &wait.what));
        out.field(
            "  since",
            format!("{} ({})", instant(wait.since), span(page.at - wait.since)),
        );
        out.field("  ended by", &wait.who_can_end_it);
        if let Some(deadline) = wait.deadline {
            let left = deadline - page.at;
            let left = if left > TimeDelta::zero() {
                format!("in {}", span(left))
            } else {
                "passed".to_owned()
            };
            out.field("  deadline", format!("{} ({left})", instant(deadline)));
        }
    } else {
        out.field("Does", &page.action);
    }
    if let Some(failure) = &page.failure {
        out.field(
            "Failure",
            style.paint(Tone::Bad, &format!("{:?}: {}", failure.reason, failure.message)),
        );
    }
    let again = span(page.looks_again - page.at);
    out.field(
        "Looks again",
        format!("when something changes, and in {again} at the latest"),
    );
    let resting: Vec<_> = page.resting.iter().map(|rule| rule.name).collect();
    let resting = if resting.is_empty() {
        "no passable rule rests after a failure".to_owned()
    } else {
        format!("{}: what they do failed, and is tried again later", resting.join(", "))
    };
    out.field("Resting", resting);
    for note in &page.notes {
        out.field("Note", note);
    }
    out.finish()
}
