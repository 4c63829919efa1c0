//! The kinds that are served.

/// A kind.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// Its name in paths.
    pub plural: &'static str,
    /// Its group; empty for the core's.
    pub group: &'static str,
    /// The version.
    pub version: &'static str,
    /// Its name in objects.
    pub kind: &'static str,
    /// Its objects are in namespaces.
    pub namespaced: bool,
    /// `status` is written by a subresource, and by it only.
    pub has_status: bool,
    /// Its objects count the changes of their specs (`metadata.generation`).
    pub counts: bool,
    /// A deletion is answered with the object, and not with a `Status`, even if it is gone at once.
    pub returns_deleted: bool,
    /// Made by a CustomResourceDefinition: lists are replaced as a whole, and a PUT must say which version it replaces.
    pub custom: bool,
}

const fn kind(plural: &'static str, group: &'static str, kind: &'static str) -> Kind {
    Kind {
        plural,
        group,
        version: "v1",
        kind,
        namespaced: true,
        has_status: false,
        counts: false,
        returns_deleted: false,
        custom: false,
    }
}

/// All of them. `probes` are for [`crate::conformance`]. Events of the core and of `events.k8s.io` are one thing in
/// Kubernetes, and two here.
pub const KINDS: [Kind; 27] = [
    Kind {
        namespaced: false,
        has_status: true,
        ..kind("namespaces", "", "Namespace")
    },
    Kind {
        namespaced: false,
        has_status: true,
        ..kind("nodes", "", "Node")
    },
    Kind {
        has_status: true,
        counts: true,
        returns_deleted: true,
        ..kind("pods", "", "Pod")
    },
    Kind {
        has_status: true,
        returns_deleted: true,
        ..kind("services", "", "Service")
    },
    Kind {
        has_status: true,
        returns_deleted: true,
        ..kind("persistentvolumeclaims", "", "PersistentVolumeClaim")
    },
    Kind {
        returns_deleted: true,
        ..kind("serviceaccounts", "", "ServiceAccount")
    },
    kind("secrets", "", "Secret"),
    kind("configmaps", "", "ConfigMap"),
    kind("events", "", "Event"),
    kind("events", "events.k8s.io", "Event"),
    Kind {
        has_status: true,
        counts: true,
        ..kind("statefulsets", "apps", "StatefulSet")
    },
    Kind {
        has_status: true,
        counts: true,
        ..kind("deployments", "apps", "Deployment")
    },
    kind("leases", "coordination.k8s.io", "Lease"),
    Kind {
        counts: true,
        ..kind("endpointslices", "discovery.k8s.io", "EndpointSlice")
    },
    Kind {
        has_status: true,
        counts: true,
        ..kind("poddisruptionbudgets", "policy", "PodDisruptionBudget")
    },
    Kind {
        counts: true,
        ..kind("networkpolicies", "networking.k8s.io", "NetworkPolicy")
    },
    kind("roles", "rbac.authorization.k8s.io", "Role"),
    kind("rolebindings", "rbac.authorization.k8s.io", "RoleBinding"),
    Kind {
        namespaced: false,
        ..kind("storageclasses", "storage.k8s.io", "StorageClass")
    },
    Kind {
        has_status: true,
        counts: true,
        custom: true,
        ..kind("volumesnapshots", "snapshot.storage.k8s.io", "VolumeSnapshot")
    },
    Kind {
        version: "v1alpha2",
        has_status: true,
        counts: true,
        custom: true,
        ..kind("clustereddatabases", "clustereddatabase.io", "ClusteredDatabase")
    },
    Kind {
        version: "v1alpha2",
        has_status: true,
        counts: true,
        custom: true,
        ..kind(
            "clustereddatabaseoperations",
            "clustereddatabase.io",
            "ClusteredDatabaseOperation",
        )
    },
    Kind {
        version: "v1alpha2",
        has_status: true,
        counts: true,
        custom: true,
        ..kind("databasebackups", "clustereddatabase.io", "DatabaseBackup")
    },
    Kind {
        version: "v1alpha2",
        has_status: true,
        counts: true,
        custom: true,
        ..kind("databaseusers", "clustereddatabase.io", "DatabaseUser")
    },
    Kind {
        version: "v1alpha2",
        has_status: true,
        counts: true,
        custom: true,
        ..kind("databases", "clustereddatabase.io", "Database")
    },
    Kind {
        version: "v1alpha2",
        has_status: true,
        counts: true,
        custom: true,
        ..kind("poolers", "clustereddatabase.io", "Pooler")
    },
    Kind {
        has_status: true,
        counts: true,
        custom: true,
        ..kind("probes", "conformance.clustereddatabase.io", "Probe")
    },
];

impl Kind {
    /// The kind of this name in paths; of two with one name the first.
    ///
    /// # Panics
    /// If it is not served.
    pub fn of(plural: &str) -> &'static Kind {
        let found = KINDS.iter().find(|kind| kind.plural == plural);
        found.unwrap_or_else(|| panic!("{plural} are not served"))
    }

    /// The kind of this name in paths, in this group and version.
    pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static Kind> {
        KINDS
            .iter()
            .find(|kind| (kind.group, kind.version, kind.plural) == (group, version, plural))
    }

    /// The kind of this `apiVersion` and `kind`; the version does not matter.
    pub fn named(api_version: &str, name: &str) -> Option<&'static Kind> {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        KINDS.iter().find(|kind| (kind.group, kind.kind) == (group, name))
    }

    /// As objects say it.
    pub fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// As messages say it: `statefulsets.apps`.
    pub fn qualified(&self) -> String {
        match self.group {
            "" => self.plural.to_owned(),
            group => format!("{}.{group}", self.plural),
        }
    }
}
