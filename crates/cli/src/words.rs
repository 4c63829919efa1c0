//! Texts for actions.

use api::status::{WaitActor, WaitReason};
use machine::cluster::{Action, Apply, ApplyHow, LeaseChange, OwnedObject, StatusChange};

/// Describes an action, in the imperative. `name` is the database's.
pub fn action(action: &Action, name: &str) -> String {
    match action {
        Action::Wait(waiting) if waiting.resting => "nothing: the database is as it should be".to_owned(),
        Action::Wait(waiting) => format!("wait for {}", waiting.what),
        Action::Apply(apply) => self::apply(apply, name),
        Action::WriteStatus(changes) => {
            let texts: Vec<_> = changes.iter().filter_map(change).collect();
            match texts.as_slice() {
                [] => "record the findings in the status".to_owned(),
                texts => texts.join(", "),
            }
        }
        Action::LabelPod { pod, role } => format!("label pod {} as {role}", pod.name()),
        Action::ResizePod(pod) => format!(
            "change cpu and memory of pod {} in place (where Kubernetes cannot, the pod is replaced)",
            pod.name()
        ),
        Action::ReplacePod(pod) => format!("delete pod {}; it is made again from the new template", pod.name()),
        Action::OrphanStatefulSet(set) => format!("delete StatefulSet {} and keep its pods", set.name()),
        Action::DeleteStatefulSet(set) => format!("delete StatefulSet {} with its pods", set.name()),
        Action::MakeWalClaim { name, node } => format!("make claim {name} for a WAL volume, for the pod on {node}"),
        Action::ChangeLease(lease, LeaseChange::Volumes(set)) => {
            format!("set Lease {} to set {set} of the volumes", lease.name())
        }
        Action::ChangeLease(lease, LeaseChange::ForgetFormer) => {
            format!("let Lease {} forget the former volumes", lease.name())
        }
        Action::AdoptClaim(claim) => format!("take over claim {}", claim.name()),
        Action::MakeBackup { name, .. } => format!("make DatabaseBackup {name}"),
        Action::MakeSnapshot { name, claim } => format!("make VolumeSnapshot {name} of claim {claim}"),
        Action::DeleteSnapshot(snapshot) => format!("delete VolumeSnapshot {}, which no backup needs", snapshot.name()),
        Action::MakeDataClaim { name, snapshot } => format!("make claim {name} from VolumeSnapshot {snapshot}"),
        Action::MakeDrill { name, .. } => format!("make ClusteredDatabase {name} from the backups, for a drill"),
        Action::DeleteDrill(drill) => format!("delete ClusteredDatabase {}, whose drill has ended", drill.name()),
        Action::DeleteChild(kind, exact) => format!("delete {} {}", kind.kind(), exact.name()),
        Action::UpdateClaim(claim) => format!("change claim {}", claim.name()),
        Action::ResizeClaim { claim, size } => format!("grow claim {} to {size}", claim.name()),
        Action::DeleteClaim(claim) => format!("delete claim {} with its data", claim.name()),
        other => other.name().to_owned(),
    }
}

/// Describes who can end a wait: the actor, then how. A status of an older operator names no actor.
pub fn actor(actor: Option<WaitActor>, how: &str) -> String {
    match actor {
        None => how.to_owned(),
        Some(WaitActor::User) if how == "the user" => WaitActor::User.to_string(),
        Some(actor) => format!("{actor}: {how}"),
    }
}

/// Describes the condition of a wait: the reason in one word, and the object.
pub fn reason(reason: WaitReason, object: Option<&str>) -> String {
    object.map_or_else(|| reason.to_string(), |object| format!("{reason} ({object})"))
}

/// Describes what a change of the status starts; `None` for mere records.
pub fn change(change: &StatusChange) -> Option<String> {
    Some(match change {
        StatusChange::PermitRestart(permit) => format!("restart PostgreSQL in place in {}", permit.pod),
        StatusChange::MovePrimary { memo, .. } => format!("switch the primary over to {}", memo.target),
        StatusChange::GiveUpSwitchover(_) => "give up the switchover".to_owned(),
        StatusChange::GrantBootstrap { pod, .. } => format!("permit {pod} to make the database"),
        StatusChange::ForgetMember { pod } => format!("forget instance {pod}"),
        StatusChange::RestartAll(_) => "let the pods of all instances be made again".to_owned(),
        StatusChange::AcceptLoss(epoch) => format!("accept the loss of what missing instances have, in epoch {epoch}"),
        StatusChange::Discard(discard) => format!("let {} remove {}", discard.instance, discard.name),
        StatusChange::RecordFinalBackup(memo) => format!("take a last backup, {}", memo.name),
        StatusChange::RequestStop => "stop PostgreSQL everywhere".to_owned(),
        StatusChange::UseVolumes { set, .. } => format!("run on set {set} of the volumes"),
        StatusChange::EndStop => "start PostgreSQL again everywhere".to_owned(),
        _ => return None,
    })
}

fn apply(apply: &Apply, name: &str) -> String {
    let object = format!("{} {name}{}", apply.kind.kind(), apply.kind.suffix());
    let verb = match &apply.how {
        ApplyHow::Make => "make",
        ApplyHow::Change(_) => "change",
        ApplyHow::Renew(_) => "make anew the content of",
        ApplyHow::Rotate(..) => "rotate the authority in",
    };
    match apply.replicas.filter(|_| apply.kind == OwnedObject::StatefulSet) {
        Some(1) => format!("{verb} {object} (for 1 pod)"),
        Some(replicas) => format!("{verb} {object} (for {replicas} pods)"),
        None => format!("{verb} {object}"),
    }
}
