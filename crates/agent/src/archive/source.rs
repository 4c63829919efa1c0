//! A store that is recovered from.

use std::path::Path;
use std::sync::Arc;

use backup::base::{BackupInfo, WalList, backups, check_key, wal};
use backup::layout::ClusterFolder;
use backup::segment::{SegmentError, decode};
use backup::{Identities, Place, Problem, Store};
use chrono::Utc;
use machine::archive::{RecoveryOutline, WalFile};
use machine::recovery::{Backup, Plan, Refusal, Stored, Target, may_be_in_earlier_line, plan};
use machine::units::Bytes;

use super::attached::{LIMIT, newest_line, open};
use super::catalogue::{histories, planned};

/// Such a store, with the keys to it.
pub(crate) struct Source {
    pub(crate) store: Store,
    pub(crate) folder: ClusterFolder,
    pub(crate) identities: Option<Arc<Identities>>,
}

/// What is recovered from a store.
pub(crate) struct Planned {
    /// The line of the archive.
    pub(crate) line: u32,
    pub(crate) backup: BackupInfo,
    pub(crate) plan: Plan,
    /// Some of its WAL is encrypted.
    pub(crate) has_encrypted: bool,
}

impl Planned {
    /// What people are told of it.
    pub(crate) fn outline(&self) -> RecoveryOutline {
        let (plan, info) = (&self.plan, &self.backup);
        RecoveryOutline {
            backup: plan.backup.name.clone(),
            stop_time: info.stop_time,
            data_bytes: info.raw_bytes,
            stored_bytes: info.stored_bytes,
            segments: plan.files.iter().map(|files| files.last - files.first + 1).sum(),
            segment_size: plan.segment_size,
            timeline: plan.timeline,
            end: plan.end.lsn,
        }
    }
}

/// Why a store is not recovered from.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The target cannot be reached for sure.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The backup is encrypted.
    #[error(
        "backup {backup} is encrypted to {}: set bootstrap.recovery.from.identitySecretRef to a Secret with a private key of these",
        recipients.join(", ")
    )]
    NoIdentity {
        /// The backup.
        backup: String,
        /// The public keys.
        recipients: Vec<String>,
    },
    /// The store could not be read, or the backup not opened.
    #[error("{action}")]
    Store {
        /// What was tried.
        action: &'static str,
        /// The cause.
        #[source]
        source: Problem,
    },
}

impl SourceError {
    fn store(action: &'static str) -> impl Fn(Problem) -> Self {
        move |source| Self::Store { action, source }
    }
}

impl Source {
    /// The folder of a database in a store. It sends no request. `access` has the store's Secrets, if there are any, and that with the
    /// private keys if one is named.
    pub(crate) fn open(
        place: &Place,
        access: &Path,
        identity_secret: Option<&str>,
        folder: &str,
    ) -> Result<Self, SourceError> {
        let folder = folder
            .parse()
            .map_err(|error: backup::layout::NameError| Problem::Unusable(error.to_string()));
        Ok(Self {
            identities: identities(access, identity_secret)
                .map_err(SourceError::store("read the private keys"))?
                .map(Arc::new),
            store: open(place, access).map_err(SourceError::store("open the store"))?,
            folder: folder.map_err(SourceError::store("open the store"))?,
        })
    }

    /// Decides what is recovered from what, in the newest line of the archive that may have it.
    pub(crate) async fn plan(&self, wanted: Option<&str>, target: &Target) -> Result<Planned, SourceError> {
        let newest = newest_line(&self.store, &self.folder).await;
        let newest = newest
            .map_err(SourceError::store("look for the newest line of the archive"))?
            .unwrap_or(1);
        let mut told = match newest {
            1 => Refusal::NoBackup,
            newest => Refusal::LineWithoutBackup(newest),
        };
        for line in (1..=newest).rev() {
            let refused = match self.plan_in(line, wanted, target).await {
                // That line never grows.
                Err(SourceError::Refused(Refusal::AfterEnd { target, end })) if line < newest => {
                    Refusal::AfterLine { line, target, end }
                }
                Err(SourceError::Refused(refused)) => refused,
                planned => return planned,
            };
            let looks_further = may_be_in_earlier_line(&refused, wanted, target);
            if refused != Refusal::NoBackup {
                told = refused;
            }
            if !looks_further {
                break;
            }
        }
        Err(told.into())
    }

    async fn plan_in(&self, line: u32, wanted: Option<&str>, target: &Target) -> Result<Planned, SourceError> {
        let infos = backups(&self.store, &self.folder, line, LIMIT).await;
        let infos = infos.map_err(SourceError::store("list the backups in the store"))?;
        let Some(size) = infos.last().map(|info| Bytes(info.wal_segment_size)) else {
            return Err(Refusal::NoBackup.into());
        };
        let listed = wal(&self.store, &self.folder, line, LIMIT).await;
        let listed = listed.map_err(SourceError::store("list the WAL in the store"))?;
        let all: Vec<Backup> = infos.iter().map(planned).collect();
        let plan = plan(&all, wanted, target, &stored(&listed, size), size, Utc::now())?;
        let info = infos.into_iter().find(|info| info.name.to_string() == plan.backup.name);
        Ok(Planned {
            line,
            backup: info.ok_or(Refusal::NoBackup)?,
            plan,
            has_encrypted: listed.has_encrypted,
        })
    }

    /// Fails if the private keys do not open the backup.
    pub(crate) async fn check_key(&self, planned: &Planned) -> Result<(), SourceError> {
        let info = &planned.backup;
        if self.identities.is_none() && !info.recipients.is_empty() {
            return Err(SourceError::NoIdentity {
                backup: info.name.to_string(),
                recipients: info.recipients.clone(),
            });
        }
        let checked = check_key(
            &self.store,
            &self.folder,
            planned.line,
            info,
            self.identities.as_deref(),
            LIMIT,
        );
        checked.await.map_err(SourceError::store("open the backup"))
    }
}

/// The private keys in the Secret of this name, if there is one, which is mounted at `access`.
pub(crate) fn identities(access: &Path, secret: Option<&str>) -> Result<Option<Identities>, Problem> {
    secret.map(|secret| Identities::read(access, secret)).transpose()
}

/// The content of a segment's object, if it is whole and the right one.
pub(crate) fn segment_content(
    stored: &[u8],
    name: &str,
    system_id: &str,
    size: Bytes,
    identities: Option<&Identities>,
) -> anyhow::Result<Vec<u8>> {
    let (header, content) = decode(stored, identities).map_err(|error| {
        let words = match error {
            SegmentError::Encryption(_) => "its object in the store cannot be opened",
            _ => "its object in the store is damaged",
        };
        anyhow::Error::new(error).context(words)
    })?;
    let origin = header.origin;
    if origin.segment != name || origin.system_id != system_id || content.len() as u64 != size.0 {
        anyhow::bail!(
            "its object in the store has {} bytes of segment {} of the database {}, not {} bytes of the database {system_id}",
            content.len(),
            origin.segment,
            origin.system_id,
            size.0
        );
    }
    Ok(content)
}

/// What planning needs of the WAL.
fn stored(list: &WalList, size: Bytes) -> Stored {
    let segments = list.segments.iter();
    let segments = segments.filter_map(|segment| WalFile::parse(&segment.to_string(), size)?.segment());
    Stored {
        segments: segments.collect(),
        histories: histories(&list.histories),
    }
}
