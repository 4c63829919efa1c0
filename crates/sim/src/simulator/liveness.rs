//! After the last fault the database must serve again within a bound, and all members must follow; or a valid reason is
//! given why not.

use machine::instance::Mode;
use machine::protocol::ASYNC_LOSS;

use super::event::Event;
use super::names::owner;
use super::node::Data;
use super::wal::End;
use super::world::World;

/// How long after the last fault it must serve and all must follow, in milliseconds. In this time leases run out, a
/// rewind that fails six times is replaced by a copy, and a holder that stepped down keeps its lease for two minutes.
const BOUND: u64 = 300_000;
/// The same where an operator runs: a switchover without success is tried again after one, two and four minutes.
const BOUND_OPERATED: u64 = 900_000;
/// Interval between checks, in milliseconds.
const EVERY: u64 = 500;

/// A valid reason not to serve.
struct Excuse {
    why: String,
    /// True if it would serve after the user accepted a loss.
    for_the_user: bool,
}

impl World {
    /// Checks whether everything is as wanted.
    pub fn check_liveness(&mut self) {
        let since = self.calm_since.unwrap_or(self.now);
        let bound = if self.plan.whole { BOUND_OPERATED } else { BOUND };
        let (primary, mut wanted) = (self.serves(), self.as_wanted());
        if let (Some(primary), Ok(())) = (primary, &wanted) {
            wanted = self.archive_as_wanted(primary);
        }
        if let (Some(primary), Ok(())) = (primary, &wanted) {
            self.over = true;
            self.coverage.reach("converged");
            if self.accepts_in_the_end {
                self.coverage.reach("served again after the user accepted a loss");
            }
            self.count_edits();
            return self.check_nothing_is_lost(primary);
        }
        if self.now - since > bound {
            let excuse = if primary.is_none() { self.excuse() } else { None };
            if excuse.as_ref().is_some_and(|excuse| excuse.for_the_user) && !self.accepts_in_the_end {
                self.accepts_in_the_end = true;
                (self.calm_since, self.before_calm) = (Some(self.now), self.checks.acknowledged);
                self.accept_loss(self.api.lease.epoch.0);
                return self.after(EVERY, Event::Check);
            }
            self.over = true;
            match excuse {
                Some(Excuse {
                    why,
                    for_the_user: false,
                }) => {
                    self.coverage.reach("excused");
                    self.excused = Some(why);
                }
                Some(Excuse { for_the_user: true, .. }) | None => {
                    let states: Vec<_> = (0..self.plan.members).map(|node| self.state(node)).collect();
                    let lease = &self.api.lease;
                    let holder = lease.holder.as_ref().map(|holder| holder.incarnation.member.as_str());
                    let (epoch, rule) = (lease.epoch.0, &lease.rule);
                    let names: Vec<_> = rule.names.iter().map(|name| name.as_str()).collect();
                    self.violate(format!(
                        "{} s after the last fault it does not serve, or not all follow{}: {}; epoch {epoch}, held by {holder:?}, ANY {} ({})",
                        bound / 1_000,
                        wanted.err().map_or(String::new(), |what| format!(", or {what}")),
                        states.join("; "),
                        rule.required,
                        names.join(", ")
                    ));
                }
            }
            return;
        }
        self.after(EVERY, Event::Check);
    }

    /// The primary that serves, if all others stream from it and have no slots, and a commit was acknowledged since.
    fn serves(&self) -> Option<usize> {
        let primary = self.holder()?;
        let server = self.nodes[primary].postgres.as_ref()?;
        let open = server.up && !server.in_recovery && server.open && server.stop.is_none();
        let streams = |node: usize| {
            server
                .senders
                .values()
                .any(|sender| sender.to == node && sender.streaming)
        };
        let all = (0..self.api.spec.members).all(|node| node == primary || !self.nodes[node].on || streams(node));
        // Slots of a standby would keep WAL and dead rows for ever.
        let keeps = |node: usize| {
            let data = self.nodes[node].volume.data.as_ref();
            self.nodes[node].postgres.is_some() && data.is_some_and(|data| !data.slots.is_empty())
        };
        let idle = (0..self.plan.members).all(|node| node == primary || !keeps(node));
        let commits = self.checks.acknowledged > self.before_calm || self.commits_wait(primary);
        (open && all && idle && commits).then_some(primary)
    }

    /// True if fewer members live than commits should wait for: then it is right that commits wait.
    fn commits_wait(&self, primary: usize) -> bool {
        let Some(server) = &self.nodes[primary].postgres else {
            return false;
        };
        let live = server
            .senders
            .values()
            .filter(|sender| server.rule.names.contains(&sender.member))
            .count();
        server.rule.required > live && self.nodes.iter().any(|node| !node.on)
    }

    /// A valid reason why it does not serve.
    fn excuse(&self) -> Option<Excuse> {
        let excuse = |why: &str, for_the_user: bool| {
            let why = why.to_owned();
            Some(Excuse { why, for_the_user })
        };
        let record = &self.api.lease;
        // Inconsistent or half-rewound data answers no questions.
        let sound = |node: usize| {
            let volume = &self.nodes[node].volume;
            !volume.rewinding && volume.data.as_ref().is_some_and(|data| data.consistent.is_none())
        };
        let live = |node: &usize| self.nodes[*node].on && self.nodes[*node].sandbox.runs() && sound(*node);
        if !(0..self.plan.members).any(|node| live(&node)) {
            return excuse("no member that lives has data that is consistent", false);
        }
        if record.is_made_again() {
            return excuse("the Lease was made again, and its last holder does not answer", true);
        }
        let last = record.holder.as_ref().map(|holder| &holder.incarnation.member);
        let last = last.or(record.release.as_ref().map(|release| &release.member));
        let there = |member: &machine::protocol::MemberId| {
            let node = owner(member);
            live(&node) && self.nodes[node].volume.member.as_ref() == Some(member)
        };
        let answer = record.rule.names.iter().filter(|member| there(member)).count();
        if last.is_none_or(there) {
            let required = record.rule.required;
            let why =
                format!("what is in doubt waits for {required} of the synchronous members, of which {answer} live");
            return excuse(&why, false).filter(|_| answer < required);
        }
        if !record.rule.is_synchronous() {
            let theirs = record
                .holder
                .as_ref()
                .and_then(|holder| self.wal.branch(holder.timeline?.0));
            let diverged = |end: End| {
                theirs.is_some_and(|branch| self.wal.common(end, End { branch, lsn: u64::MAX }).lsn < end.lsn)
            };
            let waits = |node: usize| {
                let place = &self.nodes[node];
                let data = place.volume.data.as_ref();
                let other = |data: &Data| data.primary || place.volume.promoting.is_some() || diverged(data.end);
                let far = data.is_some_and(|data| record.lacks(self.wal.position(data.end)) > ASYNC_LOSS);
                far || place.postgres.is_none() && data.is_some_and(other)
            };
            let alone = (0..self.plan.members).filter(live).all(waits);
            let why = "the primary is lost, commits waited for no standby, and the living members lack WAL that it wrote: only the user can accept that";
            return excuse(why, true).filter(|_| alone);
        }
        let needed = record.rule.promises_needed();
        let why = format!(
            "the primary is lost, and an election needs {needed} of the synchronous members, of which {answer} live"
        );
        excuse(&why, true).filter(|_| answer < needed)
    }

    /// Every acknowledged commit must be in the history of the primary that serves in the end.
    fn check_nothing_is_lost(&mut self, primary: usize) {
        let Some(end) = self.nodes[primary].postgres.as_ref().map(|server| server.end) else {
            return;
        };
        for branch in 0..self.wal.0.len() {
            let lsn = self.wal.0[branch].acknowledged;
            if lsn > 0 && !self.wal.keeps(end, End { branch, lsn }) {
                let timeline = self.wal.timeline(branch);
                self.violate(format!(
                    "{lsn:X} of timeline {timeline} was acknowledged, and orders-{primary} does not have it"
                ));
            }
        }
    }

    fn state(&self, node: usize) -> String {
        let place = &self.nodes[node];
        let postgres = match (&place.postgres, place.on) {
            (_, false) => "is off".to_owned(),
            (None, true) => "runs no PostgreSQL".to_owned(),
            (Some(server), true) => {
                let role = match server.mode {
                    Mode::Primary => "primary",
                    Mode::Standby => "standby",
                };
                let timeline = self.wal.timeline(server.end.branch);
                format!(
                    "{role} on timeline {timeline} at {:X}, up {}, open {}",
                    server.end.lsn, server.up, server.open
                )
            }
        };
        format!("orders-{node} {postgres}, promised {}", place.volume.promise)
    }
}
