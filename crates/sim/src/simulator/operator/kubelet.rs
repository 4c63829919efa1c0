//! Kubelets: one on each node, with the pod that it runs there.

use api::names::ROLE_PRIMARY;
use machine::cluster::Pod;
use machine::cluster::budgets::{primary_stays, replicas_stay};
use machine::instance::observer::Event as Seen;
use machine::instance::report;

use super::super::event::{Event, News};
use super::super::world::World;
use super::wall;

/// Interval between checks of the pod, and between its readiness probes, in milliseconds.
const EVERY: u64 = 1_000;
/// How many failed probes in a row make a pod unready, as in the pod template.
const FAILURES: u8 = 3;
/// `terminationGracePeriodSeconds`, in milliseconds.
const GRACE: u64 = 60_000;
/// How long until a silent node, and its pods, count as not ready, in milliseconds.
const LOST: u64 = 40_000;

/// The pod that a kubelet runs.
#[derive(Clone, Debug, Default)]
pub struct Sandbox {
    /// Its UID; `None`: no pod runs.
    pub uid: Option<String>,
    /// Set while it is terminating: when the remaining processes are killed.
    ends: Option<u64>,
    /// Probes that have failed in a row.
    failed: u8,
    /// When it last reported to the API server.
    told: u64,
}

impl Sandbox {
    /// The pod that exists at the beginning.
    pub fn of(uid: String) -> Self {
        Self {
            uid: Some(uid),
            ..Self::default()
        }
    }
    /// The pod is gone without leftovers.
    pub fn end(&mut self) {
        (self.uid, self.ends) = (None, None);
    }
    /// True if its address exists, whether or not a container runs.
    pub fn is_there(&self) -> bool {
        self.uid.is_some()
    }
    /// True if a container may run in it.
    pub fn runs(&self) -> bool {
        self.uid.is_some() && self.ends.is_none()
    }
}

impl World {
    /// A kubelet checks its pod, and schedules the next check.
    pub fn kubelet(&mut self, node: usize, again: bool) {
        if again {
            self.after(EVERY, Event::Kubelet { node, again });
        }
        let hears = self.nodes[node].on && self.api.down == 0 && self.net.reaches_api(node) && self.net.hears_api(node);
        if self.nodes[node].on {
            self.end_what_is_late(node);
        }
        if hears {
            self.nodes[node].sandbox.told = self.now;
            self.follow_pod(node);
            self.probe(node);
            self.evict(node);
        } else if self.api.down == 0
            && self.now - self.nodes[node].sandbox.told > LOST
            && self.pod_object(node).is_some_and(|pod| pod.ready)
        {
            self.change_pod(node, |pod| (pod.ready, pod.ready_since) = (false, None));
        }
    }

    /// The pod's object has changed: the kubelet learns of it soon.
    pub fn kubelet_soon(&mut self, node: usize) {
        let delay = self.random.operator.between(10, 300);
        self.after(delay, Event::Kubelet { node, again: false });
    }

    /// Makes what runs here agree with the pod's object.
    fn follow_pod(&mut self, node: usize) {
        let bound = |pod: &&Pod| pod.node.is_some() || pod.terminating;
        let object = self
            .pod_object(node)
            .filter(bound)
            .map(|pod| (pod.uid.clone(), pod.terminating));
        match (self.nodes[node].sandbox.uid.clone(), object) {
            (None, Some((uid, false))) => {
                self.nodes[node].sandbox = Sandbox {
                    told: self.now,
                    ..Sandbox::of(uid)
                };
                let delay = self.random.work.between(500, 3_000);
                self.after(delay, Event::Boot { node });
            }
            (None, Some((_, true))) => self.remove_pod(node),
            (Some(runs), object) => {
                let ours = object.as_ref().is_some_and(|(uid, _)| *uid == runs);
                if ours && object.is_some_and(|(_, terminating)| !terminating) {
                    return;
                }
                let ends = self.now + GRACE;
                let place = &mut self.nodes[node];
                if place.sandbox.ends.is_none() {
                    place.sandbox.ends = Some(ends);
                    self.tell(0, node, News::Seen(Seen::Terminate));
                } else if place.agent.is_none() && place.postgres.is_none() {
                    place.sandbox.end();
                    if ours {
                        self.remove_pod(node);
                    }
                }
            }
            (None, None) => {}
        }
    }

    /// Kills what still runs after the grace period.
    fn end_what_is_late(&mut self, node: usize) {
        if self.nodes[node].sandbox.ends.is_some_and(|ends| self.now >= ends) {
            self.kill_container(node);
        }
    }

    /// A drain tries repeatedly to evict the pod of its node. The disruption budget of the pod's role decides whether
    /// it may.
    fn evict(&mut self, node: usize) {
        let (objects, replicas) = (&self.api.objects, self.api.objects.database.replicas());
        let drains =
            |pod: &&Pod| !pod.terminating && pod.node.as_ref().is_some_and(|name| objects.cordoned.contains(name));
        let Some(pod) = self.pod_object(node).filter(drains) else {
            return;
        };
        let stays = match pod.role.as_deref() {
            Some(ROLE_PRIMARY) => primary_stays(replicas),
            _ => replicas_stay(replicas),
        };
        let healthy = |other: &&Pod| other.role == pod.role && other.ready && !other.terminating;
        let spare = objects.pods.values().filter(healthy).count() > stays as usize;
        if !pod.ready || spare {
            self.coverage.reach("evicted");
            self.change_pod(node, |pod| pod.terminating = true);
            self.kubelet_soon(node);
        }
    }

    /// The pod's object is removed; the StatefulSet makes another one.
    pub fn remove_pod(&mut self, node: usize) {
        self.note(Some(node), || "the pod is gone".to_owned());
        self.change_pods(|pods, _| {
            pods.retain(|ordinal, _| *ordinal as usize != node);
        });
        self.control_soon();
    }

    /// The readiness probe, and its report to the API server.
    fn probe(&mut self, node: usize) {
        let now = self.boot_time(node);
        let place = &self.nodes[node];
        let agent = place.agent.as_ref().filter(|_| place.agent_frozen == 0);
        let passes = agent.is_some_and(|agent| report::readiness(agent.observed(), now).is_ok());
        let runs = place.agent.is_some();
        let sandbox = &mut self.nodes[node].sandbox;
        sandbox.failed = if passes { 0 } else { sandbox.failed.saturating_add(1) };
        let (failed, uid) = (sandbox.failed, sandbox.uid.clone());
        let Some(pod) = self.pod_object(node).filter(|pod| Some(&pod.uid) == uid.as_ref()) else {
            return;
        };
        let ready = passes || pod.ready && runs && failed < FAILURES;
        if pod.ready != ready {
            let since = ready.then_some(wall(self.now));
            self.change_pod(node, |pod| (pod.ready, pod.ready_since) = (ready, since));
        }
    }
}
