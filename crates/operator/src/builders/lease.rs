//! The Lease that decides who is primary. Made once and empty; all of its content belongs to the agents.

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};

use super::Subject;

/// The empty Lease.
pub fn lease(subject: &Subject<'_>) -> Lease {
    Lease {
        metadata: subject.kept_meta(subject.names.lease()),
        spec: Some(LeaseSpec::default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builders::fixture::smallest;
    use crate::config::Config;

    #[test]
    fn is_held_by_nobody() {
        let (db, config) = (smallest(), Config::default());
        let lease = lease(&Subject::new(&db, &config).unwrap());
        assert_eq!(lease.spec, Some(LeaseSpec::default()));
        assert_eq!(lease.metadata.annotations, None);
    }
}
