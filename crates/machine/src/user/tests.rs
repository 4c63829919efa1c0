use std::collections::BTreeMap;

use api::declared::{Adoption, DeclaredPhase, ManagementPolicy};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::json;

use super::*;
use chrono::TimeDelta;

use crate::access::{Published, Report};
use crate::cluster::Known;
use crate::declaration::{Cluster, Decision, Observed, Target};
use crate::reconcile::{Controller, Next, Pass};

fn now() -> DateTime<Utc> {
    "2027-01-01T00:00:00Z".parse().unwrap()
}

fn spec(more: &serde_json::Value) -> DatabaseUserSpec {
    let mut spec = json!({"clusterRef": {"name": "shop"}, "database": "orders", "permissions": ["SELECT"]});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(spec).unwrap()
}

fn cluster() -> Cluster {
    Cluster {
        owner: "app".to_owned(),
        ..Cluster::default()
    }
}

/// Its operator, its cluster and its primary in small.
#[derive(Clone, Debug)]
struct World {
    spec: DatabaseUserSpec,
    generation: i64,
    deleting: bool,
    finalizer: bool,
    is_gone: bool,
    cluster: Option<Cluster>,
    older: Option<String>,
    /// The password in the Secret.
    password: Option<u32>,
    published: Option<Published>,
    /// The password that the published verifier is of.
    published_password: Option<u32>,
    report: Option<Report>,
    has_reports: bool,
    /// What stands beside the password is right.
    is_complete: bool,
    foreign: Option<String>,
    /// The role in PostgreSQL, with its password.
    role: Option<Option<u32>>,
    /// PostgreSQL refuses to drop it.
    owns: bool,
    /// It may not log in.
    quarantined: bool,
    status: DatabaseUserStatus,
    now: DateTime<Utc>,
    faults: BTreeMap<Target, String>,
    pass: Pass<Target>,
}

impl World {
    fn new(spec: DatabaseUserSpec) -> Self {
        Self {
            spec,
            generation: 1,
            deleting: false,
            finalizer: false,
            is_gone: false,
            cluster: Some(cluster()),
            older: None,
            password: None,
            published: None,
            published_password: None,
            report: None,
            has_reports: false,
            is_complete: true,
            foreign: None,
            role: None,
            owns: false,
            quarantined: false,
            status: DatabaseUserStatus::default(),
            now: now(),
            faults: BTreeMap::new(),
            pass: Pass::default(),
        }
    }

    fn observed(&self) -> Observed {
        let needs = secret(&self.spec, "orders-rw").is_some();
        Observed {
            cluster: Known::Known(self.cluster.clone()),
            older: Known::Known(self.older.clone()),
            credentials: match self.password {
                _ if !needs => Credentials::NotNeeded,
                None => Credentials::Missing,
                Some(password) => Credentials::Usable {
                    is_published: self.published_password == Some(password),
                    is_complete: self.is_complete,
                    certificate: None,
                },
            },
            published: Known::Known(self.published.clone()),
            report: Known::Known(self.report.clone()),
            has_reports: self.has_reports,
            foreign: self.foreign.clone(),
            parts: Default::default(),
            instances: None,
            certificate: None,
            faults: self.faults.clone(),
        }
    }

    fn decided(&self) -> Decision {
        self.decided_by(&self.observed())
    }

    fn decided_by(&self, observed: &Observed) -> Decision {
        User::decide(&self.wanted(), observed, &self.status, self.now)
    }

    fn wanted(&self) -> Wanted<'_, DatabaseUserSpec> {
        Wanted {
            name: "orders-rw",
            uid: "u1",
            generation: self.generation,
            deleting: self.deleting,
            finalizer: self.finalizer,
            spec: &self.spec,
        }
    }

    /// One look of the operator, whose writes may be lost.
    fn looks(&mut self, fails: bool) {
        for _ in 0..20 {
            if self.is_gone {
                return;
            }
            let (observed, decision) = (self.observed(), self.decided());
            let status = User::status(&self.wanted(), &observed, &self.status, &decision, &(), self.now);
            let next = self
                .pass
                .next::<User>(&observed, &self.status, &status, &decision, self.now);
            match next {
                Next::Sleep(_) => return,
                Next::WriteStatus => {
                    self.status = status;
                    self.pass.status_written(&Target::Status);
                }
                Next::Perform if fails => return,
                Next::Perform => self.performs(decision.action),
                Next::Confirm => {
                    let takes = match &decision.action {
                        Action::RemoveFinalizer => self.published.is_none(),
                        Action::Publish(declared) => declared.is_going(),
                        _ => false,
                    };
                    assert!(takes, "{:?}", decision.action);
                    self.performs(decision.action);
                }
            }
        }
        panic!("never at rest: {self:?}");
    }

    fn performs(&mut self, action: Action) {
        self.now += TimeDelta::milliseconds(1);
        match action {
            Action::Wait | Action::MakeParts => unreachable!("a user has no such effect"),
            Action::AddFinalizer => self.finalizer = true,
            Action::RemoveFinalizer => {
                self.finalizer = false;
                self.is_gone = self.deleting;
            }
            Action::MakeCredentials => {
                assert_eq!(self.password, None, "no password is made over another");
                self.password = Some(self.generation as u32);
            }
            Action::CorrectCredentials => self.is_complete = true,
            Action::MakeReports => self.has_reports = true,
            Action::Publish(mut declared) => {
                assert!(self.has_reports, "the primary could not tell");
                assert!(self.finalizer, "nothing is handed on that could be forgotten");
                let Declared::Role(role) = &mut *declared else {
                    panic!("a role")
                };
                if matches!(role.password, Password::Verifier(_)) {
                    role.password = Password::Verifier(Secret("of it".to_owned()));
                    self.published_password = self.password;
                } else {
                    self.published_password = None;
                }
                self.published = Some(Published {
                    at: self.now,
                    declared: *declared,
                });
            }
            Action::Withdraw => {
                self.published = None;
                self.published_password = None;
            }
        }
    }

    /// The primary's agent settles what is published.
    fn settles(&mut self) {
        let Some(published) = &self.published else {
            self.report = None;
            return;
        };
        if self.cluster != Some(cluster()) || !self.has_reports {
            return;
        }
        let mut report = Report {
            of: published.at,
            ..Report::default()
        };
        let Declared::Role(declared) = &published.declared else {
            panic!("a role")
        };
        match &declared.going {
            Some(Going::Drop { reassign_to: None }) if self.owns => report.error = Some("it owns a table".to_owned()),
            Some(Going::Drop { .. }) => self.role = None,
            Some(Going::Quarantine) => self.quarantined = self.role.is_some(),
            None => (self.role, self.quarantined) = (Some(self.published_password), false),
        }
        report.oid = self.role.map(|_| 16_384);
        self.report = Some(report);
    }

    /// What is handed on.
    fn declares(&self) -> Option<DeclaredRole> {
        match &self.published.as_ref()?.declared {
            Declared::Role(role) => Some(role.clone()),
            Declared::Database(_) | Declared::Pooler(_) => None,
        }
    }

    fn rests(&mut self) {
        for _ in 0..4 {
            self.looks(false);
            self.settles();
            // What only people look at is written a little later.
            self.now += TimeDelta::seconds(10);
        }
        self.looks(false);
    }

    fn phase(&self) -> Option<DeclaredPhase> {
        self.status.declared.phase
    }
}

#[test]
fn a_new_user_is_handed_on_and_ready_when_the_primary_says_so() {
    let mut world = World::new(spec(&json!({})));
    let mut rules = Vec::new();
    while rules.len() < 6 {
        let decision = world.decided();
        rules.push(decision.rule);
        match decision.action {
            Action::Wait => world.settles(),
            action => world.performs(action),
        }
    }
    assert_eq!(
        rules,
        ["finalizer", "credentials", "reports", "publish", "tell", "tell"]
    );
    world.rests();
    let status = &world.status;
    assert_eq!(
        (status.declared.phase, status.declared.oid),
        (Some(DeclaredPhase::Ready), Some(16_384))
    );
    assert_eq!(status.role.as_deref(), Some("orders-rw"));
    assert_eq!(status.secret_name.as_deref(), Some("orders-rw-credentials"));
    let condition = &status.declared.conditions[0];
    assert_eq!((condition.type_.as_str(), condition.status.as_str()), ("Ready", "True"));
    let published = world.declares().unwrap();
    assert_eq!(published.grants[0].permissions, [Privilege::Select].into());
    assert!(published.grants[0].future && published.attributes.login);
}

#[test]
fn at_rest_nothing_is_written() {
    let mut world = World::new(spec(&json!({})));
    world.rests();
    let observed = world.observed();
    for minutes in [1, 20] {
        world.now += TimeDelta::minutes(minutes);
        let decision = world.decided();
        let status = User::status(&world.wanted(), &observed, &world.status, &decision, &(), world.now);
        assert_eq!((decision.action, &status), (Action::Wait, &world.status));
    }
}

#[test]
fn what_is_unknown_changes_nothing() {
    let mut world = World::new(spec(&json!({})));
    world.rests();
    let known = world.observed();
    let forget: [fn(&mut Observed); 5] = [
        |observed| observed.cluster = Known::Unknown,
        |observed| observed.older = Known::Unknown,
        |observed| observed.credentials = Credentials::Unknown,
        |observed| observed.published = Known::Unknown,
        |observed| observed.report = Known::Unknown,
    ];
    for deleting in [false, true] {
        world.deleting = deleting;
        for (index, forget) in forget.iter().enumerate() {
            let mut observed = known.clone();
            forget(&mut observed);
            let decision = world.decided_by(&observed);
            let needs = deleting && [1, 2, 4].contains(&index);
            assert_eq!(decision.action == Action::Wait, !needs, "{index}: {decision:?}");
        }
    }
}

#[test]
fn each_reason_to_wait_or_to_fail_is_told() {
    type Spoil = fn(&mut World);
    let table: [(Spoil, DeclaredPhase, &str); 12] = [
        (|world| world.cluster = None, DeclaredPhase::Pending, "there is none"),
        (
            |world| world.cluster.as_mut().unwrap().deleting = true,
            DeclaredPhase::Pending,
            "is being deleted",
        ),
        (
            |world| world.older = Some("first".to_owned()),
            DeclaredPhase::Failed,
            "DatabaseUser first, which is older",
        ),
        (
            |world| world.spec = spec(&json!({"password": {"secretRef": {"name": "mine"}}})),
            DeclaredPhase::Pending,
            "waiting for Secret mine: there is none",
        ),
        (
            |world| world.spec = spec(&json!({"name": "pg_x"})),
            DeclaredPhase::Failed,
            "name must not be postgres",
        ),
        (
            |world| world.spec = spec(&json!({"name": "app"})),
            DeclaredPhase::Failed,
            "set password.external: true",
        ),
        (
            |world| world.foreign = Some("Secret shop-access".to_owned()),
            DeclaredPhase::Failed,
            "there is a Secret shop-access that is not of this cluster",
        ),
        (
            |world| {
                let schemas: Vec<String> = (0..64).map(|number| format!("{number:063}")).collect();
                let grants: Vec<_> = (0..8).map(|_| json!({"database": "a", "schemas": schemas})).collect();
                world.spec = spec(&json!({ "grants": grants }));
            },
            DeclaredPhase::Failed,
            "16 KiB at most are possible",
        ),
        (
            |world| world.cluster.as_mut().unwrap().idle = Some("it is hibernated".to_owned()),
            DeclaredPhase::Pending,
            "waiting for the primary of shop: it is hibernated",
        ),
        (
            |world| world.report.as_mut().unwrap().refusal = Some("there is no database orders".to_owned()),
            DeclaredPhase::Failed,
            "there is no database orders",
        ),
        (
            |world| world.report.as_mut().unwrap().error = Some("too many sessions".to_owned()),
            DeclaredPhase::Pending,
            "tries again: too many sessions",
        ),
        (
            |world| world.report.as_mut().unwrap().more = 3,
            DeclaredPhase::Planned,
            "3 statements are missing",
        ),
    ];
    for (spoil, phase, words) in table {
        let mut world = World::new(spec(&json!({})));
        if world.spec.password.is_none() {
            world.rests();
        }
        spoil(&mut world);
        if world.spec.password.is_some() {
            world.password = None;
        }
        if words.contains("the primary of shop") {
            world.report = None;
        }
        let decision = world.decided();
        assert_eq!((decision.action, decision.phase), (Action::Wait, phase), "{words}");
        assert!(decision.message.contains(words), "{}", decision.message);
    }
}

#[test]
fn what_the_api_server_refuses_is_told() {
    let mut world = World::new(spec(&json!({})));
    world.finalizer = true;
    world.faults.insert(Target::Credentials, "exceeded quota".to_owned());
    assert_eq!(world.decided().message, "a password is made: exceeded quota");
}

#[test]
fn a_secret_that_cannot_be_used_fails_and_changes_nothing() {
    let mut world = World::new(spec(&json!({})));
    world.rests();
    let mut observed = world.observed();
    observed.credentials = Credentials::Unusable("it has no key password".to_owned());
    world.spec.login = true;
    let decision = world.decided_by(&observed);
    assert_eq!((decision.action, decision.phase), (Action::Wait, DeclaredPhase::Failed));
}

#[test]
fn a_certificate_is_issued_when_postgresql_has_the_role_as_this_users() {
    let wants = |more: serde_json::Value| {
        let mut spec = json!({"clusterRef": {"name": "shop"}, "clientCertificate": true});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value::<DatabaseUserSpec>(spec).unwrap()
    };
    let at = |second: i64| chrono::DateTime::from_timestamp(second, 0).unwrap();
    let spec = wants(json!({}));
    let published = Published {
        at: at(1),
        declared: User::declared(&Wanted {
            name: "orders",
            uid: "u1",
            generation: 1,
            deleting: false,
            finalizer: true,
            spec: &spec,
        }),
    };
    let ours = Report {
        of: at(1),
        oid: Some(16_384),
        ..Report::default()
    };
    let may = |spec: &DatabaseUserSpec, report: &Report| may_have_certificate(spec, Some(&published), Some(report));
    assert!(may(&spec, &ours));
    let waits = Report {
        refusal: Some("there is no database orders".to_owned()),
        waits: true,
        ..ours.clone()
    };
    assert!(may(&spec, &waits), "the role is there");
    let refused = Report {
        waits: false,
        ..waits.clone()
    };
    let nobodys = Report {
        oid: None,
        ..ours.clone()
    };
    let earlier = Report {
        of: at(0),
        ..ours.clone()
    };
    for report in [&refused, &nobodys, &earlier] {
        assert!(!may(&spec, report), "{report:?}");
    }
    assert!(!may_have_certificate(&spec, Some(&published), None));
    assert!(!may_have_certificate(&spec, None, Some(&ours)));
    assert!(!may(&wants(json!({"managementPolicy": "Observe"})), &ours));
    assert!(!may(&wants(json!({"clientCertificate": false})), &ours));
}

#[test]
fn what_was_told_of_an_earlier_entry_does_not_count() {
    let mut world = World::new(spec(&json!({})));
    world.rests();
    world.spec.connection_limit = Some(3);
    world.looks(false);
    let decision = world.decided();
    assert_eq!((decision.rule, decision.phase), ("tell", DeclaredPhase::Pending));
    world.settles();
    assert_eq!(world.decided().phase, DeclaredPhase::Ready);
}

#[test]
fn no_password_is_written_again_unless_it_has_changed() {
    let mut world = World::new(spec(&json!({})));
    world.rests();
    let before = world.published.clone();
    world.rests();
    assert_eq!(world.published, before);
    world.password = Some(99);
    world.rests();
    assert_eq!((world.published_password, world.role), (Some(99), Some(Some(99))));
    assert_ne!(world.published, before);
}

#[test]
fn passwords_come_from_where_the_spec_says() {
    for (more, wanted) in [
        (json!({}), Password::Verifier(Secret(String::new()))),
        (json!({"password": {}}), Password::Verifier(Secret(String::new()))),
        (
            json!({"password": {"secretRef": {"name": "s"}}}),
            Password::Verifier(Secret(String::new())),
        ),
        (json!({"password": {"external": true}}), Password::External),
        (json!({"password": {"none": true}}), Password::None),
        (json!({"login": false}), Password::None),
    ] {
        let world = World::new(spec(&more));
        assert_eq!(declared(&world.wanted()).password, wanted, "{more}");
    }
    for (until, wanted) in [
        ("9999-12-31T23:59:59Z", None),
        ("2030-01-01T00:00:00.1234567Z", Some("2030-01-01T00:00:00.123456Z")),
    ] {
        let world = World::new(spec(&json!({ "validUntil": until })));
        let until = declared(&world.wanted()).attributes.valid_until;
        assert_eq!(
            until,
            wanted.map(|time| time.parse().unwrap()),
            "as PostgreSQL tells it"
        );
    }
    let world = World::new(spec(&json!({
        "adoption": "Full", "managementPolicy": "Observe", "name": "Other",
        "memberOf": [{"role": "pg_monitor"}, {"role": "group", "admin": false, "inherit": false, "set": false}], "endSessions": true,
    })));
    let declared = declared(&world.wanted());
    let options = |role: &str| {
        let of: Membership = declared.member_of[role];
        [of.admin, of.inherit, of.set]
    };
    assert_eq!(
        (options("pg_monitor"), options("group")),
        ([false, true, true], [false, false, false])
    );
    assert!(declared.end_sessions);
    assert_eq!(
        (declared.adoption, declared.policy),
        (Adoption::Full, ManagementPolicy::Observe)
    );
    assert_eq!((declared.name.as_str(), declared.uid.as_str()), ("Other", "u1"));
}

#[test]
fn what_stands_beside_a_password_is_corrected() {
    let mut world = World::new(spec(&json!({})));
    world.rests();
    world.is_complete = false;
    assert_eq!(world.decided().action, Action::CorrectCredentials);
    let before = world.published.clone();
    world.rests();
    assert_eq!((world.phase(), &world.published), (Some(DeclaredPhase::Ready), &before));
}

#[test]
fn a_role_that_was_never_made_for_it_is_not_waited_for() {
    let mut world = World::new(spec(&json!({"onDelete": "Drop"})));
    world.rests();
    let report = world.report.as_mut().unwrap();
    (report.oid, report.refusal) = (None, Some("there is a role that was made by somebody else".to_owned()));
    world.deleting = true;
    assert_eq!(world.decided().action, Action::Withdraw);
}

#[test]
fn a_role_that_cannot_be_dropped_holds_the_deletion_until_the_user_lets_it_stay() {
    let mut world = World::new(spec(&json!({"onDelete": "Drop"})));
    world.rests();
    (world.deleting, world.owns) = (true, true);
    world.rests();
    let message = world.status.declared.message.clone().unwrap();
    assert!(
        message.contains("it owns a table") && message.contains("Retain"),
        "{message}"
    );
    assert!(!world.is_gone && world.role.is_some());
    let refused = world.clone();
    world.spec.on_delete = OnDelete::Retain;
    world.rests();
    assert!(world.is_gone && world.published.is_none() && world.role.is_some());
    // Or lets somebody else own what it owns, or only locks it.
    let mut given = refused.clone();
    given.spec.reassign_to = Some("app".to_owned());
    given.rests();
    assert!(given.is_gone && given.role.is_none());
    let mut locked = refused;
    locked.spec.on_delete = OnDelete::Quarantine;
    locked.rests();
    assert!(locked.is_gone && locked.quarantined && locked.published.is_none());
}

#[test]
fn a_role_is_quarantined_before_its_user_goes() {
    let mut world = World::new(spec(&json!({"onDelete": "Quarantine"})));
    world.rests();
    world.deleting = true;
    let decision = world.decided();
    let Action::Publish(going) = &decision.action else {
        panic!("{decision:?}")
    };
    assert!(going.is_going() && User::confirms(&world.observed(), &decision.action));
    world.looks(false);
    let decision = world.decided();
    assert_eq!((decision.action, world.quarantined), (Action::Wait, false));
    assert!(
        decision.message.contains("is to be quarantined") && decision.message.contains("Retain"),
        "{}",
        decision.message
    );
    world.rests();
    assert!(world.is_gone && world.quarantined && world.role.is_some());
}

#[test]
fn what_was_mended_is_told_and_stays_told() {
    let mut world = World::new(spec(&json!({})));
    world.rests();
    let drift = api::declared::Drift {
        at: now(),
        statements: vec![api::declared::PlannedStatement::default()],
        more: None,
    };
    let settles = |world: &mut World, drift: Option<api::declared::Drift>| {
        world.report.as_mut().unwrap().drift = drift;
        for _ in 0..2 {
            world.looks(false);
            world.now += TimeDelta::minutes(1);
        }
    };
    settles(&mut world, Some(drift.clone()));
    assert_eq!(
        (world.phase(), &world.status.declared.drift),
        (Some(DeclaredPhase::Ready), &Some(drift.clone()))
    );
    settles(&mut world, None);
    assert_eq!(world.status.declared.drift, Some(drift));
}

/// What may happen meanwhile.
#[derive(Clone, Copy, Debug)]
enum Event {
    Looks,
    LooksAndFails,
    Settles,
    Deleted,
    ClusterAway,
    ClusterBack,
    ClusterGone,
    PasswordLost,
    PasswordChanged,
    SpecChanged,
    PublishedLost,
    ReportLost,
    OwnsSomething,
}

fn event() -> impl Strategy<Value = Event> {
    select(
        &[
            Event::Looks,
            Event::Looks,
            Event::Looks,
            Event::LooksAndFails,
            Event::Settles,
            Event::Settles,
            Event::Deleted,
            Event::ClusterAway,
            Event::ClusterBack,
            Event::ClusterGone,
            Event::PasswordLost,
            Event::PasswordChanged,
            Event::SpecChanged,
            Event::PublishedLost,
            Event::ReportLost,
            Event::OwnsSomething,
        ][..],
    )
}

proptest! {
    #[test]
    fn whatever_happens_it_comes_to_rest_and_a_deletion_ends(
        on_delete in select(&["Drop", "Quarantine", "Retain"][..]),
        events in prop::collection::vec(event(), 0..30),
    ) {
        let mut world = World::new(spec(&json!({"onDelete": on_delete})));
        // Of what nobody is told any more nothing is done.
        let was_lost = events.iter().any(|event| matches!(event, Event::PublishedLost | Event::ClusterGone));
        for event in events {
            match event {
                Event::Looks => world.looks(false),
                Event::LooksAndFails => world.looks(true),
                Event::Settles => world.settles(),
                Event::Deleted => {
                    world.deleting = true;
                    world.is_gone = !world.finalizer;
                }
                Event::ClusterAway => world.cluster.iter_mut().for_each(|cluster| cluster.idle = Some("it is paused".to_owned())),
                Event::ClusterBack => world.cluster = Some(cluster()),
                Event::ClusterGone => {
                    // Its objects go with it, and its data.
                    (world.cluster, world.role) = (None, None);
                    (world.published, world.published_password, world.report) = (None, None, None);
                }
                Event::PasswordLost => world.password = None,
                Event::PasswordChanged => world.password = world.password.map(|password| password + 100),
                Event::SpecChanged => {
                    world.generation += 1;
                    world.spec.connection_limit = Some(world.generation as u32);
                }
                Event::PublishedLost => {
                    (world.published, world.published_password) = (None, None);
                }
                Event::ReportLost => (world.report, world.has_reports) = (None, false),
                Event::OwnsSomething => world.owns = true,
            }
        }
        world.owns = false;
        world.cluster.iter_mut().for_each(|found| *found = cluster());
        let (had_role, has_cluster) = (world.role.is_some(), world.cluster.is_some());
        world.rests();
        if world.deleting {
            prop_assert!(world.is_gone, "{:?}", world);
            if has_cluster {
                prop_assert_eq!(world.published.as_ref(), None);
                prop_assert!(on_delete != "Retain" || world.role.is_some() == had_role, "{:?}", world);
                let is_locked = world.quarantined || world.role.is_none();
                prop_assert!(on_delete != "Quarantine" || is_locked || was_lost, "{:?}", world);
                prop_assert!(on_delete == "Quarantine" || !world.quarantined, "{:?}", world);
            }
        } else {
            let wanted = if has_cluster { DeclaredPhase::Ready } else { DeclaredPhase::Pending };
            prop_assert_eq!(world.phase(), Some(wanted), "{:?}", world);
            if has_cluster {
                prop_assert_eq!(world.role, Some(world.password));
                let published = world.declares().map(|role| role.attributes);
                prop_assert_eq!(published.map(|attributes| attributes.connection_limit), Some(world.spec.connection_limit));
            }
        }
    }
}
