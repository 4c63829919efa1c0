//! Asking the others not to take the lease while it cannot be renewed.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use api::names::PEER_PORT;
use futures::future::join_all;
use machine::instance::Work;
use machine::protocol::FailsafeRequest;

use super::Executor;
use crate::deadman::boot_time;
use crate::observe::{Effect, Failure};
use crate::peer::PeerError;
use crate::run::Event;

impl Executor {
    pub(super) fn ask_failsafe(&self, peers: BTreeMap<String, String>, request: FailsafeRequest) {
        let (client, events) = (self.peers.clone(), self.events.clone());
        // The fence waits for nobody: neither may anything else hold this up.
        self.spawn_vital(Work::Failsafe, async move {
            let calls = peers.into_iter().map(|(pod, address)| {
                let (client, events, request) = (client.clone(), events.clone(), request.clone());
                async move {
                    let Ok(address) = address.parse::<IpAddr>() else {
                        return Err(format!("{pod}: {address:?} is no address"));
                    };
                    let address = SocketAddr::new(address, PEER_PORT);
                    let sent = boot_time();
                    match client.failsafe(&pod, address, &request).await {
                        Ok(reply) => {
                            let _ = events.send(Event::Failsafe { pod, reply, sent });
                            Ok(())
                        }
                        Err(error @ (PeerError::Refused { .. } | PeerError::Garbled { .. })) => {
                            tracing::info!(pod, "no promise to leave the lease: {error}");
                            Ok(())
                        }
                        Err(error) => Err(format!("{pod}: {error}")),
                    }
                }
            });
            let ended = join_all(calls).await;
            if ended.iter().any(Result::is_ok) {
                return Ok(Effect::Asked);
            }
            let words: Vec<_> = ended.into_iter().filter_map(Result::err).collect();
            Err(Failure::said(format!("nobody answers: {}", words.join("; "))))
        });
    }
}
