//! The objects that belong to one database, as one table.

use api::ClusteredDatabaseSpec;
use api::spec::NetworkPolicyMode;
use serde::{Deserialize, Serialize};

/// An object that belongs to the database. The order is the order of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum OwnedObject {
    /// The agents' identity.
    ServiceAccount,
    /// What the agents may do.
    Role,
    /// Binds the two.
    RoleBinding,
    /// Secret with the cluster's certificate authority and its key. Made once: losing it is not repaired by itself.
    CaSecret,
    /// Secret with the agents' certificate, signed by the authority. Can be made again.
    TlsSecret,
    /// Secret with the application user's credentials. Made once.
    AppSecret,
    /// Service `<name>-pods`.
    HeadlessService,
    /// Service `<name>-rw`, without selector.
    RwService,
    /// Service `<name>-ro`.
    RoService,
    /// Service `<name>-r`.
    RService,
    /// EndpointSlice `<name>-rw`. Only its metadata is the operator's; it is made without endpoints, and the endpoints
    /// are the holder's and never overwritten.
    EndpointSlice,
    /// The Lease. Made once, empty; its content is the agents'. It never counts as drifted.
    Lease,
    /// The budget against voluntary eviction of the replicas.
    PodDisruptionBudget,
    /// That of the primary, PodDisruptionBudget `<name>.primary` (see [`super::budgets`]).
    PrimaryBudget,
    /// Who may connect to the pods. It is there only if the spec asks for it: see [`super::is_wanted`].
    NetworkPolicy,
    /// The pods and claims. Its `replicas` is not part of its drift: see [`StatefulSetView`].
    StatefulSet,
}

/// What is the same for every database about one of its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owned {
    /// Which object this row is about.
    pub object: OwnedObject,
    /// The Kubernetes kind.
    pub kind: &'static str,
    /// What stands behind the database's name in the object's name (as in [`api::names::Names`]).
    pub suffix: &'static str,
    /// The machine builds nothing on this object: only clients and node drains use it.
    pub is_for_clients: bool,
    /// The content cannot be made a second time: a lost one is not replaced by itself.
    pub is_unique: bool,
    /// Only the metadata is the operator's once the object is made.
    pub is_metadata_only: bool,
    /// Paths that the API server does not let change: the object is deleted and made again.
    pub immutable: &'static [&'static str],
}

impl Owned {
    const fn new(object: OwnedObject, kind: &'static str, suffix: &'static str) -> Self {
        Self {
            object,
            kind,
            suffix,
            is_for_clients: false,
            is_unique: false,
            is_metadata_only: false,
            immutable: &[],
        }
    }
    const fn for_clients(self) -> Self {
        Self {
            is_for_clients: true,
            ..self
        }
    }
    const fn unique(self) -> Self {
        Self {
            is_unique: true,
            ..self
        }
    }
    const fn metadata_only(self) -> Self {
        Self {
            is_metadata_only: true,
            ..self
        }
    }
    const fn immutable(self, immutable: &'static [&'static str]) -> Self {
        Self { immutable, ..self }
    }
}

/// All of them, in the order of creation, which is the order of [`OwnedObject`].
pub const OWNED: [Owned; 16] = [
    Owned::new(OwnedObject::ServiceAccount, "ServiceAccount", ""),
    Owned::new(OwnedObject::Role, "Role", ""),
    Owned::new(OwnedObject::RoleBinding, "RoleBinding", "").immutable(&["roleRef"]),
    Owned::new(OwnedObject::CaSecret, "Secret", "-ca")
        .unique()
        .metadata_only(),
    Owned::new(OwnedObject::TlsSecret, "Secret", "-tls").metadata_only(),
    Owned::new(OwnedObject::AppSecret, "Secret", "-app")
        .unique()
        .metadata_only(),
    Owned::new(OwnedObject::HeadlessService, "Service", "-pods"),
    Owned::new(OwnedObject::RwService, "Service", "-rw").for_clients(),
    Owned::new(OwnedObject::RoService, "Service", "-ro").for_clients(),
    Owned::new(OwnedObject::RService, "Service", "-r").for_clients(),
    Owned::new(OwnedObject::EndpointSlice, "EndpointSlice", "-rw").metadata_only(),
    Owned::new(OwnedObject::Lease, "Lease", "").unique().metadata_only(),
    Owned::new(OwnedObject::PodDisruptionBudget, "PodDisruptionBudget", "").for_clients(),
    Owned::new(OwnedObject::PrimaryBudget, "PodDisruptionBudget", ".primary").for_clients(),
    Owned::new(OwnedObject::NetworkPolicy, "NetworkPolicy", "").for_clients(),
    Owned::new(OwnedObject::StatefulSet, "StatefulSet", "").immutable(&[
        "spec.volumeClaimTemplates",
        "spec.selector",
        "spec.serviceName",
        "spec.podManagementPolicy",
    ]),
];

impl OwnedObject {
    /// All of them, in the order of creation.
    pub const ALL: [OwnedObject; OWNED.len()] = {
        let mut all = [OwnedObject::ServiceAccount; OWNED.len()];
        let mut row = 0;
        while row < OWNED.len() {
            all[row] = OWNED[row].object;
            row += 1;
        }
        all
    };

    /// Its row in [`OWNED`].
    pub const fn owned(self) -> &'static Owned {
        const TABLE: &[Owned; OWNED.len()] = &OWNED;
        &TABLE[self as usize]
    }

    /// The Kubernetes kind.
    pub const fn kind(self) -> &'static str {
        self.owned().kind
    }

    /// See [`Owned::suffix`].
    pub const fn suffix(self) -> &'static str {
        self.owned().suffix
    }
}

/// Whether the spec asks for this object. One that is there and is not wanted is deleted, if it is the database's own.
pub fn is_wanted(spec: &ClusteredDatabaseSpec, kind: OwnedObject) -> bool {
    kind != OwnedObject::NetworkPolicy || spec.network_policy.mode == NetworkPolicyMode::Managed
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_object_has_its_row_and_a_name_of_its_own() {
        for (row, owned) in OWNED.iter().enumerate() {
            assert_eq!(owned.object as usize, row, "{:?} stands in another row", owned.object);
        }
        let names: BTreeSet<_> = OWNED.iter().map(|owned| (owned.kind, owned.suffix)).collect();
        assert_eq!(names.len(), OWNED.len(), "two objects have one name");
    }
}
