//! What Kubernetes does by itself: its controllers, the scheduler, kubelets, evictions.

use api::names::Names;
use chrono::TimeDelta;

use super::super::scene::{NAME, claim, pod};
use super::{Resizes, World, resources_of};
use crate::cluster::budgets::{primary_stays, replicas_stay};
use crate::cluster::{ImageError, Pod, StatefulSetView, Volume, WalVolumes};

/// So long after it is ready a server ends that does not stay up.
const LIFE: TimeDelta = TimeDelta::seconds(5);

/// For so long a lost primary is away: the others have elected one by then.
const OUTAGE: TimeDelta = TimeDelta::seconds(5);

impl World {
    /// Controllers, kubelets and agents do what they do in a tenth of a second.
    pub(super) fn tick(&mut self) {
        self.age();
        self.stateful_set_controller();
        self.scheduler();
        if !self.no_volumes {
            let claims = self.scene.claims_mut().iter_mut();
            for claim in claims.filter(|claim| claim.selected_node.is_some()) {
                (claim.bound, claim.had_volume) = (true, true);
            }
        }
        self.ticks = self.ticks.wrapping_add(1);
        if !self.ticks.is_multiple_of(self.pace) {
            return;
        }
        for index in 0..self.scene.pods().len() {
            self.agent(index);
        }
        self.age();
        let works = matches!(self.resizes, Resizes::Done | Resizes::Refused | Resizes::Rewritten);
        for (asked, given) in self.resources.values_mut().filter(|_| works) {
            given.clone_from(asked);
        }
        let holder = self.scene.lease_mut().and_then(|lease| lease.holder.as_ref());
        if let Some(serving) = holder.filter(|holder| holder.serving) {
            let pod = serving.incarnation.pod.clone();
            if self.primaries.last() != Some(&pod) {
                self.primaries.push(pod);
            }
        }
    }

    /// Kubelets tell since when pods are ready; what does not stay up ends.
    fn age(&mut self) {
        let now = self.scene.now;
        let mut ended = Vec::new();
        for pod in self.scene.pods_mut() {
            pod.ready_since = pod.ready.then(|| pod.ready_since.unwrap_or(now));
            let dies = pod
                .revision
                .as_ref()
                .is_some_and(|revision| self.dying.contains(revision));
            if dies && pod.ready_since.is_some_and(|since| now >= since + LIFE) {
                pod.ready = false;
                ended.push(pod.uid.clone());
            }
        }
        for uid in ended {
            let lease = self.scene.observed.lease.get().and_then(Option::as_ref);
            let holder = lease.and_then(|lease| lease.holder.as_ref());
            if holder.is_some_and(|holder| holder.incarnation.pod_uid == uid) {
                self.lose_primary();
            }
            self.dead.insert(uid, now + TimeDelta::days(1));
        }
    }

    /// The primary is lost without a word: its postmaster is gone, and its lease runs out or is taken by an early
    /// election. The agents decide by themselves what comes then.
    pub fn lose_primary(&mut self) {
        let held = self.scene.lease_mut().and_then(|lease| lease.holder.take());
        let Some(held) = held else { return };
        self.dead
            .insert(held.incarnation.pod_uid.clone(), self.scene.now + OUTAGE);
        for pod in self
            .scene
            .pods_mut()
            .iter_mut()
            .filter(|pod| pod.uid == held.incarnation.pod_uid)
        {
            pod.ready = false;
        }
        self.release(held.incarnation.member, None);
    }

    fn stateful_set_controller(&mut self) {
        let mut removed = false;
        let stopped: Vec<String> = self
            .scene
            .pods()
            .iter()
            .filter(|pod| pod.terminating)
            .map(|pod| pod.uid.clone())
            .collect();
        for uid in stopped {
            self.stop(&uid);
            self.scene.pods_mut().retain(|pod| pod.uid != uid);
            removed = true;
        }
        // It is seen that a pod is gone before the next one is there.
        if removed {
            return;
        }
        let Some(StatefulSetView { replicas, wal, .. }) = self.scene.observed.stateful_set.clone() else {
            return;
        };
        for pod in self.scene.pods_mut() {
            pod.terminating |= pod.ordinal >= replicas;
        }
        // The first one whose volumes are not those of the claim templates is put right, which is refused: the others wait.
        let fits =
            |pod: &Pod| self.scene.spec.storage.wal.is_none() || pod.wal_claim == Some(self.wal_name(pod.ordinal));
        if wal == WalVolumes::Templated && !self.scene.pods().iter().all(fits) {
            return;
        }
        // One pod for each tick, so that not all of them appear at once.
        if let Some(ordinal) = (0..replicas).find(|ordinal| self.scene.pods().iter().all(|pod| pod.ordinal != *ordinal))
        {
            self.start(ordinal);
        }
    }

    /// A pod waits for the node that its volume is on to take pods.
    fn scheduler(&mut self) {
        let cordoned = self
            .scene
            .observed
            .unschedulable_nodes
            .get()
            .cloned()
            .unwrap_or_default();
        let claims = self.scene.claims_mut().clone();
        let is_bound = |name: &String| claims.iter().any(|claim| claim.name == *name && claim.bound);
        let (names, set) = (Names::new(NAME), self.volume_set);
        let fits = |pod: &Pod| {
            pod.wal_claim
                .as_ref()
                .is_none_or(|claim| *claim == names.wal_claim(set, pod.ordinal) && is_bound(claim))
        };
        let mut pods = self.scene.pods_mut().iter_mut();
        for pod in pods.by_ref().filter(|pod| pod.node.is_none() && fits(pod)) {
            pod.node = Some(format!("node-{}", pod.ordinal)).filter(|node| !cordoned.contains(node));
        }
    }

    /// Evicts a pod, as a drain does, if the budget of its role allows it; false if not.
    pub fn evict(&mut self, ordinal: u32) -> bool {
        let replicas = u32::try_from(self.scene.spec.replicas).unwrap_or(0);
        let Some(pod) = self.scene.pods().iter().find(|pod| pod.ordinal == ordinal).cloned() else {
            return true;
        };
        let stays = match pod.role.as_deref() {
            Some(api::names::ROLE_PRIMARY) => primary_stays(replicas),
            Some(_) => replicas_stay(replicas),
            None => 0,
        };
        let healthy = |found: &&Pod| found.role == pod.role && found.ready && !found.terminating;
        let spare = self.scene.pods().iter().filter(healthy).count() > stays as usize;
        let allowed = pod.role.is_none() || !pod.ready || spare;
        self.scene.pod_mut(ordinal).terminating |= allowed;
        allowed
    }

    fn start(&mut self, ordinal: u32) {
        self.serial += 1;
        let mut new = pod(ordinal, &self.template, self.scene.now);
        (new.uid, new.ready, new.node) = (format!("pod-{}", self.serial), false, None);
        let resources = resources_of(&self.template).to_owned();
        self.resources.insert(new.uid.clone(), (resources.clone(), resources));
        if self.broken.contains(&self.template) {
            new.image_error = Some(ImageError {
                reason: "ImagePullBackOff".to_owned(),
                image: self.template.clone(),
                message: "not found".to_owned(),
                since: self.scene.now,
            });
        }
        new.wal_claim = match self.scene.observed.stateful_set.as_ref().map(|set| set.wal) {
            Some(WalVolumes::Of(named)) => Some(self.wal_name(named)),
            Some(WalVolumes::Templated) if self.scene.spec.storage.wal.is_some() => {
                // The scheduler chooses the node.
                let name = self.wal_name(ordinal);
                self.make_wal_claim(&name, Some(format!("node-{ordinal}")));
                Some(name)
            }
            _ => None,
        };
        let bytes = self.scene.data_bytes;
        let (serial, set) = (self.serial, self.volume_set);
        let claims = self.scene.claims_mut();
        for claim in claims.iter_mut().filter(|claim| claim.ordinal == ordinal) {
            (claim.capacity, claim.growth) = (None, None);
        }
        if claims
            .iter()
            .all(|claim| claim.ordinal != ordinal || claim.volume != Volume::Data)
        {
            let mut made = claim(ordinal, bytes);
            (made.set, made.name) = (set, Names::new(NAME).data_claim(set, ordinal));
            made.uid = format!("{serial:08x}-aaaa-bbbb-cccc-dddddddddddd");
            claims.push(made);
            claims.sort_by_key(|claim| claim.ordinal);
        }
        let pods = self.scene.pods_mut();
        pods.push(new);
        pods.sort_by_key(|pod| pod.ordinal);
    }

    /// A pod's PostgreSQL stops cleanly; a holder lets the Lease go.
    pub(super) fn stop(&mut self, uid: &str) {
        for pod in self.scene.pods_mut().iter_mut().filter(|pod| pod.uid == uid) {
            pod.ready = false;
        }
        let heir = self.heir(uid);
        let Some(lease) = self.scene.lease_mut() else { return };
        if let Some(held) = lease.holder.take_if(|holder| holder.incarnation.pod_uid == uid) {
            self.release(held.incarnation.member, heir);
        }
    }

    /// The ServiceAccount was made again: the API server knows none of the agents in the pods that there are.
    pub fn void_tokens(&mut self) {
        for pod in self.scene.pods_mut() {
            (pod.revision, pod.base_revision, pod.token_revoked) = (None, None, true);
        }
    }
}
