//! Changes of a database, each one small patch.

use anyhow::{Result, bail};
use api::names::Names;
use api::operation::{ClusterReference, ClusteredDatabaseOperationSpec, Switchover};
use api::spec::PrimaryUpdates;
use api::{ClusteredDatabase, ClusteredDatabaseOperation};
use chrono::{DateTime, SecondsFormat, Utc};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use crate::cluster::Cluster;

/// The annotation of pods that `kubectl rollout restart` sets as well: another value of it makes another template.
const RESTARTED: &str = "kubectl.kubernetes.io/restartedAt";

/// The name of this program in `managedFields`.
const MANAGER: &str = "kubectl-cdb";

/// What the user asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish<'a> {
    /// This instance is to become the primary now.
    Promote(&'a str),
    /// This instance's PostgreSQL is to be stopped, and to stay so.
    Fence(&'a str),
    /// It may run again.
    Unfence(&'a str),
    /// The operator changes nothing any more, or goes on.
    Pause(bool),
    /// All instances' pods are replaced, one at a time.
    Restart,
    /// The whole database stops and its pods go, or it comes back.
    Hibernate(bool),
}

/// What is sent for a wish.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A JSON merge patch of the database.
    Patch(Value),
    /// An operation to be made.
    Make(Box<ClusteredDatabaseOperation>),
}

/// What is sent for a wish, and what to tell the user; nothing if it is so already.
///
/// # Errors
/// When it cannot be.
pub fn change(db: &ClusteredDatabase, wish: Wish<'_>, now: DateTime<Utc>) -> Result<(Option<Change>, String)> {
    let patch = |patch: Value| Some(Change::Patch(patch));
    let name = db.name_any();
    let see = format!("see `kubectl cdb status {name} --watch`");
    match wish {
        Wish::Promote(instance) => {
            exists(db, instance)?;
            let primary = db.status.as_ref().and_then(|status| status.current_primary.as_deref());
            if primary == Some(instance) {
                return Ok((None, format!("{instance} is the primary already")));
            }
            let preferred = db.spec.primary.preferred();
            if let Some(preferred) = preferred.filter(|preferred| *preferred != instance) {
                bail!(
                    "spec.primary.prefer of {name} is {preferred}, and would bring the primary back: change or remove that instead"
                );
            }
            let operation = switchover(db, instance, now);
            let told = format!(
                "{instance} is asked to take over as the primary, by operation {}: {see}",
                operation.name_any()
            );
            Ok((Some(Change::Make(Box::new(operation))), told))
        }
        Wish::Fence(instance) => {
            exists(db, instance)?;
            if db.spec.fenced.iter().any(|fenced| fenced == instance) {
                return Ok((None, format!("{instance} is fenced already")));
            }
            let mut fenced = db.spec.fenced.clone();
            fenced.push(instance.to_owned());
            let told = format!(
                "{instance} is to be stopped, and stays so until `kubectl cdb unfence {name} {instance}`: {see}"
            );
            Ok((patch(json!({"spec": {"fenced": fenced}})), told))
        }
        Wish::Unfence(instance) => {
            let mut fenced = db.spec.fenced.clone();
            fenced.retain(|fenced| fenced != instance);
            if fenced.len() == db.spec.fenced.len() {
                return Ok((None, format!("{instance} is not fenced")));
            }
            Ok((
                patch(json!({"spec": {"fenced": fenced}})),
                format!("{instance} may run again: {see}"),
            ))
        }
        Wish::Restart if db.spec.paused => {
            bail!("{name} is paused, so nothing would happen: `kubectl cdb resume {name}` first")
        }
        Wish::Restart if db.spec.hibernated => {
            bail!("{name} is hibernated and has no pods: `kubectl cdb wake {name}` starts new ones")
        }
        Wish::Restart => {
            let at = now.to_rfc3339_opts(SecondsFormat::Secs, true);
            let annotations = json!({"spec": {"podMetadata": {"annotations": {RESTARTED: at}}}});
            Ok((patch(annotations), format!("{}: {see}", restarted(db))))
        }
        Wish::Pause(pause) if db.spec.paused == pause => {
            let state = if pause { "paused" } else { "not paused" };
            Ok((None, format!("{name} is {state} already")))
        }
        Wish::Pause(pause) => {
            let told = if pause {
                format!("{name} is paused: the operator changes nothing; the agents still fail over")
            } else {
                format!("{name} goes on")
            };
            Ok((patch(json!({"spec": {"paused": pause}})), told))
        }
        Wish::Hibernate(hibernate) if db.spec.hibernated == hibernate => {
            let state = if hibernate { "hibernated" } else { "awake" };
            Ok((None, format!("{name} is to be {state} already: {see}")))
        }
        Wish::Hibernate(hibernate) => {
            let told = if hibernate {
                format!("{name} is to stop, with its volumes kept, until `kubectl cdb wake {name}`: {see}")
            } else {
                format!("{name} is to come back: {see}")
            };
            Ok((patch(json!({"spec": {"hibernated": hibernate}})), told))
        }
    }
}

/// An operation that makes `instance` the primary. It goes with its database.
fn switchover(db: &ClusteredDatabase, instance: &str, now: DateTime<Utc>) -> ClusteredDatabaseOperation {
    let spec = ClusteredDatabaseOperationSpec {
        cluster_ref: ClusterReference { name: db.name_any() },
        switchover: Some(Switchover {
            to: instance.to_owned(),
        }),
        cancel: false,
    };
    let name = format!("{instance}-{}", now.format("%Y%m%d%H%M%S"));
    let mut operation = ClusteredDatabaseOperation::new(&name, spec);
    operation.metadata.owner_references = db.owner_ref(&()).map(|owner| vec![owner]);
    operation
}

/// What a new template means for the pods that there are.
fn restarted(db: &ClusteredDatabase) -> String {
    let name = db.name_any();
    let supervised = db.spec.primary.updates == PrimaryUpdates::Supervised;
    let mut told = match (db.spec.replicas, supervised) {
        (1, true) => format!(
            "the only pod of {name} is to be replaced, which waits for you, since spec.primary.updates is Supervised (see `kubectl cdb why {name}`)"
        ),
        (1, false) => {
            format!("the only pod of {name} is to be replaced: it cannot be used until the new one serves")
        }
        (_, true) => format!(
            "the standbys' pods of {name} are to be replaced one at a time; the primary's waits for you, since \
             spec.primary.updates is Supervised (see `kubectl cdb why {name}`)"
        ),
        (_, false) => format!(
            "the pods of {name} are to be replaced one at a time, standbys first, the primary's after a switchover"
        ),
    };
    if !db.spec.fenced.is_empty() {
        told += &format!("; not those of the fenced instances ({})", db.spec.fenced.join(", "));
    }
    told
}

fn exists(db: &ClusteredDatabase, instance: &str) -> Result<()> {
    let names = Names::new(db.name_any());
    let last = u32::try_from(db.spec.replicas).unwrap_or(1).max(1) - 1;
    if names
        .ordinal(instance)
        .is_some_and(|ordinal| ordinal <= last && instance == names.pod(ordinal))
    {
        return Ok(());
    }
    let there = if last == 0 {
        String::new()
    } else {
        format!(" to {}", names.pod(last))
    };
    bail!(
        "{} has no instance {instance:?}: choose one of {}{there}",
        names.cluster(),
        names.pod(0)
    )
}

/// Carries a wish out; returns what to tell the user.
///
/// # Errors
/// When it cannot be, or the API server refuses it.
pub async fn carry_out(cluster: &Cluster, name: &str, wish: Wish<'_>) -> Result<String> {
    let db = cluster.database(name).await?;
    let (change, told) = change(&db, wish, Utc::now())?;
    match change {
        None => {}
        Some(Change::Patch(mut patch)) => {
            // Only this version of it: a list in the patch was made from what was there.
            patch["metadata"]["uid"] = json!(db.metadata.uid);
            patch["metadata"]["resourceVersion"] = json!(db.metadata.resource_version);
            let parameters = PatchParams {
                field_manager: Some(MANAGER.to_owned()),
                ..PatchParams::default()
            };
            let patched = cluster.databases().patch(name, &parameters, &Patch::Merge(patch)).await;
            patched.map_err(|error| cluster.explain(error))?;
        }
        Some(Change::Make(operation)) => {
            let parameters = PostParams {
                field_manager: Some(MANAGER.to_owned()),
                ..PostParams::default()
            };
            let made = cluster.operations().create(&parameters, &operation).await;
            made.map_err(|error| cluster.explain(error))?;
        }
    }
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database(spec: Value) -> ClusteredDatabase {
        let mut spec = spec;
        spec["storage"] = json!({"size": "1Gi"});
        serde_json::from_value(json!({
            "apiVersion": "clustereddatabase.io/v1alpha1", "kind": "ClusteredDatabase",
            "metadata": {"name": "demo", "namespace": "shop", "uid": "u"}, "spec": spec,
            "status": {"currentPrimary": "demo-0"},
        }))
        .unwrap()
    }

    fn of(spec: Value, wish: Wish<'_>) -> Result<Option<Change>> {
        change(&database(spec), wish, "2027-01-01T00:00:00Z".parse().unwrap()).map(|(change, _)| change)
    }

    fn patched(patch: Value) -> Option<Change> {
        Some(Change::Patch(patch))
    }

    #[test]
    fn only_an_instance_can_be_promoted_and_only_if_it_may_stay_the_primary() {
        let Some(Change::Make(operation)) = of(json!({}), Wish::Promote("demo-2")).unwrap() else {
            panic!("no operation")
        };
        assert_eq!(api::operation::refusal(&operation.spec, None), None);
        assert_eq!(operation.name_any(), "demo-2-20270101000000");
        assert_eq!(operation.spec.switchover.unwrap().to, "demo-2");
        assert_eq!(operation.metadata.owner_references.unwrap()[0].uid, "u");
        for other in ["demo-3", "demo", "other-0", "demo-01"] {
            let error = of(json!({}), Wish::Promote(other)).unwrap_err().to_string();
            assert!(error.ends_with("choose one of demo-0 to demo-2"), "{error}");
        }
        assert_eq!(of(json!({}), Wish::Promote("demo-0")).unwrap(), None);
        let preferred = json!({"primary": {"prefer": "demo-1"}});
        assert!(of(preferred.clone(), Wish::Promote("demo-2")).is_err());
        assert!(of(preferred, Wish::Promote("demo-1")).unwrap().is_some());
    }

    #[test]
    fn fences_are_a_list() {
        let one = json!({"fenced": ["demo-1"]});
        let fence = of(one.clone(), Wish::Fence("demo-2")).unwrap();
        assert_eq!(fence, patched(json!({"spec": {"fenced": ["demo-1", "demo-2"]}})));
        assert_eq!(of(one.clone(), Wish::Fence("demo-1")).unwrap(), None);
        assert_eq!(
            of(one.clone(), Wish::Unfence("demo-1")).unwrap(),
            patched(json!({"spec": {"fenced": []}}))
        );
        assert_eq!(of(one.clone(), Wish::Unfence("demo-2")).unwrap(), None);
        assert!(of(one, Wish::Fence("demo-9")).is_err());
    }

    #[test]
    fn a_restart_is_another_template_and_needs_somebody_to_roll_it_out() {
        let Some(Change::Patch(patch)) = of(json!({}), Wish::Restart).unwrap() else {
            panic!("no patch")
        };
        let annotations = &patch["spec"]["podMetadata"]["annotations"];
        assert_eq!(
            *annotations,
            json!({"kubectl.kubernetes.io/restartedAt": "2027-01-01T00:00:00Z"})
        );
        let restarted = database(json!({"podMetadata": {"annotations": annotations}}));
        assert!(api::validate(&restarted).is_empty());
        assert!(of(json!({"paused": true}), Wish::Restart).is_err());
        assert!(of(json!({"hibernated": true}), Wish::Restart).is_err());
    }

    #[test]
    fn a_restart_says_whom_it_interrupts() {
        let told = |spec: Value| restarted(&database(spec));
        let supervised = json!({"updates": "Supervised"});
        assert!(told(json!({})).ends_with("the primary's after a switchover"));
        assert!(told(json!({"replicas": 1})).ends_with("it cannot be used until the new one serves"));
        for spec in [
            json!({"primary": supervised}),
            json!({"replicas": 1, "primary": supervised}),
        ] {
            let told = told(spec);
            assert!(told.contains("waits for you") && !told.contains("switchover"), "{told}");
        }
        assert!(told(json!({"fenced": ["demo-1"]})).ends_with("; not those of the fenced instances (demo-1)"));
    }

    #[test]
    fn what_is_so_already_is_not_patched() {
        let paused = || json!({"paused": true});
        assert_eq!(
            of(json!({}), Wish::Pause(true)).unwrap(),
            patched(json!({"spec": {"paused": true}}))
        );
        assert_eq!(
            of(paused(), Wish::Pause(false)).unwrap(),
            patched(json!({"spec": {"paused": false}}))
        );
        assert_eq!(of(json!({}), Wish::Pause(false)).unwrap(), None);
        assert_eq!(of(paused(), Wish::Pause(true)).unwrap(), None);
        assert_eq!(
            of(json!({}), Wish::Hibernate(true)).unwrap(),
            patched(json!({"spec": {"hibernated": true}}))
        );
        assert_eq!(of(json!({"hibernated": true}), Wish::Hibernate(true)).unwrap(), None);
    }
}
