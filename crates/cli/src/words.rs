//! Actions in words.

use machine::cluster::{Action, Apply, ApplyHow, ChildKind, StatusChange};

/// What an action does, in the imperative. `name` is the database's.
pub fn action(action: &Action, name: &str) -> String {
    match action {
        Action::Wait(waiting) if waiting.resting => "nothing: the database is as it should be".to_owned(),
        Action::Wait(waiting) => format!("wait for {}", waiting.what),
        Action::Apply(apply) => self::apply(apply, name),
        Action::WriteStatus(changes) => {
            let told: Vec<_> = changes.iter().filter_map(change).collect();
            match told.as_slice() {
                [] => "record in the status what was found".to_owned(),
                told => told.join(", "),
            }
        }
        Action::LabelPod { pod, role } => format!("label pod {} as {role}", pod.name()),
        Action::ResizePod(pod) => format!(
            "change cpu and memory of pod {} in place (where Kubernetes cannot, the pod is replaced)",
            pod.name()
        ),
        Action::ReplacePod(pod) => format!("delete pod {}, to be made again from the new template", pod.name()),
        Action::OrphanStatefulSet(set) => format!("delete StatefulSet {} and keep its pods", set.name()),
        Action::DeleteStatefulSet(set) => format!("delete StatefulSet {} with its pods", set.name()),
        Action::MakeWalClaim { name, node } => format!("make claim {name} for a WAL volume, for the pod on {node}"),
        Action::ResizeClaim { claim, size } => format!("grow claim {} to {size}", claim.name()),
        Action::DeleteClaim(claim) => format!("delete claim {} with what is on it", claim.name()),
        other => other.name().to_owned(),
    }
}

/// What a change of the status starts; `None` for mere records.
pub fn change(change: &StatusChange) -> Option<String> {
    Some(match change {
        StatusChange::PermitRestart(permit) => format!("restart PostgreSQL in place in {}", permit.pod),
        StatusChange::MovePrimary { memo, .. } => format!("switch the primary over to {}", memo.target),
        StatusChange::GiveUpSwitchover(_) => "give up the switchover".to_owned(),
        StatusChange::GrantBootstrap { pod, .. } => format!("let {pod} make the database"),
        StatusChange::ForgetMember { pod } => format!("forget instance {pod}"),
        StatusChange::RequestStop => "stop PostgreSQL everywhere".to_owned(),
        StatusChange::EndStop => "let PostgreSQL run again everywhere".to_owned(),
        _ => return None,
    })
}

fn apply(apply: &Apply, name: &str) -> String {
    let object = format!("{} {name}{}", apply.kind.kind(), apply.kind.suffix());
    let verb = match &apply.how {
        ApplyHow::Make => "make",
        ApplyHow::Change(_) => "change",
        ApplyHow::Renew(_) => "make anew the content of",
    };
    match apply.replicas.filter(|_| apply.kind == ChildKind::StatefulSet) {
        Some(1) => format!("{verb} {object} (for 1 pod)"),
        Some(replicas) => format!("{verb} {object} (for {replicas} pods)"),
        None => format!("{verb} {object}"),
    }
}
