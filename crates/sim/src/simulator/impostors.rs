//! A role that may replicate and uses a member's name: PostgreSQL counts it.

use std::collections::BTreeSet;

use machine::protocol::MemberId;

use super::event::Inner;
use super::postgres::Impostor;
use super::world::World;

/// How often an impostor reports what it has flushed, in milliseconds.
const REPORTS: u64 = 100;
/// How long an impostor may live while its agent works, in milliseconds. The agent checks each second.
const LIVES: u64 = 3_000;

impl World {
    /// It connects, unless it is connected, to a primary that is open.
    pub fn impersonate(&mut self, node: usize) {
        let Some(name) = self.impersonates.filter(|name| *name != node) else {
            return;
        };
        let Some(name) = self.nodes[name].volume.member.clone() else {
            return;
        };
        let Some(server) = self.server(node) else { return };
        let serves = server.up && !server.in_recovery && server.open && server.stop.is_none();
        if !serves || !server.impostors.is_empty() {
            return;
        }
        let number = self.number();
        if let Some(server) = self.server(node) {
            server.impostors.insert(number, Impostor { name, unhindered: 0 });
        }
        self.server_after(REPORTS, node, Inner::Impostor);
    }

    /// It reports that it has flushed everything.
    pub fn impostor_reports(&mut self, node: usize) {
        let place = &self.nodes[node];
        let works = place.agent.is_some() && place.agent_frozen == 0 && place.disk.hung == 0 && !place.pod_frozen;
        let Some(server) = self.server(node).filter(|server| server.stop.is_none()) else {
            return;
        };
        for impostor in server.impostors.values_mut() {
            impostor.unhindered = if works { impostor.unhindered + REPORTS } else { 0 };
        }
        if server.impostors.values().any(|impostor| impostor.unhindered > LIVES) {
            self.violate(format!(
                "a role replicates from orders-{node} under a member's name, and its agent has not ended it for {LIVES} ms"
            ));
        }
        self.let_go(node);
        if self.server(node).is_some_and(|server| !server.impostors.is_empty()) {
            self.server_after(REPORTS, node, Inner::Impostor);
        }
    }

    /// PostgreSQL counts an impostor among the standbys, so it acknowledges a commit that waits for one more of them.
    /// The check of lost commits ignores such commits: docs/design.md says for how long that can happen.
    fn let_go(&mut self, node: usize) {
        let place = &mut self.nodes[node];
        let (Some(server), Some(data)) = (place.postgres.as_mut(), place.volume.data.as_ref()) else {
            return;
        };
        let names = |name: &MemberId| server.rule.names.contains(name);
        let standbys = server
            .senders
            .values()
            .filter(|sender| sender.streaming && names(&sender.member));
        let impostors = server.impostors.values().filter(|impostor| names(&impostor.name));
        let mut ends: Vec<u64> = standbys
            .map(|sender| sender.flushed)
            .chain(impostors.map(|_| data.end.lsn))
            .collect();
        ends.sort_unstable_by(|one, other| other.cmp(one));
        let upto = server
            .rule
            .required
            .checked_sub(1)
            .and_then(|last| ends.get(last).copied());
        let before = server.commits.len();
        server
            .commits
            .retain(|commit| upto.is_none_or(|upto| commit.end > upto));
        if server.commits.len() < before {
            self.coverage.reach("impostor counted for a commit");
        }
    }

    /// The agent ends impostors.
    pub fn end_impostors(&mut self, node: usize, ended: &BTreeSet<machine::instance::Impostor>) {
        let Some(server) = self.server(node) else { return };
        let before = server.impostors.len();
        server
            .impostors
            .retain(|stream, _| !ended.iter().any(|impostor| i64::from(impostor.pid) == *stream as i64));
        if server.impostors.len() < before {
            self.coverage.reach("impostor ended");
        }
    }
}
