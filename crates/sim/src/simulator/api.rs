//! The API server: the Lease with its versions, the route, the data of user and operator, and watches that lag and
//! break.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use api::WantedDurability;
use api::status::{DurabilityMode, RestartPermit};
use machine::instance::observer::{Effect, Failure};
use machine::instance::{CertifiedKey, ClusterView, Route, SignedCertificate, Work};
use machine::lease_object::LeaseContent;
use machine::protocol::{Epoch, HolderRecord, Incarnation, LeaseRecord, MemberId, Release, Timeline};
use machine::quorum::SyncRule;
use machine::timing::Timing;
use machine::units::Millis;

use super::event::{Event, News};
use super::names::{CLUSTER, LEASE, SETTINGS, SYSTEM_ID, address, claim, key, made_on, member, owner, pod, pod_uid};
use super::operator::{Kind, Objects};
use super::plan::Plan;
use super::world::World;

/// The API server.
#[derive(Clone, Debug)]
pub struct Api {
    /// The content of the Lease, or its last content if it is lost.
    pub lease: Rc<LeaseRecord>,
    pub lost: Option<LostLease>,
    pub version: u64,
    pub spec: Spec,
    /// The objects that the operator works on, if one runs.
    pub objects: Objects,
    /// Where `-rw` points, and the epoch in which that was written.
    pub route: Option<(usize, u64)>,
    /// How many faults make it unreachable.
    pub down: u8,
    /// Of a thousand requests this many fail.
    pub errors: u64,
}

/// How the Lease is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It does not exist.
    Gone,
    /// The operator has made an empty one.
    Empty,
    /// A user has edited it so that no agent understands it.
    Scribbled,
}

/// A lost Lease.
#[derive(Clone, Debug)]
pub struct LostLease {
    pub how: Loss,
    pub uid: String,
    pub version: u64,
    /// When the operator first saw it in this state.
    pub seen: Option<u64>,
}

/// The `ClusteredDatabase`: what the user wants, and what the operator has written.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Counts its changes.
    pub version: u64,
    pub members: usize,
    pub timing: Timing,
    pub durability: WantedDurability,
    /// `spec.primary.prefer`.
    pub preferred: Option<usize>,
    pub primary: Option<usize>,
    pub fenced: BTreeSet<usize>,
    /// `status.intent.acceptLoss`: the epoch in which the user accepts a loss.
    pub accepted_loss: Option<u64>,
    /// `status.epoch`.
    pub epoch: u64,
    /// The published claim of each pod.
    pub claims: Vec<Option<String>>,
    /// The members for which a certificate was signed.
    pub certified: Vec<Option<String>>,
    /// Hash of the settings.
    pub settings: String,
    /// `status.intent`.
    pub restart: Option<RestartPermit>,
    pub stop: bool,
    /// `spec.backup` is there.
    pub archives: bool,
}

/// The shortest and the longest pause before a broken watch is tried again, in milliseconds. A random time of up to the
/// same length is added.
const WATCH: u64 = 800;
const LONGEST_WATCH: u64 = 30_000;
/// How long the operator takes to notice a change, in milliseconds.
const OPERATOR: u64 = 1_000;
/// How long the user waits until a lost Lease heals before ordering that it is made again, in milliseconds.
const USER: u64 = 30_000;

impl Api {
    pub fn new(plan: &Plan) -> Self {
        let others = (1..plan.replicas).map(|other| member(other, 0));
        let standbys = plan.durability.standbys;
        let rule = match plan.durability.mode {
            DurabilityMode::Async => SyncRule::default(),
            DurabilityMode::Required | DurabilityMode::Preferred => SyncRule::any(standbys, others),
        };
        let holder = HolderRecord {
            incarnation: Incarnation {
                pod: pod(0),
                pod_uid: pod_uid(0),
                run: "run-before".to_owned(),
                member: member(0, 0),
            },
            address: address(0),
            timeline: Some(Timeline(1)),
            serving: true,
        };
        let lease = LeaseRecord {
            version: "1".to_owned(),
            uid: LEASE.to_owned(),
            holder: Some(holder),
            renewal: Some("0".to_owned()),
            duration: plan.timing.lease,
            epoch: Epoch(1),
            system_id: Some(SYSTEM_ID.to_owned()),
            release: None,
            rule,
            timeline: None,
            lossy: None,
            history: Vec::new(),
            members: BTreeMap::new(),
            positions: BTreeMap::new(),
            archive: None,
            volume_set: 0,
            former_set: None,
        };
        Self {
            lease: Rc::new(lease),
            lost: None,
            version: 1,
            spec: Spec {
                version: 0,
                members: plan.replicas,
                timing: plan.timing,
                durability: plan.durability,
                preferred: None,
                primary: None,
                fenced: BTreeSet::new(),
                accepted_loss: None,
                epoch: 1,
                claims: (0..plan.members)
                    .map(|node| (node < plan.replicas).then(|| claim(node, 0)))
                    .collect(),
                certified: (0..plan.members)
                    .map(|node| (node < plan.replicas).then(|| member(node, 0).to_string()))
                    .collect(),
                settings: SETTINGS.to_owned(),
                restart: None,
                stop: false,
                archives: plan.archive.is_some(),
            },
            objects: Objects::new(plan),
            route: None,
            down: 0,
            errors: 0,
        }
    }

    /// The news of a reading of the Lease.
    pub fn lease_news(&self) -> News {
        match &self.lost {
            Some(lost) => News::LostLease(lost.clone()),
            None => News::Lease(Rc::clone(&self.lease)),
        }
    }

    /// True if a write of this content replaces the present object.
    fn takes(&self, content: &LeaseContent) -> bool {
        match &self.lost {
            None => content.version == self.lease.version,
            Some(lost) if lost.how == Loss::Gone => false,
            Some(lost) => content.uid == lost.uid && content.version == lost.version.to_string(),
        }
    }

    /// The version of the next change of any object.
    pub fn next(&mut self) -> u64 {
        self.version += 1;
        self.version
    }
}

impl Spec {
    /// The keys that the operator has signed, by pod.
    fn certified(&self) -> impl Iterator<Item = (String, CertifiedKey)> + '_ {
        let members = self.certified.iter().enumerate();
        members.filter_map(|(node, member)| {
            let member = MemberId::parse(member.as_ref()?)?;
            let key = key(&member);
            Some((pod(node), CertifiedKey { member, key }))
        })
    }

    /// The resource as an agent reads it.
    pub fn view(&self, node: usize) -> ClusterView {
        ClusterView {
            uid: CLUSTER.to_owned(),
            replicas: self.members as u32,
            timing: self.timing,
            settings: self.settings.clone(),
            system_id: Some(SYSTEM_ID.to_owned()),
            epoch: Some(Epoch(self.epoch)),
            claim_uid: self.claims[node].clone(),
            certificate: self.certified[node].clone().map(|member| SignedCertificate {
                member,
                pem: "pem".to_owned(),
            }),
            certified: self.certified().collect(),
            grant: None,
            restart: self.restart.clone(),
            stop: self.stop,
            durability: Some(self.durability),
            strict_reads: false,
            preferred: self.preferred.map(pod),
            primary: self.primary.map(pod),
            urgent: false,
            accepted_loss: self.accepted_loss.map(Epoch),
            fenced: self.fenced.iter().copied().map(pod).collect(),
            discard: None,
            archives: self.archives,
            // No primary here removes WAL that a member needs.
            reads_archive: false,
            archive_ended: false,
            deletes_archive: false,
            backup: None,
            backup_source: Default::default(),
            proven_backup: None,
            recovery_check: None,
            recovers: false,
            recovers_snapshot: false,
            backup_kind: Default::default(),
            snapshot: None,
            snapshots: Default::default(),
            begins: Epoch(0),
        }
    }
}

impl World {
    /// A write of the Lease arrives: a compare-and-swap. `answer`: its sender gets the answer.
    pub fn lease_arrives(&mut self, node: usize, run: u32, call: u64, content: &LeaseContent, answer: bool) {
        let overwrites = self.overwrites_lease();
        let outcome = if self.api.takes(content) || overwrites {
            let before = Rc::clone(&self.api.lease);
            if self.api.lost.take().is_some() {
                self.check_healed(&before, content);
            }
            let version = self.api.next();
            self.api.lease = Rc::new(written(content, version, self.now));
            self.lease_changed(node, run, &before);
            Ok(Rc::clone(&self.api.lease))
        } else {
            Err(self.api.lost.is_none().then(|| Rc::clone(&self.api.lease)))
        };
        let delay = 1 + self.random.api.below(6);
        let heard = answer && self.api.down == 0 && self.net.hears_api(node);
        let still = self.nodes[node].agent.as_ref().is_some_and(|agent| agent.run == run);
        if heard && still {
            self.tell(delay, node, News::Written { call, outcome });
        }
    }

    /// A reading of the Lease arrives, and the present object is sent back.
    pub fn lease_is_read(&mut self, node: usize, run: u32, call: u64) {
        let still = self.nodes[node].agent.as_ref().is_some_and(|agent| agent.run == run);
        // Only the watch reports that the Lease is lost.
        if still && self.api.down == 0 && self.net.hears_api(node) && self.api.lost.is_none() {
            let record = Rc::clone(&self.api.lease);
            let delay = 1 + self.random.api.below(6);
            self.tell(delay, node, News::Read { call, record });
        }
    }

    /// A user deletes the Lease or edits it, or the operator makes an empty one.
    pub fn lose_lease(&mut self, how: Loss) {
        let version = self.api.next();
        let uid = match (how, &self.api.lost) {
            (Loss::Empty, _) => format!("{LEASE}-{version}"),
            (Loss::Gone | Loss::Scribbled, Some(lost)) => lost.uid.clone(),
            (Loss::Gone | Loss::Scribbled, None) => self.api.lease.uid.clone(),
        };
        self.note(None, || format!("the Lease is lost: {how:?}"));
        self.api.lost = Some(LostLease {
            how,
            uid,
            version,
            seen: None,
        });
        for watcher in 0..self.plan.members {
            self.watch(watcher, self.api.lease_news());
        }
    }

    /// The operator replaces a deleted Lease by an empty one. If that does not heal it, the user orders that it is made
    /// again.
    fn mend_lease(&mut self, how: Loss) {
        let now = self.now;
        let Some(lost) = &mut self.api.lost else { return };
        let seen = *lost.seen.get_or_insert(now);
        if now > seen + USER {
            self.recreate_lease();
        } else if how == Loss::Gone && now > seen {
            self.lose_lease(Loss::Empty);
        }
    }

    /// The operator makes the Lease again from its status, as the user ordered.
    pub fn recreate_lease(&mut self) {
        self.api.lost = None;
        let lost = Rc::clone(&self.api.lease);
        let holder = lost.holder.as_ref().map(|holder| &holder.incarnation.member);
        let Some(last) = holder.or(lost.release.as_ref().map(|release| &release.member)).cloned() else {
            return;
        };
        let reported = lost.members.values().map(|report| &report.member);
        let others = lost.rule.names.iter().chain(reported);
        let others: BTreeSet<_> = others.filter(|other| **other != last).cloned().collect();
        let version = self.api.next();
        self.api.lease = Rc::new(LeaseRecord {
            version: version.to_string(),
            uid: format!("{LEASE}-{version}"),
            holder: None,
            renewal: None,
            duration: Millis::ZERO,
            epoch: Epoch(lost.epoch.0 + 1),
            release: Some(Release {
                member: last,
                position: None,
                successor: None,
            }),
            rule: SyncRule::any(usize::from(!others.is_empty()), others),
            lossy: Some(Timeline(lost.timeline.map_or(1, |reserved| reserved.0) + 1)),
            history: Vec::new(),
            members: BTreeMap::new(),
            positions: BTreeMap::new(),
            ..LeaseRecord::clone(&lost)
        });
        for watcher in 0..self.plan.members {
            self.watch(watcher, News::Lease(Rc::clone(&self.api.lease)));
        }
    }

    fn lease_changed(&mut self, node: usize, run: u32, before: &LeaseRecord) {
        let after = Rc::clone(&self.api.lease);
        self.check_lease(before, &after);
        self.check_archive_record(before, &after);
        let late = self.nodes[node].agent.as_ref().is_none_or(|agent| agent.run != run);
        self.count_lease(node, before, &after, late);
        self.trace.mark(after.epoch.0 << 20 ^ self.api.version);
        for watcher in 0..self.plan.members {
            self.watch(watcher, News::Lease(Rc::clone(&after)));
        }
        self.came_back();
        self.show(Kind::Lease);
    }

    /// Sends news to one member: in order, late, or never. If they are lost, its watch is restarted some time later.
    fn watch(&mut self, node: usize, news: News) {
        if self.nodes[node].watch_broken || self.nodes[node].watch_dead > 0 {
            return;
        }
        if self.api.down > 0 || !self.net.hears_api(node) || !self.nodes[node].on {
            self.nodes[node].watch_broken = true;
            return self.relist_later(node);
        }
        let lag = 2 + self.random.api.below(20 + self.nodes[node].watch_lag);
        let at = (self.now + lag).max(self.nodes[node].watch_last);
        self.nodes[node].watch_last = at;
        self.tell(at - self.now, node, news);
    }

    /// A broken watch is tried again after growing pauses; one that has not begun yet, after a constant one. (To the
    /// agent's client each new beginning is a success, which resets the pauses.)
    pub fn relist_later(&mut self, node: usize) {
        let tries = &mut self.nodes[node].watch_tries;
        let pause = (WATCH << tries.unwrap_or(0).min(8)).min(LONGEST_WATCH);
        *tries = tries.map(|tries| tries + 1);
        let pause = pause + self.random.api.below(pause);
        self.relist_after(node, pause);
    }

    /// Restarts a watch after this pause.
    pub fn relist_after(&mut self, node: usize, pause: u64) {
        let place = &mut self.nodes[node];
        place.watch += 1;
        let watch = place.watch;
        self.after(pause, Event::Relist { node, watch });
    }

    /// Restarts a broken watch, if that is possible.
    pub fn relist(&mut self, node: usize, watch: u32) {
        if watch != self.nodes[node].watch {
            return;
        }
        if self.api.down > 0 || !self.net.hears_api(node) || !self.net.reaches_api(node) || !self.nodes[node].on {
            return self.relist_later(node);
        }
        (self.nodes[node].watch_broken, self.nodes[node].watch_tries) = (false, Some(0));
        self.watch(node, self.api.lease_news());
        self.watch(node, News::Cluster(Rc::new(self.api.spec.clone())));
    }

    /// The user accepts a loss in this epoch.
    pub fn accept_loss(&mut self, epoch: u64) {
        self.note(None, || format!("the user accepts a loss in epoch {epoch}"));
        self.checks.accepted.insert(epoch);
        self.api.spec.accepted_loss = Some(epoch);
        self.spec_changed();
    }

    /// The `ClusteredDatabase` has changed.
    pub fn spec_changed(&mut self) {
        self.api.spec.version += 1;
        let spec = Rc::new(self.api.spec.clone());
        for node in 0..self.plan.members {
            self.watch(node, News::Cluster(Rc::clone(&spec)));
        }
    }

    /// The operator's part where none runs: it notes the epoch, and signs the certificates of members that report.
    pub fn operate(&mut self) {
        self.after(OPERATOR, Event::Operator);
        if self.api.down > 0 {
            return;
        }
        if let Some(how) = self.api.lost.as_ref().map(|lost| lost.how) {
            return self.mend_lease(how);
        }
        let lease = Rc::clone(&self.api.lease);
        let spec = &mut self.api.spec;
        let mut changed = std::mem::replace(&mut spec.epoch, lease.epoch.0) != lease.epoch.0;
        for report in lease.members.values() {
            let node = owner(&report.member);
            // As in the operator: nothing is signed for a claim that is gone.
            if spec.claims[node]
                .as_ref()
                .is_some_and(|claim| !made_on(&report.member, claim))
            {
                continue;
            }
            let signed = &mut spec.certified[node];
            if signed.as_deref() != Some(report.member.as_str()) {
                *signed = Some(report.member.to_string());
                changed = true;
            }
        }
        if changed {
            self.spec_changed();
        }
    }

    /// A write of the route arrives. The proxies of the nodes learn of it one by one. An older epoch changes nothing.
    pub fn route_arrives(&mut self, node: usize, run: u32, epoch: u64) {
        let newer = self
            .api
            .route
            .map(|(_, before)| before)
            .filter(|before| *before > epoch);
        if newer.is_none() {
            self.api.route = Some((node, epoch));
            for proxy in 0..self.plan.members {
                let lag = 20 + self.random.api.below(800);
                let routes = &mut self.nodes[proxy].routes;
                // In order: a later write is not heard before an earlier one.
                let last = routes.last_key_value().map_or(0, |(at, _)| *at);
                routes.insert((self.now + lag).max(last), node);
            }
        }
        let there = self.nodes[node].agent.as_ref().is_some_and(|agent| agent.run == run);
        if there && self.net.hears_api(node) {
            let route = Route {
                address: address(node),
                epoch: Epoch(epoch),
            };
            let result = match newer {
                None => Ok(Effect::Routed(Some(route))),
                Some(newer) => Err(Failure::said(format!(
                    "-rw was pointed to another member in epoch {newer}"
                ))),
            };
            self.finish_after(4, node, Work::Route, result);
        }
    }
}

fn written(content: &LeaseContent, version: u64, now: u64) -> LeaseRecord {
    LeaseRecord {
        version: version.to_string(),
        uid: content.uid.clone(),
        holder: content.holder.clone(),
        renewal: Some(format!("{now}/{version}")),
        duration: content.duration,
        epoch: content.epoch,
        system_id: content.system_id.clone(),
        release: content.release.clone(),
        rule: content.rule.clone(),
        timeline: content.timeline,
        lossy: content.lossy,
        history: content.history.clone(),
        members: content.members.clone(),
        positions: content.positions.clone(),
        archive: content.archive.clone(),
        volume_set: 0,
        former_set: None,
    }
}
