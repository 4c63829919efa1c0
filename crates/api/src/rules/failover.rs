//! Rules about `spec.failover.timing`: the timing rule of the failover protocol, which crate `machine` checks again.

use super::Rule;
use crate::{ClusteredDatabase, spec::FailoverTiming};

const AT: &str = "spec.failover.timing";

pub(super) fn rules() -> Vec<Rule> {
    vec![
        Rule::holds(
            "spec.failover.timing.leaseSeconds",
            "self >= 2 && self <= 600",
            "leaseSeconds must be 2 to 600",
            |resource| timing(resource).is_none_or(|own| (2..=600).contains(&own.lease_seconds)),
        ),
        Rule::holds(
            AT,
            "(self.fenceMilliseconds + self.killMilliseconds) * 100 <= self.leaseSeconds * 1000 * 95",
            "fenceMilliseconds + killMilliseconds must be at most 95 % of the lease: raise leaseSeconds or lower fenceMilliseconds",
            |resource| {
                timing(resource).is_none_or(|own| {
                    let stopped = u64::from(own.fence_milliseconds) + u64::from(own.kill_milliseconds);
                    stopped * 100 <= u64::from(own.lease_seconds) * 1_000 * 95
                })
            },
        ),
        Rule::holds(
            AT,
            "self.renewMilliseconds >= 200 && self.renewMilliseconds * 3 <= self.fenceMilliseconds",
            "renewMilliseconds must be at least 200 and at most a third of fenceMilliseconds, so that one lost renewal fences nobody",
            |resource| {
                timing(resource).is_none_or(|own| {
                    own.renew_milliseconds >= 200
                        && u64::from(own.renew_milliseconds) * 3 <= own.fence_milliseconds.into()
                })
            },
        ),
        Rule::holds(
            "spec.failover.timing.killMilliseconds",
            "self >= 500",
            "killMilliseconds must be at least 500: backends need that long to stop",
            |resource| timing(resource).is_none_or(|own| own.kill_milliseconds >= 500),
        ),
    ]
}

fn timing(resource: &ClusteredDatabase) -> Option<&FailoverTiming> {
    resource.spec.failover.timing.as_ref()
}
