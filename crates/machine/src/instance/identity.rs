//! The member's identity (protocol.md rule 1): made with an empty volume, never changed while data is on it.

use super::facts::Context;
use super::{Action, Data, Draft, OnBackoff, Rule, RuleKind, Verdict};
use crate::units::Millis;

/// Longest back-off between failed tries of work on the volume.
const VOLUME_RETRY: Millis = Millis::seconds(5);

/// True if work on the volume may begin now.
pub(super) fn volume_is_free(context: &Context, draft: &mut Draft) -> bool {
    context.is_free(&context.tasks().volume, VOLUME_RETRY, draft)
}

pub(super) const CREATE_MEMBER: Rule = Rule {
    name: "create-member",
    family: "identity",
    what: "Makes the identity of the member on an empty volume, once the operator has named the claim.",
    protocol: &[1],
    kind: RuleKind::Act,
    decide: create_member,
    on_backoff: OnBackoff::Yield,
};

/// Makes the member once the operator has named the claim. A member of another claim is replaced only on an empty
/// volume, where no data depends on it.
fn create_member(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let volume = context.volume()?;
    let claim_uid = context.cluster()?.claim_uid.clone()?;
    let empty = matches!(volume.data, Data::Empty | Data::Unfinished);
    let because = match &volume.member {
        None if empty => "the volume has no identity yet",
        Some(member) if member.claim_uid != claim_uid && empty => {
            "the identity on this empty volume is of another claim"
        }
        Some(_) | None => return None,
    };
    if context.alive() || !volume_is_free(context, draft) {
        return None;
    }
    Verdict::new(Action::CreateMember { claim_uid }, because)
}

pub(super) const STORE_CERTIFICATE: Rule = Rule {
    name: "store-certificate",
    family: "identity",
    what: "Stores the replication certificate that the operator has signed for this member.",
    protocol: &[3],
    kind: RuleKind::Act,
    decide: store_certificate,
    on_backoff: OnBackoff::Yield,
};

fn store_certificate(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let member = context.member()?;
    let signed = context.cluster()?.certificate.as_ref()?;
    if signed.member != member.id.as_str() || member.certificate.as_ref() == Some(&signed.pem) {
        return None;
    }
    if !volume_is_free(context, draft) {
        return None;
    }
    let action = Action::StoreCertificate {
        member: member.id.clone(),
        pem: signed.pem.clone(),
    };
    Verdict::new(action, "the operator has signed the replication certificate")
}

/// What is wrong with the content of the volume, if anything.
pub(super) fn fault(context: &Context) -> Option<String> {
    let volume = context.volume()?;
    let database = context.database()?;
    let Some(member) = &volume.member else {
        return Some(format!(
            "the volume holds a database (system identifier {}) without a member's identity",
            database.system_id
        ));
    };
    if let Some(claim) = context.cluster().and_then(|cluster| cluster.claim_uid.as_ref())
        && *claim != member.claim_uid
    {
        return Some(format!(
            "the volume holds the data of member {}, made on another claim than {claim}",
            member.id
        ));
    }
    let recorded = context.record()?.system_id.as_ref();
    match recorded {
        Some(system_id) if *system_id != database.system_id => Some(format!(
            "the data on the volume has system identifier {}, this database has {system_id}",
            database.system_id
        )),
        None if volume.made_for.as_ref() != context.cluster().map(|cluster| &cluster.uid) => Some(format!(
            "the volume holds an older database (system identifier {}): it is left as it is",
            database.system_id
        )),
        Some(_) | None => None,
    }
}

/// True if the data may be used: nothing is wrong with it.
pub(super) fn is_sound(context: &Context) -> bool {
    context.is_our_data() && fault(context).is_none()
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::*;
    use super::super::*;
    use crate::timing::BootTime;

    fn decided(observed: &Observed) -> Decision {
        decide(observed, &Memo::default(), BootTime(1_000))
    }

    #[test]
    fn a_member_is_made_once_its_claim_is_known() {
        let mut observed = blank();
        assert_eq!(
            decided(&observed).action,
            Action::CreateMember {
                claim_uid: CLAIM.to_owned()
            }
        );
        cluster(&mut observed).claim_uid = None;
        assert_eq!(decided(&observed).action, Action::Wait);
        observed.cluster = Reading::Unknown;
        assert_eq!(decided(&observed).action, Action::Wait);
    }

    #[test]
    fn no_member_is_made_for_data_or_beside_other_work() {
        let spoil: [fn(&mut Observed); 4] = [
            |o| volume(o).data = standby().volume.is().unwrap().data.clone(),
            |o| volume(o).data = Data::Unknown,
            |o| o.tasks.start.running = Some(Work::StartStandby),
            |o| o.tasks.volume.running = Some(Work::DiscardStaging),
        ];
        for (index, spoil) in spoil.iter().enumerate() {
            let mut observed = blank();
            spoil(&mut observed);
            assert_ne!(decided(&observed).rule, "create-member", "{index}");
        }
    }

    #[test]
    fn only_data_of_this_claim_and_this_cluster_is_used() {
        let fault = |observed: &Observed| {
            let context = Context::new(observed, BootTime(1_000));
            assert!(super::fault(&context).is_none() || !super::is_sound(&context));
            super::fault(&context).unwrap_or_default()
        };
        let mut observed = standby();
        assert_eq!(fault(&observed), "");
        cluster(&mut observed).claim_uid = Some("other".to_owned());
        assert!(fault(&observed).contains("made on another claim than other"));
        let mut first = made_first();
        assert_eq!(fault(&first), "");
        volume(&mut first).made_for = Some("another".to_owned());
        assert!(fault(&first).contains("an older database"));
    }

    #[test]
    fn an_identity_is_never_replaced_under_data() {
        let mut observed = standby();
        cluster(&mut observed).claim_uid = Some("other".to_owned());
        assert_ne!(decided(&observed).rule, "create-member");
        volume(&mut observed).data = Data::Unknown;
        assert_ne!(decided(&observed).rule, "create-member");
        volume(&mut observed).data = Data::Empty;
        observed.postgres.process = Process::Stopped { exit: None };
        assert_eq!(decided(&observed).rule, "create-member");
    }

    #[test]
    fn only_a_certificate_for_this_member_is_stored() {
        let mut observed = cloning();
        volume(&mut observed).member.as_mut().unwrap().certificate = None;
        assert_eq!(decided(&observed).rule, "store-certificate");
        cluster(&mut observed).certificate.as_mut().unwrap().member = "cdb_1_other".to_owned();
        assert_ne!(decided(&observed).rule, "store-certificate");
    }

    #[test]
    fn data_of_another_system_is_a_fault_and_is_left_alone() {
        let mut observed = standby();
        observed.postgres.process = Process::Stopped { exit: None };
        record(&mut observed).system_id = Some("another".to_owned());
        let decision = decided(&observed);
        assert_eq!(decision.rule, "report");
        observed.tasks.report.running = Some(Work::Report);
        assert_eq!(decided(&observed).action, Action::Wait);
        let context = Context::new(&observed, BootTime(1_000));
        assert!(super::fault(&context).unwrap().contains("another"));
    }
}
