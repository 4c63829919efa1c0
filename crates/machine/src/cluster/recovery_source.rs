//! `spec.bootstrap.recovery.from.clusterRef`: the backups of a database that is there. Where they are is looked up once and recorded: the
//! source may go, or get another store, and this database stays what it is.

use api::spec::RecoverySource;
use api::status::WaitReason;

use super::action::{Action, StatusChange};
use super::decision::Step;
use super::facts::Facts;
use super::observed::Known;
use super::rule::{OnBackoff, Proposal, Rule, RuleKind};

/// See [`Rule::what`].
pub const RECOVERY_SOURCE: Rule = Rule {
    name: "recovery-source",
    family: "recovery",
    what: "With spec.bootstrap.recovery.from.clusterRef, the store, folder and private key of that database are recorded before anything \
           is made.\n\
           - Until that database is there and has a store, this one waits.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: recovery_source,
    on_backoff: OnBackoff::Hold,
};

fn recovery_source(facts: &Facts<'_>) -> Option<Proposal> {
    let name = facts.wanted.spec.recovered_from()?;
    if facts.status.memo.recovery_source.is_some() {
        return None;
    }
    let seen = match &facts.observed.recovery_source {
        // Its status was lost, and it needs no backup any more.
        Known::Unknown | Known::Known(None) if facts.bootstrapped() => return None,
        Known::Unknown => return Proposal::unread(facts, Step::Objects, format!("ClusteredDatabase {name}")),
        Known::Known(seen) => seen.as_ref(),
    };
    let found = seen.and_then(|seen| crate::drill::source(name, &seen.uid, seen.backup.as_ref()));
    let Some(found) = found else {
        let what = match seen {
            None => format!("ClusteredDatabase {name}, from whose backups this one is made, to be there"),
            Some(_) => format!("ClusteredDatabase {name}, from whose backups this one is made, to have a store"),
        };
        let who = "the user: if it is gone, name its store and folder in bootstrap.recovery.from instead";
        return Proposal::wait(facts, Step::Objects, WaitReason::RecoverySource, what, who);
    };
    let own_key = facts.wanted.spec.recovery()?.from.identity_secret_ref.clone();
    let source = RecoverySource {
        identity_secret_ref: own_key.or(found.identity_secret_ref),
        ..found
    };
    let folder = source.cluster.as_deref().unwrap_or_default();
    let because = format!("the backups of ClusteredDatabase {name} are in {folder}");
    let change = StatusChange::RecordRecoverySource(Box::new(source));
    Proposal::act(Step::Objects, Action::WriteStatus(vec![change]), because)
}

#[cfg(test)]
mod tests {
    use api::Phase;
    use serde_json::json;

    use super::super::model::Scene;
    use super::super::observed::SourceSeen;
    use super::*;

    /// A new database that is to be made from the backups of another one.
    fn scene(from: serde_json::Value) -> Scene {
        let mut scene = Scene::new(1);
        scene.finalizer = true;
        scene.spec.bootstrap = Some(serde_json::from_value(json!({"recovery": {"from": from}})).unwrap());
        scene.store();
        scene
    }

    fn seen(backup: &serde_json::Value) -> Known<Option<SourceSeen>> {
        Known::Known(Some(SourceSeen {
            uid: "1a2b3c4d-0000-1111-2222-333344445555".to_owned(),
            backup: serde_json::from_value(backup.clone()).unwrap(),
        }))
    }

    fn waits(scene: &Scene) -> (WaitReason, String) {
        assert_eq!(scene.decide().rule, RECOVERY_SOURCE.name);
        (scene.awaits().0, scene.waiting().0)
    }

    #[test]
    fn nothing_is_made_before_the_source_is_recorded() {
        let mut scene = scene(json!({"clusterRef": {"name": "shop"}}));
        assert_eq!(waits(&scene).0, WaitReason::ObjectReading);
        scene.observed.recovery_source = Known::Known(None);
        let (reason, what) = waits(&scene);
        assert_eq!(reason, WaitReason::RecoverySource);
        assert!(what.contains("ClusteredDatabase shop"), "{what}");
        assert!(what.ends_with("to be there"), "{what}");
        scene.observed.recovery_source = seen(&json!(null));
        assert!(waits(&scene).1.ends_with("to have a store"));

        let store = json!({"s3": {"bucket": "wal"}});
        let encryption = json!({"recipients": ["age1"], "identitySecretRef": {"name": "key"}});
        scene.observed.recovery_source = seen(&json!({"store": store, "encryption": encryption}));
        assert_eq!(scene.store().phase, Phase::Restoring);
        let recorded = scene.stored.memo.recovery_source.clone().unwrap();
        let expected = json!({"store": store, "cluster": "shop-1a2b3c4d", "identitySecretRef": {"name": "key"}});
        assert_eq!(recorded, serde_json::from_value(expected).unwrap());

        // It stays what it was.
        scene.observed.recovery_source = Known::Known(None);
        assert_ne!(scene.store().rule, RECOVERY_SOURCE.name);
        assert_eq!(scene.stored.memo.recovery_source, Some(recorded));
    }

    #[test]
    fn a_private_key_that_the_spec_names_goes_before_that_of_the_source() {
        let mut scene =
            scene(json!({"clusterRef": {"name": "shop"}, "identitySecretRef": {"name": "own", "key": "k"}}));
        scene.observed.recovery_source = seen(&json!({"store": {"s3": {"bucket": "wal"}}}));
        scene.store();
        let source = scene.stored.memo.recovery_source.unwrap();
        assert_eq!(source.identity_secret_ref.unwrap().name, "own");
    }

    #[test]
    fn a_database_that_is_there_needs_no_source() {
        let mut scene = Scene::ready(1);
        let from = json!({"recovery": {"from": {"clusterRef": {"name": "shop"}}}});
        scene.spec.bootstrap = Some(serde_json::from_value(from).unwrap());
        for unseen in [Known::Unknown, Known::Known(None)] {
            scene.observed.recovery_source = unseen;
            assert_ne!(scene.decide().rule, RECOVERY_SOURCE.name);
        }
        scene.observed.recovery_source = seen(&json!({"store": {"s3": {"bucket": "wal"}}}));
        scene.store();
        assert!(scene.stored.memo.recovery_source.is_some(), "its status was lost");
    }

    #[test]
    fn a_source_that_is_named_by_its_store_is_not_looked_for() {
        let from = json!({"store": {"s3": {"bucket": "wal"}}, "cluster": "shop-1a2b3c4d"});
        let scene = scene(from);
        assert_eq!(scene.observed.recovery_source, Known::Unknown);
        assert_ne!(scene.decide().rule, RECOVERY_SOURCE.name);
    }
}
