//! Backups on a schedule: `spec.backup.schedules`. A run is recorded before its DatabaseBackup is made, and looked for before it is
//! believed. Runs that were missed are caught up by one.

use std::str::FromStr;

use api::backup::StoredBackup;
use api::spec::BackupSchedule;
use api::status::{ArchiveLine, ScheduledRun};
use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};

use super::action::{Action, StatusChange};
use super::decision::Step;
use super::facts::Facts;
use super::rule::{OnBackoff, Proposal, Rule, RuleKind};

/// See [`Rule::what`].
pub const SCHEDULED_BACKUP: Rule = Rule {
    name: "scheduled-backup",
    family: "backup",
    what: "A DatabaseBackup is made at each time of a schedule.\n\
           - Runs that were missed are caught up by one.\n\
           - A new schedule begins with its next time, or at once if it says so.\n\
           - The first schedule begins at once in a recovered database, and in a new line of the archive.\n\
           - While a backup is open, or the database hibernates, no other begins.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: scheduled_backup,
    on_backoff: OnBackoff::Yield,
};

/// Missed times are counted up to here.
const COUNTED: u32 = 1_000;

/// A schedule that is understood.
pub(super) struct Times {
    cron: Cron,
    zone: Tz,
}

impl Times {
    fn of(schedule: &BackupSchedule) -> Result<Self, String> {
        let field = format!("backup.schedules: {}", schedule.name);
        Self::parse(&field, &schedule.schedule, schedule.time_zone.as_deref())
    }

    /// The times of the schedule in `field`.
    pub(super) fn parse(field: &str, schedule: &str, zone: Option<&str>) -> Result<Self, String> {
        let parser = CronParser::builder()
            .seconds(Seconds::Disallowed)
            .year(Year::Disallowed)
            .build();
        let cron = parser.parse(schedule).map_err(|error| {
            format!(
                "{field}: {schedule:?} is no schedule ({error}): give five fields as in a crontab, such as \"0 3 * * *\""
            )
        })?;
        let zone = zone.unwrap_or("UTC");
        let zone = Tz::from_str(zone)
            .map_err(|_| format!("{field}: {zone:?} is no time zone: give a name such as Europe/Berlin"))?;
        Ok(Self { cron, zone })
    }

    /// The first time after `at`.
    pub(super) fn next(&self, at: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let found = self.cron.find_next_occurrence(&at.with_timezone(&self.zone), false);
        found.ok().map(|time| time.with_timezone(&Utc))
    }

    /// The last time that is not after `at`.
    pub(super) fn last(&self, at: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let found = self.cron.find_previous_occurrence(&at.with_timezone(&self.zone), true);
        found.ok().map(|time| time.with_timezone(&Utc))
    }

    /// How many times there are between the two, at most [`COUNTED`].
    fn missed(&self, after: DateTime<Utc>, before: DateTime<Utc>) -> u32 {
        let times = std::iter::successors(self.next(after), |time| self.next(*time));
        (0..COUNTED)
            .zip(times.take_while(|time| *time < before))
            .map(|_| 1)
            .sum()
    }
}

fn schedules<'a>(facts: &Facts<'a>) -> impl Iterator<Item = &'a BackupSchedule> + use<'a> {
    let backup = facts.wanted.spec.backup.as_ref();
    backup.into_iter().flat_map(|backup| &backup.schedules)
}

/// What is wrong with a schedule, and no rule of the API could tell.
pub(super) fn fault(facts: &Facts<'_>) -> Option<String> {
    schedules(facts).find_map(|schedule| Times::of(schedule).err())
}

/// When the next backup is to be taken; `None` if no schedule asks for one.
pub(super) fn next_time(facts: &Facts<'_>) -> Option<DateTime<Utc>> {
    let going = schedules(facts).filter(|schedule| !schedule.suspend);
    going
        .filter_map(|schedule| Times::of(schedule).ok()?.next(facts.now))
        .min()
}

fn scheduled_backup(facts: &Facts<'_>) -> Option<Proposal> {
    if facts.wanted.spec.hibernated {
        return None;
    }
    let runs = &facts.status.memo.schedules;
    if let Some(gone) = runs
        .keys()
        .find(|name| schedules(facts).all(|schedule| schedule.name != **name))
    {
        let change = StatusChange::ForgetSchedule(gone.clone());
        return record(change, format!("the spec has no schedule {gone}"));
    }
    schedules(facts).find_map(|schedule| match runs.get(&schedule.name) {
        Some(run) if run.making.is_some() => make(facts, schedule, run),
        run => begin(facts, schedule, run),
    })
}

fn record(change: StatusChange, because: String) -> Option<Proposal> {
    Proposal::act(Step::Objects, Action::WriteStatus(vec![change]), because)
}

/// The DatabaseBackup of a run is made, or found.
fn make(facts: &Facts<'_>, schedule: &BackupSchedule, run: &ScheduledRun) -> Option<Proposal> {
    let name = run.making.clone()?;
    if facts.observed.scheduled.get()?.contains(&name) {
        let made = ScheduledRun {
            making: None,
            ..run.clone()
        };
        let change = StatusChange::RecordSchedule(schedule.name.clone(), made);
        return record(change, format!("DatabaseBackup {name} is made"));
    }
    Proposal::act(
        Step::Objects,
        Action::MakeBackup {
            name,
            source: schedule.source,
            kind: schedule.kind,
        },
        format!("schedule {} had its time", schedule.name),
    )
}

/// The next run begins, if its time has come.
fn begin(facts: &Facts<'_>, schedule: &BackupSchedule, run: Option<&ScheduledRun>) -> Option<Proposal> {
    if schedule.suspend {
        return None;
    }
    let times = Times::of(schedule).ok()?;
    let time = match run {
        None if !schedule.immediate && !begins_recovered(facts, schedule) => {
            let seen = ScheduledRun {
                time: facts.now,
                making: None,
                missed: 0,
                line: line(facts),
            };
            let change = StatusChange::RecordSchedule(schedule.name.clone(), seen);
            return record(change, format!("schedule {} is new", schedule.name));
        }
        None => facts.now,
        Some(run) if begins_line(facts, schedule, run) => facts.now,
        Some(run) => times.last(facts.now).filter(|time| *time > run.time)?,
    };
    if facts.wanted.backup.is_some() {
        return None;
    }
    let making = format!("{}-{}-{}", facts.wanted.name, schedule.name, time.format("%Y%m%d%H%M"));
    let missed = run.map_or(0, |run| times.missed(run.time, time));
    let mut because = format!("schedule {} has its time: {}", schedule.name, time.format("%FT%TZ"));
    if missed > 0 {
        because.push_str(&format!("; {missed} before it were missed"));
    }
    let begun = ScheduledRun {
        time,
        making: Some(making),
        missed,
        line: line(facts),
    };
    record(StatusChange::RecordSchedule(schedule.name.clone(), begun), because)
}

/// The line that WAL is archived in.
fn line(facts: &Facts<'_>) -> ArchiveLine {
    facts
        .archive()
        .map_or_else(ArchiveLine::default, |archive| archive.line)
}

/// True for the first schedule that is not suspended, if the archive has begun another line since its last run: without a backup in it
/// nothing there can be recovered.
fn begins_line(facts: &Facts<'_>, schedule: &BackupSchedule, run: &ScheduledRun) -> bool {
    run.line < line(facts) && is_first(facts, schedule)
}

/// The same of a database that is itself made from a backup: its archive has none.
fn begins_recovered(facts: &Facts<'_>, schedule: &BackupSchedule) -> bool {
    let bootstrap = facts.wanted.spec.bootstrap.as_ref();
    bootstrap.is_some_and(|bootstrap| bootstrap.recovery.is_some()) && is_first(facts, schedule)
}

fn is_first(facts: &Facts<'_>, schedule: &BackupSchedule) -> bool {
    let first = schedules(facts).find(|schedule| !schedule.suspend);
    first.is_some_and(|first| first.name == schedule.name)
}

/// That a schedule has had its time twice since the last backup began: the run for the first of these times was not completed.
pub(super) fn overdue(facts: &Facts<'_>, last: &StoredBackup) -> Option<String> {
    let twice = |schedule: &&BackupSchedule| {
        let times = Times::of(schedule).ok()?;
        times.next(times.next(last.start_time)?)
    };
    let mut going = schedules(facts).filter(|schedule| !schedule.suspend && !facts.wanted.spec.hibernated);
    let late = going.find(|schedule| twice(schedule).is_some_and(|time| time <= facts.now))?;
    Some(format!(
        "schedule {} has had its time twice since the last backup began, at {}: kubectl get databasebackups says what holds it up",
        late.name,
        last.start_time.format("%FT%TZ")
    ))
}

#[cfg(test)]
mod tests;
