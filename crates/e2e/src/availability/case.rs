//! What a scenario may cost: how the end-to-end tests judge a run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::names::{CONTAINER, LABEL_CLUSTER, Names};
use testbed::{Options, Testbed};

use crate::availability::history::History;
use crate::availability::record::Outcome;
use crate::availability::report::lost;
use crate::availability::run::{Done, Plan, run};
use crate::availability::scenario::{self, Fault, Heal, Scenario};
use crate::availability::subject::Subject;
use crate::{Namespace, WRITER_IMAGE_VARIABLE};

/// Writes must be back within this; then the fault is undone.
const BOUND: Duration = Duration::from_secs(60);
/// How far a standby may be behind without any fault, in nanoseconds.
const BEHIND: u64 = 1_000_000_000;

/// What a scenario may cost. The bounds are those of the design, doubled for a machine that is busy otherwise. `cargo
/// xtask availability` measures the costs on a quiet one.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name.
    pub scenario: &'static str,
    /// Longest time without an acknowledged write, in seconds.
    pub outage: f64,
    /// The primary must be another one afterwards.
    pub moves: bool,
    /// The primary must be the same afterwards.
    pub stays: bool,
    /// The operator's pods are killed at the same moment.
    pub operator_killed: bool,
    /// All pods are replaced on purpose.
    pub replaces: bool,
    /// The fault is undone after this many seconds, instead of the scenario's own time.
    pub lasts: Option<u64>,
    /// What may be lost.
    pub loss: Loss,
    /// How long the old primary may still acknowledge after the fault is undone, in milliseconds. If commits wait for
    /// no standby, a primary that was stopped with its clock and its dead-man serves until these notice the lateness.
    pub lingers: u64,
}

/// What may be lost of what was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Nothing.
    Nothing,
    /// WAL that no standby had received when the primary was lost: rows that it acknowledged from about then on.
    LastCommits,
}

impl Case {
    /// A case that loses nothing and replaces no pod except a deleted one.
    #[must_use]
    pub const fn new(scenario: &'static str, outage: f64, moves: bool) -> Self {
        Self {
            scenario,
            outage,
            moves,
            stays: false,
            operator_killed: false,
            replaces: false,
            lasts: None,
            loss: Loss::Nothing,
            lingers: 0,
        }
    }

    /// The same, with the operator's pods killed at the same moment.
    #[must_use]
    pub const fn without_operator(self) -> Self {
        Self {
            operator_killed: true,
            ..self
        }
    }

    fn scenario(&self) -> Result<Scenario> {
        let found = scenario::all().into_iter().find(|known| known.name == self.scenario);
        let mut scenario = found.with_context(|| format!("scenario {}", self.scenario))?;
        if let Some(lasts) = self.lasts {
            scenario.heal = Heal::After(Duration::from_secs(lasts));
            scenario.observe = Duration::from_secs(lasts);
        }
        Ok(scenario)
    }
}

/// Runs all cases on a database of this name, one after another.
///
/// # Errors
/// When a run cannot be made; or, after all runs, with all that is wrong with any of them.
pub async fn run_all(namespace: &Namespace, name: &str, cases: &[Case]) -> Result<()> {
    let subject = subject(namespace, name)?;
    let image = std::env::var(WRITER_IMAGE_VARIABLE).context("the image with the writer")?;
    let mut wrong = Vec::new();
    for (number, case) in (1..).zip(cases) {
        let claims = namespace.claim_uids(name).await?;
        let pods = namespace.pod_uids(name).await?;
        let plan = Plan {
            scenario: case.scenario()?,
            number,
            operator_killed: case.operator_killed,
            image: image.clone(),
            bound: BOUND,
        };
        let done = run(&subject, &plan).await;
        let done = done.with_context(|| format!("run {}", case.scenario))?;
        let mut found = judge(case, &done);
        if namespace.claim_uids(name).await? != claims {
            found.push("claims were replaced".to_owned());
        }
        let after = namespace.pod_uids(name).await?;
        let deleted = matches!(plan.scenario.fault, Fault::DeletePod(_)).then_some(done.run.report.primary.as_str());
        found.extend(replaced(case, deleted, &pods, &after));
        wrong.extend(found.into_iter().map(|what| format!("{}: {what}", done.run.label())));
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// A database of this name on the testbed, of three instances.
///
/// # Errors
/// When there is no testbed.
pub fn subject(namespace: &Namespace, name: &str) -> Result<Subject> {
    let names = Names::new(name);
    Ok(Subject {
        namespace: namespace.clone(),
        service: names.rw(),
        secret: names.app_secret(),
        database: None,
        selector: format!("{LABEL_CLUSTER}={name}"),
        container: CONTAINER.to_owned(),
        replicas: 3,
        own: Some(name.to_owned()),
        operator: Some((
            crate::install::NAMESPACE.to_owned(),
            "app.kubernetes.io/name=clustereddatabase-operator".to_owned(),
        )),
        testbed: Some(Arc::new(Testbed::attach(Options::from_env()?.instance)?)),
    })
}

type Uids = BTreeMap<String, String>;

/// Pods that were replaced and should not have been, or the other way round. A pod is replaced only if it is deleted,
/// or if the template changes in a way that no running pod can adopt.
fn replaced(case: &Case, deleted: Option<&str>, before: &Uids, after: &Uids) -> Option<String> {
    let wrong = before.iter().filter(|(pod, uid)| {
        let is_new = after.get(*pod) != Some(*uid);
        is_new != (case.replaces || deleted == Some(pod.as_str()))
    });
    let wrong: Vec<&String> = wrong.map(|(pod, _)| pod).collect();
    (!wrong.is_empty())
        .then(|| format!("pods were replaced that should not have been, or the other way round: {wrong:?}"))
}

fn judge(case: &Case, done: &Done) -> Vec<String> {
    let report = &done.run.report;
    println!(
        "{}: {:.2} s without a write, {} -> {}, as before after {:?} ms; lost {}, overlap {:?}",
        done.run.label(),
        report.outage / 1_000.0,
        report.primary,
        report.primary_after,
        done.run.ready,
        report.lost.count,
        report.overlap
    );
    let mut wrong = Vec::new();
    let too_late = report.overlap.as_ref().filter(|overlap| {
        let old = &report.primary;
        overlap.old != *old || !ends_in_time(&done.history, old, done.injected, case.lingers)
    });
    if report.unexplained.count > 0 || too_late.is_some() {
        wrong.push(format!("unexplained {:?}, overlap {too_late:?}", report.unexplained));
    }
    wrong.extend(judge_loss(case.loss, done));
    if report.outage_open || report.outage > case.outage * 1_000.0 {
        wrong.push(format!("{:.1} s without a write", report.outage / 1_000.0));
    }
    if done.run.ready.is_none() {
        let mut marks = done.history.marks.iter().map(|(_, mark)| mark);
        let missing = marks.rfind(|mark| mark.starts_with("not as before"));
        wrong.push(format!("it is not as before by itself: {missing:?}"));
    }
    if case.moves && report.primary == report.primary_after {
        wrong.push(format!("{} is still the primary", report.primary));
    }
    if case.stays && report.primary != report.primary_after {
        wrong.push(format!("{} is the primary no more", report.primary));
    }
    wrong
}

/// Checks that the old primary acknowledged nothing more once the fault, which began at `injected`, had been undone for
/// `lingers` milliseconds.
fn ends_in_time(history: &History, old: &str, injected: u64, lingers: u64) -> bool {
    let attempts = history.attempts.iter();
    let mut acks = attempts.filter(|attempt| attempt.outcome == Outcome::Acked && history.server(attempt) == old);
    let last = acks.next_back();
    let healed = history.marked("healed", injected);
    healed.is_some_and(|healed| lingers > 0 && last.is_none_or(|last| last.done <= healed + lingers * 1_000_000))
}

fn judge_loss(allowed: Loss, done: &Done) -> Option<String> {
    let lost = lost(&done.history, &done.rows);
    let beyond: Vec<String> = lost
        .into_iter()
        .filter(|attempt| match allowed {
            Loss::Nothing => true,
            Loss::LastCommits => {
                let of_old = done.history.server(attempt) == done.run.report.primary;
                !of_old || attempt.done + BEHIND < done.injected
            }
        })
        .map(|attempt| format!("{} {}", attempt.stream, attempt.seq))
        .collect();
    let first = beyond.get(..beyond.len().min(20))?;
    (!first.is_empty()).then(|| format!("lost {}, first {first:?}", beyond.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::availability::record::Attempt;
    use crate::availability::report::SERVICE;

    #[test]
    fn a_primary_that_resumes_must_end_soon() {
        let ack = |milliseconds: u64, server: &str| Attempt {
            stream: SERVICE,
            seq: milliseconds,
            count: 1,
            sent: milliseconds * 1_000_000,
            done: milliseconds * 1_000_000,
            outcome: Outcome::Acked,
            server: Some(server.to_owned()),
            timeline: None,
            error: None,
        };
        let mut history = History {
            attempts: vec![ack(1_000, "a"), ack(15_000, "b"), ack(31_000, "a"), ack(40_000, "b")],
            ..History::default()
        };
        let ends = |history: &History, lingers| ends_in_time(history, "a", 1_000_000_000, lingers);
        assert!(!ends(&history, 1_000), "nothing was undone");
        history.mark(30_000_000_000, "healed");
        assert!(ends(&history, 1_000));
        assert!(!ends(&history, 999) && !ends(&history, 0));
        history.attempts.push(ack(41_000, "a"));
        assert!(!ends(&history, 1_000));
    }
}
