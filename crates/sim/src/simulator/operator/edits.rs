//! The users' edits, and faults of the operator's process and watches.

use machine::cluster::model::{set_replicas, switchover};

use super::super::event::Event;
use super::super::names::{number, pod};
use super::super::plan::{Fault, durability};
use super::super::world::World;
use super::objects::{self, PARAMETER};

/// Additional delay of lagging watches, in milliseconds.
const LAG: u64 = 6_000;
/// How long until a silent leader is replaced, in milliseconds, as in the operator.
const LEAD: u64 = 15_000;
/// Values of [`PARAMETER`].
const VALUES: [&str; 4] = ["50", "100", "200", "400"];

impl World {
    /// What runs from the beginning if there is an operator.
    pub fn begin_whole(&mut self) {
        self.queue.push(300, Event::StartOperator { operator: 0 });
        for node in 0..self.plan.members {
            self.queue
                .push(400 + 130 * node as u64, Event::Kubelet { node, again: true });
        }
    }

    /// Applies a fault that is different, or only exists, where an operator runs; returns whether it is one.
    pub fn strike_whole(&mut self, fault: Fault, node: usize, other: usize, begins: bool) -> bool {
        let (members, leader) = (self.plan.members, self.leader);
        match fault {
            Fault::EditDurability if begins => {
                let wanted = durability(other as u64 % 10, self.replicas());
                self.edit_database("durability changed", |database| {
                    database.spec.durability = objects::durability(wanted);
                });
            }
            Fault::EditPrimary => {
                let prefer = begins.then(|| pod(other % self.replicas()));
                self.edit_database("preferred primary changed", |database| {
                    database.spec.primary.prefer = prefer
                });
            }
            Fault::EditFenced => self.edit_database("fence changed", |database| {
                let fences = begins && node < database.replicas() as usize;
                let fenced = &mut database.spec.fenced;
                fenced.retain(|name| number(name) != node);
                fenced.extend(fences.then(|| pod(node)));
            }),
            Fault::EditReplicas if begins => self.edit_database("replicas changed", |database| {
                let replicas = other % members + 1;
                let spec = &mut database.spec;
                let wanted = i32::try_from(replicas).unwrap_or(1);
                set_replicas(spec, wanted, database.status.memo.durability);
                spec.primary.prefer.take_if(|prefer| number(prefer) >= replicas);
                spec.fenced.retain(|name| number(name) < replicas);
            }),
            Fault::EditHibernated => {
                self.edit_database("hibernation changed", |database| database.spec.hibernated = begins);
            }
            Fault::DrainNode => self.cordon(node, begins),
            Fault::EditTemplate if begins => self.edit_database("template changed", |database| database.image += 1),
            Fault::EditParameter if begins => self.edit_database("parameter changed", |database| {
                let value = VALUES[other % VALUES.len()].to_owned();
                database.spec.postgres.parameters.insert(PARAMETER.to_owned(), value);
            }),
            Fault::RequestSwitchover if begins => {
                let request = switchover(&pod(other % self.replicas()), &self.now.to_string());
                self.edit_database("switchover requested", |database| database.request = Some(request));
            }
            Fault::DeletePod if begins && self.pod_object(node).is_some() => {
                self.change_pod(node, |pod| pod.terminating = true);
                self.kubelet_soon(node);
            }
            Fault::LoseVolume if begins => self.lose_claim(node),
            Fault::KillOperator if begins => self.kill_operator(leader),
            Fault::KillOperator => self.start_operator(leader),
            Fault::FreezeOperator if begins => self.freeze_operator(leader),
            Fault::FreezeOperator => self.go_on(leader),
            Fault::LagOperator => {
                let lag = if begins { LAG } else { 0 };
                self.operators.iter_mut().for_each(|operator| operator.lag = lag);
            }
            Fault::BlindOperator => {
                (0..self.operators.len()).for_each(|index| self.blind_operator(index, other, begins))
            }
            Fault::ReplaceOperator if begins => {
                self.freeze_operator(leader);
                let takes_over = Event::StartOperator { operator: 1 - leader };
                self.after(LEAD, takes_over);
            }
            Fault::ReplaceOperator => self.go_on(1 - leader),
            _ => return false,
        }
        true
    }

    fn replicas(&self) -> usize {
        self.api.objects.database.replicas() as usize
    }

    /// The disk is lost: the user deletes claim and pod, and both are made again.
    fn lose_claim(&mut self, node: usize) {
        self.drop_claim(node);
        self.nodes[node].sandbox.end();
        if self.pod_object(node).is_some() {
            self.make_claim(node);
            self.remove_pod(node);
        }
    }

    /// A stopped operator continues. If it no longer leads, it finds that out soon.
    fn go_on(&mut self, index: usize) {
        self.thaw_operator(index);
        if index != self.leader {
            let delay = self.random.operator.between(1, 100);
            self.after(delay, Event::EndOperator { operator: index });
        }
    }

    /// From now on this operator leads, unless the former leader runs and has renewed its lead in time.
    pub fn take_over(&mut self, index: usize) {
        let former = &self.operators[self.leader];
        let another = self.leader != index && former.run.is_some();
        if self.calm_since.is_some() || another && former.frozen == 0 {
            return;
        }
        let ends = former.renewed + LEAD;
        if another && self.now < ends {
            return self.after(ends - self.now, Event::StartOperator { operator: index });
        }
        self.leader = index;
        self.start_operator(index);
    }

    /// An operator that no longer leads ends, unless it leads again.
    pub fn end_operator(&mut self, index: usize) {
        if self.leader != index {
            self.kill_operator(index);
        }
    }

    /// Faults are over: one operator lives and sees everything, no node is drained, no instance is fenced, and nothing
    /// hibernates.
    pub fn calm_operated(&mut self) {
        self.edit_database("fences lifted", |database| {
            database.spec.fenced.clear();
            database.spec.hibernated = false;
        });
        (0..self.plan.members).for_each(|node| self.cordon(node, false));
        self.kill_operator(1 - self.leader);
        self.heal_operators();
    }
}
