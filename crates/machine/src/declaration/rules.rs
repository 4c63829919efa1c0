//! The rules that all these kinds have.

use api::declared::DeclaredPhase;

use super::declares::{Action, Credentials, Declares, Facts, Proposal, Rule, failed, pending, rule};
use crate::cluster::Known;

/// A Secret holds 1 MiB.
const LARGEST: usize = 16 << 10;

pub(crate) const fn release<K: Declares>() -> Rule<K> {
    rule(
        "release",
        "What is deleted goes at once if nothing of it was handed on, or its cluster is gone or goes too.",
        may_go,
    )
}

pub(crate) const fn drop_object<K: Declares>() -> Rule<K> {
    rule(
        "drop",
        "If its object is to go with it, or to be quarantined, it waits until the primary has done that to what was made for it.",
        leave,
    )
}

pub(crate) const fn withdraw<K: Declares>() -> Rule<K> {
    rule(
        "withdraw",
        "What was handed on of a resource that is deleted is taken back; its object stays as it is.",
        |facts| {
            let message = || format!("the {} stays as it is", K::OBJECT);
            facts
                .wanted
                .deleting
                .then(|| facts.deleting(Action::Withdraw, message()))
        },
    )
}

pub(crate) const fn invalid<K: Declares>() -> Rule<K> {
    rule(
        "invalid",
        "A resource that breaks a rule fails, and nothing is changed.",
        |facts| K::refusal(facts.wanted.spec, facts.wanted.name).map(failed),
    )
}

pub(crate) const fn size<K: Declares>() -> Rule<K> {
    rule(
        "size",
        "A resource that declares more than 16 KiB fails: all of a cluster share one Secret.",
        |facts| {
            let bytes = serde_json::to_vec(&K::declared(facts.wanted)).map_or(0, |text| text.len());
            (bytes > LARGEST).then(|| {
                failed(format!(
                    "its spec takes {} KiB, and {} KiB at most are possible: name less in it",
                    bytes >> 10,
                    LARGEST >> 10
                ))
            })
        },
    )
}

pub(crate) const fn finalizer<K: Declares>() -> Rule<K> {
    rule(
        "finalizer",
        "A resource has the finalizer before anything of it is handed on.",
        |facts| (!facts.wanted.finalizer).then(|| facts.act(Action::AddFinalizer, "accepted")),
    )
}

pub(crate) const fn cluster<K: Declares>() -> Rule<K> {
    rule(
        "cluster",
        "A resource waits for its cluster, however long that takes.",
        without_cluster,
    )
}

pub(crate) const fn conflict<K: Declares>() -> Rule<K> {
    rule(
        "conflict",
        "Of two of one kind and cluster that declare one object, the older has it, and the younger fails.",
        of_the_older,
    )
}

pub(crate) const fn foreign<K: Declares>() -> Rule<K> {
    rule(
        "foreign",
        "Objects that belong to somebody else are named, and left alone.",
        |facts| {
            let object = facts.observed.foreign.as_ref()?;
            Some(failed(format!(
                "there is a {object} that is not of this cluster: remove it"
            )))
        },
    )
}

pub(crate) const fn reports<K: Declares>() -> Rule<K> {
    rule(
        "reports",
        "Before anything is handed on, there is a ConfigMap in which the primary can tell what became of it.",
        |facts| (!facts.observed.has_reports).then(|| facts.act(Action::MakeReports, "accepted")),
    )
}

pub(crate) const fn publish<K: Declares>() -> Rule<K> {
    rule(
        "publish",
        "What is declared is handed to the agents whenever it differs from what they have.",
        differs,
    )
}

pub(crate) const fn tell<K: Declares>() -> Rule<K> {
    rule("tell", "What the primary has told of it is told.", |facts| {
        Some(told(facts))
    })
}

fn may_go<K: Declares>(facts: &Facts<'_, K>) -> Option<Proposal> {
    if !facts.wanted.deleting {
        return None;
    }
    if !facts.wanted.finalizer {
        return Some(facts.deleting(Action::Wait, "it is being deleted".to_owned()));
    }
    let goes = |why: &str| Some(facts.deleting(Action::RemoveFinalizer, why.to_owned()));
    match &facts.observed.cluster {
        Known::Known(None) => return goes("its cluster is gone"),
        Known::Known(Some(cluster)) if cluster.deleting => return goes("its cluster is being deleted"),
        Known::Known(Some(_)) | Known::Unknown => {}
    }
    match (&facts.observed.cluster, &facts.observed.published) {
        (Known::Unknown, _) | (_, Known::Unknown) => Some(facts.deleting(
            Action::Wait,
            format!("waiting for the objects of {} to be read", facts.cluster_name()),
        )),
        (_, Known::Known(None)) => goes("nothing of it is handed on"),
        (_, Known::Known(Some(_))) => None,
    }
}

fn leave<K: Declares>(facts: &Facts<'_, K>) -> Option<Proposal> {
    let (wanted, object) = (facts.wanted, K::OBJECT);
    let published = facts.observed.published.get()?.as_ref()?;
    let report = facts.told();
    let oid = report.and_then(|report| report.oid);
    let cluster = facts.observed.cluster.get().and_then(Option::as_ref);
    let owner = cluster.map(|cluster| cluster.owner.as_str());
    let going = K::going(wanted, oid.unwrap_or_default(), owner).filter(|_| wanted.deleting)?;
    let done = going.outcome();
    if !facts.observed.has_reports {
        return Some(facts.deleting(Action::MakeReports, format!("the {object} is to be {done}")));
    }
    let why = match (report, oid) {
        (None, _) => format!("{}: the {object} is to be {done}", facts.primary()),
        (Some(report), _) if published.declared.goes_as(&going) => {
            let why = report.error.as_ref().or(report.refusal.as_ref())?;
            format!("the {object} cannot be {done}: {why}")
        }
        (Some(_), Some(_)) => {
            let message = format!("the {object} is to be {done}");
            return Some(facts.deleting(Action::Publish(Box::new(going)), message));
        }
        (Some(report), None) => {
            // Otherwise nothing was ever made for it.
            let why = report.error.as_ref().filter(|_| report.unseen)?;
            let message = format!(
                "whether there is a {object} to be {done} is not known: {why}; spec.onDelete: Retain ends this"
            );
            return Some(facts.deleting(Action::Wait, message));
        }
    };
    let message = format!("{why}; spec.onDelete: Retain lets it stay, and ends this");
    Some(facts.deleting(Action::Wait, message))
}

fn without_cluster<K: Declares>(facts: &Facts<'_, K>) -> Option<Proposal> {
    let name = facts.cluster_name();
    match &facts.observed.cluster {
        Known::Unknown => Some(pending(format!("waiting for ClusteredDatabase {name} to be read"))),
        Known::Known(None) => Some(pending(format!("waiting for ClusteredDatabase {name}: there is none"))),
        Known::Known(Some(cluster)) if cluster.deleting => {
            Some(pending(format!("ClusteredDatabase {name} is being deleted")))
        }
        Known::Known(Some(_)) => None,
    }
}

fn of_the_older<K: Declares>(facts: &Facts<'_, K>) -> Option<Proposal> {
    let (kind, object, name) = (K::KIND, K::OBJECT, facts.object());
    match &facts.observed.older {
        Known::Unknown => Some(pending(format!("waiting for each {kind} of the cluster to be read"))),
        Known::Known(Some(older)) => Some(failed(format!(
            "{object} {name} is declared by {kind} {older}, which is older: delete one of them, or set another spec.name"
        ))),
        Known::Known(None) => None,
    }
}

fn differs<K: Declares>(facts: &Facts<'_, K>) -> Option<Proposal> {
    let declared = K::declared(facts.wanted);
    let published = match &facts.observed.published {
        Known::Unknown => {
            return Some(pending(format!(
                "waiting for Secret {}-access to be read",
                facts.cluster_name()
            )));
        }
        Known::Known(published) => published,
    };
    let is_same = published
        .as_ref()
        .is_some_and(|published| published.declared.without_verifier() == declared);
    let is_current = !matches!(
        facts.observed.credentials,
        Credentials::Usable {
            is_published: false,
            ..
        }
    );
    (!is_same || !is_current).then(|| facts.act(Action::Publish(Box::new(declared)), "handed to the agents"))
}

pub(crate) fn told<K: Declares>(facts: &Facts<'_, K>) -> Proposal {
    if facts.observed.report == Known::Unknown {
        return pending(format!(
            "waiting for ConfigMap {}-access to be read",
            facts.cluster_name()
        ));
    }
    let Some(report) = facts.told() else {
        return pending(facts.primary());
    };
    let missing = report.plan.len() + usize::try_from(report.more).unwrap_or(usize::MAX);
    match (&report.refusal, &report.error) {
        (Some(why), _) if !report.waits => failed(why.clone()),
        (_, Some(why)) => pending(format!("the primary tries again: {why}")),
        (Some(why), None) => pending(format!("waiting: {why}")),
        (None, None) if missing > 0 => Proposal {
            action: Action::Wait,
            phase: DeclaredPhase::Planned,
            message: format!("{missing} statements are missing, which the policy leaves to you: see status.plan"),
        },
        (None, None) => Proposal {
            action: Action::Wait,
            phase: DeclaredPhase::Ready,
            message: format!("PostgreSQL has the {} as the spec wants it", K::OBJECT),
        },
    }
}
