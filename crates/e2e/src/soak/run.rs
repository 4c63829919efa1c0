//! A soak: clients start, faults are injected until the time is over, and then the clients' notes are compared with the
//! lists.

use std::fmt::Write;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::future::join_all;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::availability::inject::{Remedy, Scene};
use crate::availability::pod::{Duty, Order, WriterPod, wall_clock};
use crate::availability::record::Outcome;
use crate::availability::scenario::Needs;
use crate::availability::subject::{Member, Subject, usable_nodes};
use crate::soak::check::{Finding, Rules, check, describe};
use crate::soak::record::{Lists, Note, Transaction};
use crate::soak::schedule::{Round, Schedule, Timed};
use crate::wait::{Seen, until};

/// Clients of one pod.
const CLIENTS: u32 = 4;
/// Pods with clients, on nodes of their own.
const PODS: usize = 2;
/// Bound for the database to be complete before the soak.
const READY: Duration = Duration::from_secs(300);
/// Bound for complete recovery, from the end of a round's last fault.
const WHOLE: Duration = Duration::from_secs(240);
/// Bound for the clients to get acknowledgements again, once the status reports the database as complete.
const FLOW: Duration = Duration::from_secs(120);
/// Bound for the standbys to have all rows of the primary, once writes have ended.
const ALIKE: Duration = Duration::from_secs(60);
/// After this time a fault that cannot be undone is given up, and the soak fails.
const HEAL: Duration = Duration::from_secs(60);
/// Bound of one try to undo it.
const TRY: Duration = Duration::from_secs(5);
/// How long the primary's name is requested, before the last known one is used.
const ASK: Duration = Duration::from_secs(2);
/// This many transactions of every pod are acknowledged before the first fault.
const WARM: u64 = 20;
/// Findings that are printed with their evidence.
const TOLD: usize = 5;
/// How outdated an answer of a primary that is cut off may be. On a quiet machine it stops within the default profile's
/// `fence` + `kill` (docs/operation.md, *Durability*); no other member takes the lease before that.
pub const STALE: Duration = machine::timing::Timing::DEFAULT.lease.duration();

/// The parameters of a soak.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed of all choices.
    pub seed: u64,
    /// After this no further round begins.
    pub time: Duration,
    /// Image with the clients.
    pub image: String,
    /// Volumes have file systems of their own, so that disks can hang and be full.
    pub loop_volumes: bool,
}

/// A finished soak.
#[derive(Debug)]
pub struct Done {
    /// The seed.
    pub seed: u64,
    /// What was done, and its result, one line each.
    pub log: Vec<String>,
    /// Why the database has not recovered, if it has not.
    pub stuck: Option<String>,
    /// The answers to clients.
    pub transactions: Vec<Transaction>,
    /// The clients' notes as they wrote them.
    pub notes: String,
    /// The final content of the lists.
    pub lists: Lists,
    /// Anomalies that must never happen.
    pub findings: Vec<Finding>,
}

impl Done {
    /// True if everything recovered, and the history is valid.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.stuck.is_none() && self.findings.is_empty()
    }

    /// The summary for a person.
    #[must_use]
    pub fn summary(&self) -> String {
        let count = |outcome| {
            let of = self
                .transactions
                .iter()
                .filter(|transaction| transaction.outcome == outcome);
            of.count()
        };
        let mut text = format!("seed {}\n", self.seed);
        for line in &self.log {
            let _ = writeln!(text, "{line}");
        }
        let numbers: usize = self.lists.values().map(Vec::len).sum();
        let _ = writeln!(
            text,
            "transactions: {} acknowledged, {} failed, {} unknown; {numbers} numbers in {} lists",
            count(Outcome::Acked),
            count(Outcome::Error),
            count(Outcome::Unknown),
            self.lists.len()
        );
        let found = match (self.findings.len(), &self.stuck) {
            // Without the lists nothing was checked.
            (0, Some(_)) if self.lists.is_empty() => "the history was not checked",
            (0, _) => "the history is one that may be",
            _ => "THE HISTORY SHOWS WHAT MUST NEVER HAPPEN:",
        };
        let _ = writeln!(text, "{found}");
        text.push_str(&describe(&self.findings, &self.transactions, TOLD));
        if let Some(stuck) = &self.stuck {
            let _ = writeln!(text, "IT DID NOT COME BACK BY ITSELF: {stuck}");
        }
        text
    }
}

/// A database for a soak, on volumes of this class. Sessions whose commits wait pile up behind clients that gave up: hence the
/// connections.
#[must_use]
pub fn spec(class: Option<&str>) -> Value {
    let mut spec = json!({
        "replicas": 3,
        "storage": {"data": {"size": "1Gi"}, "retentionPolicy": {"whenDeleted": "Delete"}},
        "postgres": {"parameters": {"max_connections": "200"}},
    });
    if let Some(class) = class {
        spec["storage"]["data"]["storageClassName"] = json!(class);
    }
    spec
}

/// Makes a soak. Reports its progress on standard output.
///
/// # Errors
/// When the database is not complete before, a fault cannot be undone, or the clients' notes cannot be read. A database
/// that does not recover is a result, not an error.
pub async fn run(subject: &Subject, plan: &Plan) -> Result<Done> {
    subject.wait_whole(READY).await?;
    let pods = start_clients(subject, plan).await?;
    let soaked = Soak {
        subject,
        pods: &pods,
        start: Instant::now(),
        log: Mutex::default(),
    }
    .soak(plan)
    .await;
    for pod in &pods {
        pod.remove().await?;
    }
    soaked
}

async fn start_clients(subject: &Subject, plan: &Plan) -> Result<Vec<WriterPod>> {
    let nodes = usable_nodes(&subject.namespace.client).await?;
    // The nodes of the testbed share one clock. Elsewhere they do not, and an order is then only known within one node.
    let most = if subject.testbed.is_some() { PODS } else { 1 };
    let began = wall_clock() / 1_000_000_000;
    let mut pods = Vec::new();
    for (place, node) in (0..).zip(nodes.iter().take(most)) {
        let order = Order {
            image: plan.image.clone(),
            // All of them share the lists, and a pod's name has it too.
            run: format!("soak-{began}"),
            node: node.clone(),
            duty: Duty::Lists {
                first: place * CLIENTS + 1,
                clients: CLIENTS,
                began,
                seed: plan.seed,
            },
        };
        pods.push(WriterPod::start(subject, &order).await?);
    }
    ensure!(!pods.is_empty(), "there is no node for the clients");
    for pod in &pods {
        until("the clients' first transactions", FLOW, || async {
            let status = pod.lists_status().await?;
            Ok(if status.acked() >= WARM {
                Seen::Yes(())
            } else {
                Seen::NotYet(format!("{status:?}"))
            })
        })
        .await?;
    }
    Ok(pods)
}

struct Soak<'a> {
    subject: &'a Subject,
    pods: &'a [WriterPod],
    start: Instant,
    log: Mutex<Vec<String>>,
}

impl Soak<'_> {
    async fn soak(self, plan: &Plan) -> Result<Done> {
        let possible = |needs| match needs {
            Needs::Nothing => true,
            Needs::Testbed => self.subject.testbed.is_some(),
            Needs::TestbedWithLoopVolumes => self.subject.testbed.is_some() && plan.loop_volumes,
            Needs::Own => self.subject.own.is_some(),
            Needs::OwnOnTestbed => self.subject.own.is_some() && self.subject.testbed.is_some(),
        };
        let mut stuck = None;
        for round in Schedule::new(plan.seed, possible) {
            sleep(round.pause).await;
            if self.start.elapsed() > plan.time {
                break;
            }
            stuck = self.round(&round).await.with_context(|| format!("round {round}"))?;
            if stuck.is_some() {
                break;
            }
        }
        self.conclude(plan, stuck).await
    }

    fn tell(&self, what: &str) {
        let line = format!("{:7.1} s  {what}", self.start.elapsed().as_secs_f64());
        println!("{line}");
        self.log.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    /// One round. Returns what has not recovered when the bound is over.
    async fn round(&self, round: &Round) -> Result<Option<String>> {
        self.tell(&round.to_string());
        let mut remedies: Vec<(Instant, Remedy)> = Vec::new();
        let hurt = self.hurt(round, &mut remedies).await;
        let healed = self.heal(remedies).await;
        hurt.and(healed)?;
        let since = Instant::now();
        let stuck = self.wait_whole().await;
        let took = since.elapsed().as_secs_f64();
        match &stuck {
            None => self.tell(&format!("   as before, {took:.1} s after the last fault's end")),
            Some(missing) => self.tell(&format!("   NOT as before after {took:.0} s: {missing}")),
        }
        Ok(stuck)
    }

    /// Does what the round says. Remedies are added to `remedies` even if this fails.
    async fn hurt(&self, round: &Round, remedies: &mut Vec<(Instant, Remedy)>) -> Result<()> {
        let start = Instant::now();
        let whole = until("a primary to hurt", FLOW, || async {
            Ok(Seen::Yes((
                self.subject.primary().await?,
                self.subject.members().await?,
            )))
        });
        let ((mut primary, mut members), _) = whole.await?;
        for (place, fault) in round.faults.iter().enumerate() {
            self.heal_until(start + fault.after, remedies).await?;
            if place > 0
                && let Ok(Ok(now)) = timeout(ASK, self.subject.primary()).await
                && let Ok(Ok(all)) = timeout(ASK, self.subject.members()).await
            {
                (primary, members) = (now, all);
            }
            let scene = self.scene(&primary, &members, fault);
            if place == 0 && round.operator_killed {
                scene.kill_operator().await?;
            }
            match scene.inject(&fault.scenario.fault).await {
                Ok(remedy) => {
                    self.tell(&format!(
                        "   {} while {} is the primary",
                        fault.scenario.name, primary.pod
                    ));
                    remedies.push((Instant::now() + fault.lasts, remedy));
                }
                // After the first fault the target of the second may not exist.
                Err(error) if place > 0 => self.tell(&format!("   no {}: {error:#}", fault.scenario.name)),
                Err(error) => return Err(error.context(fault.scenario.name.clone())),
            }
        }
        Ok(())
    }

    fn scene<'b>(&'b self, primary: &'b Member, members: &'b [Member], fault: &Timed) -> Scene<'b> {
        let standbys: Vec<&Member> = members.iter().filter(|member| member.pod != primary.pod).collect();
        let chosen = usize::try_from(fault.choice).unwrap_or(0) % standbys.len().max(1);
        Scene {
            subject: self.subject,
            primary,
            standby: standbys.get(chosen).copied(),
            members,
            begun: OnceLock::new(),
        }
    }

    /// Undoes what is due before `moment`, and waits for that.
    async fn heal_until(&self, moment: Instant, remedies: &mut Vec<(Instant, Remedy)>) -> Result<()> {
        let (due, later) = std::mem::take(remedies).into_iter().partition(|(at, _)| *at <= moment);
        *remedies = later;
        self.heal(due).await?;
        sleep_until(moment).await;
        Ok(())
    }

    /// Undoes these, each at its time, and all of them even if one cannot be undone. They run concurrently, because
    /// undoing through the API server must wait for that server to return.
    async fn heal(&self, remedies: Vec<(Instant, Remedy)>) -> Result<()> {
        let healed = join_all(remedies.iter().map(|(at, remedy)| self.heal_one(*at, remedy))).await;
        let failed: Vec<String> = healed
            .into_iter()
            .filter_map(|healed| healed.err().map(|error| format!("{error:#}")))
            .collect();
        ensure!(failed.is_empty(), "{}", failed.join("; "));
        Ok(())
    }

    async fn heal_one(&self, at: Instant, remedy: &Remedy) -> Result<()> {
        sleep_until(at).await;
        let scene = Scene {
            subject: self.subject,
            primary: &nobody(),
            standby: None,
            members: &[],
            begun: OnceLock::new(),
        };
        // A pod may be on its way to another process or node.
        until(&format!("{remedy:?} to be undone"), HEAL, || async {
            let healed = timeout(TRY, scene.heal(remedy)).await;
            healed.context("no answer in time")?.map(Seen::Yes)
        })
        .await?;
        if !matches!(remedy, Remedy::Nothing) {
            self.tell(&format!("   undone: {remedy:?}"));
        }
        Ok(())
    }

    /// What is missing when the bound is over: for the database to be complete, and for every pod's clients to get
    /// acknowledgements.
    async fn wait_whole(&self) -> Option<String> {
        if let Err(error) = self.subject.wait_whole(WHOLE).await {
            return Some(format!("{error:#}\n{}", self.subject.namespace.describe().await));
        }
        for pod in self.pods {
            let flowing = async {
                let (before, _) = until("a pod with clients", FLOW, || async {
                    pod.lists_status().await.map(|status| Seen::Yes(status.acked()))
                })
                .await?;
                until("the clients to be acknowledged", FLOW, || async {
                    let status = pod.lists_status().await?;
                    Ok(if status.acked() > before {
                        Seen::Yes(())
                    } else {
                        Seen::NotYet(format!("{status:?}"))
                    })
                })
                .await
            };
            if let Err(error) = flowing.await {
                return Some(format!("{error:#}"));
            }
        }
        None
    }

    async fn conclude(self, plan: &Plan, stuck: Option<String>) -> Result<Done> {
        let mut notes = String::new();
        for pod in self.pods {
            notes.push_str(&pod.finish().await.context("get the clients' notes")?);
        }
        let mut done = Done {
            seed: plan.seed,
            log: Vec::new(),
            stuck,
            transactions: transactions(&notes)?,
            notes,
            lists: Lists::new(),
            findings: Vec::new(),
        };
        match self.lists().await {
            Ok(lists) => {
                done.findings = judge(&done.transactions, &lists);
                done.lists = lists;
            }
            Err(error) => {
                self.tell(&format!("   {error:#}"));
                done.stuck.get_or_insert_with(|| format!("{error:#}"));
            }
        }
        done.log = self.log.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(done)
    }

    /// The content of the lists on the primary, which every standby must have too.
    async fn lists(&self) -> Result<Lists> {
        let [pod, ..] = self.pods else {
            bail!("there are no clients");
        };
        let (lists, _) = until("the lists", ALIKE, || async { pod.lists(None).await.map(Seen::Yes) }).await?;
        let members = self.subject.members().await?;
        for member in &members {
            until(
                &format!("{} to hold what the primary holds", member.pod),
                ALIKE,
                || async {
                    let theirs = pod.lists(Some(member.address)).await?;
                    let different = lists
                        .iter()
                        .filter(|(key, list)| theirs.get(*key) != Some(*list))
                        .count();
                    Ok(if theirs == lists {
                        Seen::Yes(())
                    } else {
                        Seen::NotYet(format!("{different} lists differ"))
                    })
                },
            )
            .await?;
        }
        self.tell(&format!(
            "{} members hold the same {} lists",
            members.len(),
            lists.len()
        ));
        Ok(lists)
    }
}

/// It changes nothing in the database: undoing needs no primary.
fn nobody() -> Member {
    Member {
        pod: String::new(),
        address: std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
        node: String::new(),
        ready: false,
    }
}

/// The anomalies in a history of a database with the default profile's times.
#[must_use]
pub fn judge(transactions: &[Transaction], lists: &Lists) -> Vec<Finding> {
    let stale = u64::try_from(STALE.as_nanos()).unwrap_or(u64::MAX);
    check(transactions, lists, Rules { stale })
}

/// The transactions of the clients' notes.
///
/// # Errors
/// When a line is not one of theirs.
pub fn transactions(notes: &str) -> Result<Vec<Transaction>> {
    let mut transactions = Vec::new();
    for line in notes.lines() {
        if let Note::Transaction(transaction) = serde_json::from_str(line).context("read the clients' notes")? {
            transactions.push(transaction);
        }
    }
    Ok(transactions)
}
