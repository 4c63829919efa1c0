//! Finding out, when a store is attached, if it can be used and if it refuses to overwrite.

use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use tokio::time::timeout;

use crate::{Problem, Store};

/// What protects an object against a second writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// The store refuses a create if the object exists.
    Enforced,
    /// The store overwrites. [`Store::create`] looks before it writes and reads back, which leaves a short time in
    /// which another writer is not noticed.
    BestEffort,
}

/// Creates at the same time: enough for a store with several front ends to use two of them.
const WRITERS: usize = 8;

impl Store {
    /// Tries the store, at attach and after each change of the endpoint. It leaves two small objects in `folder`: the
    /// credentials need not allow deletes. A probe is not repeated inside; the caller repeats it.
    ///
    /// # Errors
    /// Fails with [`Problem::Unusable`] if the store does not show an object that was just written. Fails with any
    /// other problem if that prevents a verdict.
    pub async fn probe(&self, folder: &str, limit: Duration) -> Result<Fence, Problem> {
        let probe = self.try_probe(folder, limit);
        let too_late = |_| Err(Problem::Unavailable(format!("no answer within {limit:?}")));
        timeout(limit, probe).await.unwrap_or_else(too_late)
    }

    async fn try_probe(&self, folder: &str, limit: Duration) -> Result<Fence, Problem> {
        let strict = self.clone().with_fence(Fence::Enforced);
        let id = fastrand::u64(..);
        let (first, second) = (format!("{folder}/{id:016x}-1"), format!("{folder}/{id:016x}-2"));
        match strict.put(&first, content(0)).await {
            Ok(()) => {}
            // The store may know no conditions. If the reason is another one, this fails too.
            Err(Problem::Unusable(_)) => {
                self.clone()
                    .with_fence(Fence::BestEffort)
                    .put(&first, content(0))
                    .await?;
                self.check_visible(folder, &first, limit).await?;
                return Ok(Fence::BestEffort);
            }
            Err(problem) => return Err(problem),
        }
        self.check_visible(folder, &first, limit).await?;
        let again = is_winner(strict.put(&first, content(0)).await)?;
        let writers = (0..WRITERS).map(|writer| strict.put(&second, content(writer)));
        let written: Result<Vec<bool>, Problem> = join_all(writers).await.into_iter().map(is_winner).collect();
        match written?.into_iter().filter(|is_winner| *is_winner).count() {
            1 if !again => Ok(Fence::Enforced),
            0 => Err(Problem::Unavailable(
                "the store refused every create of a new name".to_owned(),
            )),
            _ => Ok(Fence::BestEffort),
        }
    }

    async fn check_visible(&self, folder: &str, name: &str, limit: Duration) -> Result<(), Problem> {
        if self.read(name, limit).await? != content(0) {
            return Err(Problem::Unusable(format!(
                "{name} was just written and reads otherwise"
            )));
        }
        match self.list(folder, limit).await?.iter().any(|found| found.name == name) {
            true => Ok(()),
            false => Err(Problem::Unusable(format!("{name} was just written and is not listed"))),
        }
    }
}

fn content(writer: usize) -> Bytes {
    Bytes::from(format!(
        "A test if this store refuses to overwrite. It can be deleted. {writer}\n"
    ))
}

fn is_winner(written: Result<(), Problem>) -> Result<bool, Problem> {
    match written {
        Ok(()) => Ok(true),
        Err(Problem::Conflict(_)) => Ok(false),
        Err(problem) => Err(problem),
    }
}
