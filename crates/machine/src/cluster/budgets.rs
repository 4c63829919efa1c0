//! How many pods of each role must stay when others are evicted (`minAvailable` of the two PodDisruptionBudgets).
//!
//! Kubernetes refuses every eviction of a pod that two budgets select, so each pod belongs to one at most, by its role label.
//! `maxUnavailable` would not do: of a part of a StatefulSet's pods Kubernetes expects as many as the whole set has.

/// Of pods labelled primary: the primary is not evicted, but moved, and then it is a replica. One instance has nobody to
/// hand over to; with a budget its node could never be drained, and eviction is how it gets to another node.
pub const fn primary_stays(replicas: u32) -> u32 {
    if replicas > 1 { 1 } else { 0 }
}

/// Of pods labelled replica: all but one. There are `replicas - 1` of them while a primary serves.
pub const fn replicas_stay(replicas: u32) -> u32 {
    replicas.saturating_sub(2)
}

#[cfg(test)]
mod tests {
    use super::{primary_stays, replicas_stay};

    #[test]
    fn one_instance_is_evicted_and_of_more_the_primary_and_all_but_one_standby_stay() {
        assert_eq!([1, 2, 3, 9].map(primary_stays), [0, 1, 1, 1]);
        assert_eq!([0, 1, 2, 3, 9].map(replicas_stay), [0, 0, 0, 1, 7]);
    }
}
