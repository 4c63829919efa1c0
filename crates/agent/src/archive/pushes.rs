//! Files on their way into the archive. PostgreSQL hands over one after the other; those that come next are pushed beside it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use backup::Problem;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use machine::archive::{Lineage, WalFile};
use machine::protocol::Epoch;
use machine::units::Bytes;

use super::attached::Attached;
use crate::volume::marks;

/// How a push ended.
type Pushed = Result<(), Fault>;

/// Why a push failed.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) words: String,
    /// The name is taken by other content: no later try will succeed.
    pub(super) is_conflict: bool,
}

impl From<String> for Fault {
    fn from(words: String) -> Self {
        let is_conflict = false;
        Self { words, is_conflict }
    }
}

impl From<Problem> for Fault {
    fn from(problem: Problem) -> Self {
        Self {
            is_conflict: matches!(problem, Problem::Conflict(_)),
            words: problem.to_string(),
        }
    }
}

/// A push that several may wait for.
type Push = Shared<BoxFuture<'static, Pushed>>;

/// At most so many files are pushed at once, and so many bytes of segments.
const AT_ONCE: u64 = 8;
const IN_MEMORY: u64 = 64 << 20;

/// The pushes that are under way, or have ended and were not asked about.
#[derive(Default)]
pub(super) struct Pushes(HashMap<String, Push>);

impl Pushes {
    /// Begins to push `name`, unless that has begun, and the segments that wait behind it. Returns what to wait for.
    pub(super) fn begin(
        &mut self,
        store: &Arc<Attached>,
        wal: &Path,
        (name, file): (&str, WalFile),
        epoch: Epoch,
        (size, lineage): (Bytes, &Lineage),
    ) -> Push {
        // What has failed is tried again.
        self.0.retain(|_, push| !matches!(push.peek(), Some(Err(_))));
        let begin = |name: &str, file: WalFile| -> Push {
            let (store, wal, name) = (Arc::clone(store), wal.to_owned(), name.to_owned());
            let pushed = async move {
                let pushed = store.push(&wal, &name, file, epoch).await;
                pushed.map_err(Fault::from)
            };
            let task = tokio::spawn(pushed);
            let ended = async move { task.await.unwrap_or_else(|error| Err(error.to_string().into())) };
            ended.boxed().shared()
        };
        let own = self
            .0
            .entry(name.to_owned())
            .or_insert_with(|| begin(name, file))
            .clone();
        // Nothing goes beside a history: a segment of its timeline must not be in the archive without it, should this server be lost.
        let at_once = file
            .segment()
            .map_or(0, |_| (IN_MEMORY / size.0.max(1)).clamp(1, AT_ONCE));
        let mut free = at_once.saturating_sub(self.under_way());
        let waiting = marks::waiting(wal).unwrap_or_default();
        for next in waiting.iter().skip_while(|waiting| waiting.as_str() <= name) {
            let file = WalFile::parse(next, size).map(|file| lineage.file(file, size));
            let segment = file.filter(|file| matches!(file, WalFile::Segment(_)));
            match segment {
                Some(file) if free > 0 => {
                    if !self.0.contains_key(next) {
                        self.0.insert(next.clone(), begin(next, file));
                        free -= 1;
                    }
                }
                // The others follow when PostgreSQL hands them over.
                Some(_) | None => break,
            }
        }
        own
    }

    pub(super) fn under_way(&self) -> u64 {
        self.0.values().map(|push| u64::from(push.peek().is_none())).sum()
    }

    /// PostgreSQL has been told how this push ended: asked again, it is begun again.
    pub(super) fn told(&mut self, name: &str) {
        self.0.remove(name);
    }
}
