//! One run of one scenario: writers start, a fault is injected, everything recovers, and then the tables are compared
//! with the notes.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;
use tokio::time::{Instant, sleep};

use crate::availability::history::History;
use crate::availability::inject::{Remedy, Scene};
use crate::availability::logs;
use crate::availability::pod::{Duty, Order, WriterPod, wall_clock};
use crate::availability::record::{Record, Rows};
use crate::availability::report::{Facts, Report};
use crate::availability::scenario::{Fault, Heal, Scenario, Signal};
use crate::availability::status::Status;
use crate::availability::subject::{Member, Subject, targets};
use crate::availability::table::Run;
use crate::availability::watch::Watch;
use crate::wait::{Seen, until};

/// Bound for rows to flow before the fault.
const FLOWING: Duration = Duration::from_secs(180);
/// How many rows are written before the fault, without a pause.
const BASELINE: Duration = Duration::from_secs(3);
/// How long writes must succeed to count as back.
const STEADY: Duration = Duration::from_secs(3);
/// Bound for complete recovery, from the end of the fault.
const WHOLE: Duration = Duration::from_secs(240);
/// After this uptime of PostgreSQL, its next end does not count as one in a row.
const RUN_OF_ENDS: Duration = Duration::from_secs(61);
/// The successor of a primary that could not write has a longer time limit for its own disk, for this long after its last late write.
const CALM: Duration = Duration::from_secs(150);
/// Bound for the database to be complete before a run.
const READY: Duration = Duration::from_secs(300);
/// Interval between two checks.
const LOOK: Duration = Duration::from_millis(500);
/// A standby follows if it showed rows this recently.
const FRESH: u64 = 2_000_000_000;

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The scenario.
    pub scenario: Scenario,
    /// Number of the run within it, from 1.
    pub number: usize,
    /// Kill the operator's pods at the same moment.
    pub operator_killed: bool,
    /// Image with the writer.
    pub image: String,
    /// Bound for writes to be back, from the fault or, if that is later, from its fixed end. Then it is undone.
    pub bound: Duration,
}

/// A run that was made.
#[derive(Debug)]
pub struct Done {
    /// What it showed.
    pub run: Run,
    /// What happened, for the picture.
    pub history: History,
    /// When the fault began, on the writer's clock.
    pub injected: u64,
    /// All notes, one JSON object a line: of the writers and of the harness.
    pub notes: String,
    /// The content of the tables.
    pub rows: Vec<Rows>,
}

/// Makes a run.
///
/// # Errors
/// When the database is not complete before, the fault cannot be injected, or a writer cannot be reached afterwards.
/// A database that does not come back is a result, not an error.
pub async fn run(subject: &Subject, plan: &Plan) -> Result<Done> {
    subject.wait_whole(READY).await?;
    let members = subject.members().await?;
    let primary = subject.primary().await?;
    let node = subject.writer_node(&primary, &members).await?;
    let apart = |member: &&Member| ![&primary.node, &node].contains(&&member.node);
    let scene = Scene {
        subject,
        primary: &primary,
        standby: members.iter().find(apart),
        members: &members,
        begun: OnceLock::new(),
    };
    let writers = Writers::start(subject, plan, &primary, &members, &node).await?;
    let made = writers.measure(&scene, plan).await;
    let removed = writers.remove().await;
    let made = made?;
    removed?;
    Ok(made)
}

struct Writers {
    outside: Arc<WriterPod>,
    /// On the primary's node: this writer sees what clients see that are cut off with it.
    inside: WriterPod,
    node: String,
}

impl Writers {
    async fn start(subject: &Subject, plan: &Plan, primary: &Member, members: &[Member], node: &str) -> Result<Self> {
        let run = run_name(plan);
        let order = |node: &str, duty| Order {
            image: plan.image.clone(),
            run: run.clone(),
            node: node.to_owned(),
            duty,
        };
        let outside = WriterPod::start(subject, &order(node, Duty::Rows)).await?;
        outside
            .set_targets(&targets(members).into_iter().collect::<Vec<_>>())
            .await?;
        // Only now the tables exist for certain.
        wait_streams(&outside, &["service", "held", &format!("pod/{}", primary.pod)]).await?;
        let inside = WriterPod::start(subject, &order(&primary.node, Duty::RowsInside)).await?;
        inside.set_targets(&[(primary.pod.clone(), primary.address)]).await?;
        wait_streams(&inside, &["inside/held", &format!("inside/pod/{}", primary.pod)]).await?;
        Ok(Self {
            outside: Arc::new(outside),
            inside,
            node: node.to_owned(),
        })
    }

    async fn remove(&self) -> Result<()> {
        let (outside, inside) = tokio::join!(self.outside.remove(), self.inside.remove());
        outside.and(inside)
    }

    async fn measure(&self, scene: &Scene<'_>, plan: &Plan) -> Result<Done> {
        let offset = self.outside.clock_offset().await?;
        let watch = Watch::start(scene.subject, self.outside.clone());
        wait_steady(&self.outside, BASELINE).await?;
        if plan.operator_killed {
            scene.kill_operator().await?;
        }
        let remedy = scene.inject(&plan.scenario.fault).await?;
        let begun = scene.begun.get().copied().context("every fault notes when it begins")?;
        let mut marks = vec![(begun, "fault".to_owned())];
        let watched = self.watch_fault(scene, plan, &remedy, &mut marks).await;
        if watched.is_err() {
            // The fault must not outlive the run, whatever failed; undoing it twice only gives an error.
            let _ = scene.heal(&remedy).await;
        }
        let ready = watched?;
        marks.extend(watch.marks());
        drop(watch);
        let mut done = self.conclude(scene, plan, marks, offset, ready).await?;
        if let Remedy::Busy(busy) = &remedy {
            done.run.load = Some(busy.load(scene.lease().await?)?);
        }
        Ok(done)
    }

    /// Waits for writes, undoes the fault, and waits for complete recovery. Returns how long that took from the fault,
    /// if it happened.
    async fn watch_fault(
        &self,
        scene: &Scene<'_>,
        plan: &Plan,
        remedy: &Remedy,
        marks: &mut Vec<(u64, String)>,
    ) -> Result<Option<Duration>> {
        let scenario = &plan.scenario;
        let start = Instant::now();
        let mut healed = scenario.heal == Heal::Nothing;
        if let Heal::After(time) = scenario.heal {
            sleep(time).await;
            scene.heal(remedy).await?;
            marks.push((wall_clock(), "healed".to_owned()));
            healed = true;
        }
        let bound = start.elapsed() + plan.bound;
        // Rows cannot have been written for that long yet. A check starts processes, which take a tenth of a small
        // machine.
        sleep(STEADY).await;
        while start.elapsed() < bound {
            let steady = self.outside.status().await.map_or(0, |status| status.steady());
            let observed = start.elapsed() >= scenario.observe && moved(scene, scenario).await;
            if u128::from(steady) >= STEADY.as_nanos() && observed {
                break;
            }
            sleep(LOOK).await;
        }
        ensure!(
            moved(scene, scenario).await,
            "{} is still the primary after {:.0} s",
            scene.primary.pod,
            start.elapsed().as_secs_f64()
        );
        if !healed {
            scene.heal(remedy).await?;
            marks.push((wall_clock(), "healed".to_owned()));
        }
        let healed_at = Instant::now();
        loop {
            let as_before = self.as_before(scene, healed_at.elapsed()).await;
            match as_before {
                Ok(None) => {
                    marks.push((wall_clock(), "as before".to_owned()));
                    return Ok(Some(start.elapsed()));
                }
                Ok(Some(missing)) if healed_at.elapsed() > WHOLE => {
                    marks.push((wall_clock(), format!("not as before: {missing}")));
                    return Ok(None);
                }
                Err(error) if healed_at.elapsed() > WHOLE => {
                    marks.push((wall_clock(), format!("not as before: {error:#}")));
                    return Ok(None);
                }
                Ok(Some(_)) | Err(_) => sleep(LOOK).await,
            }
        }
    }

    /// What is missing for complete recovery: the database complete, one primary, the others following, and writes for
    /// a while.
    async fn as_before(&self, scene: &Scene<'_>, since_heal: Duration) -> Result<Option<String>> {
        if let Some(missing) = scene.subject.missing().await? {
            return Ok(Some(missing));
        }
        let status = self.outside.status().await?;
        let steady = u128::from(status.steady()).min(since_heal.as_nanos());
        if steady < STEADY.as_nanos() {
            return Ok(Some("writes do not flow yet".to_owned()));
        }
        let primary = scene.subject.primary().await?.pod;
        let members = scene.subject.members().await?;
        let others = members.iter().filter(|member| member.pod != primary);
        let behind: Vec<&str> = others
            .filter(|member| !follows(&status, &member.pod))
            .map(|member| member.pod.as_str())
            .collect();
        Ok((!behind.is_empty()).then(|| format!("{behind:?} do not follow")))
    }

    async fn conclude(
        &self,
        scene: &Scene<'_>,
        plan: &Plan,
        marks: Vec<(u64, String)>,
        offset: i64,
        ready: Option<Duration>,
    ) -> Result<Done> {
        let mut notes = self.outside.finish().await.context("get the writer's notes")?;
        notes.push_str(&self.inside.finish().await.context("get the inside writer's notes")?);
        let on_theirs = |(at, what): (u64, String)| (at.saturating_add_signed(offset), what);
        let begun = scene.begun.get().copied().unwrap_or_default();
        // Those times are from the clocks of the agents' nodes.
        let said = match scene.subject.own {
            Some(_) => logs::marks(scene.subject, begun).await,
            None => Vec::new(),
        };
        for (wall, what) in marks.into_iter().map(on_theirs).chain(said) {
            let mark = Record::Mark { what, wall };
            notes.push_str(&serde_json::to_string(&mark).context("write a mark")?);
            notes.push('\n');
        }
        let mut history = History::default();
        history.add(&notes)?;
        let injected = history.marked("fault", 0).context("the fault is marked")?;
        let rows = self.outside.rows().await.context("read the tables")?;
        let facts = Facts {
            primary: scene.primary.pod.clone(),
            injected,
            released: plan
                .scenario
                .keeps_away()
                .then(|| history.marked("healed", 0))
                .flatten(),
            rows: rows.clone(),
        };
        let run = Run {
            scenario: plan.scenario.name.clone(),
            run: plan.number,
            operator_killed: plan.operator_killed,
            agent_version: scene.subject.agent_version().await?,
            primary_node: scene.primary.node.clone(),
            writer_node: self.node.clone(),
            ready: ready.map(|time| time.as_secs_f64() * 1_000.0),
            load: None,
            report: Report::of(&history, &facts),
        };
        Ok(Done {
            run,
            history,
            injected,
            notes,
            rows,
        })
    }
}

/// Names the rows and pods of a run; unique, since tables outlive runs.
fn run_name(plan: &Plan) -> String {
    let seconds = wall_clock() / 1_000_000_000 % 1_000_000;
    format!("{}-{}-{seconds}", plan.scenario.name, plan.number)
}

/// True once the switchover has happened. Before that, writes succeed as always.
async fn moved(scene: &Scene<'_>, scenario: &Scenario) -> bool {
    let primary = scene.subject.primary().await;
    scenario.fault != Fault::Switchover || primary.is_ok_and(|primary| primary.pod != scene.primary.pod)
}

fn follows(status: &Status, pod: &str) -> bool {
    let recent = |at: u64| status.now.saturating_sub(at) < FRESH;
    // 100 rows a second: the present state is at most two seconds old.
    let near = |seq: u64| seq + 200 >= status.last_seq;
    status
        .follows
        .get(pod)
        .is_some_and(|(seq, at)| recent(*at) && near(*seq))
}

async fn wait_streams(writer: &WriterPod, streams: &[&str]) -> Result<()> {
    until("the writer's first rows", FLOWING, || async {
        let status = writer.status().await?;
        let missing: Vec<&&str> = streams
            .iter()
            .filter(|stream| !status.acks.contains_key(**stream))
            .collect();
        Ok(if missing.is_empty() {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("none on {missing:?}: {:?}", status.errors))
        })
    })
    .await?;
    Ok(())
}

async fn wait_steady(writer: &WriterPod, time: Duration) -> Result<()> {
    until("writes to flow before the fault", FLOWING, || async {
        let steady = Duration::from_nanos(writer.status().await?.steady());
        Ok(if steady >= time {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("for {:.1} s", steady.as_secs_f64()))
        })
    })
    .await?;
    Ok(())
}

/// Lets effects of a run expire that the next one of the same scenario would show too. These are ends of PostgreSQL in
/// a row within a minute, after which this operator starts it later each time; a hung disk, after which the next
/// primary has a longer time limit for its own; and ends of a container, which the kubelet starts later each time until
/// its pod is replaced.
///
/// # Errors
/// When the pod cannot be deleted, or the database is not complete again.
pub async fn forget(subject: &Subject, scenario: &Scenario, run: &Run) -> Result<()> {
    match scenario.fault {
        // The wait is for time itself to pass.
        Fault::Postmaster(Signal::Kill) => sleep(RUN_OF_ENDS).await,
        Fault::HangDisk => sleep(CALM).await,
        Fault::FirstProcess(Signal::Kill) => {
            let pods = subject.namespace.api::<Pod>();
            let pod = &run.report.primary;
            let before = pods
                .get(pod)
                .await
                .context("read the pod whose container was killed")?
                .uid();
            let deleted = pods.delete(pod, &DeleteParams::default()).await;
            deleted.context("delete the pod whose container was killed")?;
            until("the pod to be replaced", READY, || async {
                let now = pods.get_opt(pod).await?.and_then(|pod| pod.uid());
                Ok(if now.is_some() && now != before {
                    Seen::Yes(())
                } else {
                    Seen::NotYet(format!("{pod} is {now:?}"))
                })
            })
            .await?;
        }
        _ => {}
    }
    Ok(())
}

/// Returns an error if a scenario cannot be run here.
///
/// # Errors
/// With what is missing.
pub fn check(subject: &Subject, scenario: &Scenario) -> Result<()> {
    use crate::availability::scenario::Needs;
    let (own, testbed) = (subject.own.is_some(), subject.testbed.is_some());
    let possible = match scenario.fault.needs() {
        Needs::Nothing => true,
        Needs::Testbed | Needs::TestbedWithLoopVolumes => testbed,
        Needs::Own => own,
        Needs::OwnOnTestbed => own && testbed,
    };
    ensure!(
        possible,
        "{} needs {:?}: bring the fault about by --inject",
        scenario.name,
        scenario.fault.needs()
    );
    if let Fault::Command { inject, .. } = &scenario.fault
        && inject.trim().is_empty()
    {
        bail!("--inject is empty");
    }
    Ok(())
}
