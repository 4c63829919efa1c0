//! Names in both directions.

use super::*;

const FOLDER: &str = "default/orders-0b1e2f3a";

fn segment(text: &str) -> Segment {
    text.parse().expect("a segment")
}

fn backup() -> BackupName {
    "20261124T230501Z-F-7f3a".parse().expect("a backup")
}

fn examples() -> Vec<(Object, &'static str)> {
    let line = |object| Object::Line(1, object);
    let file = |file| Object::Line(1, LineObject::Backup(backup(), file));
    let part = |tablespace, number| BackupFile::Part { tablespace, number };
    let conflict = LineObject::Conflict {
        segment: segment("00000002000000450000003A"),
        sha12: "0123456789ab".to_owned(),
        pod_uid: "6f0e-11".to_owned(),
    };
    vec![
        (Object::Cluster, "cluster.json"),
        (Object::Probe("00ff-1".to_owned()), "probe/00ff-1"),
        (line(LineObject::Line), "lines/1/line.json"),
        (
            Object::Line(4_294_967_295, LineObject::Line),
            "lines/4294967295/line.json",
        ),
        (
            line(LineObject::Segment(segment("00000002000000450000003A"))),
            "lines/1/wal/0000000200000045/00000002000000450000003A.zst",
        ),
        (line(LineObject::History(3)), "lines/1/wal/00000003.history"),
        (line(LineObject::History(0xAB)), "lines/1/wal/000000AB.history"),
        (
            line(LineObject::Partial(segment("00000002000000450000003A"))),
            "lines/1/wal/partial/00000002000000450000003A.partial.zst",
        ),
        (
            line(conflict),
            "lines/1/wal/conflicts/00000002000000450000003A.0123456789ab.6f0e-11.zst",
        ),
        (
            file(part(None, 1)),
            "lines/1/backups/20261124T230501Z-F-7f3a/pgdata-0001.tar.zst",
        ),
        (
            file(part(Some(16_400), 12_345)),
            "lines/1/backups/20261124T230501Z-F-7f3a/ts16400-12345.tar.zst",
        ),
        (
            file(BackupFile::Manifest),
            "lines/1/backups/20261124T230501Z-F-7f3a/manifest.json.zst",
        ),
        (
            file(BackupFile::Label),
            "lines/1/backups/20261124T230501Z-F-7f3a/backup_label",
        ),
        (
            file(BackupFile::TablespaceMap),
            "lines/1/backups/20261124T230501Z-F-7f3a/tablespace_map",
        ),
        (
            file(BackupFile::Parts),
            "lines/1/backups/20261124T230501Z-F-7f3a/parts.json.zst",
        ),
        (
            file(BackupFile::Begun),
            "lines/1/backups/20261124T230501Z-F-7f3a/begun.json",
        ),
        (
            file(BackupFile::Commit),
            "lines/1/backups/20261124T230501Z-F-7f3a/backup.json",
        ),
        (
            file(BackupFile::Deleted),
            "lines/1/backups/20261124T230501Z-F-7f3a/deleted.json",
        ),
        (
            line(LineObject::Check(backup(), "20261125T000000Z".parse().expect("a time"))),
            "lines/1/checks/20261124T230501Z-F-7f3a/20261125T000000Z.json",
        ),
    ]
}

#[test]
fn names_are_written_and_read() {
    let folder = ClusterFolder::new("default", "orders", "0b1e2f3a-4444-5555-6666-777788889999").expect("a folder");
    assert_eq!(folder.to_string(), FOLDER);
    for (object, text) in examples() {
        let name = folder.name(object);
        assert_eq!(name.to_string(), format!("{FOLDER}/{text}"));
        assert_eq!(name.to_string().parse(), Ok(name));
    }
}

#[test]
fn only_what_holds_data_may_be_encrypted() {
    let folder: ClusterFolder = FOLDER.parse().expect("a folder");
    for (object, text) in examples() {
        let readable = ["json", "history", "00ff-1"].iter().any(|end| text.ends_with(end));
        let name = Name {
            is_encrypted: true,
            ..folder.name(object)
        };
        let text = encrypted(&format!("{FOLDER}/{text}"));
        assert_eq!(name.to_string(), text);
        assert_eq!(plain(&text), name.to_string().trim_end_matches(".age"));
        assert_eq!(text.parse::<Name>().ok(), (!readable).then_some(name));
    }
}

#[test]
fn other_names_are_refused() {
    for text in [
        "",
        "cluster.jso",
        "probe/",
        "probe/a/b",
        "lines",
        "lines/1",
        "lines/01/line.json",
        "lines/+1/line.json",
        "lines/4294967296/line.json",
        "lines/1/wal/00000002.histor",
        "lines/1/wal/2.history",
        "lines/1/wal/000000ab.history",
        "lines/1/wal/00000002000000450000003A.zst",
        "lines/1/wal/0000000200000046/00000002000000450000003A.zst",
        "lines/1/wal/0000000200000045/00000002000000450000003A",
        "lines/1/wal/0000000200000045/00000002000000450000003a.zst",
        "lines/1/wal/0000000200000045/00000002000000450000003A.zst/x",
        "lines/1/wal/partial/00000002000000450000003A.zst",
        "lines/1/wal/conflicts/00000002000000450000003A.0123456789ab.zst",
        "lines/1/wal/conflicts/00000002000000450000003A.0123456789AB.pod.zst",
        "lines/1/backups/20261124T230501Z-X-7f3a/backup.json",
        "lines/1/backups/20261124230501Z-F-7f3a/backup.json",
        "lines/1/backups/20261124T230501Z-F-7f3a/other.json",
        "lines/1/backups/20261124T230501Z-F-7f3a/pgdata-1.tar.zst",
        "lines/1/backups/20261124T230501Z-F-7f3a/pgdata-00001.tar.zst",
        "lines/1/backups/20261124T230501Z-F-7f3a/pgdata-0000.tar.zst",
        "lines/1/backups/20261124T230501Z-F-7f3a/ts-0001.tar.zst",
        "lines/1/checks/20261124T230501Z-F-7f3a/now.json",
    ] {
        format!("{FOLDER}/{text}").parse::<Name>().expect_err(text);
    }
    for text in [
        "orders/cluster.json",
        "default/orders/cluster.json",
        "a/b-0123456g/cluster.json",
    ] {
        text.parse::<Name>().expect_err(text);
    }
}

#[test]
fn a_folder_has_only_kubernetes_names() {
    let uid = "0b1e2f3a-4444-5555-6666-777788889999";
    for (namespace, cluster, uid) in [
        ("a/b", "orders", uid),
        ("..", "orders", uid),
        ("default", "or/ders", uid),
        ("default", "", uid),
        ("default", "-orders", uid),
        ("default", "orders", "0b1e"),
        ("default", "orders", "0B1E2F3A"),
    ] {
        ClusterFolder::new(namespace, cluster, uid).expect_err(cluster);
    }
}

#[test]
fn parts_of_names_are_read() {
    let segment = segment("0000000A000000450000003A");
    assert_eq!((segment.timeline(), segment.folder()), (10, "0000000A00000045"));
    assert_eq!(
        (backup().is_differential(), backup().time().to_string().as_str()),
        (false, "20261124T230501Z")
    );
    let differential: BackupName = "20261124T230501Z-D-7f3a".parse().expect("a backup");
    assert!(differential.is_differential());
}
