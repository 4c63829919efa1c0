use std::net::IpAddr;
use std::time::Duration;

use machine::protocol::MemberId;
use machine::quorum::SyncRule;

use super::*;
use crate::archive::Archiving;
use crate::postgres::Primary;
use crate::volume::WalRoom;

fn settings(parameters: &[(&str, &str)]) -> Settings {
    Settings {
        major: 17,
        cluster: "orders".into(),
        port: 5432,
        locale: "C.UTF-8".into(),
        parameters: parameters
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect(),
        wal: WalRoom {
            capacity: 10 << 30,
            left: 10 << 30,
        },
        suspicion: Duration::from_millis(1_500),
        archive: None,
    }
}

fn files() -> Files {
    Files {
        socket: "/run/socket".into(),
        tls: "/tls".into(),
        certificate: "/agent/replication.crt".into(),
        key: "/agent/it's.key".into(),
        credential: "/agent/it's.key.active".into(),
        system_user: "postgres".into(),
    }
}

fn primary(open: bool) -> Role {
    let names = [2, 1].map(|ordinal| MemberId::new(ordinal, "1a2b3c4d", 7));
    Role::Primary {
        rule: SyncRule::any(1, names),
        open,
    }
}

fn standby(enforced: EnforcedSettings) -> Role {
    let member = MemberId::new(1, "1a2b3c4d", 7);
    let primary = Primary {
        address: IpAddr::from([10, 0, 0, 2]),
        port: 5432,
        member,
    };
    Role::Standby {
        primary: Some(primary),
        enforced,
    }
}

fn line<'a>(config: &'a Config, name: &str) -> Option<&'a str> {
    config
        .postgresql_conf
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "))
}

#[test]
fn users_settings_are_quoted_and_ours_stand() {
    let config = Config::render(&settings(&[("work_mem", "4'MB\\")]), &files(), &primary(true)).expect("a config");
    assert_eq!(line(&config, "work_mem"), Some("'4''MB\\\\'"));
    assert_eq!(line(&config, "ssl"), Some("'on'"));
    assert_eq!(line(&config, "primary_conninfo"), Some("''"));
    assert_eq!(line(&config, "max_slot_wal_keep_size"), Some("'5120MB'"));
    assert_eq!(line(&config, "wal_keep_size"), Some("'512MB'"));
    assert_eq!(line(&config, "allow_alter_system"), Some("'off'"));
    assert!(!config.standby);
    assert!(
        config
            .postgresql_conf
            .lines()
            .skip(1)
            .all(|line| line.contains(" = '") && line.ends_with('\''))
    );
}

#[test]
fn slots_keep_no_more_than_half_of_what_is_left_beside_the_data() {
    let of = |name: &str, capacity: u64, left: u64| {
        let mut settings = settings(&[]);
        settings.wal = WalRoom { capacity, left };
        let config = Config::render(&settings, &files(), &primary(true)).expect("a config");
        line(&config, name).map(str::to_owned).expect("a line")
    };
    let keeps = |capacity, left| of("max_slot_wal_keep_size", capacity, left);
    let gib = 1 << 30;
    assert_eq!(keeps(64 * gib, 64 * gib), "'32768MB'");
    assert_eq!(keeps(64 * gib, 32 * gib), "'16384MB'", "the rest is data");
    assert_eq!(
        keeps(64 * gib, 32 * gib - 1),
        "'12288MB'",
        "by sixteenths of the volume"
    );
    assert_eq!(keeps(64 * gib, 26 * gib), "'12288MB'", "which change seldom");
    assert_eq!(
        keeps(64 * gib, gib),
        "'1024MB'",
        "never less than max_wal_size, which is there anyway"
    );
    assert_eq!(keeps(gib, 0), "'256MB'");
    assert_eq!(keeps(0, 0), "'96MB'");
    // What is kept without a slot is there anyway.
    assert_eq!(of("wal_keep_size", gib, 0), "'128MB'");
}

#[test]
fn what_the_api_server_should_have_refused_is_refused() {
    for (name, value) in [
        ("work_mem\nport", "1"),
        ("", "1"),
        ("a.b.c", "1"),
        ("include_dir", "/tmp"),
        ("Archive_Command", "true"),
        ("ssl_ciphers", "NULL"),
        ("work_mem", "1\nport = 1"),
    ] {
        assert!(
            Config::render(&settings(&[(name, value)]), &files(), &primary(true)).is_err(),
            "{name:?}"
        );
    }
}

#[test]
fn a_standby_never_has_less_than_its_control_file_demands() {
    let enforced = EnforcedSettings {
        max_connections: 300,
        max_wal_senders: 30,
        ..EnforcedSettings::default()
    };
    let parameters = [("max_connections", "50"), ("max_worker_processes", "4")];
    let config = Config::render(&settings(&parameters), &files(), &standby(enforced)).expect("a config");
    assert_eq!(line(&config, "max_connections"), Some("'300'"));
    assert_eq!(line(&config, "max_wal_senders"), Some("'30'"));
    assert_eq!(line(&config, "max_worker_processes"), Some("'4'"));
    assert_eq!(config.raised, Some(enforced));
    let config = Config::render(&settings(&parameters), &files(), &primary(true)).expect("a config");
    assert_eq!((line(&config, "max_connections"), config.raised), (Some("'50'"), None));
    let enough = EnforcedSettings {
        max_connections: 50,
        ..EnforcedSettings::default()
    };
    let config = Config::render(&settings(&parameters), &files(), &standby(enough)).expect("a config");
    assert_eq!(config.raised, None);
}

#[test]
fn sessions_are_kept_for_the_agent() {
    let reserved = |parameters: &[(&str, &str)]| {
        let config = Config::render(&settings(parameters), &files(), &primary(true)).expect("a config");
        line(&config, "superuser_reserved_connections").map(str::to_owned)
    };
    assert_eq!(reserved(&[]).as_deref(), Some("'8'"));
    assert_eq!(
        reserved(&[("max_connections", "10")]),
        None,
        "more than there would be left"
    );
    assert_eq!(
        reserved(&[("superuser_reserved_connections", "6")]).as_deref(),
        Some("'6'")
    );
}

#[test]
fn wal_is_never_less_than_a_server_starts_with() {
    let least = |value: &str| {
        let config = Config::render(&settings(&[("min_wal_size", value)]), &files(), &primary(true));
        line(&config.expect("a config"), "min_wal_size")
            .map(str::to_owned)
            .expect("a line")
    };
    for (value, expected) in [
        ("2", "'32MB'"),
        ("2MB", "'32MB'"),
        (" 31 MB", "'32MB'"),
        ("2048kB", "'32MB'"),
        ("0.01GB", "'32MB'"),
        ("32MB", "'32MB'"),
        ("80", "'80'"),
        ("1GB", "'1GB'"),
        ("1TB", "'1TB'"),
        ("many", "'many'"),
    ] {
        assert_eq!(least(value), expected, "{value}");
    }
}

#[test]
fn a_standby_follows_with_its_certificate_and_slot() {
    let config = Config::render(&settings(&[]), &files(), &standby(EnforcedSettings::default())).expect("a config");
    let upstream = line(&config, "primary_conninfo").expect("a primary");
    assert!(upstream.contains("hostaddr=''10.0.0.2''"), "{upstream}");
    assert!(upstream.contains("sslmode=''verify-ca''"), "{upstream}");
    assert!(upstream.contains(r"sslkey=''/agent/it\\''s.key.active''"), "{upstream}");
    assert_eq!(line(&config, "primary_slot_name"), Some("'cdb_1_1a2b3c4d_00000007'"));
    assert!(config.standby);
}

#[test]
fn commits_wait_for_the_names_of_the_rule() {
    let config = Config::render(&settings(&[]), &files(), &primary(true)).expect("a config");
    let expected = "ANY 1 (cdb_1_1a2b3c4d_00000007, cdb_2_1a2b3c4d_00000007)";
    assert_eq!(config.synchronous, expected);
    assert_eq!(
        line(&config, "synchronous_standby_names"),
        Some(format!("'{expected}'").as_str())
    );
    assert_eq!(line(&config, "wal_receiver_timeout"), Some("'1500ms'"));
    let alone = Role::Primary {
        rule: SyncRule::default(),
        open: true,
    };
    let config = Config::render(&settings(&[]), &files(), &alone).expect("a config");
    assert_eq!(config.synchronous, "");
    let config = Config::render(&settings(&[]), &files(), &standby(EnforcedSettings::default())).expect("a config");
    assert_eq!(config.synchronous, "ANY 1 (cdb_nobody)");
}

#[test]
fn a_closed_primary_lets_only_members_in() {
    let rules = |open| {
        let config = Config::render(&settings(&[]), &files(), &primary(open)).expect("a config");
        let lines = config.pg_hba_conf.lines().skip(1);
        lines
            .filter(|line| !line.ends_with("reject"))
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect::<Vec<_>>()
    };
    let members = [
        "local all postgres peer map=cdb",
        "local replication postgres peer map=cdb",
        "hostssl replication +cdb_members all cert",
        "hostssl postgres +cdb_members all cert",
    ];
    assert_eq!(rules(false), members);
    assert_eq!(
        rules(true).last().map(String::as_str),
        Some("hostssl all all all scram-sha-256")
    );
    assert_eq!(rules(true)[..4], members);
}

#[test]
fn superusers_and_members_are_told_apart() {
    let config = Config::render(&settings(&[]), &files(), &primary(true)).expect("a config");
    let rules: Vec<Vec<&str>> = config
        .pg_hba_conf
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect())
        .collect();
    let place = |rule: &[&str]| rules.iter().position(|found| found == rule).expect("the rule is there");
    let passwords = place(&["hostssl", "all", "all", "all", "scram-sha-256"]);
    assert!(place(&["host", "all", "postgres", "all", "reject"]) < passwords);
    let certificates = place(&["hostssl", "all", "+cdb_certificates", "all", "cert"]);
    assert!(place(&["host", "all", "+cdb_members", "all", "reject"]) < certificates);
    let without_tls = place(&["host", "all", "+cdb_certificates", "all", "reject"]);
    assert!(certificates < without_tls && without_tls < passwords);
    assert_eq!(rules.last().and_then(|rule| rule.last()), Some(&"reject"));
    assert!(config.pg_ident_conf.contains("cdb \"postgres\" postgres"));
}

#[test]
fn wal_is_archived_on_every_member_alike() {
    let plain = Config::render(&settings(&[]), &files(), &primary(true)).expect("a configuration");
    assert_eq!(line(&plain, "archive_mode"), Some("'off'"));
    let archiving = |parameters| Settings {
        archive: Some(Archiving {
            program: "/cdb/agent".into(),
            socket: "/cdb/50%".into(),
            access: "/cdb/store".into(),
            volume: "/cdb/backups".into(),
        }),
        ..settings(parameters)
    };
    for role in [primary(true), standby(EnforcedSettings::default())] {
        let config = Config::render(&archiving(&[]), &files(), &role).expect("a configuration");
        assert_eq!(line(&config, "archive_mode"), Some("'always'"));
        let command = Some("'''/cdb/agent'' archive ''/cdb/50%%'' %f'");
        assert_eq!(line(&config, "archive_command"), command);
        assert_eq!(line(&config, "archive_timeout"), Some("'60s'"));
    }
    let own = Config::render(&archiving(&[("archive_timeout", "5s")]), &files(), &primary(true)).expect("it");
    assert_eq!(line(&own, "archive_timeout"), Some("'5s'"));
}
