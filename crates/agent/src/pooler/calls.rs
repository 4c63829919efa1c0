//! Asks the primary's agent whether this pod is to pause.

use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use api::names::{PEER_PORT, TLS_PATH};
use machine::protocol::PoolerRequest;
use machine::units::Millis;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio::time::timeout;

use super::Event;
use crate::peer::{Client, Tls};

/// While it cannot be asked, for example because there is no certificate yet.
const AGAIN: Duration = Duration::from_secs(2);

/// After this long it is told that nobody answers.
const FAILS: Duration = Duration::from_secs(10);

/// What is asked, and of whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    /// The primary.
    pub address: IpAddr,
    /// This pod has paused.
    pub paused: bool,
    /// How long after an answer it is asked again.
    pub every: Millis,
}

/// Asks again and again, and at once when something else is to be asked. `name`: of the certificate that all agents of the cluster share.
pub(super) async fn ask(mut asked: watch::Receiver<Option<Ask>>, name: String, events: UnboundedSender<Event>) {
    // The pod's name.
    let pod = std::env::var("HOSTNAME").unwrap_or_default();
    let client = loop {
        match Tls::of_pooler(Path::new(TLS_PATH), &name) {
            Ok(tls) => break Client::new(tls),
            Err(error) => tracing::warn!("no planned stop of PostgreSQL is heard of: {error}"),
        }
        tokio::time::sleep(AGAIN).await;
    };
    // When it began to fail, and whether that was told.
    let mut failing: Option<(Instant, bool)> = None;
    loop {
        let ask = *asked.borrow_and_update();
        if let Some(ask) = ask {
            let request = PoolerRequest {
                pod: pod.clone(),
                paused: ask.paused,
            };
            match client.pooler((ask.address, PEER_PORT).into(), &request).await {
                Ok(reply) => {
                    failing = None;
                    let _ = events.send(Event::Told(reply));
                }
                Err(error) => {
                    let (since, told) = failing.get_or_insert((Instant::now(), false));
                    if since.elapsed() > FAILS && !*told {
                        *told = true;
                        tracing::warn!(
                            "clients will feel the next planned stop of PostgreSQL: its agent does not answer: {error}"
                        );
                    }
                }
            }
        }
        let every = ask.map_or(AGAIN, |ask| ask.every.duration());
        if let Ok(Err(_)) = timeout(every, asked.changed()).await {
            return;
        }
    }
}
