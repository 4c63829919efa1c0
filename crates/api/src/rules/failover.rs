//! Rules about `spec.failover.timing`: the timing rule of the failover protocol, which crate `machine` checks again.

use super::Rule;
use crate::ClusteredDatabase;
use crate::spec::{FailoverProfile, FailoverTiming};

const AT: &str = "spec.failover.timing";

pub(super) fn rules() -> Vec<Rule> {
    vec![
        Rule::holds(
            "spec.failover",
            "has(self.timing) == (self.profile == 'Custom')",
            "failover.timing belongs to the profile Custom: set both, or leave timing out",
            |resource| timing(resource).is_some() == (resource.spec.failover.profile == FailoverProfile::Custom),
        ),
        Rule::holds(
            "spec.failover.timing.leaseDurationMilliseconds",
            "self >= 2000 && self <= 600000 && self % 1000 == 0",
            "leaseDurationMilliseconds must be 2000 to 600000 and whole seconds, since a Lease counts in seconds",
            |resource| {
                timing(resource).is_none_or(|own| {
                    let lease = own.lease_duration_milliseconds;
                    (2_000..=600_000).contains(&lease) && lease.is_multiple_of(1_000)
                })
            },
        ),
        Rule::holds(
            AT,
            "(self.fenceTimeoutMilliseconds + self.stopTimeoutMilliseconds) * 100 <= self.leaseDurationMilliseconds * 95",
            "fenceTimeoutMilliseconds + stopTimeoutMilliseconds must be at most 95 % of the lease: raise leaseDurationMilliseconds or lower fenceTimeoutMilliseconds",
            |resource| {
                timing(resource).is_none_or(|own| {
                    let stopped = u64::from(own.fence_timeout_milliseconds) + u64::from(own.stop_timeout_milliseconds);
                    stopped * 100 <= u64::from(own.lease_duration_milliseconds) * 95
                })
            },
        ),
        Rule::holds(
            AT,
            "self.renewPeriodMilliseconds >= 200 && self.renewPeriodMilliseconds * 3 <= self.fenceTimeoutMilliseconds",
            "renewPeriodMilliseconds must be at least 200 and at most a third of fenceTimeoutMilliseconds, so that one lost renewal does not stop the primary",
            |resource| {
                timing(resource).is_none_or(|own| {
                    own.renew_period_milliseconds >= 200
                        && u64::from(own.renew_period_milliseconds) * 3 <= own.fence_timeout_milliseconds.into()
                })
            },
        ),
        Rule::holds(
            "spec.failover.timing.stopTimeoutMilliseconds",
            "self >= 500",
            "stopTimeoutMilliseconds must be at least 500: backends need that long to stop",
            |resource| timing(resource).is_none_or(|own| own.stop_timeout_milliseconds >= 500),
        ),
    ]
}

fn timing(resource: &ClusteredDatabase) -> Option<&FailoverTiming> {
    resource.spec.failover.timing.as_ref()
}
