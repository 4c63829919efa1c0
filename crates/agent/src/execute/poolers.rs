//! Has poolers pause before a planned stop of the primary ([`machine::pooler::pause`]).

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use machine::pooler::pause::{Asked, Calls};
use machine::protocol::{PoolerReply, PoolerRequest};
use machine::timing::BootTime;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::deadman::boot_time;

/// Time passes without a call, too.
const LOOK: Duration = Duration::from_millis(20);

/// What poolers ask, and are told.
#[derive(Debug, Default)]
pub struct Poolers {
    calls: Mutex<Calls>,
    asked: Notify,
}

impl Poolers {
    /// Answers a pooler's pod.
    pub fn answer(&self, request: PoolerRequest, asked: Asked, now: BootTime) -> PoolerReply {
        let reply = self.calls().answer(request, asked, now);
        self.asked.notify_one();
        reply
    }

    /// They are to pause soon.
    pub(super) fn announce(&self) {
        self.calls().announce(boot_time());
    }

    /// Has them pause when all have heard that they are to. Returns when they do, or when they were waited for long enough.
    pub(super) async fn pause(&self) {
        self.announce();
        self.wait(Calls::announces).await;
        self.calls().begin(boot_time());
        self.wait(Calls::waits).await;
    }

    async fn wait(&self, is_so: fn(&Calls, BootTime) -> bool) {
        while is_so(&self.calls(), boot_time()) {
            let _ = timeout(LOOK, self.asked.notified()).await;
        }
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
