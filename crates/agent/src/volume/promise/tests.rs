use proptest::prelude::*;

use super::*;
use crate::volume::tests::Scratch;

fn volume(scratch: &Scratch) -> Volume {
    let volume = scratch.volume();
    let id = machine::protocol::MemberId::new(0, "aaaa", 1);
    volume.make_member(&id, "aaaa").expect("an identity");
    volume
}

#[test]
fn a_promise_takes_the_credential_away_and_following_brings_it_back() {
    let scratch = Scratch::new();
    let volume = volume(&scratch);
    assert_eq!(volume.promise().expect("readable"), Promise::default());
    volume.follow(Epoch(3)).expect("nothing is promised");
    let key = fs::read(volume.key_file()).expect("the key");
    assert_eq!(fs::read(volume.credential_file()).expect("a credential"), key);
    assert_eq!(volume.promise_at_least(Epoch(5)).expect("promised").epoch, Epoch(5));
    assert!(!volume.credential_file().exists(), "it is away");
    assert!(volume.key_file().exists(), "the key itself stays");
    assert_eq!(volume.promise_at_least(Epoch(4)).expect("promised").epoch, Epoch(5));
    let refused = volume.follow(Epoch(4)).expect_err("an older primary");
    assert!(matches!(refused, VolumeError::Promised { .. }), "{refused}");
    assert!(!volume.credential_file().exists(), "a refusal brings nothing back");
    volume.follow(Epoch(5)).expect("the promised one");
    assert!(volume.credential_file().exists());
    let work = || Err(io::Error::other("it is done"));
    volume.while_promised(work).expect("what is followed is left alone");
    volume.promise_before_rewind(Epoch(6)).expect("a newer one");
    assert!(!volume.credential_file().exists());
    volume.while_promised(work).expect_err("nothing is followed");
    assert_eq!(volume.promise().expect("readable").epoch, Epoch(6));
}

#[test]
fn a_promotion_is_remembered_until_somebody_else_is_followed() {
    let scratch = Scratch::new();
    let volume = volume(&scratch);
    volume.promise_at_least(Epoch(2)).expect("promised");
    let noted = volume.record_promoting(Timeline(7)).expect("noted");
    assert_eq!((noted.epoch, noted.promoting), (Epoch(2), Some(Timeline(7))));
    let later = volume.promise_at_least(Epoch(3)).expect("promised");
    assert_eq!(later.promoting, Some(Timeline(7)));
    assert_eq!(volume.follow(Epoch(3)).expect("followed").promoting, None);
    assert_eq!(volume.promise().expect("readable").promoting, None);
    volume.record_promoting(Timeline(8)).expect("noted");
    let dropped = volume.drop_promoting().expect("dropped");
    assert_eq!((dropped.epoch, dropped.promoting), (Epoch(3), None));
    assert_eq!(volume.promise().expect("readable"), dropped);
}

proptest! {
    #[test]
    fn a_number_out_of_range_is_damage_and_never_nothing_promised(
        epoch in number(),
        promoting in prop::option::of(number()),
    ) {
        let scratch = Scratch::new();
        let volume = volume(&scratch);
        let timeline = promoting.as_ref().map_or_else(|| "null".to_owned(), String::clone);
        let content = format!(r#"{{"version": 1, "epoch": {epoch}, "promoting": {timeline}}}"#);
        fs::write(volume.promise_file(), &content).expect("written");
        let fits = |text: &str| text.parse().is_ok_and(|value: u64| value <= Epoch::MAX.0);
        match volume.promise() {
            Ok(promise) => {
                prop_assert_eq!(promise.epoch.0.to_string(), epoch);
                prop_assert_eq!(promise.promoting.map(|timeline| timeline.0.to_string()), promoting);
            }
            Err(refused) => {
                let refused = format!("{refused:#}");
                let wrong = if fits(&epoch) { "promoting" } else { "epoch" };
                prop_assert!(refused.contains(wrong), "{}: {}", content, refused);
                prop_assert!(!fits(&epoch) || promoting.is_some_and(|timeline| !fits(&timeline)));
                prop_assert!(volume.promise_at_least(Epoch(9)).is_err() && volume.follow(Epoch(9)).is_err());
                prop_assert_eq!(fs::read_to_string(volume.promise_file()).expect("there"), content, "it stays");
            }
        }
    }
}

/// A number as it may stand in a file.
fn number() -> impl Strategy<Value = String> {
    let ends = [
        "0",
        "1",
        "-1",
        "2147483647",
        "2147483648",
        "4294967295",
        "18446744073709551615",
        "18446744073709551616",
    ];
    prop_oneof![
        prop::sample::select(ends.map(str::to_owned).to_vec()),
        any::<i64>().prop_map(|number| number.to_string()),
    ]
}

#[test]
fn an_unreadable_store_is_not_an_absent_one() {
    let scratch = Scratch::new();
    let volume = volume(&scratch);
    volume.follow(Epoch(1)).expect("followed");
    for content in ["", "{", r#"{"version": 1}"#, r#"{"version": 2, "epoch": 1}"#] {
        fs::write(volume.promise_file(), content).expect("written");
        assert!(volume.promise().is_err(), "{content:?}");
        assert!(volume.follow(Epoch(9)).is_err(), "{content:?}: nothing is received");
        assert!(volume.promise_at_least(Epoch(9)).is_err(), "{content:?}");
    }
    fs::remove_file(volume.promise_file()).expect("removed");
    assert_eq!(volume.promise().expect("there is no data"), Promise::default());
    fs::create_dir(volume.pgdata()).expect("made");
    assert!(
        volume.promise().is_err() && volume.follow(Epoch(9)).is_err(),
        "it is gone"
    );
    let identity = fs::read_to_string(volume.member_file()).expect("an identity");
    let earlier = identity.replace(r#","promises":true"#, "");
    assert_ne!(earlier, identity);
    fs::write(volume.member_file(), earlier).expect("written");
    assert_eq!(volume.promise().expect("none was made"), Promise::default());
    fs::create_dir(volume.promise_file()).expect("made");
    assert!(volume.promise().is_err(), "what is no file is not absent");
}
