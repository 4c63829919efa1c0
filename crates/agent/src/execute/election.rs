//! Promising, asking others for promises (to be elected, and not to take the lease), and promotion.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use api::names::PEER_PORT;
use futures::future::join_all;
use machine::instance::{Mode, Work, observer};
use machine::protocol::{Epoch, FailsafeRequest, MemberId, PromiseRequest, Timeline};
use machine::quorum::SyncRule;
use machine::timing::BootTime;
use tokio::time::timeout;

use super::server::Written;
use super::{Executor, SMALL, blocking, telling_promise};
use crate::deadman::boot_time;
use crate::event::Event;
use crate::observe::{Effect, Failure, Handle, World};
use crate::peer::{PeerError, Signed, UNKNOWN};
use crate::postgres::{promise, promote};
use crate::volume::Volume;

/// Time limit of a round of requests for promises of either kind. An election is to take less than a second, and one
/// silent member must not use that up.
const ROUND_LIMIT: Duration = Duration::from_millis(400);
/// Time limit of a promotion, including its preparation.
const PROMOTE: Duration = Duration::from_secs(60);

impl Executor {
    pub(super) fn promise(&self, world: &World, epoch: Epoch) {
        let (volume, server) = (self.volume.clone(), world.server.clone());
        self.spawn(Work::Promise, None, async move {
            let work =
                async { Ok(observer::Effect::Promised(promise(&volume, server.as_deref(), epoch).await?).into()) };
            within(SMALL, &volume, work).await
        });
    }

    pub(super) fn ask(&self, peers: BTreeMap<String, String>, request: PromiseRequest) {
        let (client, events) = (self.peers.clone(), self.events.clone());
        self.spawn(Work::Ask, Some(SMALL), async move {
            let ask = |pod: String, address| {
                let (client, events, request) = (client.clone(), events.clone(), request.clone());
                async move {
                    let reply = client.promise(&pod, address, &request).await?;
                    let Signed { message: reply, key } = reply;
                    let _ = events.send(Event::Seen(observer::Event::Promise { pod, reply, key }));
                    Ok(())
                }
            };
            ask_all(peers, "promise", ask).await
        });
    }

    pub(super) fn ask_failsafe(&self, peers: BTreeMap<String, String>, request: FailsafeRequest) {
        let (client, events) = (self.peers.clone(), self.events.clone());
        // The fence waits for nobody, so nothing else may delay this.
        self.spawn_vital(Work::Failsafe, async move {
            let ask = |pod: String, address| {
                let (client, events, request) = (client.clone(), events.clone(), request.clone());
                async move {
                    let sent = boot_time();
                    let reply = client.failsafe(&pod, address, &request).await?;
                    let Signed { message: reply, key } = reply;
                    let answered = observer::Event::Failsafe { pod, reply, key, sent };
                    let _ = events.send(Event::Seen(answered));
                    Ok(())
                }
            };
            ask_all(peers, "promise to leave the lease", ask).await
        });
    }

    pub(super) fn promote(
        &self,
        world: &World,
        until: BootTime,
        timeline: Timeline,
        rule: SyncRule,
        members: BTreeSet<MemberId>,
    ) {
        let Some(wanted) = self.wanted_as_configured(world, Work::Promote) else {
            return;
        };
        let Some(server) = world.server.clone() else {
            return self.fail(Work::Promote, "PostgreSQL does not run");
        };
        let allowed = self.allowed_to_write(until);
        let (written, sql, own) = (
            Arc::clone(&self.written),
            Arc::clone(&self.sql),
            self.own_connection(world),
        );
        let volume = wanted.volume().clone();
        let work = async move {
            // Held until the promotion is over, so that nothing else writes the configuration.
            let mut written = written.lock().await;
            *written = Written {
                rule: rule.clone(),
                open: false,
            };
            let config = wanted.config(Mode::Primary, &written).await?;
            let mut sql = sql.lock().await;
            let sql = sql.get_or_insert(own);
            let volume = wanted.volume();
            let promoted = promote(volume, &server, sql, &config, timeline, &members, allowed).await?;
            let asked = boot_time();
            let dropping = volume.clone();
            let (promise, status) = tokio::join!(blocking(move || dropping.drop_promoting()), sql.status());
            let (promise, status) = (promise?, status?);
            let promoted = observer::Effect::Promoted {
                rule,
                configured: wanted.configured(&config),
                in_doubt: promoted.at,
                promise,
                status: Box::new(status.seen()),
                asked,
            };
            Ok(Effect::with(promoted, Handle::Status(Box::new(status), asked)))
        };
        self.spawn(Work::Promote, None, async move { within(PROMOTE, &volume, work).await });
    }

    /// A check for the last moment before a write: no stop has been decided since, and the lease has not run out.
    pub(super) fn allowed_to_write(&self, until: BootTime) -> impl Fn() -> bool + Send + Sync + use<> {
        self.undo_start.store(false, Ordering::SeqCst);
        self.deadline.set(Some(until));
        let (undo, deadline) = (Arc::clone(&self.undo_start), Arc::clone(&self.deadline));
        move || !undo.load(Ordering::SeqCst) && deadline.is_ahead()
    }
}

/// Runs work that stores a promise or notes a promotion, with a time limit. If it fails, the stored promise is reported
/// all the same.
async fn within<F>(limit: Duration, volume: &Volume, work: F) -> Result<Effect, Failure>
where
    F: Future<Output = Result<Effect, Failure>>,
{
    let late = || Failure::said(format!("it did not end within {} s", limit.as_secs()));
    let done = timeout(limit, work).await;
    match done.unwrap_or_else(|_| Err(late())) {
        Ok(effect) => Ok(effect),
        Err(failure) => Err(telling_promise(volume, failure).await),
    }
}

/// Asks all `peers` (pod names, with addresses where they are known) at once. A refusal counts as an answer. Without
/// any answer within a [`ROUND_LIMIT`], the task has failed. A later answer, over a slow network, is taken all the same.
async fn ask_all<F>(
    peers: BTreeMap<String, String>,
    what: &'static str,
    ask: impl Fn(String, SocketAddr) -> F,
) -> Result<Effect, Failure>
where
    F: Future<Output = Result<(), PeerError>> + Send + 'static,
{
    let calls = peers.into_iter().map(|(pod, address)| {
        // A text that is no address stands for the pod's name alone.
        let address = address.parse().unwrap_or(UNKNOWN);
        let asked = ask(pod.clone(), SocketAddr::new(address, PEER_PORT));
        let silent = format!("{pod}: no answer within {} ms", ROUND_LIMIT.as_millis());
        let call = tokio::spawn(async move {
            match asked.await {
                Ok(()) => Ok(()),
                Err(error @ (PeerError::Refused { .. } | PeerError::Garbled { .. })) => {
                    tracing::info!(pod, "no {what}: {error}");
                    Ok(())
                }
                Err(error) => Err(format!("{pod}: {error}")),
            }
        });
        async move {
            match timeout(ROUND_LIMIT, call).await {
                Ok(Ok(ended)) => ended,
                Ok(Err(_)) | Err(_) => Err(silent),
            }
        }
    });
    let ended = join_all(calls).await;
    if ended.iter().any(Result::is_ok) {
        return Ok(observer::Effect::Asked.into());
    }
    let causes: Vec<_> = ended.into_iter().filter_map(Result::err).collect();
    Err(Failure::said(format!("nobody answers: {}", causes.join("; "))))
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    /// A round with one member that answers after `answers` milliseconds: how it ended and when, in milliseconds, and
    /// when the answer was heard.
    async fn round(answers: u64) -> (bool, u128, Option<u128>) {
        let (heard, mut answer) = mpsc::unbounded_channel();
        let begun = tokio::time::Instant::now();
        let ask = move |_: String, _: SocketAddr| {
            let heard = heard.clone();
            async move {
                tokio::time::sleep(Duration::from_millis(answers)).await;
                heard.send(begun.elapsed().as_millis()).expect("somebody listens");
                Ok(())
            }
        };
        let peers = BTreeMap::from([("orders-1".to_owned(), "10.0.0.1".to_owned())]);
        let ended = ask_all(peers, "promise", ask).await.is_ok();
        (ended, begun.elapsed().as_millis(), answer.recv().await)
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_member_holds_up_no_round_and_its_late_answer_is_heard() {
        assert_eq!(round(30).await, (true, 30, Some(30)));
        assert_eq!(round(900).await, (false, ROUND_LIMIT.as_millis(), Some(900)));
    }
}
