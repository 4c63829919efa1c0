//! What the user wants, as the operator hands it to a decision.

use api::ClusteredDatabaseSpec;
use api::backup::{BackupKind, BackupSource};
use api::operation::Request;

use crate::units::Bytes;

/// The ClusteredDatabase without its status, and what follows from its spec alone.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// `metadata.name`.
    pub name: &'a str,
    /// `metadata.uid`.
    pub uid: &'a str,
    /// `metadata.resourceVersion`.
    pub resource_version: &'a str,
    /// `metadata.generation`.
    pub generation: i64,
    /// It is being deleted.
    pub deleting: bool,
    /// It carries [`api::names::FINALIZER`].
    pub finalizer: bool,
    /// What the user asks for.
    pub spec: &'a ClusteredDatabaseSpec,
    /// Why the spec is refused, if it is (the rules of `api`, run again).
    pub invalid: Option<&'a str>,
    /// [`crate::protocol::settings_hash`] of the spec's parameters.
    pub settings: &'a str,
    /// Hash of everything that needs a new pod; stands in [`api::names::ANNOTATION_REVISION`] of the pod template.
    pub revision: &'a str,
    /// The same without cpu and memory, which running pods can be given; stands in [`api::names::ANNOTATION_BASE_REVISION`].
    pub base_revision: &'a str,
    /// The revision of a pod that lacks the WAL volume which the spec asks for, and nothing else.
    pub bare_revision: &'a str,
    /// The image with PostgreSQL that the revisions are made with ([`super::image_in_use`]).
    pub image: &'a str,
    /// The operator's default image for `spec.postgres.majorVersion`.
    pub default_image: &'a str,
    /// UID of the operation that asked last for a restart, with which the revisions are made.
    pub restarted_by: Option<&'a str>,
    /// `spec.storage.data.size`.
    pub data_bytes: Bytes,
    /// `spec.storage.wal.size`.
    pub wal_bytes: Option<Bytes>,
    /// What the one open operation asks for.
    pub request: Option<&'a Request>,
    /// UID of the one open DatabaseBackup.
    pub backup: Option<&'a str>,
    /// Whose files it is to copy.
    pub backup_source: BackupSource,
    /// What it is.
    pub backup_kind: BackupKind,
    /// [`api::names::ANNOTATION_DELETE_ARCHIVE`] has the UID.
    pub deletes_archive: bool,
}

impl Wanted<'_> {
    /// How many instances; at least one.
    pub fn replicas(&self) -> u32 {
        u32::try_from(self.spec.replicas).unwrap_or(1).max(1)
    }
}
