//! Base backups on our S3 server and on a volume.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use backup::base::{
    About, Attempt, BackupInfo, BaseError, Begun, Origin, Part, Role, Source, Writer, Written, backups, begin,
    catalogue, check_key, is_discarded, missing, outline, remove, unpack, wal, wal_before,
};
use backup::layout::{BackupName, ClusterFolder, Segment};
use backup::segment::{self, Header, encode};
use backup::{Access, Compare, Created, Fence, Identities, Place, Problem, Recipients, Remover, Store, Volume};
use bytes::Bytes;
use chrono::{TimeZone, Utc};
use sha2::{Digest, Sha224, Sha256, Sha384, Sha512};
use test_store::{Effect, Fault};

use support::azurite::Azurite;
use support::gcs::FakeGcs;
use support::{Directory, LIMIT, Server};

const LABEL: &str =
    "START WAL LOCATION: 0/2000028 (file 000000010000000000000002)\nSTART TIME: 2026-11-26 18:30:00 UTC\n";
/// Small, so that a test has some.
const PART_SIZE: u64 = 4 << 20;

fn folder() -> ClusterFolder {
    "default/orders-0b1e2f3a".parse().expect("a folder")
}

fn name() -> BackupName {
    "20261126T183000Z-F-7f3a".parse().expect("a name")
}

fn about() -> About {
    About {
        uid: "0b1e".to_owned(),
        system_id: "7444444444444444444".to_owned(),
        server_version: 150_014,
        wal_segment_size: 16 << 20,
        start_time: Utc.with_ymd_and_hms(2026, 11, 26, 18, 0, 0).single().expect("a time"),
        stop_time: Utc.with_ymd_and_hms(2026, 11, 26, 18, 31, 0).single().expect("a time"),
        source: Some(Origin {
            member: "orders-2".to_owned(),
            role: Role::Standby,
        }),
        damaged_pages: false,
    }
}

/// Something between text and noise.
fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..length)
        .map(|at| if at % 4 == 0 { random.u8(..) } else { (at / 64) as u8 })
        .collect()
}

/// A directory like PostgreSQL's.
fn make_tree() -> Directory {
    let directory = Directory::new();
    let root = directory.path();
    let write = |path: &str, content: &[u8]| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, content).expect("written");
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("permissions");
    };
    write("backup_label", LABEL.as_bytes());
    write("PG_VERSION", b"15\n");
    for number in 0..40 {
        let length = [0, 1, 511, 512, 513, 8 << 10, 300_000, 1 << 20][number as usize % 8];
        write(&format!("base/{}/{number}", number / 20), &content(number, length));
    }
    write("base/1/large", &content(99, 9 << 20));
    let long = "long_".repeat(30);
    write(&format!("{long}/{long}"), b"a long name");
    for folder in ["pg_wal/archive_status", "pg_tblspc"] {
        fs::create_dir_all(root.join(folder)).expect("a folder");
    }
    std::os::unix::fs::symlink("base/1", root.join("link")).expect("a link");
    for path in paths(root)
        .into_iter()
        .filter(|path| path.is_dir() && !path.is_symlink())
    {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).expect("permissions");
    }
    directory
}

/// What PostgreSQL would send of a directory.
fn sent(tree: &Path) -> Sent {
    sent_with(tree, &manifest_of(tree))
}

fn sent_with(tree: &Path, manifest: &str) -> Sent {
    let mut tar = tar::Builder::new(Vec::new());
    tar.follow_symlinks(false);
    for path in paths(tree) {
        let name = path.strip_prefix(tree).expect("a path");
        tar.append_path_with_name(&path, name).expect("a member");
    }
    Sent {
        tar: tar.into_inner().expect("a tar").into(),
        manifest: manifest.to_owned().into(),
        failure: None,
        number: 0,
    }
}

/// What is to be sent yet. It comes in pieces of any size.
#[derive(Clone)]
struct Sent {
    tar: Bytes,
    manifest: Bytes,
    /// What PostgreSQL says at the end.
    failure: Option<&'static str>,
    number: usize,
}

impl Sent {
    fn size(&mut self) -> usize {
        self.number += 1;
        [1, 512, 700, 32 << 10, 32 << 10, 32 << 10][self.number % 6]
    }
}

impl Source for Sent {
    async fn tar(&mut self) -> io::Result<Option<Bytes>> {
        let size = self.size().min(self.tar.len());
        Ok((size > 0).then(|| self.tar.split_to(size)))
    }

    async fn manifest(&mut self) -> io::Result<Option<Bytes>> {
        let size = self.size().min(self.manifest.len());
        match self.failure.filter(|_| size == 0) {
            Some(failure) => Err(io::Error::other(failure)),
            None => Ok((size > 0).then(|| self.manifest.split_to(size))),
        }
    }
}

/// The manifest that PostgreSQL would write, with checksums of all kinds by turns.
fn manifest_of(tree: &Path) -> String {
    let files = paths(tree)
        .into_iter()
        .filter(|path| !path.is_symlink() && path.is_file());
    let line = |(number, path): (usize, PathBuf)| {
        let content = fs::read(&path).expect("a file");
        let crc = || crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &content);
        let (algorithm, checksum) = match number % 5 {
            0 => ("CRC32C", hex(&(crc() as u32).to_le_bytes())),
            1 => ("SHA224", hex(&Sha224::digest(&content))),
            2 => ("SHA256", hex(&Sha256::digest(&content))),
            3 => ("SHA384", hex(&Sha384::digest(&content))),
            _ => ("SHA512", hex(&Sha512::digest(&content))),
        };
        let path = path.strip_prefix(tree).expect("a path").display();
        format!(
            r#"{{ "Path": "{path}", "Size": {}, "Checksum-Algorithm": "{algorithm}", "Checksum": "{checksum}" }}"#,
            content.len()
        )
    };
    let lines: Vec<String> = files.enumerate().map(line).collect();
    let text = format!(
        r#"{{ "PostgreSQL-Backup-Manifest-Version": 1,
"Files": [
{}
],
"WAL-Ranges": [
{{ "Timeline": 1, "Start-LSN": "0/2000028", "End-LSN": "0/3000100" }}
],
"#,
        lines.join(",\n")
    );
    let checksum = hex(&Sha256::digest(&text));
    format!("{text}\"Manifest-Checksum\": \"{checksum}\"}}\n")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// All paths in a directory, folders first.
fn paths(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut entries: Vec<PathBuf> = fs::read_dir(root)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    entries.sort();
    for path in entries {
        found.push(path.clone());
        if path.is_dir() && !path.is_symlink() {
            found.extend(paths(&path));
        }
    }
    found
}

/// Permissions and content of each path.
fn look(root: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let look = |path: PathBuf| {
        let found = fs::symlink_metadata(&path).expect("a path");
        let content = match (found.is_dir(), found.is_symlink()) {
            (true, _) => b"/".to_vec(),
            (_, true) => fs::read_link(&path)
                .expect("a link")
                .into_os_string()
                .into_encoded_bytes(),
            _ => fs::read(&path).expect("a file"),
        };
        let mode = found.permissions().mode() & 0o777;
        (path.strip_prefix(root).expect("a path").to_owned(), (mode, content))
    };
    paths(root).into_iter().map(look).collect()
}

fn writer(store: &Store) -> Writer {
    Writer::new(store.clone(), folder(), 1, name(), PART_SIZE).with_limit(LIMIT)
}

async fn write(store: &Store, mut sent: Sent) -> Written {
    let length = sent.tar.len() as u64;
    let last = std::sync::atomic::AtomicU64::new(0);
    let written = writer(store).write(&mut sent, |bytes| {
        let before = last.swap(bytes, std::sync::atomic::Ordering::Relaxed);
        assert!(before <= bytes);
    });
    let written = written.await.expect("written");
    let last = last.into_inner();
    assert!((length - 1024..=length).contains(&last), "{last}");
    written
}

async fn restore(store: &Store, info: &BackupInfo) -> Result<Directory, BaseError> {
    let directory = Directory::new();
    unpack(store, &folder(), 1, info, None, directory.path(), |_| {}).await?;
    Ok(directory)
}

const PUBLIC: [&str; 2] = [
    "age1tajya78yex7e54lmyq5z89vw4n29epr96nj3f7z3upjpahujeaescwdf4s",
    "age1jfc4ktc5pglw70ltux4ukk7urhytp6faalcjjncmel3c5655sccqrc8c85",
];
const PRIVATE: [&str; 2] = [
    "AGE-SECRET-KEY-1T299XPA2EYKG75LP4LU6YCRSXFQJHXCF75RDF60Z004VYJZCE4LQY8K4SD",
    "AGE-SECRET-KEY-195F9EVJCKRA32L9WFG45A99SPMGPRAH77N4DSLTR7FSQ846774SSXVLLHJ",
];

fn recipients(texts: &[&str]) -> Option<Recipients> {
    let texts: Vec<String> = texts.iter().map(ToString::to_string).collect();
    Recipients::parse(&texts).expect("public keys")
}

fn identities(text: &str) -> Arc<Identities> {
    Arc::new(Identities::parse(text, "key").expect("private keys"))
}

async fn listed(store: &Store) -> Vec<BackupInfo> {
    backups(store, &folder(), 1, LIMIT).await.expect("a list")
}

async fn start() -> (Server, Store) {
    let server = Server::start(false).await;
    let store = server.open().with_fence(Fence::Enforced);
    (server, store)
}

fn object(name: &str) -> String {
    format!("default/orders-0b1e2f3a/lines/1/backups/20261126T183000Z-F-7f3a/{name}")
}

async fn keeps_a_tree(store: &Store) {
    let tree = make_tree();
    let written = write(store, sent(tree.path())).await;
    assert_eq!(listed(store).await, [], "it is not committed");
    let info = written.commit(about()).await.expect("committed");
    assert_eq!(listed(store).await, std::slice::from_ref(&info));
    assert!(info.parts.len() > 3, "{info:?}");
    assert_eq!(
        (info.timeline, info.start_lsn, info.stop_lsn),
        (1, 0x200_0028, 0x300_0100)
    );
    assert_eq!(info.start_time.to_rfc3339(), "2026-11-26T18:30:00+00:00");
    let restored = restore(store, &info).await.expect("restored");
    let mut found = look(restored.path());
    let manifest = found.remove(Path::new("backup_manifest")).expect("a manifest");
    assert_eq!(manifest, (0o600, manifest_of(tree.path()).into_bytes()));
    assert!(found == look(tree.path()), "the trees are the same");
}

#[tokio::test]
async fn a_tree_is_written_and_unpacked() {
    let (server, store) = start().await;
    keeps_a_tree(&store).await;
    each_part_is_a_tar(&server, &listed(&store).await[0]);
}

#[tokio::test]
async fn a_tree_is_written_to_a_volume_and_unpacked() {
    let directory = Directory::new();
    let place = Place::Volume(Volume {
        directory: directory.path().to_owned(),
    });
    let store = Store::open(&place, &Access::default()).expect("a store");
    keeps_a_tree(&store.with_fence(Fence::Enforced)).await;
}

#[tokio::test]
async fn a_tree_is_written_to_azure_and_unpacked() {
    let azurite = tokio::task::spawn_blocking(Azurite::start).await.expect("Azurite");
    azurite.make_container(support::BUCKET);
    let store = Store::open(&azurite.place(support::BUCKET), &Azurite::access()).expect("a store");
    keeps_a_tree(&store.with_fence(Fence::Enforced)).await;
}

#[tokio::test]
async fn a_tree_is_written_to_google_and_unpacked() {
    let gcs = FakeGcs::start().await;
    gcs.make_bucket(support::BUCKET);
    let store = Store::open(&gcs.place(support::BUCKET), &FakeGcs::access()).expect("a store");
    keeps_a_tree(&store.with_fence(Fence::Enforced)).await;
}

#[tokio::test]
async fn an_encrypted_backup_is_opened_by_any_of_its_keys() {
    let (server, store) = start().await;
    let tree = make_tree();
    let writer = writer(&store).with_recipients(recipients(&PUBLIC[..1]));
    let written = writer.write(&mut sent(tree.path()), |_| {}).await.expect("written");
    let info = written.commit(about()).await.expect("committed");
    assert_eq!(listed(&store).await, std::slice::from_ref(&info));
    assert_eq!(info.recipients, PUBLIC[..1]);
    assert!(info.parts.len() > 3, "{info:?}");
    for name in left(&server) {
        let content = fs::read(server.file(&object(&name))).expect("a file");
        let is_encrypted = content.starts_with(b"age-encryption.org/v1\n");
        assert_eq!(
            (is_encrypted, name.ends_with(".age")),
            (name != "backup.json", is_encrypted),
            "{name}"
        );
    }

    let (right, wrong) = (identities(&PRIVATE.join("\n")), identities(PRIVATE[1]));
    let check = async |keys: Option<&Arc<Identities>>| {
        check_key(&store, &folder(), 1, &info, keys.map(AsRef::as_ref), LIMIT).await
    };
    assert_eq!(check(Some(&right)).await, Ok(()));
    let words = check(Some(&wrong)).await.expect_err("another key").to_string();
    assert_eq!(
        words,
        format!(
            "backup {}, which is encrypted to {}, cannot be opened: none of the 1 identities in Secret key opens it",
            name(),
            PUBLIC[0]
        )
    );
    assert!(matches!(check(None).await, Err(Problem::Key(_))));
    let into = Directory::new();
    let unpacked = unpack(&store, &folder(), 1, &info, Some(&right), into.path(), |_| {}).await;
    unpacked.expect("restored");
    let mut found = look(into.path());
    found.remove(Path::new("backup_manifest")).expect("a manifest");
    assert!(found == look(tree.path()), "the trees are the same");
    for keys in [None, Some(&wrong)] {
        let into = Directory::new();
        let unpacked = unpack(&store, &folder(), 1, &info, keys, into.path(), |_| {}).await;
        assert!(matches!(unpacked, Err(BaseError::Unpack { .. })), "{unpacked:?}");
    }
}

/// Two primaries encrypt the same segment: what they store differs in each byte.
async fn keeps_one_of_two_encryptions(store: &Store) {
    let origin = segment::Origin {
        system_id: "7".to_owned(),
        timeline: 1,
        segment: "000000010000000000000002".to_owned(),
        epoch: 1,
        pod_uid: "a".to_owned(),
    };
    let create = async |raw: &[u8]| {
        let header = Header::new(origin.clone(), raw);
        let object = encode(&header, raw, 1, recipients(&PUBLIC).as_ref()).expect("encoded");
        let same = |stored: &[u8]| header.is_same_as_stored(stored);
        let name = "default/orders-0b1e2f3a/lines/1/wal/0000000100000000/000000010000000000000002.zst.age";
        store.create(name, object.into(), Compare::Header(&same), LIMIT).await
    };
    let raw = content(1, 1 << 20);
    assert_eq!(create(&raw).await, Ok(Created::New));
    assert_eq!(create(&raw).await, Ok(Created::Same));
    assert!(matches!(create(&raw[1..]).await, Err(Problem::Conflict(_))));
    let list = wal(store, &folder(), 1, LIMIT).await.expect("a list");
    assert_eq!((list.segments.len(), list.has_encrypted), (1, true));
}

#[tokio::test]
async fn an_encrypted_segment_is_compared_without_a_key() {
    let (_server, store) = start().await;
    keeps_one_of_two_encryptions(&store).await;
    let directory = Directory::new();
    let place = Place::Volume(Volume {
        directory: directory.path().to_owned(),
    });
    let store = Store::open(&place, &Access::default()).expect("a store");
    for fence in [Fence::Enforced, Fence::BestEffort] {
        let _ = fs::remove_dir_all(directory.path().join("default"));
        keeps_one_of_two_encryptions(&store.clone().with_fence(fence)).await;
    }
}

/// By other programs than ours, as when it is restored by hand.
fn each_part_is_a_tar(server: &Server, info: &BackupInfo) {
    let mut names = Vec::new();
    for part in &info.parts {
        let file = fs::File::open(server.file(&object(&part.name))).expect("a file");
        assert_eq!(file.metadata().expect("a file").len(), part.stored_bytes);
        let raw = zstd::stream::decode_all(file).expect("zstd");
        assert_eq!(raw.len() as u64, part.raw_bytes);
        assert!(raw.ends_with(&[0; 1024]), "it is complete");
        let mut tar = tar::Archive::new(&raw[..]);
        let found: Vec<PathBuf> = tar
            .entries()
            .expect("entries")
            .map(|entry| entry.expect("an entry").path().expect("a path").into_owned())
            .collect();
        assert!(found.len() == 1 || part.raw_bytes <= PART_SIZE + 1024, "{part:?}");
        names.extend(found);
    }
    assert!(!names.contains(&PathBuf::from("backup_manifest")));
    assert!(names.contains(&PathBuf::from("backup_label")));
    let label = fs::read(server.file(&object("backup_label"))).expect("a label");
    assert_eq!(label, LABEL.as_bytes());
}

#[tokio::test]
async fn a_large_part_is_sent_in_pieces_that_are_repeated() {
    let (server, store) = start().await;
    let mut random = fastrand::Rng::with_seed(7);
    let directory = make_tree();
    let noise: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(30 << 20).collect();
    fs::write(directory.path().join("noise"), &noise).expect("written");
    server
        .store
        .inject(Fault::refuse(503, "SlowDown").method("PUT").times(2));
    server
        .store
        .inject(Fault::new(Effect::LoseReply).method("PUT").times(1));
    server
        .store
        .inject(Fault::new(Effect::LoseReply).method("POST").times(1));
    let written = write(&store, sent(directory.path())).await;
    let info = written.commit(about()).await.expect("committed");
    assert!(info.parts.iter().any(|part| part.stored_bytes > 30 << 20), "{info:?}");
    server.store.inject(Fault::new(Effect::CutBody).method("GET").times(2));
    let restored = restore(&store, &info).await.expect("restored");
    assert!(fs::read(restored.path().join("noise")).expect("a file") == noise);
}

#[tokio::test]
async fn a_write_ahead_log_that_is_a_link_stays_one() {
    let (_server, store) = start().await;
    let written = write(&store, sent(make_tree().path())).await;
    let info = written.commit(about()).await.expect("committed");
    let (into, volume) = (Directory::new(), Directory::new());
    std::os::unix::fs::symlink(volume.path(), into.path().join("pg_wal")).expect("a link");
    unpack(&store, &folder(), 1, &info, None, into.path(), |_| {})
        .await
        .expect("restored");
    assert!(into.path().join("pg_wal").is_symlink());
    assert!(volume.path().join("archive_status").is_dir());
    assert!(into.path().join("base/1/large").is_file());
}

#[tokio::test]
async fn damage_of_a_part_is_named() {
    let (server, store) = start().await;
    let written = write(&store, sent(make_tree().path())).await;
    let info = written.commit(about()).await.expect("committed");
    let part = &info.parts[1];
    let file = server.file(&object(&part.name));
    let good = fs::read(&file).expect("a part");
    for at in [10, good.len() / 2, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(&file, bad).expect("written");
        let error = restore(&store, &info).await.err().expect("an error");
        assert!(
            matches!(&error, BaseError::Damaged { name, .. } if *name == object(&part.name)),
            "{error}"
        );
    }
    fs::write(&file, &good[..good.len() - 1]).expect("written");
    let error = restore(&store, &info).await.err().expect("an error");
    assert!(matches!(&error, BaseError::Damaged { .. }), "{error}");
    fs::remove_file(&file).expect("removed");
    let error = restore(&store, &info).await.err().expect("an error");
    assert_eq!(
        error.to_string(),
        format!("{} is missing in the store", object(&part.name))
    );
    fs::write(&file, &good).expect("written");
    fs::remove_file(server.file(&object("manifest.json.zst"))).expect("removed");
    let error = restore(&store, &info).await.err().expect("an error");
    assert!(error.to_string().contains("manifest.json.zst is missing"), "{error}");
}

#[tokio::test]
async fn files_outside_of_the_directory_are_refused() {
    let (server, store) = start().await;
    let written = write(&store, sent(make_tree().path())).await;
    let info = written.commit(about()).await.expect("committed");
    let refused = async |members: &[(&str, Option<&str>)]| {
        let mut tar = tar::Builder::new(Vec::new());
        for (path, link) in members {
            let mut header = tar::Header::new_ustar();
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_mode(0o600);
            header.set_size(u64::from(link.is_none()));
            if let Some(link) = link {
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_link_name(link).expect("a link");
            }
            header.set_cksum();
            let content: &[u8] = if link.is_some() { b"" } else { b"a" };
            tar.append(&header, content).expect("a member");
        }
        let raw = tar.into_inner().expect("a tar");
        let stored = zstd::stream::encode_all(&raw[..], 1).expect("zstd");
        fs::write(server.file(&object("pgdata-0001.tar.zst")), &stored).expect("written");
        let part = Part {
            name: "pgdata-0001.tar.zst".to_owned(),
            raw_bytes: raw.len() as u64,
            stored_bytes: stored.len() as u64,
            sha256: hex(&Sha256::digest(&stored)),
        };
        let bad = BackupInfo {
            parts: vec![part],
            ..info.clone()
        };
        match restore(&store, &bad).await {
            Err(BaseError::Unpack { error, .. }) => error.to_string(),
            other => panic!("{members:?}: {:?}", other.err()),
        }
    };
    for path in ["../outside", "/outside", "link/../../outside"] {
        let words = refused(&[(path, None)]).await;
        assert_eq!(words, format!("{path} is nothing that a backup may hold"));
    }
    let outside = Directory::new();
    let to = outside.path().to_str().expect("a path");
    let words = refused(&[("base", Some(to)), ("base/0/1", None)]).await;
    assert!(words.ends_with("/base is no directory"), "{words}");
    assert_eq!(paths(outside.path()), Vec::<PathBuf>::new());
}

/// Why a backup is refused whose files are those of `tree` after `change`, and whose manifest is of `tree` before it.
async fn refusal(change: impl FnOnce(&Path), edit: impl FnOnce(String) -> String) -> String {
    let (_server, store) = start().await;
    let tree = make_tree();
    let manifest = edit(manifest_of(tree.path()));
    change(tree.path());
    let written = write(&store, sent_with(tree.path(), &manifest)).await;
    let info = written.commit(about()).await.expect("committed");
    let error = restore(&store, &info).await.err().expect("an error");
    let cause = std::error::Error::source(&error).map_or(String::new(), |cause| format!(": {cause}"));
    format!("{error}{cause}")
}

#[tokio::test]
async fn a_file_that_is_not_as_the_manifest_says_is_named() {
    let same = |manifest: String| manifest;
    // One for each kind of checksum.
    for number in 25..30 {
        let file = format!("base/1/{number}");
        let flip = |tree: &Path| {
            let path = tree.join(&file);
            let mut content = fs::read(&path).expect("a file");
            let middle = content.len() / 2;
            content[middle] ^= 0x40;
            fs::write(path, content).expect("written");
        };
        let words = refusal(flip, same).await;
        assert!(words.contains(&format!(": {file} has the checksum ")), "{words}");
    }
    let longer = |tree: &Path| fs::write(tree.join("PG_VERSION"), "15\n\n").expect("written");
    let words = refusal(longer, same).await;
    assert!(
        words.ends_with(": PG_VERSION has 4 bytes, and the backup's manifest says 3"),
        "{words}"
    );
    let extra = |tree: &Path| fs::write(tree.join("base/1/extra"), "").expect("written");
    let words = refusal(extra, same).await;
    assert!(
        words.contains(": base/1/extra is not in the backup's manifest"),
        "{words}"
    );
    let missing = |tree: &Path| fs::remove_file(tree.join("base/1/large")).expect("removed");
    let words = refusal(missing, same).await;
    assert_eq!(
        words,
        "the backup's manifest: base/1/large is in no part of the backup (1 files are missing)"
    );
    let edited = |manifest: String| manifest.replacen("\"Size\": 0", "\"Size\": 1", 1);
    let words = refusal(|_| (), edited).await;
    assert!(
        words.starts_with("the backup's manifest: it has the SHA-256 "),
        "{words}"
    );
}

#[tokio::test]
async fn an_upload_that_fails_leaves_no_backup() {
    let (server, store) = start().await;
    let mut sent = sent(make_tree().path());
    let failing = Fault {
        path: "pgdata-0002".to_owned(),
        ..Fault::refuse(503, "SlowDown")
    };
    server.store.inject(failing);
    let writer = writer(&store).with_limit(Duration::from_secs(5));
    let error = writer.write(&mut sent, |_| {}).await.expect_err("an error");
    assert!(matches!(error, BaseError::Store(Problem::Throttled(_))), "{error}");
    assert!(server.file(&object("pgdata-0001.tar.zst")).exists());
    assert!(
        !server.file(&object("pgdata-0003.tar.zst")).exists(),
        "it has ended there"
    );
    assert_eq!(listed(&store).await, []);
}

#[tokio::test]
async fn a_stream_that_is_cut_off_leaves_no_backup() {
    let (server, store) = start().await;
    let whole = sent(make_tree().path());
    let refused = async |mut sent: Sent| {
        let error = writer(&store).write(&mut sent, |_| {}).await.expect_err("an error");
        // The name is in use then: another attempt has another one.
        let _ = fs::remove_dir_all(server.file(&object("")));
        error
    };
    let tar = |tar: Bytes| Sent { tar, ..whole.clone() };
    let length = whole.tar.len();
    for length in [0, 512, length / 2, length - 2048] {
        let error = refused(tar(whole.tar.slice(..length))).await;
        assert!(matches!(error, BaseError::Tar(_)), "{error}");
    }
    let empty = refused(tar(vec![0; 1024].into())).await;
    assert!(empty.to_string().contains("no backup_label"), "{empty}");
    for manifest in [Bytes::new(), whole.manifest.slice(..100)] {
        let error = refused(Sent {
            manifest,
            ..whole.clone()
        });
        let error = error.await;
        assert!(matches!(error, BaseError::Manifest(_)), "{error}");
    }
    let failed = Sent {
        failure: Some("checksum verification failure"),
        ..whole.clone()
    };
    let error = refused(failed).await;
    assert!(matches!(error, BaseError::Read(_)), "{error}");
    assert_eq!(listed(&store).await, []);
}

#[tokio::test]
async fn a_name_that_is_taken_is_not_written_again() {
    let (_server, store) = start().await;
    let tree = make_tree();
    let first = write(&store, sent(tree.path())).await;
    first.commit(about()).await.expect("committed");
    fs::write(tree.path().join("base/0/1"), b"other").expect("written");
    let again = writer(&store).write(&mut sent(tree.path()), |_| {}).await;
    assert!(
        matches!(again, Err(BaseError::Store(Problem::Conflict(_)))),
        "{again:?}"
    );
}

#[tokio::test]
async fn a_lost_reply_to_the_commit_makes_one_backup() {
    let (server, store) = start().await;
    let written = write(&store, sent(make_tree().path())).await;
    let lost = Fault {
        path: "backup.json".to_owned(),
        ..Fault::new(Effect::LoseReply).method("PUT").times(1)
    };
    server.store.inject(lost);
    let info = written.commit(about()).await.expect("committed");
    assert_eq!(written.commit(about()).await, Ok(info.clone()), "again");
    assert_eq!(listed(&store).await, [info]);
    let other = About {
        uid: "other".to_owned(),
        ..about()
    };
    assert!(matches!(written.commit(other).await, Err(Problem::Conflict(_))));
}

#[tokio::test]
async fn of_several_attempts_at_one_backup_the_last_becomes_visible() {
    let (_server, store) = start().await;
    let later: BackupName = "20261126T183001Z-F-7f3a".parse().expect("a name");
    let begin = async |name: &BackupName, uid: &str, number: u32| {
        let uid = uid.to_owned();
        begin(&store, &folder(), 1, name, &Attempt { uid, number }, LIMIT).await
    };
    let is_marked = async |name: &BackupName| is_discarded(&store, &folder(), 1, name, LIMIT).await;
    let first = Ok(Begun::First(Vec::new()));
    assert_eq!(begin(&name(), "0b1e", 1).await, first);
    assert_eq!(begin(&name(), "0b1e", 1).await, first, "its answer was lost");
    let written = write(&store, sent(make_tree().path())).await;
    assert_eq!(begin(&later, "0b1e", 2).await, first);
    assert_eq!(
        (is_marked(&name()).await, is_marked(&later).await),
        (Ok(true), Ok(false))
    );
    written.commit(about()).await.expect("it is written all the same");
    assert_eq!(listed(&store).await, []);

    let latest: BackupName = "20261126T183002Z-F-7f3a".parse().expect("a name");
    assert_eq!(
        begin(&latest, "0b1e", 1).await,
        Ok(Begun::Late(2)),
        "a process that slept"
    );
    assert_eq!(is_marked(&later).await, Ok(false));
    let other: BackupName = "20261126T183003Z-F-0b1e".parse().expect("a name");
    assert_eq!(begin(&other, "another", 1).await, first, "of another backup");
    assert_eq!(is_marked(&later).await, Ok(false));

    let writer = Writer::new(store.clone(), folder(), 1, later, PART_SIZE);
    let mut sent = sent(make_tree().path());
    let info = writer
        .write(&mut sent, |_| ())
        .await
        .expect("written")
        .commit(about())
        .await;
    let info = info.expect("committed");
    let made = Ok(Begun::Made(Box::new(info.clone())));
    let again: BackupName = "20261126T183004Z-F-7f3a".parse().expect("a name");
    assert_eq!(begin(&again, "0b1e", 3).await, made);
    assert_eq!(listed(&store).await, [info]);
}

/// Objects in stores must be readable for ever: this one was written by the first version.
#[tokio::test]
async fn backups_are_listed_and_one_that_cannot_be_read_is_named() {
    let (_server, store) = start().await;
    let stored = |name: &str| {
        format!(
            r#"{{"v":1,"name":"{name}","uid":"0b1e","systemId":"7","serverVersion":150014,"timeline":2,"startLsn":"1/2000028","stopLsn":"1/2000100","startTime":"2026-11-26T18:30:00Z","stopTime":"2026-11-26T18:31:00Z","walSegmentSize":16777216,"rawBytes":10,"storedBytes":5,"parts":[{{"name":"pgdata-0001.tar.zst","rawBytes":10,"storedBytes":5,"sha256":"00"}}],"later":1}}"#
        )
    };
    let put = async |path: String, content: String| {
        let name = format!("default/orders-0b1e2f3a/lines/1/backups/{path}");
        store
            .create(&name, content.into(), Compare::Bytes, LIMIT)
            .await
            .expect("created");
    };
    let names = [
        "20261126T183000Z-F-7f3a",
        "20261127T183000Z-F-0000",
        "20261125T183000Z-F-ffff",
    ];
    for name in names {
        put(format!("{name}/backup.json"), stored(name)).await;
    }
    put(format!("{}/deleted.json", names[1]), "{}".to_owned()).await;
    put("20261128T183000Z-F-0000/pgdata-0001.tar.zst".to_owned(), "a".to_owned()).await;
    let found = listed(&store).await;
    let found_names: Vec<String> = found.iter().map(|info| info.name.to_string()).collect();
    assert_eq!(found_names, [names[2], names[0]]);
    assert_eq!(found[0].stop_lsn, 0x1_0200_0100);
    assert_eq!(found[0].parts.len(), 1);

    let bad = "20261129T183000Z-F-0000";
    put(format!("{bad}/backup.json"), stored(bad).replace("\"v\":1", "\"v\":2")).await;
    let problem = backups(&store, &folder(), 1, LIMIT).await.expect_err("a problem");
    assert!(
        matches!(&problem, Problem::Unusable(words) if words.contains(bad) && words.contains("format 2")),
        "{problem}"
    );
}

#[tokio::test]
async fn wal_is_listed() {
    let (_server, store) = start().await;
    let put = async |path: &str, content: &'static str| {
        let name = format!("default/orders-0b1e2f3a/lines/1/wal/{path}");
        store
            .create(&name, content.into(), Compare::Bytes, LIMIT)
            .await
            .expect("created");
    };
    put("0000000100000000/0000000100000000000000FF.zst", "a").await;
    put("0000000100000001/000000010000000100000001.zst", "a").await;
    put("00000002.history", "1\t0/2000000\treason\n").await;
    put("partial/000000010000000100000002.partial.zst", "a").await;
    let list = wal(&store, &folder(), 1, LIMIT).await.expect("a list");
    let segments =
        |names: &[&str]| -> Vec<Segment> { names.iter().map(|name| name.parse().expect("a name")).collect() };
    let there = segments(&["0000000100000000000000FF", "000000010000000100000001"]);
    assert_eq!(list.segments.into_iter().collect::<Vec<_>>(), there);
    assert_eq!(
        list.histories,
        BTreeMap::from([(2, "1\t0/2000000\treason\n".to_owned())])
    );
    let all = segments(&[
        "0000000100000000000000FF",
        "000000010000000100000000",
        "000000010000000100000001",
        "000000010000000100000002",
    ]);
    let absent = missing(&store, &folder(), 1, &all, LIMIT).await.expect("a list");
    assert_eq!(absent, [all[1].clone(), all[3].clone()]);
    assert_eq!(missing(&store, &folder(), 1, &there, LIMIT).await, Ok(Vec::new()));

    let (folders, histories) = outline(&store, &folder(), 1, LIMIT).await.expect("an outline");
    assert_eq!(folders, ["0000000100000000", "0000000100000001"]);
    assert_eq!(histories, list.histories);
    let all = ["0000000100000000", "0000000100000001", "partial", "conflicts"];
    let before = |segment: &Segment| *segment < there[1];
    let found = wal_before(&store, &folder(), 1, &all, before, LIMIT)
        .await
        .expect("a list");
    let name = |path: &str| format!("default/orders-0b1e2f3a/lines/1/wal/{path}");
    assert_eq!(found, [name("0000000100000000/0000000100000000000000FF.zst")]);
    let found = wal_before(&store, &folder(), 1, &all, |_| true, LIMIT)
        .await
        .expect("a list");
    assert_eq!(found.len(), 3, "{found:?}");
}

/// Objects of the only backup.
fn left(server: &Server) -> Vec<String> {
    let folder = server.file(object("").trim_end_matches('/'));
    let files = fs::read_dir(folder).into_iter().flatten();
    files
        .map(|file| file.expect("a file").file_name().into_string().expect("a name"))
        .collect()
}

#[tokio::test]
async fn a_backup_is_removed_in_steps_and_is_none_from_the_first_one_on() {
    let (server, store) = start().await;
    let tree = make_tree();
    let written = write(&store, sent(tree.path())).await;
    written.commit(about()).await.expect("committed");
    let remover = Remover::open(&support::s3(server.store.url()), &support::access()).expect("a remover");
    let removed = async || remove(&remover, &folder(), 1, &name(), LIMIT).await;

    server.store.inject(Fault::refuse(403, "AccessDenied").method("DELETE"));
    assert!(matches!(removed().await, Err(Problem::Denied(_))));
    let seen = catalogue(&store, &folder(), 1, LIMIT).await.expect("a list");
    assert_eq!((seen.complete.len(), seen.unfinished.len()), (0, 1));
    server.store.heal();
    assert_eq!(removed().await, Ok(()));
    assert_eq!(left(&server), Vec::<String>::new());
    assert_eq!(
        catalogue(&store, &folder(), 1, LIMIT).await.expect("a list"),
        Default::default()
    );
}

/// Whoever still makes it may be on another machine, and write its `backup.json` later.
#[tokio::test]
async fn a_backup_that_is_removed_while_it_is_made_is_never_complete() {
    let (server, store) = start().await;
    let tree = make_tree();
    let written = write(&store, sent(tree.path())).await;
    let remover = Remover::open(&support::s3(server.store.url()), &support::access()).expect("a remover");
    remove(&remover, &folder(), 1, &name(), LIMIT).await.expect("removed");
    assert_eq!(left(&server), ["deleted.json"]);
    written.commit(about()).await.expect("committed");
    assert_eq!(listed(&store).await, []);
}
