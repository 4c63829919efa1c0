//! What the user wants, as the operator hands it to a decision.

use api::ClusteredDatabaseSpec;

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
    /// `spec.storage.size` in bytes.
    pub data_bytes: u64,
    /// `spec.storage.wal.size` in bytes.
    pub wal_bytes: Option<u64>,
    /// The annotation [`api::names::ANNOTATION_RECREATE_LEASE`].
    pub recreate_lease: Option<&'a str>,
    /// The annotation [`api::names::ANNOTATION_ACCEPT_LOSS`].
    pub accept_loss: Option<&'a str>,
    /// What an operation asks for: the instance that is to be the primary, a slash, and the operation's UID.
    pub switchover: Option<&'a str>,
}

impl Wanted<'_> {
    /// How many instances; at least one.
    pub fn replicas(&self) -> u32 {
        u32::try_from(self.spec.replicas).unwrap_or(1).max(1)
    }
}
