//! Everybody but the holder: copy the primary if there is no data, else follow it.

use super::context::{Context, Tenure};
use super::crash::may_start;
use super::identity::{is_sound, volume_is_free};
use super::rejoin::{self, Lineage};
use super::settings;
use super::{Action, Data, Draft, Upstream, Verdict};
use crate::protocol::HolderRecord;

/// The primary to follow: another member that holds the lease.
pub(super) fn upstream<'a>(context: &Context<'a>) -> Option<&'a HolderRecord> {
    match context.tenure() {
        Tenure::Other(holder) => Some(holder),
        Tenure::Held { .. } | Tenure::Lapsed | Tenure::OwnBefore(_) | Tenure::Vacant | Tenure::Unknown => None,
    }
}

/// The primary has said, in this epoch, that this member's role and slot exist.
pub(super) fn is_admitted(context: &Context) -> bool {
    let (Some(reply), Some(record)) = (&context.observed.reply, context.record()) else {
        return false;
    };
    let same_member = context.member().is_some_and(|member| member.id == reply.report.member);
    reply.admitted && reply.epoch == record.epoch && same_member
}

/// `holder`, to be followed in the epoch of the Lease; `None` while this member has promised a higher one, or what it has
/// promised cannot be read (protocol.md rules 2, 6 and 7).
pub(super) fn to_follow(context: &Context, holder: &HolderRecord) -> Option<Upstream> {
    let epoch = context.record()?.epoch;
    let promised = context.promise()?.epoch;
    (promised <= epoch).then(|| Upstream {
        address: holder.address.clone(),
        epoch,
    })
}

/// Copies the primary onto an empty volume.
pub(super) fn clone(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let primary = upstream(context)?;
    let volume = context.volume()?;
    let member = volume.member.as_ref()?;
    let system_id = context.record()?.system_id.clone()?;
    if volume.data != Data::Empty || member.certificate.is_none() || primary.timeline.is_none() || !is_admitted(context)
    {
        return None;
    }
    if context.alive() || context.stop_intended() || !volume_is_free(context, draft) {
        return None;
    }
    let action = Action::Clone {
        upstream: primary.address.clone(),
        member: member.id.clone(),
        system_id,
    };
    Verdict::new(
        action,
        format!("the volume is empty and {} serves", primary.incarnation.pod),
    )
}

/// Starts PostgreSQL as standby. A member that held the lease last waits instead: it may hold it again.
pub(super) fn start(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let (upstream, because) = match context.tenure() {
        Tenure::Other(holder) => (
            to_follow(context, holder),
            format!("{} holds the lease", holder.incarnation.pod),
        ),
        Tenure::Vacant if !context.was_last_holder() => (None, "nobody holds the lease; reads are served".to_owned()),
        Tenure::Vacant | Tenure::Held { .. } | Tenure::Lapsed | Tenure::OwnBefore(_) | Tenure::Unknown => return None,
    };
    let rewinding = context.volume().is_some_and(|volume| volume.rewinding);
    if rewinding || !is_sound(context) || !may_follow(context) || !may_start(context, draft) {
        return None;
    }
    let settings = settings::to_start_with(context)?;
    Verdict::new(Action::StartStandby { upstream, settings }, because)
}

/// A standby's data may always be started as one. A primary's only if it is known to be part of the new primary's history:
/// started before it is rewound, it could serve what nobody else has.
fn may_follow(context: &Context) -> bool {
    match rejoin::lineage(context) {
        Lineage::Follows => true,
        Lineage::Diverged { .. } => false,
        Lineage::Unknown => context.database().is_some_and(|database| !database.primary),
    }
}

/// The data cannot follow the primary: it went another way, and is to be rewound.
pub(super) fn fault(context: &Context) -> Option<String> {
    let primary = upstream(context)?;
    match rejoin::lineage(context) {
        Lineage::Diverged { timeline } => Some(format!(
            "the data went another way on timeline {}, the primary {} is on {}: it is to be rewound",
            timeline.0, primary.incarnation.pod, primary.timeline?.0
        )),
        Lineage::Follows | Lineage::Unknown => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::*;
    use super::super::*;
    use crate::protocol::{Epoch, Release, Timeline};
    use crate::timing::BootTime;

    fn decided(observed: &Observed) -> Decision {
        decide(observed, &Memo::default(), BootTime(1_200))
    }

    #[test]
    fn an_admitted_member_with_a_certificate_clones() {
        let observed = cloning();
        match decided(&observed).action {
            Action::Clone {
                upstream, system_id, ..
            } => {
                assert_eq!((upstream.as_str(), system_id.as_str()), ("10.0.0.2", SYSTEM_ID));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn nothing_is_cloned_over_data_or_from_nobody() {
        let spoil: [fn(&mut Observed); 11] = [
            |o| volume(o).data = Data::Unknown,
            |o| o.volume = Reading::Unknown,
            |o| o.lease.record = Reading::Unknown,
            |o| o.lease.record = Reading::Missing,
            |o| record(o).system_id = None,
            |o| record(o).holder.as_mut().unwrap().timeline = None,
            |o| record(o).holder = None,
            |o| record(o).epoch = Epoch(5),
            |o| o.reply.as_mut().unwrap().admitted = false,
            |o| cluster(o).stop = true,
            |o| o.tasks.volume.running = Some(Work::Clone),
        ];
        for (index, spoil) in spoil.iter().enumerate() {
            let mut observed = cloning();
            spoil(&mut observed);
            assert_ne!(decided(&observed).rule, "clone", "{index}");
        }
    }

    #[test]
    fn data_of_this_cluster_follows_the_holder() {
        let mut observed = standby();
        observed.postgres = stopped();
        let expected = Action::StartStandby {
            upstream: Some(Upstream {
                address: "10.0.0.2".to_owned(),
                epoch: Epoch(1),
            }),
            settings: SETTINGS.to_owned(),
        };
        assert_eq!(decided(&observed).action, expected);
        record(&mut observed).holder.as_mut().unwrap().timeline = Some(Timeline(0));
        assert_ne!(decided(&observed).rule, "start standby", "it went another way");
    }

    #[test]
    fn data_whose_rewind_was_broken_off_is_not_started() {
        let mut observed = standby();
        observed.postgres = stopped();
        observed.reply = None;
        observed.tasks.report.running = Some(Work::Report);
        assert_eq!(decided(&observed).rule, "start standby");
        volume(&mut observed).rewinding = true;
        assert_eq!(decided(&observed).action, Action::Wait);
    }

    #[test]
    fn the_last_holder_waits_for_its_lease_instead_of_following() {
        let mut observed = restarted();
        observed.own.pod_uid = "new pod".to_owned();
        assert_eq!(decided(&observed).action, Action::Wait);
    }

    #[test]
    fn who_has_released_the_lease_waits_for_the_others_and_does_not_start() {
        let mut observed = restarted();
        let member = volume(&mut observed).member.as_ref().unwrap().id.clone();
        let Data::Present(database) = &mut volume(&mut observed).data else {
            panic!("data")
        };
        database.primary = false;
        record(&mut observed).holder = None;
        record(&mut observed).release = Some(Release {
            member,
            position: None,
            successor: None,
        });
        observed.lease.holder_since = BootTime(1_000);
        assert_eq!(decided(&observed).action, Action::Wait);
        record(&mut observed).release.as_mut().unwrap().member = third();
        assert_eq!(decided(&observed).rule, "start standby");
    }

    #[test]
    fn a_new_address_of_the_holder_is_followed_by_a_reload() {
        let mut observed = standby();
        record(&mut observed).holder.as_mut().unwrap().address = "10.0.0.9".to_owned();
        let expected = Action::Configure {
            settings: SETTINGS.to_owned(),
            upstream: Some(Upstream {
                address: "10.0.0.9".to_owned(),
                epoch: Epoch(1),
            }),
        };
        assert_eq!(decided(&observed).action, expected);
    }
}
