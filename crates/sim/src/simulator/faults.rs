//! Faults: their begin and their end.

use machine::instance::observer::Event as Seen;

use super::api::Loss;
use super::event::{Event, Inner, News};
use super::names::claim;
use super::net::{Way, count};
use super::node::Disk;
use super::plan::{Fault, Target, durability};
use super::postgres::Ends;
use super::world::World;

/// Additional delay of news while watches lag, in milliseconds.
const LAG: u64 = 4_000;

/// How long after its volume became full, or has room again, an agent measures that, in milliseconds.
const MEASURED: u64 = 500;

/// How late the dead-man of a frozen pod is scheduled after the pod continues, in milliseconds.
const SCHEDULED: u64 = 20;

impl World {
    /// A fault of the plan begins, or ends.
    pub fn fault(&mut self, index: usize, ends: bool) {
        if self.calm_since.is_some() {
            return;
        }
        let injection = self.plan.faults[index];
        let node = match (self.struck.get(&index), injection.target) {
            (Some(node), _) => *node,
            (None, Target::Node(node)) => node,
            (None, Target::Primary) => self.primary_or(injection.other % self.plan.members),
        };
        if !ends {
            self.struck.insert(index, node);
            *self.coverage.faults.entry(injection.fault).or_default() += 1;
            if !Fault::OF_STORE.contains(&injection.fault) {
                self.fault_begins(injection.fault, injection.lasts);
            }
            self.after(injection.lasts.max(1), Event::Fault { index, ends: true });
        }
        self.note(Some(node), || {
            let what = if ends { "ends" } else { "begins" };
            format!("FAULT {index} {:?} {what}", injection.fault)
        });
        self.strike(injection.fault, node, injection.other, !ends);
    }

    fn primary_or(&self, other: usize) -> usize {
        self.holder().unwrap_or(other)
    }

    fn strike(&mut self, fault: Fault, node: usize, other: usize, begins: bool) {
        let members = self.plan.members;
        let another = (node + 1 + other % members.max(2).saturating_sub(1)) % members;
        match fault {
            Fault::KillPostgres if begins => self.end_server(node, Ends::Killed),
            Fault::KillAgent if begins => self.kill_container(node),
            Fault::KillAgent => self.boot(node),
            Fault::Reboot => self.power(node, !begins),
            Fault::CutNode => {
                for peer in (0..members).filter(|peer| *peer != node) {
                    self.net.cut(node, peer, begins);
                    self.net.cut(peer, node, begins);
                }
                self.net.cut_api(node, Way::To, begins);
                self.net.cut_api(node, Way::From, begins);
            }
            Fault::CutApi => {
                self.net.cut_api(node, Way::To, begins);
                self.net.cut_api(node, Way::From, begins);
            }
            Fault::DeafToApi => self.net.cut_api(node, Way::From, begins),
            Fault::CutPair if another != node => self.net.cut(node, another, begins),
            Fault::FreezeAgent if begins => count(&mut self.nodes[node].agent_frozen, true),
            Fault::FreezeAgent => self.thaw_agent(node),
            Fault::FreezePostgres if begins => count(&mut self.nodes[node].postgres_frozen, true),
            Fault::FreezePostgres => self.thaw_postgres(node),
            Fault::LoseUpstream if begins => self.lose_upstream(node, other),
            Fault::Impersonate => self.impersonates = begins.then_some(another).filter(|name| *name != node),
            Fault::FreezePod => self.freeze_pod(node, begins),
            Fault::HangDisk => {
                count(&mut self.nodes[node].disk.hung, begins);
                if self.nodes[node].disk.hung == 0 {
                    self.disk_goes_on(node);
                }
            }
            Fault::FillDisk => {
                count(&mut self.nodes[node].disk.full, begins);
                self.tell(MEASURED, node, News::Room);
            }
            Fault::SlowDisk => self.nodes[node].disk.slow = if begins { 300 } else { 0 },
            Fault::CrawlDisk => self.nodes[node].disk.slow = if begins { 8_000 } else { 0 },
            Fault::ApiOutage => count(&mut self.api.down, begins),
            Fault::ApiErrors => self.api.errors = if begins { 300 } else { 0 },
            Fault::LagWatch => self.nodes[node].watch_lag = if begins { LAG } else { 0 },
            Fault::LoseLease if begins => self.recreate_lease(),
            Fault::DeleteLease if begins => self.lose_lease(Loss::Gone),
            Fault::ScribbleLease if begins && self.api.lost.is_none() => self.lose_lease(Loss::Scribbled),
            Fault::KillWatch => {
                count(&mut self.nodes[node].watch_dead, begins);
                if !begins {
                    self.relist_after(node, 0);
                }
            }
            Fault::StoreOutage => count(&mut self.store.down, begins),
            Fault::StoreErrors => self.store.errors = if begins { 400 } else { 0 },
            Fault::SlowStore => self.store.slow = if begins { 3_000 } else { 0 },
            Fault::SlowNetwork => (self.net.slow, self.net.loss) = if begins { (400, 100) } else { (0, 0) },
            fault if self.plan.whole && self.strike_whole(fault, node, other, begins) => {}
            Fault::EditDurability | Fault::EditPrimary | Fault::EditFenced => self.edit(fault, node, other, begins),
            Fault::AcceptLoss if begins => {
                let too_late = u64::from(other.is_multiple_of(3));
                self.accept_loss(self.api.lease.epoch.0.saturating_sub(too_late));
            }
            Fault::LoseVolume if begins => self.lose_volume(node),
            Fault::Terminate if begins => {
                self.tell(0, node, News::Seen(Seen::Terminate));
            }
            _ => {}
        }
    }

    fn edit(&mut self, fault: Fault, node: usize, other: usize, begins: bool) {
        let spec = &mut self.api.spec;
        match fault {
            Fault::EditDurability if begins => spec.durability = durability(other as u64 % 10, self.plan.members),
            Fault::EditPrimary => spec.primary = begins.then_some(other % self.plan.members),
            Fault::EditFenced if begins => {
                spec.fenced.insert(node);
            }
            Fault::EditFenced => {
                spec.fenced.remove(&node);
            }
            _ => return,
        }
        self.spec_changed();
    }

    /// Power off, which loses what was not flushed; or power on.
    fn power(&mut self, node: usize, on: bool) {
        if on {
            self.nodes[node].on = true;
            let delay = self.random.work.between(500, 3_000);
            return self.after(delay, Event::Boot { node });
        }
        // First, so that no process is told of it.
        self.nodes[node].on = false;
        self.end_server(node, Ends::PowerLost);
        self.kill_container(node);
        let place = &mut self.nodes[node];
        (place.agent_frozen, place.postgres_frozen) = (0, 0);
        (place.pod_frozen, place.pod_waits) = (false, Vec::new());
    }

    /// The pod comes back with an empty volume, under another claim.
    fn lose_volume(&mut self, node: usize) {
        let number = self.empty_volume(node);
        self.api.spec.claims[node] = Some(claim(node, number));
        self.api.spec.certified[node] = None;
        self.spec_changed();
        let delay = self.random.work.between(3_000, 10_000);
        self.after(delay, Event::Boot { node });
    }

    /// Replaces this member's volume by an empty one; returns its number.
    pub fn empty_volume(&mut self, node: usize) -> u32 {
        self.kill_container(node);
        let volume = &mut self.nodes[node].volume;
        volume.number += 1;
        (volume.member, volume.data, volume.certificate) = (None, None, false);
        volume.aside.clear();
        (volume.promise, volume.promoting, volume.credential) = (0, None, false);
        (volume.rewinding, volume.was_primary) = (false, false);
        volume.number
    }

    fn thaw_agent(&mut self, node: usize) {
        let place = &mut self.nodes[node];
        count(&mut place.agent_frozen, false);
        if place.agent_frozen == 0 {
            for event in std::mem::take(&mut place.agent_waits) {
                self.after(0, event);
            }
        }
    }

    fn thaw_postgres(&mut self, node: usize) {
        let place = &mut self.nodes[node];
        count(&mut place.postgres_frozen, false);
        if place.postgres_frozen == 0 {
            let is_tick = |event: &Event| matches!(event, Event::Server { what: Inner::Tick, .. });
            let (ticks, rest): (Vec<_>, _) = std::mem::take(&mut place.postgres_waits).into_iter().partition(is_tick);
            // What has arrived is read before a peer counts as silent.
            for event in rest.into_iter().chain(ticks) {
                self.after(0, event);
            }
        }
    }

    fn freeze_pod(&mut self, node: usize, begins: bool) {
        let place = &mut self.nodes[node];
        place.pod_frozen = begins;
        if begins {
            count(&mut place.agent_frozen, true);
            count(&mut place.postgres_frozen, true);
            return;
        }
        // The scheduler runs other processes first.
        for event in std::mem::take(&mut place.pod_waits) {
            self.after(SCHEDULED, event);
        }
        self.thaw_agent(node);
        self.thaw_postgres(node);
    }

    /// Faults are over: everything heals, except a member that is gone for good.
    pub fn calm(&mut self) {
        self.calm_since = Some(self.now);
        self.before_calm = self.checks.acknowledged;
        self.under_way.clear();
        self.note(None, || "faults are over".to_owned());
        self.impersonates = None;
        self.net.heal();
        (self.api.down, self.api.errors) = (0, 0);
        (self.store.down, self.store.errors, self.store.slow) = (0, 0, 0);
        match self.plan.whole {
            true => self.calm_operated(),
            false => (self.api.spec.primary, self.api.spec.fenced) = (None, std::collections::BTreeSet::new()),
        }
        for node in 0..self.plan.members {
            self.nodes[node].disk = Disk::default();
            self.tell(MEASURED, node, News::Room);
            self.disk_goes_on(node);
            self.nodes[node].watch_lag = 0;
            if std::mem::take(&mut self.nodes[node].watch_dead) > 0 {
                self.relist_after(node, 0);
            }
            if self.nodes[node].pod_frozen {
                self.freeze_pod(node, false);
            }
            while self.nodes[node].agent_frozen > 0 {
                self.thaw_agent(node);
            }
            while self.nodes[node].postgres_frozen > 0 {
                self.thaw_postgres(node);
            }
            if self.plan.gone == Some(node) {
                self.power(node, false);
            } else {
                self.nodes[node].on = true;
                self.after(3_000, Event::Boot { node });
            }
        }
        self.spec_changed();
        self.after(1_000, Event::Check);
    }
}
