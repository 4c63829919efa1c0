//! Drills on a schedule (`spec.backup.drill`): a database is recovered from the newest backup and all archived WAL, and removed again. That
//! it became Ready is the proof that the backups can be used.
//!
//! The drill is a ClusteredDatabase that this one owns. Its name is recorded before it is made, and how it ended before it is removed.

use api::Phase;
use api::spec::BackupDrill;
use api::status::{DrillResult, DrillRun};
use chrono::{DateTime, TimeDelta, Utc};

use super::action::{Action, StatusChange};
use super::decision::Step;
use super::facts::Facts;
use super::health::{Answer, Reason};
use super::observed::{DrillSeen, Known};
use super::rule::{OnBackoff, Proposal, Rule, RuleKind};
use super::schedule::Times;

/// See [`Rule::what`].
pub const DRILL: Rule = Rule {
    name: "drill",
    family: "backup",
    what: "At each time of spec.backup.drill a database of one instance is recovered from the newest backup.\n\
           - Once it is Ready or has failed, or its time is over, that is recorded, and then it is removed.\n\
           - Without a backup, or while the database hibernates, no drill begins.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: drill,
    on_backoff: OnBackoff::Yield,
};

/// How long a drill may take, if the spec does not say.
const LIMIT: TimeDelta = TimeDelta::hours(4);

/// `spec.backup.drill`.
pub(super) fn wanted<'a>(facts: &Facts<'a>) -> Option<&'a BackupDrill> {
    facts.wanted.spec.backup.as_ref()?.drill.as_ref()
}

fn times(drill: &BackupDrill) -> Result<Times, String> {
    Times::parse("backup.drill", &drill.schedule, drill.time_zone.as_deref())
}

/// What is wrong with the schedule, and no rule of the API could tell.
pub(super) fn fault(facts: &Facts<'_>) -> Option<String> {
    times(wanted(facts)?).err()
}

/// When something is to be done next.
pub(super) fn next_time(facts: &Facts<'_>) -> Option<DateTime<Utc>> {
    let run = facts.status.memo.drill.as_ref();
    if let Some(run) = run.filter(|run| run.name.is_some() && !run.ended) {
        return Some(run.begun_at? + limit(facts));
    }
    let drill = wanted(facts).filter(|drill| !drill.suspend)?;
    times(drill).ok()?.next(facts.now)
}

fn limit(facts: &Facts<'_>) -> TimeDelta {
    let minutes = wanted(facts).and_then(|drill| drill.limit_minutes);
    minutes.map_or(LIMIT, |minutes| TimeDelta::minutes(minutes.into()))
}

fn drill(facts: &Facts<'_>) -> Option<Proposal> {
    match &facts.status.memo.drill {
        Some(run) if run.name.is_some() => go_on(facts, run),
        run => begin(facts, run.as_ref()),
    }
}

fn act(action: Action, because: String) -> Option<Proposal> {
    Proposal::act(Step::Objects, action, because)
}

fn record(run: DrillRun, result: Option<DrillResult>, because: String) -> Option<Proposal> {
    act(
        Action::WriteStatus(vec![StatusChange::RecordDrill(Box::new(run), result.map(Box::new))]),
        because,
    )
}

/// The next drill begins, if its time has come.
fn begin(facts: &Facts<'_>, run: Option<&DrillRun>) -> Option<Proposal> {
    let Some(drill) = wanted(facts) else {
        run?;
        let changes = vec![StatusChange::ForgetDrill];
        return act(Action::WriteStatus(changes), "the spec asks for no drills".to_owned());
    };
    if drill.suspend || facts.wanted.spec.hibernated {
        return None;
    }
    let Some(run) = run else {
        let seen = DrillRun {
            time: facts.now,
            ..DrillRun::default()
        };
        return record(seen, None, "drills are asked for".to_owned());
    };
    let time = times(drill).ok()?.last(facts.now).filter(|time| *time > run.time)?;
    let known = facts.status.backup.as_ref()?;
    let last = known.last_backup.as_ref()?;
    // A drill recovers copies in the store. After a snapshot the agent looks for the newest of them.
    let copy = Some(last).filter(|last| last.snapshot.is_none());
    let begun = DrillRun {
        time,
        name: Some(crate::drill::name(facts.wanted.name, time)),
        backup: copy.map(|copy| copy.name.clone()),
        data_bytes: copy.map(|copy| copy.data_bytes),
        archived_up_to: known.archive.archived_up_to.clone(),
        begun_at: Some(facts.now),
        ended: false,
    };
    record(begun, None, format!("a drill has its time: {}", time.format("%FT%TZ")))
}

/// The drill is made, watched and removed.
fn go_on(facts: &Facts<'_>, run: &DrillRun) -> Option<Proposal> {
    let name = run.name.clone()?;
    let Known::Known(seen) = &facts.observed.drill else {
        return None;
    };
    let seen = seen.as_ref();
    if run.ended {
        return match seen.filter(|seen| seen.is_ours) {
            Some(seen) if seen.terminating => None,
            Some(seen) => act(
                Action::DeleteDrill(seen.exact.clone()),
                format!("drill {name} has ended"),
            ),
            None => {
                let done = DrillRun {
                    time: run.time,
                    ..DrillRun::default()
                };
                record(done, None, format!("drill {name} is gone"))
            }
        };
    }
    match outcome(facts, run, seen) {
        None if seen.is_none() => {
            let backup = run.backup.clone();
            act(Action::MakeDrill { name, backup }, "a drill has its time".to_owned())
        }
        None => None,
        Some(outcome) => {
            let because = match &outcome {
                Ok(()) => format!("drill {name} is Ready"),
                Err(why) => format!("drill {name} has failed: {why}"),
            };
            let ended = DrillRun {
                ended: true,
                ..run.clone()
            };
            record(ended, Some(result(facts, run, name, outcome)), because)
        }
    }
}

/// How it ended; `None` while it has not.
fn outcome(facts: &Facts<'_>, run: &DrillRun, seen: Option<&DrillSeen>) -> Option<Result<(), String>> {
    if wanted(facts).is_none() {
        return Some(Err("spec.backup.drill was removed".to_owned()));
    }
    let message = seen.and_then(|seen| seen.message.clone());
    match seen {
        Some(seen) if !seen.is_ours => {
            return Some(Err(
                "there is a database of this name that is no drill of this one".to_owned()
            ));
        }
        Some(seen) if seen.phase == Some(Phase::Ready) => return Some(Ok(())),
        Some(seen) if seen.phase == Some(Phase::Failed) => return Some(Err(message.unwrap_or_default())),
        Some(_) | None => {}
    }
    let limit = limit(facts);
    (facts.now >= run.begun_at? + limit).then(|| {
        let waits = message.map_or(String::new(), |what| format!("; it waits for {what}"));
        Err(format!(
            "it was not Ready within {} minutes{waits}",
            limit.num_minutes()
        ))
    })
}

/// What drills say of the backups, where everything else is as it should be.
pub(super) fn proven(facts: &Facts<'_>, answer: Answer) -> Answer {
    let Some(drill) = wanted(facts).filter(|_| answer.holds == Some(true)) else {
        return unproven(answer);
    };
    let last = facts.status.backup.as_ref().and_then(|backup| backup.drill.as_ref());
    if let Some(failed) = last.filter(|last| !last.succeeded) {
        let why = failed.message.as_deref().unwrap_or("it is not known why");
        return Answer::new(
            false,
            Reason::DrillFails,
            format!("drill {} has failed: {why}", failed.name),
        );
    }
    let success = last.and_then(|last| last.last_success_time);
    let run = facts.status.memo.drill.as_ref();
    let since = success.or(run.map(|run| run.time));
    let too_old = |days: u32| since.is_some_and(|since| facts.now >= since + TimeDelta::days(days.into()));
    if let Some(days) = drill.max_age_days.filter(|days| too_old(*days)) {
        return Answer::new(
            false,
            Reason::ProofTooOld,
            format!("no drill has succeeded for {days} days"),
        );
    }
    let proof = match success {
        None => "No drill has been made yet".to_owned(),
        Some(time) => format!("A drill of {} recovered it", time.format("%FT%TZ")),
    };
    Answer {
        message: format!("{}. {proof}", answer.message),
        ..answer
    }
}

/// A healthy answer says so where no drill is asked for.
fn unproven(answer: Answer) -> Answer {
    match answer.holds {
        Some(true) => Answer {
            message: format!(
                "{}. No drill proves that it can be recovered (spec.backup.drill)",
                answer.message
            ),
            ..answer
        },
        Some(false) | None => answer,
    }
}

fn result(facts: &Facts<'_>, run: &DrillRun, name: String, outcome: Result<(), String>) -> DrillResult {
    let before = facts.status.backup.as_ref().and_then(|backup| backup.drill.as_ref());
    let begun = run.begun_at.unwrap_or(facts.now);
    let succeeded = outcome.is_ok();
    DrillResult {
        name,
        succeeded,
        start_time: begun,
        end_time: facts.now,
        message: outcome.err(),
        data_bytes: run.data_bytes,
        archived_up_to: run.archived_up_to.clone(),
        // What is in it was archived before it began.
        last_success_time: if succeeded {
            Some(begun)
        } else {
            before.and_then(|before| before.last_success_time)
        },
        proven_backup: run
            .backup
            .clone()
            .filter(|_| succeeded)
            .or_else(|| before?.proven_backup.clone()),
    }
}

#[cfg(test)]
mod tests;
