use super::super::tests::world;
use super::*;
use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;

fn lease(version: &str, renewal: i64) -> Lease {
    let metadata = ObjectMeta {
        uid: Some("u".to_owned()),
        resource_version: Some(version.to_owned()),
        ..ObjectMeta::default()
    };
    let renew_time = Timestamp::from_second(renewal).ok().map(MicroTime);
    Lease {
        metadata,
        spec: Some(LeaseSpec {
            renew_time,
            ..LeaseSpec::default()
        }),
    }
}

fn version(world: &World) -> &str {
    world
        .observed
        .lease
        .record
        .is()
        .map_or("", |record| record.version.as_str())
}

#[test]
fn an_older_version_that_comes_late_changes_nothing() {
    let mut world = world();
    world.lease_read(Reading::Is(lease("10", 1)), BootTime(1));
    world.lease_read(Reading::Is(lease("9", 0)), BootTime(2));
    assert_eq!((version(&world), world.observed.lease.changed), ("10", BootTime(1)));
}

#[test]
fn only_a_sign_of_life_starts_the_count_anew() {
    let mut world = world();
    world.lease_read(Reading::Is(lease("10", 1)), BootTime(1));
    world.lease_read(Reading::Is(lease("11", 1)), BootTime(2));
    assert_eq!((version(&world), world.observed.lease.changed), ("11", BootTime(1)));
    world.lease_read(Reading::Is(lease("12", 2)), BootTime(3));
    assert_eq!(world.observed.lease.changed, BootTime(3));
}

#[test]
fn a_lease_that_cannot_be_read_is_unknown_until_it_can() {
    let mut world = world();
    world.lease_read(Reading::Is(lease("10", 1)), BootTime(1));
    world.lease_read(Reading::Unknown, BootTime(2));
    assert_eq!(world.observed.lease.record, Reading::Unknown);
    world.lease_read(Reading::Is(lease("12", 2)), BootTime(3));
    assert_eq!(version(&world), "12");
}

#[test]
fn a_lease_that_is_gone_is_missing_and_not_empty() {
    let mut world = world();
    world.lease_read(Reading::Is(lease("10", 1)), BootTime(1));
    world.lease_read(Reading::Missing, BootTime(2));
    assert_eq!(world.observed.lease.record, Reading::Missing);
}

#[test]
fn writes_are_remembered_until_one_succeeds_or_their_version_is_past() {
    use machine::quorum::SyncRule;
    let mut world = world();
    let content = |version: &str, required| LeaseContent {
        uid: "u".to_owned(),
        version: version.to_owned(),
        holder: None,
        duration: 10_000,
        epoch: machine::protocol::Epoch(1),
        system_id: None,
        release: None,
        rule: SyncRule {
            required,
            ..SyncRule::default()
        },
        timeline: None,
        lossy: None,
        history: Vec::new(),
        members: std::collections::BTreeMap::new(),
        positions: std::collections::BTreeMap::new(),
    };
    let known = |world: &World| {
        let unsettled = world.observed.lease.unsettled.clone()?;
        Some((unsettled.version, unsettled.rules.len(), unsettled.releases))
    };
    world.lease_write_begins(&content("7", 1), Purpose::Renew);
    world.lease_write_begins(&content("7", 1), Purpose::Renew);
    world.lease_write_begins(&content("7", 2), Purpose::Release);
    world.lease_write_begins(&content("7", 2), Purpose::Renew);
    assert_eq!(known(&world), Some(("7".to_owned(), 2, true)));
    world.lease_write_begins(&content("8", 1), Purpose::Renew);
    assert_eq!(known(&world), Some(("8".to_owned(), 1, false)));
    let promise = machine::instance::Failsafe {
        member: machine::protocol::MemberId::new(1, "aaaa", 1),
        epoch: machine::protocol::Epoch(1),
        sent: BootTime(5),
    };
    world.observed.failsafe.insert("orders-1".to_owned(), promise);
    let written = Written {
        lease: lease("9", 1),
        sent: BootTime(6),
    };
    world.lease_written(written, Purpose::Renew, Timing::DEFAULT, BootTime(7));
    assert_eq!(known(&world), None);
    assert!(world.observed.failsafe.is_empty(), "a renewal needs no promises");
}
