//! `why`: the rule that decides about the database now, and what it waits for.

use api::Phase;
use api::status::{FailureStatus, WaitActor, WaitReason};
use chrono::{DateTime, TimeDelta, Utc};
use machine::cluster::{Action, Decision, Facts, OnBackoff, RULES};
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
    /// The fact behind its decision.
    pub because: String,
    /// The action.
    pub action: String,
    /// The unmet condition, if the action is a wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
    /// Why waiting does not help: by the status, or else by this decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureStatus>,
    /// When the operator checks again at the latest.
    pub next_check: DateTime<Utc>,
    /// Rules that back off after a failure: they would act, and the rules behind them decide meanwhile.
    pub backing_off: Vec<RuleLine>,
    /// Assumptions of the answer.
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
    /// The condition in one word.
    pub reason: WaitReason,
    /// The object of the wait, as kubectl names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// Who can end the wait.
    pub actor: WaitActor,
    /// The condition.
    #[serde(rename = "for")]
    pub what: String,
    /// Since when it is unmet.
    pub since: DateTime<Utc>,
    /// How the actor, or somebody else, can end the wait.
    pub who_can_end_it: String,
    /// When the operator does something else, or reports that the wait takes too long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<DateTime<Utc>>,
}

/// The page of one snapshot.
pub fn page(look: &mut Look) -> WhyPage {
    let presumed = look.presume();
    let (decision, status) = (look.decide(), look.status());
    let wait = match &decision.action {
        Action::Wait(waiting) if !waiting.resting => Some(Wait {
            reason: waiting.reason,
            object: waiting.object.clone(),
            actor: waiting.actor,
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
    let secret = |kind: &&machine::cluster::OwnedObject| kind.kind() == "Secret";
    if presumed.iter().any(|kind| secret(&kind)) {
        notes.push("Secrets are never read. This answer assumes that they are as the operator made them.".to_owned());
    }
    let others: Vec<_> = presumed.iter().filter(|kind| !secret(kind)).collect();
    if !others.is_empty() {
        let names: Vec<_> = others
            .iter()
            .map(|kind| format!("{} {name}{}", kind.kind(), kind.suffix()))
            .collect();
        notes.push(format!(
            "Not read, and assumed to be as the operator made them: {}.",
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
        next_check: decision.wake,
        backing_off: look.with_facts(|facts| backing_off(facts, decision.rule)),
        notes,
    }
}

/// How the operator's own status differs, if it does.
fn disagreement(look: &Look, decision: &Decision, wait: Option<&Wait>) -> Option<String> {
    let status = look.status();
    let reported = status.waiting.as_ref().map(|waiting| waiting.what.as_str());
    let kept = status.waiting.as_ref();
    let same = match (kept.and_then(|waiting| waiting.reason), wait) {
        // The words do not count.
        (Some(reason), Some(wait)) => {
            reason == wait.reason && kept.and_then(|waiting| waiting.object.as_ref()) == wait.object.as_ref()
        }
        _ => reported == wait.map(|wait| wait.what.as_str()),
    };
    if same && status.phase == Some(decision.phase) {
        return None;
    }
    // An action takes no time; the status has the wait before or after it.
    if wait.is_none() && !matches!(decision.action, Action::Wait(_)) && status.phase == Some(decision.phase) {
        return None;
    }
    let phase = status.phase.map_or("none", Phase::as_str);
    let reported = reported.map_or_else(|| "waits for nothing".to_owned(), |what| format!("waits for {what}"));
    Some(format!(
        "The operator's status differs: phase {phase}, {reported}. The operator may know of a failed request, be about to check \
         again, be down, or be of another version than this program."
    ))
}

/// The rules before the deciding one that yield on back-off and propose something: without the back-off, they would decide.
fn backing_off(facts: &Facts<'_>, decides: &str) -> Vec<RuleLine> {
    let before = RULES.iter().take_while(|rule| rule.name != decides);
    before
        .filter(|rule| rule.on_backoff == OnBackoff::Yield && (rule.decide)(facts).is_some())
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
    page.rule.what.lines().for_each(|line| out.field("", line));
    out.field("Because", &page.because);
    if let Some(wait) = &page.wait {
        out.field("Waits for", style.paint(Tone::Busy, &wait.what));
        out.field("  who acts", words::actor(Some(wait.actor), &wait.who_can_end_it));
        out.field("  reason", words::reason(wait.reason, wait.object.as_deref()));
        out.field(
            "  since",
            format!("{} ({})", instant(wait.since), span(page.at - wait.since)),
        );
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
    let again = span(page.next_check - page.at);
    out.field(
        "Next check",
        format!("when something changes, and in {again} at the latest"),
    );
    let backing_off: Vec<_> = page.backing_off.iter().map(|rule| rule.name).collect();
    let backing_off = if backing_off.is_empty() {
        "no rule".to_owned()
    } else {
        format!(
            "{}: their actions failed, and the operator retries later",
            backing_off.join(", ")
        )
    };
    out.field("Backing off", backing_off);
    for note in &page.notes {
        out.field("Note", note);
    }
    out.finish()
}
