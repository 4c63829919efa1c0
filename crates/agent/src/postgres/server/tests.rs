use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;

use super::*;
use crate::volume::tests::Scratch;

#[test]
fn settings_are_accepted_already_whoever_is_followed() {
    let scratch = Scratch::new();
    let config = |text: &str| Config {
        postgresql_conf: text.to_owned(),
        pg_hba_conf: String::new(),
        pg_ident_conf: String::new(),
        standby: true,
        following: crate::postgres::Following::default(),
        synchronous: String::new(),
        raised: None,
    };
    let known = config("port = '5432'\nprimary_conninfo = 'a'\nprimary_slot_name = 'b'\n");
    assert!(!known.was_accepted(&scratch.0), "nothing is written");
    fs::create_dir_all(&scratch.0).expect("made");
    known.write(&scratch.0).expect("written");
    let nobody = config("port = '5432'\nprimary_conninfo = ''\nprimary_slot_name = ''\n");
    assert!(known.was_accepted(&scratch.0) && nobody.was_accepted(&scratch.0));
    for other in ["port = '5433'\n", "port = '5432'\nwork_mem = '1GB'\n", ""] {
        assert!(!config(other).was_accepted(&scratch.0), "{other:?}");
    }
}

#[test]
fn only_files_that_differ_are_replaced() {
    let scratch = Scratch::new();
    let pgdata = scratch.0.join("data");
    let mut config = Config {
        postgresql_conf: "port = '5432'\n".to_owned(),
        pg_hba_conf: "closed\n".to_owned(),
        pg_ident_conf: "users\n".to_owned(),
        standby: false,
        following: crate::postgres::Following::default(),
        synchronous: String::new(),
        raised: None,
    };
    fs::write(pgdata.join("postgresql.auto.conf"), "work_mem = '1GB'\n").expect("written");
    config.write(&pgdata).expect("written");
    let file = |name: &str| fs::metadata(pgdata.join(name)).expect("a file").ino();
    let names = [
        "postgresql.conf",
        "pg_ident.conf",
        "postgresql.auto.conf",
        "pg_hba.conf",
    ];
    let before = names.map(file);
    config.pg_hba_conf = "open\n".to_owned();
    config.write(&pgdata).expect("written");
    let after = names.map(file);
    assert_eq!(before[..3], after[..3]);
    assert_ne!(before[3], after[3]);
    let read = |name: &str| fs::read_to_string(pgdata.join(name)).expect("readable");
    assert_eq!(read("pg_hba.conf"), "open\n");
    assert!(
        read("postgresql.auto.conf").starts_with('#'),
        "no setting stands above ours"
    );
    assert!(!pgdata.join("pg_hba.conf.new").exists());
}

#[test]
fn only_postgresqls_judgement_refuses_settings() {
    let failed = |status, message: &str| {
        let failed = ProcessError::Failed {
            program: "postgres".to_owned(),
            status: ExitStatus::from_raw(status),
            message: message.to_owned(),
        };
        refusal(Err(failed))
    };
    let exited = |code| code << 8;
    assert_eq!(failed(exited(1), "bad").expect("a judgement").as_deref(), Some("bad"));
    assert!(failed(exited(1), " ").is_err());
    assert!(failed(exited(2), "bad").is_err());
    let killed = 9;
    assert!(failed(killed, "bad").is_err());
    let slow = ProcessError::TooSlow {
        program: "postgres".to_owned(),
        seconds: 1,
    };
    assert!(refusal(Err(slow)).is_err());
}

#[test]
fn a_wal_sender_is_known_by_its_title() {
    let of = |title| sends_to(title);
    assert_eq!(
        of("postgres: orders: walsender cdb_1_a_b 10.0.0.3(4711) streaming 0/3000060\0\0"),
        Some("cdb_1_a_b")
    );
    assert_eq!(of("postgres: orders: walsender cdb_1_a_b\0\0"), Some("cdb_1_a_b"));
    assert_eq!(
        of("postgres: walsender: checkpointer performing shutdown checkpoint"),
        None
    );
    assert_eq!(of("postgres: orders: app walsender 10.0.0.9(4711) idle"), None);
}

#[test]
fn only_postgresqls_messages_are_quoted() {
    let stderr = "2026-11-21 08:00:00.000 UTC [42] LOG:  invalid value for parameter \"work_mem\": \"abc\"\n\
            2026-11-21 08:00:00.000 UTC [42] FATAL:  configuration file \"/d/postgresql.conf.candidate\" contains errors\n";
    assert_eq!(messages(stderr), "invalid value for parameter \"work_mem\": \"abc\"");
    assert_eq!(messages("postgres: broken"), "postgres: broken");
}
