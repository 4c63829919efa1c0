//! What the agents do by themselves: who takes the Lease, and to whom it is given.

use std::collections::BTreeSet;

use super::super::scene::holder;
use super::World;
use crate::archive::{RecoveryChecked, RecoveryOutline};
use crate::cluster::Pod;
use crate::protocol::{Epoch, Lsn, MemberId, MemberReport, MemberState, Release, Timeline, settings_hash};
use crate::units::Bytes;

impl World {
    /// The Lease is free: `successor`, or else anybody who had streamed to its end, may take it.
    pub(super) fn release(&mut self, member: MemberId, successor: Option<String>) {
        let Some(lease) = self.scene.lease_mut() else { return };
        lease.holder = None;
        lease.release = Some(Release {
            member,
            position: None,
            successor,
        });
    }

    /// Whom a primary names whose pod goes away, unless all are to stop.
    pub(super) fn heir(&self, uid: &str) -> Option<String> {
        let pods = self.scene.pods();
        pods.iter().find(|pod| pod.uid == uid && pod.terminating)?;
        let lease = self.scene.observed.lease.get()?.as_ref()?;
        let streams = |pod: &&Pod| {
            let report = lease.members.get(&pod.name).filter(|report| report.pod_uid == pod.uid);
            report.is_some_and(|report| report.state == MemberState::Streaming)
        };
        let able = |pod: &&Pod| pod.uid != uid && pod.ready && !pod.terminating && streams(pod);
        let heir = pods.iter().filter(|_| !self.scene.stored.intent.stop).find(able)?;
        Some(heir.name.clone())
    }

    /// Whether this member, whose data is `identity`'s, may take a Lease that nobody holds: who released it, whoever
    /// streamed from it until then, and while a chosen successor is there, that one alone.
    fn may_take(&self, pod: &Pod, identity: &MemberId) -> bool {
        let Some(lease) = self.scene.observed.lease.get().and_then(Option::as_ref) else {
            return false;
        };
        let Some(release) = lease.release.as_ref().filter(|_| lease.holder.is_none()) else {
            return false;
        };
        let streamed = |found: &Pod| {
            let report = lease
                .members
                .get(&found.name)
                .filter(|report| report.pod_uid == found.uid);
            !found.terminating && report.is_some_and(|report| report.state == MemberState::Streaming)
        };
        match &release.successor {
            Some(successor)
                if self
                    .scene
                    .pods()
                    .iter()
                    .any(|found| found.name == *successor && streamed(found)) =>
            {
                pod.name == *successor
            }
            _ => release.member == *identity || streamed(pod),
        }
    }

    fn holder_is_mute(&self) -> bool {
        let lease = self.scene.observed.lease.get().and_then(Option::as_ref);
        let Some(holder) = lease.and_then(|lease| lease.holder.as_ref()) else {
            return false;
        };
        let uid = &holder.incarnation.pod_uid;
        self.scene.pods().iter().any(|pod| pod.uid == *uid && pod.token_revoked)
    }

    /// Who the primary in `pod` hands over to, if it is asked to and can.
    fn successor(&self, pod: &Pod) -> Option<String> {
        let target = self.scene.stored.intent.primary.clone().filter(|_| !self.stubborn)?;
        let lease = self.scene.observed.lease.get()?.as_ref()?;
        let found = self
            .scene
            .pods()
            .iter()
            .find(|found| found.name == target && found.uid != pod.uid)?;
        let report = lease
            .members
            .get(&target)
            .filter(|report| report.pod_uid == found.uid)?;
        (found.ready && !found.terminating && report.state == MemberState::Streaming).then_some(target)
    }

    /// One move of the agent in a pod.
    pub(super) fn agent(&mut self, index: usize) {
        let mut pod = self.scene.pods()[index].clone();
        let dead = self.dead.get(&pod.uid).is_some_and(|until| self.scene.now < *until);
        if pod.terminating || pod.node.is_none() || pod.image_error.is_some() || dead {
            return;
        }
        if self.scene.stored.intent.stop {
            return self.stop(&pod.uid);
        }
        if self.scene.spec.fenced.contains(&pod.name) {
            let lease = self.scene.lease_mut();
            if let Some(report) = lease.and_then(|lease| lease.members.get_mut(&pod.name)) {
                report.state = MemberState::Stopped;
            }
            return self.stop(&pod.uid);
        }
        let Some(member) = self.scene.stored.members.get(&pod.name).cloned() else {
            return;
        };
        let (Some(claim), true) = (member.claim_uid, member.pod_uid.as_ref() == Some(&pod.uid)) else {
            return;
        };
        // An agent refuses another's WAL volume, and data whose WAL is on a volume that its pod has not got.
        if pod
            .wal_claim
            .as_ref()
            .is_some_and(|claim| *claim != self.wal_name(pod.ordinal))
            || (pod.wal_claim.is_none() && self.moved.contains(&claim))
        {
            return;
        }
        if pod.wal_claim.is_some() {
            self.moved.insert(claim.clone());
        }
        let identity = MemberId::new(pod.ordinal, &claim, 7);
        let granted = self
            .scene
            .stored
            .intent
            .bootstrap
            .as_ref()
            .is_some_and(|grant| grant.claim_uid == claim);
        let has_data = self.data.contains_key(&claim);
        let settings = settings_hash(&self.scene.spec.postgres.settings());
        let started_with = self.in_force.entry(pod.uid.clone()).or_insert_with(|| settings.clone());
        let permit = self.scene.stored.intent.restart.as_ref();
        if permit.is_some_and(|permit| permit.pod_uid == pod.uid && permit.settings == settings) {
            started_with.clone_from(&settings);
        }
        let pending = *started_with != settings;
        let may_take = has_data && self.may_take(&pod, &identity);
        let successor = self.successor(&pod);
        let new_report = self.scene.report(&pod, MemberState::Waiting);
        let mute = self.holder_is_mute();
        let bootstrapped = self.scene.stored.system_identifier.is_some();
        let checked = self.checked();
        let Some(lease) = self.scene.lease_mut() else { return };
        if mute {
            // A holder that the API server does not know serves on, by the others' leave, and streams; it writes nothing.
            let holder = lease.holder.as_ref().map(|holder| holder.incarnation.pod_uid.as_str());
            self.scene.pods_mut()[index].ready = has_data || holder == Some(pod.uid.as_str());
            return;
        }
        if bootstrapped && lease.is_empty() {
            // It is in the place of one that is lost: nobody takes it.
            return;
        }
        let report = lease.members.get(&pod.name).filter(|report| report.pod_uid == pod.uid);
        let mut report = report.cloned().unwrap_or(new_report);
        (report.member, report.settings, report.pending_restart) = (identity.clone(), settings, pending);
        report.public_key = Some(format!("key of {identity}"));

        let holds = lease
            .holder
            .as_ref()
            .is_some_and(|holder| holder.incarnation.pod_uid == pod.uid);
        if holds && successor.is_some() {
            (report.state, pod.ready) = (MemberState::Stopped, false);
            lease.members.insert(pod.name.clone(), report);
            self.scene.pods_mut()[index] = pod;
            return self.release(identity, successor);
        } else if holds {
            if let Some(holder) = &mut lease.holder {
                holder.serving = true;
            }
            if checked.is_some() {
                lease.archive.get_or_insert_default().checked = checked;
            }
            (report.state, pod.ready) = (MemberState::Primary, true);
        } else if may_take || (lease.system_id.is_none() && lease.holder.is_none() && granted && has_data) {
            lease.epoch = Epoch(lease.epoch.0 + 1);
            lease.system_id.get_or_insert_with(|| "7400".to_owned());
            let mut taken = holder(&pod, false);
            taken.incarnation.member = identity;
            (lease.holder, lease.release) = (Some(taken), None);
            report.state = MemberState::Starting;
        } else if lease.system_id.is_none() {
            if granted && self.unrecoverable && self.scene.stored.intent.recovery.is_some() {
                pod.bootstrap_error = Some("no backup reaches the target".to_owned());
            } else if granted {
                self.initdbs += 1;
                self.data.insert(claim, identity);
            }
            self.scene.pods_mut()[index] = pod;
            return;
        } else if !lease.holder.as_ref().is_some_and(|holder| holder.serving) {
            return;
        } else if member.certificate.is_some() {
            let streams = report.state == MemberState::Cloning || has_data;
            report.state = if streams {
                MemberState::Streaming
            } else {
                MemberState::Cloning
            };
            pod.ready = streams;
            if streams {
                self.data.insert(claim, identity);
            }
        }
        lease.members.insert(pod.name.clone(), report);
        self.scene.pods_mut()[index] = pod;
        if holds {
            self.change_rule();
        }
    }

    /// What the primary's agent has found in the store for a recovery that is asked for.
    fn checked(&self) -> Option<RecoveryChecked> {
        let asked = self.scene.stored.intent.recovery_check.as_ref();
        let check = asked.filter(|_| !self.never_checks)?;
        Some(RecoveryChecked {
            uid: check.uid.clone(),
            refusal: self.unprovable.then(|| "a segment of WAL is missing".to_owned()),
            outline: Some(RecoveryOutline {
                backup: "20270101T000000Z-F-7f3a".to_owned(),
                stop_time: self.scene.now,
                data_bytes: 40 << 20,
                stored_bytes: 5 << 20,
                segments: 3,
                segment_size: Bytes::mib(4),
                timeline: Timeline(1),
                end: Lsn(64),
            }),
        })
    }

    /// The primary's agent: commits wait for as many of the members that are to stay as the spec says.
    fn change_rule(&mut self) {
        self.scene.synchronize();
        let replicas = self.scene.spec.replicas;
        let Some(lease) = self.scene.lease_mut() else { return };
        let streaming: BTreeSet<_> = lease
            .members
            .values()
            .filter(|report| report.state == MemberState::Streaming)
            .map(|report| report.member.clone())
            .collect();
        let stays = |member: &MemberId| {
            member
                .ordinal()
                .is_some_and(|ordinal| i64::from(ordinal) < i64::from(replicas))
        };
        let others = |report: &&MemberReport| report.state != MemberState::Primary && stays(&report.member);
        lease.rule.names.retain(|name| streaming.contains(name));
        // A rule that is in force is not weakened because members are away.
        if lease.rule.names.len() < lease.rule.required {
            lease.rule.names = lease
                .members
                .values()
                .filter(others)
                .map(|report| report.member.clone())
                .collect();
        }
    }
}
