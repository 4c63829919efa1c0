//! Which of several operators acts: a Lease of their own. [`machine::leader_lease`] decides; no agent uses that module.
//!
//! Leadership saves work and noise; the requests of a former leader have preconditions anyway. But a precondition
//! covers one object only. So a leader deletes something only while no other operator may lead ([`Lead`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use machine::leader_lease::{Held, Seen, Verdict, evaluate};
use machine::protocol::Epoch;
use machine::timing::{BootTime, Timing};
use machine::units::Millis;
use tokio::sync::watch;

/// Name of the Lease.
pub const LEASE: &str = "clustereddatabase-operator";
/// The other operators wait 15 s for a silent leader, as in client-go. It has stopped acting 5 s before. It exits at
/// once, which is all of its `kill`.
pub const TIMING: Timing = Timing {
    lease: Millis::seconds(15),
    renew: Millis::seconds(2),
    fence: Millis::seconds(10),
    kill: Millis::seconds(1),
};
/// Time limit of a request: two requests fit in before the fence.
const TIMEOUT: Millis = Millis::seconds(5);
/// The pause between two readings of an operator that does not lead. It takes a released Lease within that.
const LOOK: Millis = Millis::seconds(2);

/// How long after the last renewal a request may be sent. It has then arrived or timed out before another operator may
/// lead: a request has 10 s, other operators wait 15 s, and their clocks may differ by 5 %.
const FRESH: Millis = Millis::seconds(4);

/// The time at which this process last renewed the lead. It is checked right before a delete is sent. A process that
/// was stopped (SIGSTOP, a sleeping machine) might otherwise go on with a delete long after another operator has taken
/// the lead.
#[derive(Clone, Debug, Default)]
pub struct Lead(Arc<AtomicU64>);

impl Lead {
    /// The lead of an operator that is alone and takes part in no election.
    pub fn without_election() -> Self {
        Self(Arc::new(AtomicU64::new(u64::MAX)))
    }

    /// Notes that a write which was sent at `sent` took or renewed the lead.
    fn renewed(&self, sent: BootTime) {
        self.0.store(sent.0, Ordering::SeqCst);
    }

    /// True if a request that is sent at `now` arrives, or has timed out, before another operator may lead.
    pub fn covers_request(&self, now: BootTime) -> bool {
        now <= BootTime(self.0.load(Ordering::SeqCst)).plus(FRESH)
    }
}

/// Takes part in the election until the lead is lost (`Err`) or `stop` is set (`Ok`, with the Lease released).
/// `leading` is set once this process leads, and `lead` holds the time of the last renewal. `identity` must be new for
/// every process.
///
/// # Errors
/// Fails if the lead is lost.
pub async fn run(
    client: Client,
    namespace: &str,
    identity: &str,
    lead: Lead,
    leading: &watch::Sender<bool>,
    mut stop: watch::Receiver<bool>,
) -> Result<()> {
    let mut candidate = Candidate {
        api: Api::namespaced(client, namespace),
        identity: identity.to_owned(),
        lease: None,
        changed: now(),
        held: None,
        lead,
    };
    loop {
        let wake = candidate.round().await?;
        let leads = candidate.held.is_some();
        leading.send_if_modified(|leading| std::mem::replace(leading, leads) != leads);
        tokio::select! {
            // A dropped sender means that the process ends.
            _ = stop.wait_for(|stop| *stop) => {
                candidate.release().await;
                return Ok(());
            }
            () = tokio::time::sleep(wake.since(now()).duration()) => {}
        }
    }
}

/// The time on a clock that goes on while the machine sleeps.
pub fn now() -> BootTime {
    // Apple's monotonic clock goes on, and Apple has no other.
    #[cfg(target_vendor = "apple")]
    let clock = rustix::time::ClockId::Monotonic;
    #[cfg(not(target_vendor = "apple"))]
    let clock = rustix::time::ClockId::Boottime;
    let time = rustix::time::clock_gettime(clock);
    let (seconds, nanoseconds) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    BootTime(seconds * 1_000 + nanoseconds / 1_000_000)
}

struct Candidate {
    api: Api<Lease>,
    identity: String,
    /// The Lease as last read.
    lease: Option<Lease>,
    /// When that version was first read.
    changed: BootTime,
    held: Option<Held>,
    lead: Lead,
}

impl Candidate {
    /// Makes one decision and carries it out. Returns when to decide again. An error: the lead is lost.
    async fn round(&mut self) -> Result<BootTime> {
        if self.held.is_none()
            && let Err(error) = self.look().await
        {
            tracing::warn!(error = format!("{error:#}"), "cannot read the operators' Lease");
            return Ok(now().plus(LOOK));
        }
        let at = now();
        match evaluate(
            seen(self.lease.as_ref(), self.changed),
            &self.identity,
            &TIMING,
            at,
            self.held,
        ) {
            Verdict::Acquire { epoch, .. } => match self.write(Some(epoch), TIMEOUT).await {
                Ok(()) => self.holds_since(at),
                Err(error) => {
                    tracing::info!(error = format!("{error:#}"), "did not get the lead");
                    return Ok(now().plus(LOOK));
                }
            },
            Verdict::Renew { before, .. } => match self.write(None, TIMEOUT.min(before.since(at))).await {
                Ok(()) => self.holds_since(at),
                Err(error) => {
                    tracing::warn!(error = format!("{error:#}"), "cannot renew the operators' Lease");
                    self.held = self.held.map(|held| Held { tried: at, ..held });
                    // Another operator may have written the Lease. If it cannot be read now, the deadline decides.
                    if self.look().await.is_ok() && self.lease.is_none() {
                        // Whoever deleted the Lease wants another leader, which may lead as soon as the Lease exists
                        // again.
                        bail!("the operators' Lease was deleted");
                    }
                }
            },
            Verdict::Hold { wake } => return Ok(wake),
            Verdict::Yield { wake } => return Ok(wake.min(at.plus(LOOK))),
            Verdict::Fence => bail!("the lead could not be renewed for {} s", TIMING.fence.in_seconds()),
            Verdict::Lost => bail!("another operator has the lead"),
        }
        Ok(now())
    }

    fn holds_since(&mut self, sent: BootTime) {
        self.held = Some(Held::since(sent));
        self.lead.renewed(sent);
    }

    async fn look(&mut self) -> Result<()> {
        let found = limited(TIMEOUT, self.api.get_opt(LEASE))
            .await
            .context("read the Lease")?;
        let found = match found {
            // A leader does not create the Lease again: whoever deleted it wants a new election.
            None if self.held.is_none() => {
                let made = limited(TIMEOUT, self.api.create(&PostParams::default(), &empty())).await;
                Some(made.context("make the Lease")?)
            }
            found => found,
        };
        self.learn(found);
        Ok(())
    }

    fn learn(&mut self, lease: Option<Lease>) {
        let version = |lease: &Option<Lease>| lease.as_ref().and_then(|lease| lease.metadata.resource_version.clone());
        if version(&lease) != version(&self.lease) {
            self.changed = now();
        }
        self.lease = lease;
    }

    /// Writes this process as the holder over the version last read, with a new epoch when the lead changes hands.
    async fn write(&mut self, epoch: Option<Epoch>, limit: Millis) -> Result<()> {
        let wanted = held(self.lease.as_ref(), Some(&self.identity), epoch);
        let written = limited(limit, self.api.replace(LEASE, &PostParams::default(), &wanted)).await?;
        self.learn(Some(written));
        Ok(())
    }

    /// Releases the lead, so that the next operator need not wait.
    async fn release(&self) {
        if self.held.is_none() {
            return;
        }
        let free = held(self.lease.as_ref(), None, None);
        if let Err(error) = limited(TIMEOUT, self.api.replace(LEASE, &PostParams::default(), &free)).await {
            tracing::warn!(
                error = format!("{error:#}"),
                "cannot release the operators' Lease; the next leader waits"
            );
        }
    }
}

fn seen(lease: Option<&Lease>, changed: BootTime) -> Option<Seen<'_>> {
    let lease = lease?;
    let spec = lease.spec.as_ref();
    let transitions = spec.and_then(|spec| spec.lease_transitions).unwrap_or(0);
    let seconds = spec.and_then(|spec| spec.lease_duration_seconds).unwrap_or(0);
    Some(Seen {
        version: lease.metadata.resource_version.as_deref()?,
        holder: spec
            .and_then(|spec| spec.holder_identity.as_deref())
            .filter(|holder| !holder.is_empty()),
        epoch: Epoch(u64::try_from(transitions).unwrap_or(0)),
        duration: Millis::seconds(u64::try_from(seconds).unwrap_or(0)),
        changed,
    })
}

fn empty() -> Lease {
    Lease {
        metadata: ObjectMeta {
            name: Some(LEASE.to_owned()),
            ..ObjectMeta::default()
        },
        spec: None,
    }
}

fn held(lease: Option<&Lease>, holder: Option<&str>, epoch: Option<Epoch>) -> Lease {
    let mut lease = lease.cloned().unwrap_or_else(empty);
    lease.metadata.managed_fields = None;
    let before = lease.spec.take().unwrap_or_default();
    let now = MicroTime(Timestamp::now());
    let transitions = epoch.map(Epoch::transitions).or(before.lease_transitions);
    lease.spec = Some(LeaseSpec {
        holder_identity: holder.map(str::to_owned),
        lease_duration_seconds: i32::try_from(TIMING.lease.in_seconds()).ok(),
        acquire_time: if epoch.is_some() {
            Some(now.clone())
        } else {
            before.acquire_time
        },
        lease_transitions: transitions,
        renew_time: Some(now),
        ..LeaseSpec::default()
    });
    lease
}

async fn limited<T>(limit: Millis, request: impl Future<Output = kube::Result<T>>) -> Result<T> {
    Ok(tokio::time::timeout(limit.duration(), request)
        .await
        .context("wait for an answer")??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_obey_the_rule_of_every_lease() {
        TIMING.check().unwrap();
        const { assert!(TIMEOUT.0 * 2 <= TIMING.fence.0) };
        const { assert!(FRESH.0 + crate::requests::TIMEOUT.as_millis() as u64 <= TIMING.lease.percent(95).0) };
        const { assert!(TIMING.renew.0 < FRESH.0) };
    }

    #[test]
    fn a_request_is_covered_by_the_last_renewal_only_for_a_while() {
        let lead = Lead::default();
        assert!(!lead.covers_request(BootTime(1).plus(FRESH)), "it was never taken");
        lead.renewed(BootTime(50_000));
        let other_thread = lead.clone();
        assert!(other_thread.covers_request(BootTime(50_000).plus(FRESH)));
        assert!(!other_thread.covers_request(BootTime(50_001).plus(FRESH)));
        lead.renewed(BootTime(52_000));
        assert!(other_thread.covers_request(BootTime(50_001).plus(FRESH)));
        assert!(Lead::without_election().covers_request(now()));
    }

    #[test]
    fn renewing_is_no_transition_and_releasing_names_nobody() {
        let mut taken = held(None, Some("a"), Some(Epoch(4)));
        taken.metadata.resource_version = Some("7".to_owned());
        let renewed = held(Some(&taken), Some("a"), None);
        let (first, second) = (taken.spec.clone().unwrap(), renewed.spec.clone().unwrap());
        assert_eq!((first.lease_transitions, second.lease_transitions), (Some(4), Some(4)));
        assert_eq!(first.acquire_time, second.acquire_time);
        let record = seen(Some(&renewed), BootTime(5)).unwrap();
        assert_eq!(
            (record.holder, record.epoch, record.duration, record.version),
            (Some("a"), Epoch(4), TIMING.lease, "7")
        );
        let free = held(Some(&renewed), None, None);
        assert_eq!(seen(Some(&free), BootTime(5)).unwrap().holder, None);
    }

    /// An API server on which the Lease was deleted.
    fn without_lease() -> Client {
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            let status = serde_json::json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": "not found", "reason": "NotFound", "code": 404});
            let answer = http::Response::builder().status(404);
            let body = kube::client::Body::from(status.to_string().into_bytes());
            Ok::<_, std::convert::Infallible>(answer.body(body).unwrap())
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn a_leader_whose_lease_was_deleted_stops_at_its_next_renewal() {
        let mut lease = held(None, Some("a"), Some(Epoch(4)));
        lease.metadata.resource_version = Some("7".to_owned());
        let last = now().minus(TIMING.renew);
        let mut candidate = Candidate {
            api: Api::namespaced(without_lease(), "ns"),
            identity: "a".to_owned(),
            lease: Some(lease),
            changed: last,
            held: Some(Held::since(last)),
            lead: Lead::default(),
        };
        let error = candidate.round().await.unwrap_err();
        assert!(error.to_string().contains("deleted"), "{error:#}");
    }

    #[test]
    fn the_clock_goes_forward() {
        let first = now();
        assert!(first > BootTime(0) && now() >= first);
    }
}
