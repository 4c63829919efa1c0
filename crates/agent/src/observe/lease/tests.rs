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
        .observed()
        .lease
        .record
        .is()
        .map_or("", |record| record.version.as_str())
}

/// A lost Lease is written again only into one that the operator has made for the same database.
#[test]
fn whose_a_lease_is_stands_in_its_label() {
    let mut found = lease("10", 1);
    assert_eq!(super::version(&found).owner, None);
    found.metadata.labels = Some([(LABEL_CLUSTER_UID.to_owned(), "c0ffee".to_owned())].into());
    assert_eq!(super::version(&found).owner.as_deref(), Some("c0ffee"));
}

#[test]
fn an_older_version_that_comes_late_changes_nothing() {
    let mut world = world();
    world.lease_read(Reading::Is(lease("10", 1)), BootTime(1));
    world.lease_read(Reading::Is(lease("9", 0)), BootTime(2));
    assert_eq!((version(&world), world.observed().lease.changed), ("10", BootTime(1)));
}

#[test]
fn only_a_sign_of_life_starts_the_count_anew() {
    let mut world = world();
    world.lease_read(Reading::Is(lease("10", 1)), BootTime(1));
    world.lease_read(Reading::Is(lease("11", 1)), BootTime(2));
    assert_eq!((version(&world), world.observed().lease.changed), ("11", BootTime(1)));
    world.lease_read(Reading::Is(lease("12", 2)), BootTime(3));
    assert_eq!(world.observed().lease.changed, BootTime(3));
}

#[test]
fn a_lease_that_cannot_be_read_is_unknown_until_it_can() {
    let mut world = world();
    world.lease_read(Reading::Is(lease("10", 1)), BootTime(1));
    world.lease_read(Reading::Unknown, BootTime(2));
    assert_eq!(world.observed().lease.record, Reading::Unknown);
    world.lease_read(Reading::Is(lease("12", 2)), BootTime(3));
    assert_eq!(version(&world), "12");
}

#[test]
fn a_lease_that_is_gone_is_missing_and_not_empty() {
    let mut world = world();
    world.lease_read(Reading::Is(lease("10", 1)), BootTime(1));
    world.lease_read(Reading::Missing, BootTime(2));
    assert_eq!(world.observed().lease.record, Reading::Missing);
}

#[test]
fn a_write_replaces_the_newest_version_that_was_taken() {
    let mut world = world();
    let base = |world: &World| world.lease.as_ref()?.metadata.resource_version.clone();
    world.lease_read(Reading::Is(lease("10", 1)), BootTime(1));
    world.lease_read(Reading::Is(lease("9", 0)), BootTime(2));
    assert_eq!(base(&world).as_deref(), Some("10"));
    world.lease_read(Reading::Unknown, BootTime(3));
    assert_eq!(base(&world).as_deref(), Some("10"));
    world.lease_read(Reading::Missing, BootTime(4));
    assert_eq!(base(&world), None);
}
