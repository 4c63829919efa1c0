//! Checks of the operator's work: it takes one member away at a time, and not the primary if another could take over.
//! After the last fault the database is as the spec wants it, and the operator is idle.

use api::{ClusteredDatabaseStatus, Phase};
use machine::cluster::ObjectVersion;
use machine::protocol::MemberState;

use super::super::names::{number, pod};
use super::super::world::World;
use super::requests::{Doomed, Request};

/// How long a member must have held the Lease until the operator must know of it, in milliseconds: longer than a
/// request may be in flight.
const KNOWN: u64 = 15_000;

/// A member that the operator has taken away, until it serves again.
#[derive(Clone, Debug)]
pub struct Taken {
    /// The pod that was deleted, or permitted to restart, and for which settings.
    uid: String,
    settings: Option<String>,
    /// Its pod was ready since, and the Lease showed that it serves.
    ready: bool,
    told: bool,
}

impl World {
    /// A request of this operator arrives. An operator that no longer leads must take nothing away.
    pub fn check_lead(&mut self, index: usize, request: &Request) {
        let what = match request {
            Request::Delete(Doomed::Pod(exact) | Doomed::Claim(exact)) => exact.name().to_owned(),
            Request::Apply {
                replicas: Some(replicas),
                ..
            } if *replicas < self.api.objects.set.facts.replicas => format!("all behind {replicas}"),
            _ => return,
        };
        if index != self.leader {
            self.violate(format!(
                "operator {index} takes {what} away, and operator {} leads",
                self.leader
            ));
        }
    }

    /// The operator's delete of a pod arrives.
    pub fn check_delete(&mut self, node: usize, exact: &ObjectVersion) {
        let Some(pod) = self.pod_object(node).filter(|pod| !pod.terminating) else {
            return;
        };
        if !self.is_exact(exact) {
            return;
        }
        let (ready, uid) = (pod.ready, pod.uid.clone());
        let several = self.api.objects.set.facts.replicas > 1;
        let holder = self.api.lease.holder.as_ref();
        let holds = holder.is_some_and(|holder| holder.serving && holder.incarnation.pod_uid == uid);
        if several && ready && holds && self.now - self.checks.held_since > KNOWN {
            self.violate(format!(
                "the operator deletes orders-{node}, which serves as primary, although others could take over"
            ));
        }
        if ready {
            self.check_alone(node, "deletes");
            if self.holder_is_away() {
                self.coverage.reach("pod replaced while no primary serves");
            }
        }
        if self.nodes.iter().any(|place| place.volume.rewinding) {
            self.coverage.reach("pod replaced during a rewind");
        }
        self.coverage.reach("pod replaced");
        self.take_away(node, ready, uid, None);
    }

    /// Notes that a member that served is taken away, and must come back.
    fn take_away(&mut self, node: usize, served: bool, uid: String, settings: Option<String>) {
        let taken = Taken {
            uid,
            settings,
            ready: false,
            told: false,
        };
        if served {
            self.checks.taken.insert(node, taken);
        }
    }

    /// The operator scales the StatefulSet to this many replicas.
    pub fn check_scale(&mut self, replicas: u32) {
        let before = self.api.objects.set.facts.replicas;
        if replicas >= before {
            return;
        }
        self.coverage.reach("scaled down");
        let holder = self.api.lease.holder.as_ref().filter(|holder| holder.serving);
        let ordinal = holder.map(|holder| number(&holder.incarnation.pod));
        let loses = ordinal.is_some_and(|ordinal| ordinal >= replicas as usize);
        let hibernates = self.api.objects.database.spec.hibernated || replicas == 0;
        if loses && !hibernates && self.now - self.checks.held_since > KNOWN {
            self.violate(format!(
                "the operator scales from {before} to {replicas} and takes the primary away"
            ));
        }
    }

    /// The operator's delete of a claim arrives.
    pub fn check_delete_claim(&mut self, node: usize) {
        self.coverage.reach("claim deleted");
        let volume = &self.nodes[node].volume;
        let lease = &self.api.lease;
        let named = volume
            .member
            .as_ref()
            .is_some_and(|member| lease.rule.names.contains(member));
        let holder = lease.holder.as_ref().map(|holder| number(&holder.incarnation.pod));
        let released = lease.release.as_ref().map(|release| &release.member);
        let why = if node < self.api.objects.set.facts.replicas as usize {
            "which is to stay"
        } else if named {
            "which commits and elections count"
        } else if holder == Some(node) || holder.is_none() && released == volume.member.as_ref() {
            "which may be primary"
        } else {
            return;
        };
        self.violate(format!("the operator deletes the claim of orders-{node}, {why}"));
    }

    /// The operator writes this status.
    pub fn check_status(&mut self, next: &ClusteredDatabaseStatus) {
        let before = self.api.objects.database.status.clone();
        if next.epoch < before.epoch {
            self.violate(format!(
                "the operator's status goes back from epoch {:?} to {:?}",
                before.epoch, next.epoch
            ));
        }
        if next.intent.primary != before.intent.primary && next.intent.primary.is_some() {
            self.coverage.reach("switchover asked for");
            if self.holder_is_away() {
                self.coverage.reach("switchover asked for while no primary serves");
            }
        }
        if next.memo.switchover.as_ref().is_some_and(|memo| memo.ended.is_some())
            && before.memo.switchover.as_ref().is_none_or(|memo| memo.ended.is_none())
        {
            self.coverage.reach("switchover given up");
        }
        if next.intent.restart == before.intent.restart {
            return;
        }
        if let Some(permit) = &before.intent.restart {
            // A pod that makes no use of its permit must not hold up others.
            let spent = |taken: &Taken| taken.settings.is_some() && taken.uid == permit.pod_uid;
            self.checks.taken.retain(|_, taken| !spent(taken));
        }
        let Some(permit) = &next.intent.restart else { return };
        let node = number(&permit.pod);
        let ready = self
            .pod_object(node)
            .is_some_and(|pod| pod.uid == permit.pod_uid && pod.ready);
        if ready {
            self.check_alone(node, "lets restart");
        }
        self.coverage.reach("restart permitted");
        if self.holder_is_away() {
            self.coverage.reach("restart permitted while no primary serves");
        }
        self.take_away(node, ready, permit.pod_uid.clone(), Some(permit.settings.clone()));
    }

    /// Checks that no other wanted member is away because of the operator.
    fn check_alone(&mut self, node: usize, does: &str) {
        self.came_back();
        let other = self.checks.taken.keys().copied().find(|other| *other != node);
        if let Some(other) = other {
            self.violate(format!(
                "the operator {does} orders-{node}, which serves, and orders-{other} is not back since it was taken away"
            ));
        }
    }

    /// Notes members that are back: their pods were ready, and the Lease showed it, though not necessarily at the same
    /// time.
    pub fn came_back(&mut self) {
        let (lease, objects) = (&self.api.lease, &self.api.objects);
        self.checks.taken.retain(|node, taken| {
            if *node >= objects.set.facts.replicas as usize {
                return false;
            }
            let pod = objects.pods.get(&u32::try_from(*node).unwrap_or(u32::MAX));
            let Some(pod) = pod.filter(|pod| !pod.terminating) else {
                return true;
            };
            let another = taken.settings.is_some() || pod.uid != taken.uid;
            let report = lease.members.get(&pod.name).filter(|report| report.pod_uid == pod.uid);
            let told = report.is_some_and(|report| {
                let serves = matches!(report.state, MemberState::Streaming | MemberState::Primary);
                let restarted = (taken.settings.as_ref())
                    .is_none_or(|settings| report.settings == *settings && !report.pending_restart);
                serves && restarted
            });
            taken.ready |= another && pod.ready;
            taken.told |= another && told;
            !(taken.ready && taken.told)
        });
    }

    fn holder_is_away(&self) -> bool {
        let holder = self.api.lease.holder.as_ref();
        !holder.is_some_and(|holder| {
            let node = number(&holder.incarnation.pod);
            holder.serving && self.nodes[node].postgres.is_some()
        })
    }

    /// Notes that the user has changed something, and whether it was during a failover or another change.
    pub fn note_edit(&mut self, what: &'static str) {
        *self.checks.edits.entry(what).or_default() += 1;
        let status = &self.api.objects.database.status;
        if self.holder_is_away() && !status.intent.stop && status.memo.put_down.is_none() {
            self.coverage.reach("edit during a failover");
        }
        if !self.checks.taken.is_empty() {
            self.coverage.reach("edit during a change");
        }
    }

    /// Checks that everything is as the spec wants it, and that an operator is idle. `Err`: what is not.
    pub fn as_wanted(&self) -> Result<(), String> {
        // A node that never returns stops every change.
        if self.operators.is_empty() || self.plan.gone.is_some() {
            return Ok(());
        }
        let objects = &self.api.objects;
        let (database, status) = (&objects.database, &objects.database.status);
        if objects.pods.len() != database.replicas() as usize || objects.set.facts.replicas != database.replicas() {
            return Err(format!(
                "{} pods and {} replicas, {} are wanted",
                objects.pods.len(),
                objects.set.facts.replicas,
                database.replicas()
            ));
        }
        for node in 0..database.replicas() as usize {
            let name = pod(node);
            let Some(found) = self.pod_object(node).filter(|pod| pod.ready && !pod.terminating) else {
                return Err(format!("{name} has no pod that is ready"));
            };
            if found.revision.as_deref() != Some(database.revision.as_str()) {
                return Err(format!(
                    "{name} is of template {:?}, not {}",
                    found.revision, database.revision
                ));
            }
            let server = self.nodes[node].postgres.as_ref();
            if server.is_none_or(|server| server.started_with != database.settings) {
                return Err(format!("{name} has other settings in force"));
            }
        }
        let prefer = database.spec.primary.prefer.as_deref();
        let holder = self
            .api
            .lease
            .holder
            .as_ref()
            .map(|holder| holder.incarnation.pod.as_str());
        if prefer.is_some() && prefer != holder {
            return Err(format!("{holder:?} is primary, and {prefer:?} is preferred"));
        }
        if status.phase != Some(Phase::Ready) || status.observed_generation != Some(database.generation) {
            return Err(format!(
                "the status says {:?} of generation {:?}, waiting for {:?}",
                status.phase,
                status.observed_generation,
                status.waiting.as_ref().map(|waiting| &waiting.what)
            ));
        }
        if status.intent.restart.is_some() || status.intent.primary.is_some() || status.intent.stop {
            return Err(format!("an intent is still set: {:?}", status.intent));
        }
        if status.memo.request.as_ref().map(|noted| &noted.request) != database.request.as_ref()
            || status
                .memo
                .request
                .as_ref()
                .is_some_and(|request| request.outcome.is_none())
        {
            return Err("the requested switchover has no outcome".to_owned());
        }
        let rests = self
            .operators
            .iter()
            .any(|operator| operator.rests == Some(database.version));
        rests.then_some(()).ok_or_else(|| "the operator is not idle".to_owned())
    }

    /// Counts what was requested in this run and is done.
    pub fn count_edits(&mut self) {
        if self.operators.is_empty() || self.plan.gone.is_some() {
            return;
        }
        for edit in std::mem::take(&mut self.checks.edits).into_keys() {
            self.coverage.reach(edit);
        }
    }
}
