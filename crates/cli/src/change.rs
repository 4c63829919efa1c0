//! Changes of a database, each one small patch.

use anyhow::{Result, bail};
use api::ClusteredDatabase;
use api::names::{ANNOTATION_SWITCHOVER, Names};
use api::spec::PrimaryUpdates;
use chrono::{DateTime, SecondsFormat, Utc};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::cluster::Cluster;

/// The annotation of pods that `kubectl rollout restart` sets as well: another value of it makes another template.
const RESTARTED: &str = "kubectl.kubernetes.io/restartedAt";

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

/// The patch for a wish (a JSON merge patch), and what to tell the user; no patch if it is so already.
///
/// # Errors
/// When it cannot be.
pub fn patch(db: &ClusteredDatabase, wish: Wish<'_>, now: DateTime<Utc>) -> Result<(Option<Value>, String)> {
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
            // The time tells this request from an earlier one for the same instance.
            let request = format!("{instance}/{}", now.to_rfc3339_opts(SecondsFormat::Millis, true));
            let patch = json!({"metadata": {"annotations": {ANNOTATION_SWITCHOVER: request}}});
            Ok((
                Some(patch),
                format!("{instance} is asked to take over as the primary: {see}"),
            ))
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
            Ok((Some(json!({"spec": {"fenced": fenced}})), told))
        }
        Wish::Unfence(instance) => {
            let mut fenced = db.spec.fenced.clone();
            fenced.retain(|fenced| fenced != instance);
            if fenced.len() == db.spec.fenced.len() {
                return Ok((None, format!("{instance} is not fenced")));
            }
            Ok((
                Some(json!({"spec": {"fenced": fenced}})),
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
            let patch = json!({"spec": {"podMetadata": {"annotations": {RESTARTED: at}}}});
            Ok((Some(patch), format!("{}: {see}", restarted(db))))
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
            Ok((Some(json!({"spec": {"paused": pause}})), told))
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
            Ok((Some(json!({"spec": {"hibernated": hibernate}})), told))
        }
    }
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
    let (patch, told) = patch(&db, wish, Utc::now())?;
    if let Some(mut patch) = patch {
        // Only this version of it: a list in the patch was made from what was there.
        patch["metadata"]["uid"] = json!(db.metadata.uid);
        patch["metadata"]["resourceVersion"] = json!(db.metadata.resource_version);
        let parameters = PatchParams {
            field_manager: Some("kubectl-cdb".to_owned()),
            ..PatchParams::default()
        };
        let patched = cluster.databases().patch(name, &parameters, &Patch::Merge(patch)).await;
        patched.map_err(|error| cluster.explain(error))?;
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

    fn of(spec: Value, wish: Wish<'_>) -> Result<Option<Value>> {
        patch(&database(spec), wish, "2027-01-01T00:00:00Z".parse().unwrap()).map(|(patch, _)| patch)
    }

    #[test]
    fn only_an_instance_can_be_promoted_and_only_if_it_may_stay_the_primary() {
        let annotation = json!({"clustereddatabase.io/switchover": "demo-2/2027-01-01T00:00:00.000Z"});
        assert_eq!(
            of(json!({}), Wish::Promote("demo-2")).unwrap(),
            Some(json!({"metadata": {"annotations": annotation}}))
        );
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
        assert_eq!(fence, Some(json!({"spec": {"fenced": ["demo-1", "demo-2"]}})));
        assert_eq!(of(one.clone(), Wish::Fence("demo-1")).unwrap(), None);
        assert_eq!(
            of(one.clone(), Wish::Unfence("demo-1")).unwrap(),
            Some(json!({"spec": {"fenced": []}}))
        );
        assert_eq!(of(one.clone(), Wish::Unfence("demo-2")).unwrap(), None);
        assert!(of(one, Wish::Fence("demo-9")).is_err());
    }

    #[test]
    fn a_restart_is_another_template_and_needs_somebody_to_roll_it_out() {
        let patch = of(json!({}), Wish::Restart).unwrap().unwrap();
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
            Some(json!({"spec": {"paused": true}}))
        );
        assert_eq!(
            of(paused(), Wish::Pause(false)).unwrap(),
            Some(json!({"spec": {"paused": false}}))
        );
        assert_eq!(of(json!({}), Wish::Pause(false)).unwrap(), None);
        assert_eq!(of(paused(), Wish::Pause(true)).unwrap(), None);
        assert_eq!(
            of(json!({}), Wish::Hibernate(true)).unwrap(),
            Some(json!({"spec": {"hibernated": true}}))
        );
        assert_eq!(of(json!({"hibernated": true}), Wish::Hibernate(true)).unwrap(), None);
    }
}
