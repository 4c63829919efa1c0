//! Changes of a database, each one small patch.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use api::names::Names;
use api::operation::{
    AcceptLoss, Action, ClusterReference, ClusteredDatabaseOperationSpec, ConfirmRecovery, DiscardQuarantined,
    OperationPhase, Recover, RecreateLease, Restart, RotateAuthority, Switchover, TakeImage, UndoRecovery,
};
use api::spec::PrimaryUpdatePolicy;
use api::{ClusteredDatabase, ClusteredDatabaseOperation};
use chrono::{DateTime, Utc};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use crate::backup;
use crate::cluster::Cluster;
use crate::text::instant;

/// The name of this program in `managedFields`.
const MANAGER: &str = "kubectl-cdb";
/// The operator gives the primary five minutes to look through the store.
const PLAN_LIMIT: Duration = Duration::from_secs(360);

/// What the user asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish<'a> {
    /// This instance is to become the primary now.
    Promote(&'a str),
    /// The operator's default image is to be taken, which this is.
    TakeImage(&'a str),
    /// The loss of what missing instances have is accepted, in this epoch of the Lease.
    AcceptLoss(u64),
    /// The lost Lease is to be made again.
    RecreateLease,
    /// Another certificate authority is to take the place of the present one, whose key is in wrong hands or not.
    RotateAuthority {
        /// It is.
        compromised: bool,
    },
    /// The database is to be recovered in place from this backup, or the last one before the time: as it was then, or to the end of the
    /// archived WAL.
    Recover {
        /// The backup's name in the store.
        backup: Option<&'a str>,
        /// The time.
        time: Option<DateTime<Utc>>,
        /// The volumes of before are kept for so many hours; until `confirm-recovery` if absent.
        keep_hours: Option<u32>,
    },
    /// What was before the last recovery in place is to come back.
    UndoRecovery,
    /// The volumes that a recovery in place has left are to be deleted.
    ConfirmRecovery,
    /// This instance is to remove the quarantined data of this name.
    DiscardQuarantined(&'a str, &'a str),
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
            let preferred = db.spec.primary.prefer.as_deref();
            if let Some(preferred) = preferred.filter(|preferred| *preferred != instance) {
                bail!(
                    "spec.primary.prefer of {name} is {preferred}, and would bring the primary back: change or remove that instead"
                );
            }
            let to = instance.to_owned();
            let asked = operation(db, instance, Action::Switchover(Switchover { to }), now);
            Ok(ask(asked, &format!("{instance} is asked to take over as the primary")))
        }
        Wish::TakeImage(image) => {
            if let Some(named) = &db.spec.postgres.image {
                bail!("spec.postgres.image of {name} names {named}: change or remove that instead")
            }
            let image = image.to_owned();
            let told = format!("{name} is asked to run {image}: {}", restarted(db));
            let action = Action::TakeImage(TakeImage { image });
            Ok(ask(operation(db, &format!("{name}-image"), action, now), &told))
        }
        Wish::AcceptLoss(epoch) => {
            let told = format!(
                "the loss of what the missing instances of {name} have is accepted in epoch {epoch}: those that are left may \
                 elect a primary without them"
            );
            let action = Action::AcceptLoss(AcceptLoss { epoch });
            Ok(ask(operation(db, &format!("{name}-loss"), action, now), &told))
        }
        Wish::DiscardQuarantined(instance, quarantined) => {
            let told = format!("{instance} is to remove {quarantined}, which nobody can bring back");
            let (instance, name) = (instance.to_owned(), quarantined.to_owned());
            let asked = format!("{instance}-discard");
            let action = Action::DiscardQuarantined(DiscardQuarantined { instance, name });
            Ok(ask(operation(db, &asked, action, now), &told))
        }
        Wish::RecreateLease => {
            let told = format!("Lease {name} is to be made again, for the instance that held it last");
            let action = Action::RecreateLease(RecreateLease {});
            Ok(ask(operation(db, &format!("{name}-lease"), action, now), &told))
        }
        Wish::RotateAuthority { compromised } => {
            let time = match compromised {
                true => {
                    "at once: applications that verify the server cannot connect before they have read it".to_owned()
                }
                false => format!("in {} h, when applications have read it", db.spec.client_trust_hours()),
            };
            let told = format!("another authority is to issue the certificates of {name} {time}");
            let action = Action::RotateAuthority(RotateAuthority { compromised });
            Ok(ask(operation(db, &format!("{name}-authority"), action, now), &told))
        }
        Wish::Recover {
            backup: of,
            time,
            keep_hours,
        } => {
            recoverable(db, time, now)?;
            let action = Action::Recover(Recover {
                backup: of.map(str::to_owned),
                target: time.map(backup::target),
                dry_run: false,
                keep_hours,
            });
            let when = time.map_or("the end of its archived WAL".to_owned(), instant);
            let kept = keep_hours.map_or_else(String::new, |hours| format!("for {hours} h, or "));
            let told = format!(
                "{name} is to stop, and to come back as of {when}; the volumes of before are kept {kept}until `kubectl cdb \
                 confirm-recovery {name}`"
            );
            Ok(ask(operation(db, &format!("{name}-recover"), action, now), &told))
        }
        Wish::UndoRecovery => {
            let told = format!("{name} is to stop, and to come back as it was before its recovery");
            let action = Action::UndoRecovery(UndoRecovery {});
            Ok(ask(operation(db, &format!("{name}-undo-recovery"), action, now), &told))
        }
        Wish::ConfirmRecovery => {
            let told = format!("the volumes of {name} that are not in use are to be deleted");
            let action = Action::ConfirmRecovery(ConfirmRecovery {});
            Ok(ask(
                operation(db, &format!("{name}-confirm-recovery"), action, now),
                &told,
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
            let asked = operation(db, &format!("{name}-restart"), Action::Restart(Restart {}), now);
            Ok(ask(asked, &restarted(db)))
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

/// Fails if no backup can reach this time, as far as that is known.
fn recoverable(db: &ClusteredDatabase, time: Option<DateTime<Utc>>, now: DateTime<Utc>) -> Result<()> {
    let name = db.name_any();
    backup::has_store(db)?;
    let Some(time) = time else { return Ok(()) };
    ensure!(time <= now, "{} is still to come", instant(time));
    let backup = db.status.as_ref().and_then(|status| status.backup.as_ref());
    let catalogue = backup.and_then(|backup| backup.catalogue.as_ref());
    let Some(first) = catalogue.and_then(|catalogue| catalogue.first_recoverable_time) else {
        return Ok(());
    };
    ensure!(
        first <= time,
        "{} is before the earliest time that the backups of {name} reach, {}",
        instant(time),
        instant(first)
    );
    Ok(())
}

/// An operation is to be made, and what to tell of it.
fn ask(operation: ClusteredDatabaseOperation, told: &str) -> (Option<Change>, String) {
    let name = operation.name_any();
    let told = format!("{told}, by operation {name}: see `kubectl get cdbop {name} --watch`");
    (Some(Change::Make(Box::new(operation))), told)
}

/// An operation that does this, whose name begins so. It goes with its database.
fn operation(db: &ClusteredDatabase, name: &str, action: Action, now: DateTime<Utc>) -> ClusteredDatabaseOperation {
    let spec = ClusteredDatabaseOperationSpec {
        cluster_ref: ClusterReference { name: db.name_any() },
        actions: action.into(),
        cancel: false,
    };
    let name = format!("{name}-{}", now.format("%Y%m%d%H%M%S"));
    let mut operation = ClusteredDatabaseOperation::new(&name, spec);
    operation.metadata.owner_references = db.owner_ref(&()).map(|owner| vec![owner]);
    operation
}

/// What a new template means for the pods that there are.
fn restarted(db: &ClusteredDatabase) -> String {
    let name = db.name_any();
    let supervised = db.spec.primary.update_policy == PrimaryUpdatePolicy::Supervised;
    let mut told = match (db.spec.replicas, supervised) {
        (1, true) => format!(
            "the only pod of {name} is to be replaced, which waits for you, since spec.primary.updatePolicy is Supervised (see `kubectl cdb why {name}`)"
        ),
        (1, false) => {
            format!("the only pod of {name} is to be replaced: it cannot be used until the new one serves")
        }
        (_, true) => format!(
            "the standbys' pods of {name} are to be replaced one at a time; the primary's waits for you, since \
             spec.primary.updatePolicy is Supervised (see `kubectl cdb why {name}`)"
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

/// The parameters of a creation in this program's name.
pub fn as_us() -> PostParams {
    PostParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PostParams::default()
    }
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
            let made = cluster.operations().create(&as_us(), &operation).await;
            made.map_err(|error| cluster.explain(error))?;
        }
    }
    Ok(told)
}

/// What a recovery in place would do: an operation asks the database for that, and is removed again.
///
/// # Errors
/// If there can be no such recovery, or nothing is told in time.
pub async fn plan_recovery(cluster: &Cluster, name: &str, wish: Wish<'_>) -> Result<String> {
    let (Some(Change::Make(mut operation)), _) = change(&cluster.database(name).await?, wish, Utc::now())? else {
        bail!("that is no recovery in place");
    };
    operation
        .spec
        .actions
        .recover
        .iter_mut()
        .for_each(|recover| recover.dry_run = true);
    let operations = cluster.operations();
    let made = operations.create(&as_us(), &operation).await;
    let asked = made.map_err(|error| cluster.explain(error))?.name_any();
    let outcome = |operation: &ClusteredDatabaseOperation| {
        let status = operation.status.clone()?;
        Some((status.phase.filter(|phase| phase.is_final())?, status.message))
    };
    let is_over = |found: Option<&ClusteredDatabaseOperation>| found.is_none_or(|found| outcome(found).is_some());
    let seen = tokio::time::timeout(PLAN_LIMIT, await_condition(operations.clone(), &asked, is_over)).await;
    let removed = operations.delete(&asked, &DeleteParams::default()).await;
    let seen = seen.map_err(|_| anyhow!("{name} has not told what it would do: see `kubectl cdb why {name}`"))?;
    let found = seen.context("watch the operation")?;
    removed.map_err(|error| cluster.explain(error))?;
    let (phase, message) = found.as_ref().and_then(outcome).context("the operation was removed")?;
    let message = message.unwrap_or_default();
    ensure!(phase == OperationPhase::Completed, "{message}");
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database(spec: Value) -> ClusteredDatabase {
        let mut spec = spec;
        spec["storage"] = json!({"data": {"size": "1Gi"}});
        serde_json::from_value(json!({
            "apiVersion": "clustereddatabase.io/v1alpha2", "kind": "ClusteredDatabase",
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
    fn a_recovery_in_place_is_asked_for_only_where_a_backup_may_reach() {
        let store = || json!({"backup": {"store": {"s3": {"bucket": "b"}}}});
        let mut database = database(store());
        let catalogue = json!({"archive": {}, "catalogue": {"backups": 1, "storedBytes": 7, "firstRecoverableTime": "2026-12-01T00:00:00Z"}});
        database.status.as_mut().unwrap().backup = serde_json::from_value(catalogue).ok();
        assert!(database.status.as_ref().unwrap().backup.is_some());
        let now = "2027-01-01T00:00:00Z".parse().unwrap();
        let ask = |time: Option<&str>| {
            let time = time.map(|time| time.parse().unwrap());
            let wish = Wish::Recover {
                backup: None,
                time,
                keep_hours: Some(72),
            };
            change(&database, wish, now)
        };
        let (Some(Change::Make(operation)), told) = ask(Some("2026-12-31T00:00:00Z")).unwrap() else {
            panic!("no operation")
        };
        assert_eq!(api::operation::refusal(&operation.spec, None), None);
        assert!(
            told.contains("for 72 h, or until `kubectl cdb confirm-recovery demo"),
            "{told}"
        );
        let recover = operation.spec.actions.recover.unwrap();
        assert_eq!(recover.keep_hours, Some(72));
        let target = recover.target.unwrap();
        assert_eq!(target.time, Some("2026-12-31T00:00:00Z".parse().unwrap()));
        let (Some(Change::Make(latest)), _) = ask(None).unwrap() else {
            panic!("no operation")
        };
        assert_eq!(latest.spec.actions.recover.unwrap().target, None);
        for (time, why) in [
            ("2026-11-30T00:00:00Z", "earliest time"),
            ("2027-01-02T00:00:00Z", "still to come"),
        ] {
            let error = ask(Some(time)).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let without = of(
            json!({}),
            Wish::Recover {
                backup: None,
                time: None,
                keep_hours: None,
            },
        );
        assert!(without.unwrap_err().to_string().contains("no store"));
        for wish in [Wish::UndoRecovery, Wish::ConfirmRecovery] {
            let Some(Change::Make(operation)) = of(json!({}), wish).unwrap() else {
                panic!("no operation")
            };
            assert_eq!(api::operation::refusal(&operation.spec, None), None);
        }
    }

    #[test]
    fn only_an_instance_can_be_promoted_and_only_if_it_may_stay_the_primary() {
        let Some(Change::Make(operation)) = of(json!({}), Wish::Promote("demo-2")).unwrap() else {
            panic!("no operation")
        };
        assert_eq!(api::operation::refusal(&operation.spec, None), None);
        assert_eq!(operation.name_any(), "demo-2-20270101000000");
        assert_eq!(operation.spec.actions.switchover.unwrap().to, "demo-2");
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

    /// What the operation that is made does, and the beginning of its name.
    fn asked(spec: Value, wish: Wish<'_>) -> (Action, String) {
        let Some(Change::Make(operation)) = of(spec, wish).unwrap() else {
            panic!("no operation")
        };
        assert_eq!(api::operation::refusal(&operation.spec, None), None);
        let name = operation.name_any();
        let name = name.strip_suffix("-20270101000000").unwrap().to_owned();
        (operation.spec.actions.only().unwrap(), name)
    }

    #[test]
    fn an_image_is_taken_by_an_operation_where_the_spec_names_none() {
        let image = "postgres:17.7".to_owned();
        let expected = (Action::TakeImage(TakeImage { image }), "demo-image".to_owned());
        assert_eq!(asked(json!({}), Wish::TakeImage("postgres:17.7")), expected);
        let named = json!({"postgres": {"image": "mine"}});
        assert!(of(named, Wish::TakeImage("postgres:17.7")).is_err());
    }

    #[test]
    fn a_loss_is_accepted_in_one_epoch() {
        let expected = (Action::AcceptLoss(AcceptLoss { epoch: 7 }), "demo-loss".to_owned());
        assert_eq!(asked(json!({"paused": true}), Wish::AcceptLoss(7)), expected);
    }

    #[test]
    fn quarantined_data_is_removed_by_name() {
        let (instance, name) = ("demo-1".to_owned(), "1-0_3000060-1".to_owned());
        let action = Action::DiscardQuarantined(DiscardQuarantined { instance, name });
        let wish = Wish::DiscardQuarantined("demo-1", "1-0_3000060-1");
        assert_eq!(asked(json!({}), wish), (action, "demo-1-discard".to_owned()));
    }

    #[test]
    fn a_lost_lease_is_made_again_by_an_operation() {
        let expected = (Action::RecreateLease(RecreateLease {}), "demo-lease".to_owned());
        assert_eq!(asked(json!({}), Wish::RecreateLease), expected);
        let compromised = true;
        let expected = (
            Action::RotateAuthority(RotateAuthority { compromised }),
            "demo-authority".to_owned(),
        );
        assert_eq!(asked(json!({}), Wish::RotateAuthority { compromised }), expected);
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
    fn a_restart_is_an_operation_and_needs_somebody_to_carry_it_out() {
        let expected = (Action::Restart(Restart {}), "demo-restart".to_owned());
        assert_eq!(asked(json!({}), Wish::Restart), expected);
        assert!(of(json!({"paused": true}), Wish::Restart).is_err());
        assert!(of(json!({"hibernated": true}), Wish::Restart).is_err());
    }

    #[test]
    fn a_restart_says_whom_it_interrupts() {
        let told = |spec: Value| restarted(&database(spec));
        let supervised = json!({"updatePolicy": "Supervised"});
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
