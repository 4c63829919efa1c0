//! Rules about `spec.backup`, and about stores wherever a spec names one.

use super::recovery::{BACKUP, is_backup};
use super::{Rule, text};
use crate::ClusteredDatabase;
use crate::spec::{
    ArchiveFate, BackupDrill, BackupOnDelete, BackupRetention, BackupSchedule, BackupSpec, FinalBackup,
    IdentitySecretRef,
};
use crate::store::{AzureStore, GcsStore, S3Encryption, S3EncryptionAlgorithm, S3Store, StoreSpec, VolumeStore};

/// A bucket's name, by S3's own rules but for names that look like addresses or that Amazon reserves. Two dots in a row
/// are refused beside it.
const BUCKET: &str = "[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]";
/// A bucket of Google's, by its own rules but for names that look like addresses or have dots and more than 63 characters.
/// Two dots in a row are refused beside it.
const GCS_BUCKET: &str = "[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]";
/// A folder in a bucket: parts with single slashes between them, and perhaps one at the end. None consists of dots alone,
/// because the agent takes neither `.` nor `..`.
const PATH: &str = "[.]*[A-Za-z0-9_-][A-Za-z0-9._-]*(/[.]*[A-Za-z0-9_-][A-Za-z0-9._-]*)*/?";
const MAX_PATH: usize = 512;
const REGION: &str = "^[a-z0-9-]{1,63}$";
const ENDPOINT: &str = "^https?://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?$";
const MAX_ENDPOINT: usize = 300;
/// An identifier, an ARN or an alias of a key, as AWS and the stores with its interface write them.
const KMS_KEY: &str = "^[A-Za-z0-9:/_.-]+$";
const MAX_KMS_KEY: usize = 512;
const ACCOUNT: &str = "^[a-z0-9]{3,24}$";
const CONTAINER: &str = "^[a-z0-9](-?[a-z0-9]){2,62}$";
/// An emulator of Azure has the account in the path.
const AZURE_ENDPOINT: &str = "^https?://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?(/[a-z0-9]+)?$";

/// Obeyed by a resource without such a store, and by a store of this kind that obeys it.
fn of_kind<T: 'static>(
    store: fn(&ClusteredDatabase) -> Option<&StoreSpec>,
    kind: fn(&StoreSpec) -> Option<&T>,
    check: impl Fn(&T) -> bool + Send + Sync + 'static,
) -> impl Fn(&ClusteredDatabase) -> bool + Send + Sync {
    move |resource| store(resource).and_then(kind).is_none_or(&check)
}

fn is_one(store: &StoreSpec) -> bool {
    let all = [
        store.s3.is_some(),
        store.azure.is_some(),
        store.gcs.is_some(),
        store.volume.is_some(),
    ];
    all.into_iter().filter(|is| *is).count() == 1
}

const S3: fn(&StoreSpec) -> Option<&S3Store> = |store| store.s3.as_ref();
const ENCRYPTION: fn(&StoreSpec) -> Option<&S3Encryption> = |store| store.s3.as_ref()?.server_side_encryption.as_ref();
const AZURE: fn(&StoreSpec) -> Option<&AzureStore> = |store| store.azure.as_ref();
const GCS: fn(&StoreSpec) -> Option<&GcsStore> = |store| store.gcs.as_ref();
const VOLUME: fn(&StoreSpec) -> Option<&VolumeStore> = |store| store.volume.as_ref();

/// The rules about a store at this place of the spec, which `store` finds.
fn of_store(at: &'static str, store: fn(&ClusteredDatabase) -> Option<&StoreSpec>) -> Vec<Rule> {
    let place = |field: &str| format!("spec.{at}{field}");
    let say = |words: &str| format!("{at}{words}");
    let mut rules = vec![
        Rule::holds(
            place(""),
            "[has(self.s3), has(self.azure), has(self.gcs), has(self.volume)].filter(is, is).size() == 1",
            say(" must name one store: set s3, azure, gcs or volume in it"),
            move |resource| store(resource).is_none_or(is_one),
        ),
        Rule::holds(
            place(".s3"),
            "has(self.s3Path) ? !has(self.bucket) && !has(self.path) : has(self.bucket)",
            say(".s3 needs either s3Path, or bucket and, if wanted, path: set one of them"),
            of_kind(store, S3, |s3| match s3.s3_path {
                Some(_) => s3.bucket.is_none() && s3.path.is_none(),
                None => s3.bucket.is_some(),
            }),
        ),
        Rule::holds(
            place(".s3.s3Path"),
            format!(
                "size(self) <= {MAX_PATH} && self.matches('^s3://{BUCKET}(/({PATH})?)?$') && !self.matches('^s3://[^/]*[.][.]')"
            ),
            say(
                ".s3.s3Path must be s3://bucket or s3://bucket/path, where the bucket has 3 to 63 lower-case letters, digits, hyphens and single dots, and the path letters, digits, '.', '_', '-' and single '/', but no part of dots alone: correct it",
            ),
            of_kind(store, S3, |s3| {
                s3.s3_path.as_deref().is_none_or(|whole| {
                    let location = whole.strip_prefix("s3://").filter(|_| text::size(whole) <= MAX_PATH);
                    location.is_some_and(|location| match location.split_once('/') {
                        Some((bucket, path)) => is_bucket(bucket) && (path.is_empty() || is_path(path)),
                        None => is_bucket(location),
                    })
                })
            }),
        ),
        Rule::holds(
            place(".s3.bucket"),
            format!("size(self) <= 63 && self.matches('^{BUCKET}$') && !self.contains('..')"),
            say(".s3.bucket must have 3 to 63 lower-case letters, digits, hyphens and single dots: correct it"),
            of_kind(store, S3, |s3| s3.bucket.as_deref().is_none_or(is_bucket)),
        ),
        Rule::holds(
            place(".s3.region"),
            format!("size(self) <= 63 && self.matches('{REGION}')"),
            say(".s3.region must be a region such as eu-central-1: correct it"),
            of_kind(store, S3, |s3| s3.region.as_deref().is_none_or(is_region)),
        ),
        Rule::holds(
            place(".s3.endpoint"),
            format!("size(self) <= {MAX_ENDPOINT} && self.matches('{ENDPOINT}')"),
            say(".s3.endpoint must be an address such as https://minio.storage.svc:9000, without a path: correct it"),
            of_kind(store, S3, |s3| s3.endpoint.as_deref().is_none_or(is_endpoint)),
        ),
        Rule::holds(
            place(".s3.serverSideEncryption"),
            "!has(self.kmsKeyId) || self.algorithm == 'aws:kms'",
            say(
                ".s3.serverSideEncryption has a key of the KMS and does not use it: set algorithm to aws:kms or remove kmsKeyId",
            ),
            of_kind(store, ENCRYPTION, |encryption| {
                encryption.kms_key_id.is_none() || encryption.algorithm == S3EncryptionAlgorithm::AwsKms
            }),
        ),
        Rule::holds(
            place(".s3.serverSideEncryption.kmsKeyId"),
            format!("size(self) <= {MAX_KMS_KEY} && self.matches('{KMS_KEY}')"),
            say(".s3.serverSideEncryption.kmsKeyId must be the identifier, ARN or alias of a key: correct it"),
            of_kind(store, ENCRYPTION, |encryption| {
                encryption.kms_key_id.as_deref().is_none_or(is_kms_key)
            }),
        ),
        Rule::holds(
            place(".azure.account"),
            format!("self.matches('{ACCOUNT}')"),
            say(".azure.account must have 3 to 24 lower-case letters and digits: correct it"),
            of_kind(store, AZURE, |azure| azure.account.as_deref().is_none_or(is_account)),
        ),
        Rule::holds(
            place(".azure.container"),
            format!("self.matches('{CONTAINER}')"),
            say(".azure.container must have 3 to 63 lower-case letters, digits and single hyphens: correct it"),
            of_kind(store, AZURE, |azure| is_container(&azure.container)),
        ),
        Rule::holds(
            place(".azure.endpoint"),
            format!("size(self) <= {MAX_ENDPOINT} && self.matches('{AZURE_ENDPOINT}')"),
            say(".azure.endpoint must be an address such as https://shop.blob.core.windows.net: correct it"),
            of_kind(store, AZURE, |azure| {
                azure.endpoint.as_deref().is_none_or(is_azure_endpoint)
            }),
        ),
    ];
    rules.extend([
        Rule::holds(
            place(".gcs.bucket"),
            format!("size(self) <= 63 && self.matches('^{GCS_BUCKET}$') && !self.contains('..')"),
            say(
                ".gcs.bucket must have 3 to 63 lower-case letters, digits, underscores, hyphens and single dots: correct it",
            ),
            of_kind(store, GCS, |gcs| is_gcs_bucket(&gcs.bucket)),
        ),
        Rule::holds(
            place(".gcs.endpoint"),
            format!("size(self) <= {MAX_ENDPOINT} && self.matches('{ENDPOINT}')"),
            say(
                ".gcs.endpoint must be an address such as https://storage.me-central2.rep.googleapis.com, without a path: correct it",
            ),
            of_kind(store, GCS, |gcs| gcs.endpoint.as_deref().is_none_or(is_endpoint)),
        ),
    ]);
    rules.push(Rule::holds(
        place(".volume.claimName"),
        text::dns_subdomain(),
        say(".volume.claimName must be the name of a PersistentVolumeClaim: correct it"),
        of_kind(store, VOLUME, |volume| text::is_dns_subdomain(&volume.claim_name)),
    ));
    let path = |kind: &str, path: fn(&StoreSpec) -> Option<&String>| {
        Rule::holds(
            place(&format!(".{kind}.path")),
            format!("size(self) <= {MAX_PATH} && self.matches('^{PATH}$')"),
            say(&format!(
                ".{kind}.path must consist of letters, digits, '.', '_', '-' and single '/', begin with no '/', and have no part of dots alone: correct it"
            )),
            of_kind(store, path, |path| is_path(path)),
        )
    };
    rules.extend([
        path("s3", |store| store.s3.as_ref()?.path.as_ref()),
        path("azure", |store| store.azure.as_ref()?.path.as_ref()),
        path("gcs", |store| store.gcs.as_ref()?.path.as_ref()),
    ]);
    for kind in ["s3", "azure", "gcs"] {
        rules.push(Rule::holds(
            place(&format!(".{kind}.credentialsSecretRef.name")),
            text::dns_subdomain(),
            say(&format!(
                ".{kind}.credentialsSecretRef.name must be the name of a Secret: correct it"
            )),
            of_kind(store, named(kind), |store| {
                let secret = store.credentials();
                secret.is_none_or(|(secret, _)| text::is_dns_subdomain(&secret.name))
            }),
        ));
    }
    for kind in ["s3", "azure", "gcs"] {
        rules.extend([
            Rule::holds(
                place(&format!(".{kind}.caSecretRef.name")),
                text::dns_subdomain(),
                say(&format!(".{kind}.caSecretRef.name must be the name of a Secret: correct it")),
                of_kind(store, named(kind), |store| {
                    let secret = store.authority();
                    secret.is_none_or(|secret| text::is_dns_subdomain(&secret.name))
                }),
            ),
            Rule::holds(
                place(&format!(".{kind}.caSecretRef.key")),
                format!("self.matches('{}')", text::SECRET_KEY),
                say(&format!(
                    ".{kind}.caSecretRef.key must be a key of a Secret: 1 to 253 letters, digits, dashes, underscores and dots"
                )),
                of_kind(store, named(kind), |store| {
                    let secret = store.authority();
                    secret.is_none_or(|secret| text::is_secret_key(&secret.key))
                }),
            ),
        ]);
    }
    rules
}

/// The store, if it is of this kind.
fn named(kind: &str) -> fn(&StoreSpec) -> Option<&StoreSpec> {
    match kind {
        "s3" => |store| store.s3.as_ref().map(|_| store),
        "gcs" => |store| store.gcs.as_ref().map(|_| store),
        _ => |store| store.azure.as_ref().map(|_| store),
    }
}

/// The rules about a Secret with private keys at this place of the spec, which `$secret` finds.
macro_rules! of_identity {
    ($at:literal, $secret:expr) => {{
        let find: fn(&ClusteredDatabase) -> Option<IdentitySecretRef> = $secret;
        [
            Rule::holds(
                concat!("spec.", $at, ".name"),
                text::dns_subdomain(),
                concat!($at, ".name must be the name of a Secret: correct it"),
                move |resource| find(resource).is_none_or(|secret| text::is_dns_subdomain(&secret.name)),
            ),
            Rule::holds(
                concat!("spec.", $at, ".key"),
                format!("self.matches('{}')", text::SECRET_KEY),
                concat!(
                    $at,
                    ".key must be a key of a Secret: 1 to 253 letters, digits, dashes, underscores and dots"
                ),
                move |resource| find(resource).is_none_or(|secret| text::is_secret_key(&secret.key)),
            ),
        ]
    }};
}

fn of_backup(resource: &ClusteredDatabase) -> Option<&StoreSpec> {
    resource.spec.backup.as_ref().map(|backup| &backup.store)
}

fn of_recovery(resource: &ClusteredDatabase) -> Option<&StoreSpec> {
    resource.spec.recovery()?.from.store.as_ref()
}

pub(super) fn rules() -> Vec<Rule> {
    let mut rules = of_store("backup.store", of_backup);
    rules.extend(of_store("bootstrap.recovery.from.store", of_recovery));
    rules.extend(schedules());
    rules.extend(retention());
    rules.extend(drill());
    rules.extend(recipients());
    rules.push(on_delete());
    rules.push(Rule::holds(
        "spec.backup.volumeSnapshotClassName",
        text::dns_subdomain(),
        "backup.volumeSnapshotClassName must be the name of a VolumeSnapshotClass: correct it",
        of_part(
            |backup| backup.volume_snapshot_class_name.as_ref(),
            |class| text::is_dns_subdomain(class),
        ),
    ));
    rules.extend(of_identity!(
        "backup.encryption.identitySecretRef",
        |resource: &ClusteredDatabase| {
            let encryption = resource.spec.backup.as_ref()?.encryption.clone();
            encryption?.identity_secret_ref
        }
    ));
    rules.extend(of_identity!(
        "bootstrap.recovery.from.identitySecretRef",
        |resource: &ClusteredDatabase| { resource.spec.recovery()?.from.identity_secret_ref.clone() }
    ));
    rules
}

/// A public key of age. The agent also checks its checksum, before anything is encrypted.
const RECIPIENT: &str = "^age1[a-z0-9]{58}$";
/// Each takes a hundred bytes at the begin of each object, of which 4 KiB are looked at.
const MAX_RECIPIENTS: usize = 8;

fn recipients() -> Vec<Rule> {
    let of_recipients = |check| {
        of_part::<Vec<String>>(
            |backup| backup.encryption.as_ref().map(|encryption| &encryption.recipients),
            check,
        )
    };
    vec![
        Rule::holds(
            "spec.backup.encryption.recipients",
            format!("size(self) >= 1 && size(self) <= {MAX_RECIPIENTS}"),
            format!("backup.encryption.recipients must have 1 to {MAX_RECIPIENTS} public keys: add or remove some"),
            of_recipients(|all| (1..=MAX_RECIPIENTS).contains(&all.len())),
        ),
        Rule::holds(
            "spec.backup.encryption.recipients",
            format!("self.all(one, one.matches('{RECIPIENT}'))"),
            "backup.encryption.recipients: a public key is age1 and 58 lower-case letters and digits, as age-keygen prints it: correct it",
            of_recipients(|all| all.iter().all(|one| is_recipient(one))),
        ),
    ]
}

fn on_delete() -> Rule {
    let is_of_use =
        |asked: &BackupOnDelete| asked.data != ArchiveFate::Delete || asked.final_backup == FinalBackup::None;
    Rule::holds(
        "spec.backup.onDelete",
        "!has(self.data) || self.data != 'Delete' || self.finalBackup == 'None'",
        "backup.onDelete takes a last backup and deletes it with all others: set finalBackup to None or data to Retain",
        of_part(|backup| backup.on_delete.as_ref(), is_of_use),
    )
}

fn is_recipient(text: &str) -> bool {
    let rest = text.strip_prefix("age1");
    rest.is_some_and(|rest| rest.len() == 58 && rest.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()))
}

/// A schedule's name is part of the name of a DatabaseBackup.
const NAME: &str = "^[a-z]([-a-z0-9]{0,18}[a-z0-9])?$";
/// Five fields; the operator says what is wrong within one.
const TIMES: &str = "^[0-9A-Za-z*,/?#LW-]+( [0-9A-Za-z*,/?#LW-]+){4}$";
const MAX_TIMES: usize = 100;
const ZONE: &str = "^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,2}$";
const MAX_ZONE: usize = 64;

/// Obeyed by a resource all of whose schedules obey it.
fn of_schedules(check: fn(&BackupSchedule) -> bool) -> impl Fn(&ClusteredDatabase) -> bool + Send + Sync {
    move |resource| {
        let backup = resource.spec.backup.as_ref();
        backup.is_none_or(|backup| backup.schedules.iter().all(check))
    }
}

fn schedules() -> Vec<Rule> {
    vec![
        Rule::holds(
            "spec.backup.schedules",
            format!("self.all(one, one.name.matches('{NAME}'))"),
            "backup.schedules: a name must have 1 to 20 lower-case letters, digits and hyphens, and begin with a letter: correct it",
            of_schedules(|one| one.name.len() <= 20 && text::is_dns_label(&one.name)),
        ),
        Rule::holds(
            "spec.backup.schedules",
            format!("self.all(one, size(one.schedule) <= {MAX_TIMES} && one.schedule.matches('{TIMES}'))"),
            "backup.schedules: a schedule must have five fields as in a crontab, such as 0 3 * * *: correct it",
            of_schedules(|one| is_schedule(&one.schedule)),
        ),
        Rule::holds(
            "spec.backup.schedules",
            format!(
                "self.all(one, !has(one.timeZone) || size(one.timeZone) <= {MAX_ZONE} && one.timeZone.matches('{ZONE}'))"
            ),
            "backup.schedules: a timeZone must be a name such as Europe/Berlin: correct it",
            of_schedules(|one| one.time_zone.as_deref().is_none_or(is_zone)),
        ),
    ]
}

/// Obeyed by a resource without this part of `spec.backup`, and by one whose part obeys it.
fn of_part<T: 'static>(
    part: fn(&BackupSpec) -> Option<&T>,
    check: fn(&T) -> bool,
) -> impl Fn(&ClusteredDatabase) -> bool + Send + Sync {
    move |resource| resource.spec.backup.as_ref().and_then(part).is_none_or(check)
}

fn drill() -> Vec<Rule> {
    let of_drill = |check| of_part::<BackupDrill>(|backup| backup.drill.as_ref(), check);
    let can_open = |backup: &BackupSpec| {
        let encryption = backup.encryption.as_ref();
        backup.drill.is_none() || encryption.is_none_or(|encryption| encryption.identity_secret_ref.is_some())
    };
    vec![
        Rule::holds(
            "spec.backup",
            "!has(self.drill) || !has(self.encryption) || has(self.encryption.identitySecretRef)",
            "backup.drill needs a private key of the encryption: set backup.encryption.identitySecretRef or remove backup.drill",
            of_part(|backup| Some(backup), can_open),
        ),
        Rule::holds(
            "spec.backup.drill.schedule",
            format!("size(self) <= {MAX_TIMES} && self.matches('{TIMES}')"),
            "backup.drill.schedule must have five fields as in a crontab, such as 0 5 * * 0: correct it",
            of_drill(|drill| is_schedule(&drill.schedule)),
        ),
        Rule::holds(
            "spec.backup.drill.timeZone",
            format!("size(self) <= {MAX_ZONE} && self.matches('{ZONE}')"),
            "backup.drill.timeZone must be a name such as Europe/Berlin: correct it",
            of_drill(|drill| drill.time_zone.as_deref().is_none_or(is_zone)),
        ),
        Rule::holds(
            "spec.backup.drill.limitMinutes",
            format!("self >= 1 && self <= {MOST}"),
            format!("backup.drill.limitMinutes must be 1 to {MOST}: correct it"),
            of_drill(|drill| drill.limit_minutes.is_none_or(|minutes| (1..=MOST).contains(&minutes))),
        ),
        Rule::holds(
            "spec.backup.drill.maxAgeDays",
            format!("self >= 1 && self <= {MOST}"),
            format!("backup.drill.maxAgeDays must be 1 to {MOST}: correct it"),
            of_drill(|drill| drill.max_age_days.is_none_or(|days| (1..=MOST).contains(&days))),
        ),
    ]
}

/// A number that is too large for the dates would keep all backups.
const MOST: u32 = 10_000;

fn retention() -> Vec<Rule> {
    let of_retention = |check| of_part::<BackupRetention>(|backup| backup.retention.as_ref(), check);
    vec![
        Rule::holds(
            "spec.backup.retention",
            "has(self.minBackups) || has(self.windowDays)",
            "backup.retention must say what is kept: set minBackups or windowDays",
            of_retention(|retention| retention.min_backups.is_some() || retention.window_days.is_some()),
        ),
        Rule::holds(
            "spec.backup.retention.minBackups",
            format!("self >= 1 && self <= {MOST}"),
            format!("backup.retention.minBackups must be 1 to {MOST}: correct it"),
            of_retention(|retention| retention.min_backups.is_none_or(|least| (1..=MOST).contains(&least))),
        ),
        Rule::holds(
            "spec.backup.retention.hold",
            format!("self.all(one, one.matches('{BACKUP}'))"),
            "backup.retention.hold: a name must be that of a backup in the store, such as 20261124T230501Z-F-7f3a: correct it",
            of_retention(|retention| retention.hold.iter().all(|name| is_backup(name))),
        ),
        Rule::holds(
            "spec.backup.retention.windowDays",
            format!("self >= 1 && self <= {MOST}"),
            format!("backup.retention.windowDays must be 1 to {MOST}: correct it"),
            of_retention(|retention| retention.window_days.is_none_or(|days| (1..=MOST).contains(&days))),
        ),
    ]
}

fn is_schedule(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'*' | b',' | b'/' | b'?' | b'#' | b'-');
    let fields: Vec<&str> = text.split(' ').collect();
    text.len() <= MAX_TIMES
        && fields.len() == 5
        && fields.iter().all(|field| !field.is_empty() && field.bytes().all(fits))
}

fn is_zone(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'+' | b'-');
    let parts: Vec<&str> = text.split('/').collect();
    text.len() <= MAX_ZONE && parts.len() <= 3 && parts.iter().all(|part| !part.is_empty() && part.bytes().all(fits))
}

fn is_bucket(text: &str) -> bool {
    is_gcs_bucket(text) && !text.contains('_')
}

fn is_gcs_bucket(text: &str) -> bool {
    let letter = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let edge = |b: Option<&u8>| b.is_some_and(|b| letter(*b));
    let inner = text.bytes().all(|b| letter(b) || matches!(b, b'.' | b'_' | b'-'));
    let is_edged = edge(text.as_bytes().first()) && edge(text.as_bytes().last());
    (3..=63).contains(&text.len()) && inner && is_edged && !text.contains("..")
}

fn is_path(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let is_part = |part: &str| part.bytes().all(inner) && part.bytes().any(|b| b != b'.');
    let parts = text.strip_suffix('/').unwrap_or(text);
    text.len() <= MAX_PATH && parts.split('/').all(is_part)
}

fn is_kms_key(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b':' | b'/' | b'_' | b'.' | b'-');
    (1..=MAX_KMS_KEY).contains(&text.len()) && text.bytes().all(inner)
}

fn is_account(text: &str) -> bool {
    let letter = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    (3..=24).contains(&text.len()) && text.bytes().all(letter)
}

/// As the expression counts: a letter, and 2 to 62 more, each of which may have a hyphen before it.
fn is_container(text: &str) -> bool {
    let letter = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let words = || text.split('-');
    let letters = text.len() - text.matches('-').count();
    (3..=63).contains(&letters) && words().all(|word| !word.is_empty() && word.bytes().all(letter))
}

fn is_azure_endpoint(text: &str) -> bool {
    let begin = text.find("://").map_or(0, |at| at + 3);
    let (address, account) = match text[begin..].split_once('/') {
        Some((address, account)) => (&text[..begin + address.len()], Some(account)),
        None => (text, None),
    };
    let letter = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let is_account = |account: &str| !account.is_empty() && account.bytes().all(letter);
    is_endpoint(address) && account.is_none_or(is_account) && text.len() <= MAX_ENDPOINT
}

fn is_region(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(inner)
}

fn is_endpoint(text: &str) -> bool {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let Some(rest) = rest.filter(|_| text.len() <= MAX_ENDPOINT) else {
        return false;
    };
    let (host, port) = rest.split_once(':').unwrap_or((rest, "443"));
    let inner = host
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'-');
    let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let digits = (1..=5).contains(&port.len()) && port.bytes().all(|b| b.is_ascii_digit());
    inner && digits && edge(host.as_bytes().first()) && edge(host.as_bytes().last())
}
