//! `what-if`: what the loss of something would mean now. The machine's own rules ([`machine::quorum`], `status.durability`) and
//! its decision about the rest compute all of it from what is observed.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use anyhow::{Result, bail};
use api::status::DurabilityMode;
use machine::cluster::{Action, Facts, Known, Pod, briefly_away};
use machine::protocol::{LeaseRecord, MemberId};
use machine::timing::Timing;
use machine::units::Millis;
use serde::Serialize;

use crate::ahead;
use crate::look::Look;
use crate::text::{Page, Style, Tone, list};
use crate::words;

/// What is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// This instance dies and stays away.
    Instance(String),
    /// This node is gone, with the instances on it.
    Node(String),
    /// The API server is out of reach for all.
    Api,
    /// No operator runs.
    Operator,
}

impl FromStr for Loss {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some(("instance", pod)) if !pod.is_empty() => Ok(Loss::Instance(pod.to_owned())),
            Some(("node", node)) if !node.is_empty() => Ok(Loss::Node(node.to_owned())),
            None if text == "api" => Ok(Loss::Api),
            None if text == "operator" => Ok(Loss::Operator),
            _ => Err("expected instance=POD, node=NODE, api or operator".to_owned()),
        }
    }
}

/// The page.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WhatIfPage {
    /// The database's name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// What is lost.
    pub lost: String,
    /// Instances that are left and serve.
    pub left: Vec<String>,
    /// Whether commits continue.
    pub commits: String,
    /// The instances that may be elected.
    pub election: String,
    /// How long writes stop.
    pub outage: String,
    /// Which commits can be lost.
    pub data: String,
    /// What the operator would do and wait for.
    pub operator: Vec<String>,
    /// What Kubernetes does not do by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<String>,
}

/// What is known before the loss.
struct Before<'a> {
    facts: &'a Facts<'a>,
    lease: &'a LeaseRecord,
    /// The primary's pod.
    primary: &'a Pod,
    /// `status.durability` as it is now.
    recovery: String,
    loss: String,
}

/// The page of one snapshot.
///
/// # Errors
/// If there is no such instance or node, or no primary serves: then a failure has happened already.
pub fn page(mut look: Look, loss: &Loss) -> Result<WhatIfPage> {
    look.presume();
    let lost = look.with_facts(|facts| lost(facts, loss))?;
    let mut page = look.with_facts(|facts| {
        let (Some(lease), Some(primary)) = (facts.lease, facts.primary()) else {
            bail!(
                "no primary of {0} serves now, so the effect of a further loss is unknown: see `kubectl cdb why {0}`",
                facts.wanted.name
            );
        };
        let decision = look.decide();
        let status = look.status_after(&decision, &BTreeMap::new());
        let durability = status.durability;
        let before = Before {
            facts,
            lease,
            primary,
            recovery: durability
                .as_ref()
                .map_or_else(String::new, |found| found.recovery_bound.clone()),
            loss: durability.map_or_else(String::new, |found| found.loss_bound),
        };
        Ok(match loss {
            Loss::Api => before.without_api_server(look.namespace()),
            Loss::Operator => before.without_operator(look.namespace()),
            Loss::Instance(_) | Loss::Node(_) => before.without(loss, &lost, look.namespace()),
        })
    })?;
    page.operator = match loss {
        Loss::Api => vec!["changes nothing until the API server is back".to_owned()],
        Loss::Operator => under_way(&mut look),
        Loss::Instance(_) => about_the_rest(&mut look, |pods| pods.retain(|pod| !lost.contains(&pod.name))),
        // The pods go only with the Node object.
        Loss::Node(_) => about_the_rest(&mut look, |pods| {
            for pod in pods.iter_mut().filter(|pod| lost.contains(&pod.name)) {
                (pod.ready, pod.terminating) = (false, true);
            }
        }),
    };
    Ok(page)
}

/// The lost pods.
fn lost(facts: &Facts<'_>, loss: &Loss) -> Result<BTreeSet<String>> {
    let names = |pods: &mut dyn Iterator<Item = &String>| {
        list(&pods.cloned().collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>())
    };
    let found: BTreeSet<_> = match loss {
        Loss::Api | Loss::Operator => return Ok(BTreeSet::new()),
        Loss::Instance(name) => facts.pods().iter().filter(|pod| pod.name == *name).collect::<Vec<_>>(),
        Loss::Node(node) => facts
            .pods()
            .iter()
            .filter(|pod| pod.node.as_ref() == Some(node))
            .collect(),
    }
    .into_iter()
    .map(|pod| pod.name.clone())
    .collect();
    if !found.is_empty() {
        return Ok(found);
    }
    match loss {
        Loss::Node(node) => bail!(
            "no instance of {} runs on node {node:?}: choose one of {}",
            facts.wanted.name,
            names(&mut facts.pods().iter().filter_map(|pod| pod.node.as_ref()))
        ),
        Loss::Instance(name) => bail!(
            "{} has no instance {name:?}: choose one of {}",
            facts.wanted.name,
            names(&mut facts.pods().iter().map(|pod| &pod.name))
        ),
        Loss::Api | Loss::Operator => Ok(found),
    }
}

impl Before<'_> {
    /// The page for the loss of these instances, without the operator's actions.
    fn without(&self, loss: &Loss, lost: &BTreeSet<String>, namespace: &str) -> WhatIfPage {
        let lost_primary = lost.contains(&self.primary.name);
        let left: Vec<_> = self.serving().filter(|pod| !lost.contains(&pod.name)).collect();
        let standbys: Vec<_> = left
            .iter()
            .filter(|pod| pod.name != self.primary.name)
            .copied()
            .collect();
        let names: Vec<_> = lost.iter().cloned().collect();
        let description = match loss {
            Loss::Node(node) if lost_primary => {
                format!(
                    "node {node}, with {}; {} is the primary",
                    list(&names),
                    self.primary.name
                )
            }
            Loss::Node(node) => format!("node {node}, with {}", list(&names)),
            _ if lost_primary => format!("{}, the primary", self.primary.name),
            _ => list(&names),
        };
        let mut page = self.page(description, &left, namespace);
        if let Loss::Node(node) = loss {
            page.kubernetes = Some(format!(
                "makes no other pod while the Node object {node} exists, because the pods may still run there. If the node is off, \
                 delete the Node object, or taint it node.kubernetes.io/out-of-service. A volume that is local to the node is \
                 lost with it"
            ));
        }
        if lost_primary {
            self.failover(&mut page, &standbys);
        } else {
            page.commits = self.commits(standbys.len());
            page.election = "nobody: the primary stays".to_owned();
            page.outage = if self.suffices(standbys.len()) {
                "none".to_owned()
            } else {
                let required = self.lease.rule.required;
                format!("of writes, until {} {}", standbys_of(required), serve(required))
            };
            page.data = "nothing".to_owned();
        }
        page
    }

    /// The primary is lost, and these standbys serve.
    fn failover(&self, page: &mut WhatIfPage, standbys: &[&Pod]) {
        let rule = &self.lease.rule;
        let named: Vec<_> = standbys.iter().filter(|pod| self.in_rule(pod)).collect();
        let members = named.iter().filter_map(|pod| self.member(pod));
        let names = pods(standbys);
        let elects = if rule.is_synchronous() {
            rule.can_elect(members)
        } else {
            !standbys.is_empty()
        };
        page.election = if rule.is_synchronous() {
            let whom = if elects { one_of(&names) } else { "nobody".to_owned() };
            format!(
                "{whom}: an election needs the answers of {} of the {} that commits wait for, and {} of them {} left",
                rule.promises_needed(),
                standbys_of(rule.names.len()),
                named.len(),
                if named.len() == 1 { "is" } else { "are" }
            )
        } else if elects {
            one_of(&names)
        } else {
            "nobody: no standby is left that serves".to_owned()
        };
        if !elects {
            page.commits = "stop until enough instances are back".to_owned();
            page.outage = if self.lease.members.len() > 1 {
                "until enough instances are back".to_owned()
            } else {
                self.recovery.clone()
            };
            page.data = if rule.is_synchronous() {
                "nothing while the volumes stay: without enough answers nobody is elected".to_owned()
            } else {
                "nothing while the primary's volume stays".to_owned()
            };
            return;
        }
        page.outage = if self.suffices(standbys.len() - 1) {
            self.recovery.clone()
        } else {
            format!(
                "until the new primary has {} that {}",
                standbys_of(rule.required),
                serve(rule.required)
            )
        };
        page.commits = format!(
            "stop until another instance is primary, then {}",
            self.commits(standbys.len() - 1)
        );
        page.data = if rule.is_synchronous() {
            "nothing that was acknowledged".to_owned()
        } else {
            format!("{}{}", self.loss, self.lag(standbys))
        };
    }

    /// Commits continue with so many standbys.
    fn suffices(&self, standbys: usize) -> bool {
        let preferred = self
            .facts
            .wanted
            .spec
            .wanted_durability(self.facts.status.memo.durability)
            .mode
            == DurabilityMode::Preferred;
        preferred || standbys >= self.lease.rule.required
    }

    /// Describes whether commits continue with so many standbys.
    fn commits(&self, standbys: usize) -> String {
        let required = self.lease.rule.required;
        let why = format!("they wait for {}, and {standbys} would serve", standbys_of(required));
        if required == 0 {
            "continue, and wait for no standby".to_owned()
        } else if standbys >= required {
            format!("continue: {why}")
        } else if self.suffices(standbys) {
            format!("continue without ({why}; spec.durability is Preferred)")
        } else {
            format!("wait: {why}")
        }
    }

    /// Describes how far the best of these standbys is behind, by the Lease.
    fn lag(&self, standbys: &[&Pod]) -> String {
        let end = |pod: &str| self.lease.positions.get(pod);
        let Some(primary) = end(&self.primary.name) else {
            return String::new();
        };
        let behind = standbys.iter().filter_map(|pod| {
            let own = end(&pod.name).filter(|own| own.timeline == primary.timeline)?;
            Some(primary.lsn.since(own.lsn))
        });
        let least = behind.min();
        least.map_or_else(String::new, |least| {
            format!("; the best of them is {} behind, by the Lease", least.rounded())
        })
    }

    /// The page for the loss of the API server.
    fn without_api_server(&self, namespace: &str) -> WhatIfPage {
        let left: Vec<_> = self.serving().collect();
        let mut page = self.page("the API server, for all".to_owned(), &left, namespace);
        let standbys: Vec<_> = left
            .iter()
            .filter(|pod| pod.name != self.primary.name)
            .copied()
            .collect();
        let rule = &self.lease.rule;
        // The standbys that may promise the primary not to take its lease (protocol rule 19).
        let (asked, needed) = if rule.is_synchronous() {
            (standbys.iter().filter(|pod| self.in_rule(pod)).count(), rule.required)
        } else {
            let others = self.lease.members.keys().filter(|pod| **pod != self.primary.name);
            (standbys.len(), others.count().max(1))
        };
        let timing = Timing::of(&self.facts.wanted.spec.failover).unwrap_or(Timing::DEFAULT);
        let fence = seconds(timing.fence);
        if asked >= needed {
            page.commits = format!(
                "continue while {} {} the primary not to take its lease: {asked} would serve",
                standbys_of(needed),
                if needed == 1 { "promises" } else { "promise" }
            );
            page.outage = "none while that lasts".to_owned();
        } else {
            let why = if self.lease.members.len() > 1 {
                format!(
                    "{} must promise not to take its lease, and {asked} {}",
                    standbys_of(needed),
                    serve(asked)
                )
            } else {
                "no standby can promise not to take its lease".to_owned()
            };
            page.commits = format!("stop {fence} s after the primary's last renewal: {why}");
            page.outage = "until the API server is back".to_owned();
        }
        page.election = "nobody: an election is a write of the Lease".to_owned();
        page.data = "nothing".to_owned();
        page
    }

    /// The page for the loss of the operator.
    fn without_operator(&self, namespace: &str) -> WhatIfPage {
        let left: Vec<_> = self.serving().collect();
        let mut page = self.page("the operator".to_owned(), &left, namespace);
        page.commits = "continue".to_owned();
        page.election = "nobody: the primary stays. The agents fail over without the operator".to_owned();
        page.outage = "none".to_owned();
        page.data = "nothing".to_owned();
        page
    }

    fn page(&self, lost: String, left: &[&Pod], namespace: &str) -> WhatIfPage {
        WhatIfPage {
            name: self.facts.wanted.name.to_owned(),
            namespace: namespace.to_owned(),
            lost,
            left: pods(left),
            commits: String::new(),
            election: String::new(),
            outage: String::new(),
            data: String::new(),
            operator: Vec::new(),
            kubernetes: None,
        }
    }

    fn serving(&self) -> impl Iterator<Item = &Pod> {
        self.facts.pods().iter().filter(|pod| self.facts.serves(pod))
    }

    fn member(&self, pod: &Pod) -> Option<&MemberId> {
        self.facts.report(pod).map(|report| &report.member)
    }

    fn in_rule(&self, pod: &Pod) -> bool {
        self.member(pod)
            .is_some_and(|member| self.lease.rule.names.contains(member))
    }
}

/// What the operator does about the rest, and what it then waits for, once a standby has been away for longer than a restart takes.
fn about_the_rest(look: &mut Look, lose: impl FnOnce(&mut Vec<Pod>)) -> Vec<String> {
    if let Known::Known(pods) = &mut look.observed.pods {
        lose(pods);
    }
    if look.with_facts(briefly_away).is_some() {
        // The conditions have the time since when.
        look.db.status = Some(look.status_after(&look.decide(), &BTreeMap::new()));
    }
    if let Some(over) = look.with_facts(briefly_away) {
        look.now = over;
    }
    under_way(look)
}

fn under_way(look: &mut Look) -> Vec<String> {
    let name = look.db.metadata.name.clone().unwrap_or_default();
    let decisions = ahead::decisions(look);
    let mut told: Vec<_> = ahead::steps(&decisions, &name)
        .into_iter()
        .map(|step| step.action)
        .collect();
    if let Some(last) = decisions.last() {
        told.push(match &last.action {
            Action::Wait(waiting) if waiting.resting => "has nothing to do".to_owned(),
            Action::Wait(waiting) => format!(
                "{}: waits for {}; ended by {}",
                last.phase, waiting.what, waiting.who_can_end_it
            ),
            action => words::action(action, &name),
        });
    }
    told.dedup();
    told
}

fn pods(pods: &[&Pod]) -> Vec<String> {
    pods.iter().map(|pod| pod.name.clone()).collect()
}

fn standbys_of(number: usize) -> String {
    match number {
        1 => "1 standby".to_owned(),
        _ => format!("{number} standbys"),
    }
}

const fn serve(number: usize) -> &'static str {
    if number == 1 { "serves" } else { "serve" }
}

fn one_of(names: &[String]) -> String {
    match names {
        [one] => one.clone(),
        several => format!("one of {}", list(several)),
    }
}

/// Milliseconds as seconds: `6`, `2.5`.
fn seconds(time: Millis) -> String {
    match time.0.div_ceil(100) {
        tenths if tenths % 10 == 0 => (tenths / 10).to_string(),
        tenths => format!("{}.{}", tenths / 10, tenths % 10),
    }
}

/// The page as text.
pub fn text(page: &WhatIfPage, style: Style) -> String {
    let mut out = Page::default();
    let name = format!("{} in {}", page.name, page.namespace);
    out.field("Database", style.paint(Tone::Strong, &name));
    out.field("Lost", style.paint(Tone::Bad, &page.lost));
    let left = if page.left.is_empty() {
        "no instance serves".to_owned()
    } else {
        format!("{} {}", list(&page.left), serve(page.left.len()))
    };
    out.field("Left", left);
    out.field("Commits", &page.commits);
    out.field("Elected", &page.election);
    out.field("Outage", &page.outage);
    out.field("Loss", &page.data);
    for line in &page.operator {
        out.field("Operator", line);
    }
    if let Some(kubernetes) = &page.kubernetes {
        out.field("Kubernetes", kubernetes);
    }
    out.finish()
}
