use super::*;

const STANDBY: &str = r#"{"inRecovery": true, "systemId": "7444", "version": "17.6 (Debian 17.6-1)",
        "written": null, "writtenTimeline": null, "inserted": null, "history": null, "oldest": null, "segment": 16777216, "fileTimeline": null,
        "replayedAll": false, "waitsForWal": true, "following": {"conninfo": "", "slot": ""}, "received": "0/5000000", "replayed": "0/50000A0",
        "recoveredTimeline": 2, "receiver": {"status": "streaming", "senderHost": "10.0.0.2",
        "slot": "cdb_1_a_b", "flushed": "0/5000000", "timeline": 3,
        "heardAge": 1200}, "senders": [], "slots": [],
        "pendingRestart": ["max_connections"], "lowersLimits": true, "sessions": 4}"#;

#[test]
fn the_position_of_a_standby_is_the_larger_one() {
    let status = parse(STANDBY).expect("readable");
    assert_eq!(
        status.position,
        Position {
            timeline: Timeline(3),
            lsn: Lsn(0x500_00A0)
        }
    );
    assert_eq!(status.version, "17.6");
    assert!(status.lowers_limits);
    assert_eq!(status.heard_age(), Some(Duration::from_millis(1_200)));
}

#[test]
fn without_a_receiver_the_segments_tell_the_timeline() {
    let text = STANDBY.replace(r#""fileTimeline": null"#, r#""fileTimeline": "0000000A""#);
    let status = parse(&text).expect("readable");
    assert_eq!(status.position.timeline, Timeline(10));
    assert!(parse(&text.replace("0000000A", "x")).is_err());
}

#[test]
fn what_was_received_ends_where_it_does_whether_replayed_or_not() {
    let ended = |text: String| parse(&text).expect("readable").received_all;
    assert!(!ended(STANDBY.to_owned()), "more may come");
    let (begin, rest) = STANDBY.split_once(r#""receiver": {"#).expect("a receiver");
    let (_, rest) = rest.split_once('}').expect("its end");
    let alone = format!(r#"{begin}"receiver": null{rest}"#);
    assert!(ended(alone.clone()));
    let never = alone.replace(r#""received": "0/5000000""#, r#""received": null"#);
    assert!(!ended(never.clone()), "there may be local WAL that nobody has read yet");
    assert!(ended(
        never.replace(r#""replayedAll": false"#, r#""replayedAll": true"#)
    ));
}

#[test]
fn a_timeline_begins_where_its_own_history_says() {
    let alone = STANDBY.split_once(r#""receiver": {"#).expect("a receiver");
    let (_, rest) = alone.1.split_once('}').expect("its end");
    let begins = |timeline: &str, history: &str| {
        let text = format!(r#"{}"receiver": null{rest}"#, alone.0);
        let text = text.replace(
            r#""recoveredTimeline": 2"#,
            &format!(r#""recoveredTimeline": {timeline}"#),
        );
        let text = text.replace(r#""history": null"#, &format!(r#""history": {history}"#));
        parse(&text).expect("readable").begins
    };
    let history = r#""1\t0/3000060\tno recovery target\n2\t0/4000060\tno recovery target\n""#;
    assert_eq!(begins("3", history), Some(Lsn(0x400_0060)));
    assert_eq!(begins("3", "null"), None, "its history file is gone");
    assert_eq!(begins("1", "null"), Some(Lsn(0)));
    assert_eq!(parse(STANDBY).expect("readable").begins, None, "it receives");
}

#[test]
fn the_oldest_wal_begins_with_its_segment() {
    let of = |name: &str| {
        parse(&STANDBY.replace(r#""oldest": null"#, &format!(r#""oldest": "{name}""#))).map(|status| status.oldest)
    };
    assert_eq!(of("0000000200000003"), Ok(Some(Lsn(0x2_0300_0000))));
    assert!(of("0000000x00000003").is_err() && of("02").is_err());
}

#[test]
fn only_members_that_stream_under_their_own_name_count() {
    let sender = |user: &str, application: &str, state: &str| {
        let flushed = if state == "startup" { "null" } else { r#""0/5""# };
        format!(
            r#"{{"user": "{user}", "application": "{application}", "pid": 1, "state": "{state}", "sent": "0/5",
                "flushed": {flushed}, "replayed": "0/4", "reported": null}}"#
        )
    };
    let senders = [
        sender("cdb_1_a_b", "cdb_1_a_b", "streaming"),
        sender("cdb_2_a_b", "cdb_2_a_b", "catchup"),
        sender("cdb_3_a_b", "cdb_3_a_b", "startup"),
        sender("cdb_4_a_b", "clone-cdb_4_a_b", "streaming"),
        sender("cdb_5_a_b", "cdb_6_a_b", "streaming"),
        sender("cdb_7_a_b", "walreceiver", "streaming"),
        sender("backup", "cdb_8_a_b", "streaming"),
        sender("app", "app", "streaming"),
    ];
    let text = STANDBY.replace(r#""senders": []"#, &format!(r#""senders": [{}]"#, senders.join(",")));
    let status = parse(&text).expect("readable");
    let [first, second, third] =
        ["cdb_1_a_b", "cdb_2_a_b", "cdb_3_a_b"].map(|name| MemberId::parse(name).expect("a member"));
    assert_eq!(status.standbys(), BTreeMap::from([(first.clone(), Lsn(5))]));
    let receiving = BTreeMap::from([(first, Lsn(5)), (second, Lsn(5)), (third, Lsn(0))]);
    assert_eq!(
        machine::instance::receiving(&status.wal_senders()),
        receiving,
        "the third has not said yet what it has"
    );
}

#[test]
fn what_is_not_understood_is_an_error() {
    assert!(parse("{}").is_err());
    assert!(parse(&STANDBY.replace("0/5000000", "somewhere")).is_err());
}
