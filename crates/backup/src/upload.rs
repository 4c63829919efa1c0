//! Writes of objects that are too large for the memory.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::multipart::{MultipartStore, PartId};
use object_store::{MultipartId, MultipartUpload, ObjectStoreExt, PutPayload};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::{Compare, Problem, Store};

/// Pieces that are sent at the same time. More would not be faster on the usual one or two processors.
const IN_FLIGHT: usize = 3;

/// An object that is being written, piece by piece.
///
/// At most four pieces are in memory: three that are sent, and the one that [`Upload::write`] was called with. The
/// object appears when [`Upload::finish`] succeeds, and not before. An upload that is dropped leaves pieces in some
/// stores, which a rule of the bucket should remove; [`Upload::abort`] removes them.
pub struct Upload {
    store: Store,
    name: String,
    limit: Duration,
    /// An object of one piece is created by one request.
    first: Option<Bytes>,
    begun: Option<Begun>,
    bytes: u64,
}

enum Begun {
    Pieces {
        uploads: Arc<dyn MultipartStore>,
        id: MultipartId,
        sent: u32,
        tasks: JoinSet<Result<(u32, PartId), Problem>>,
        done: Vec<(u32, PartId)>,
    },
    File(Box<dyn MultipartUpload>),
}

impl Store {
    /// Begins to write an object in pieces, all of [`crate::PIECE`] bytes but the last. `limit` is the time limit of each
    /// request. No request is sent yet.
    pub fn upload(&self, name: &str, limit: Duration) -> Upload {
        Upload {
            store: self.clone(),
            name: name.to_owned(),
            limit,
            first: None,
            begun: None,
            bytes: 0,
        }
    }
}

impl Upload {
    /// Takes the next piece. It waits until fewer than three are being sent.
    ///
    /// # Errors
    /// Fails if this or an earlier piece cannot be stored, and with [`Problem::Conflict`] if the name is taken.
    pub async fn write(&mut self, piece: Bytes) -> Result<(), Problem> {
        self.bytes += piece.len() as u64;
        if self.begun.is_some() {
            return self.send(piece).await;
        }
        match self.first.take() {
            None => self.first = Some(piece),
            Some(first) => {
                self.begun = Some(self.begin().await?);
                self.send(first).await?;
                self.send(piece).await?;
            }
        }
        Ok(())
    }

    async fn begin(&mut self) -> Result<Begun, Problem> {
        self.check_absent().await?;
        let path = &self.store.path(&self.name)?;
        let Some(uploads) = &self.store.uploads else {
            return Ok(Begun::File(self.store.objects.put_multipart(path).await?));
        };
        let begin = |_| async { Ok(uploads.create_multipart(path).await?) };
        Ok(Begun::Pieces {
            id: self.store.retry(self.limit, begin).await?,
            uploads: uploads.clone(),
            sent: 0,
            tasks: JoinSet::new(),
            done: Vec::new(),
        })
    }

    /// No store can make the end of such a write conditional through `object_store`. Two writers of one name that are
    /// this far at the same time are not noticed; the names in a backup have one writer.
    async fn check_absent(&mut self) -> Result<(), Problem> {
        let (store, name) = (&self.store, &self.name);
        match store.retry(self.limit, |_| store.size(name)).await? {
            None => Ok(()),
            Some(_) => Err(Problem::Conflict(self.name.clone())),
        }
    }

    async fn send(&mut self, piece: Bytes) -> Result<(), Problem> {
        let payload = PutPayload::from_bytes(piece);
        match &mut self.begun {
            None => Ok(()),
            Some(Begun::File(file)) => Ok(file.put_part(payload).await?),
            Some(Begun::Pieces {
                uploads,
                id,
                sent,
                tasks,
                done,
            }) => {
                while tasks.len() >= IN_FLIGHT {
                    done.extend(next(tasks).await?);
                }
                let (uploads, id, index) = (uploads.clone(), id.clone(), *sent);
                let (store, limit, path) = (self.store.clone(), self.limit, self.store.path(&self.name)?);
                *sent += 1;
                tasks.spawn(async move {
                    let put = |_| async {
                        let put = uploads.put_part(&path, &id, index as usize, payload.clone());
                        Ok((index, put.await?))
                    };
                    store.retry(limit, put).await
                });
                Ok(())
            }
        }
    }

    /// Makes the object appear. Returns its size in bytes.
    ///
    /// # Errors
    /// Fails with [`Problem::Conflict`] if the name is taken. After another problem the object may exist.
    pub async fn finish(mut self) -> Result<u64, Problem> {
        let finished = self.try_finish().await;
        if finished.is_err() {
            self.abort().await;
        }
        finished
    }

    async fn try_finish(&mut self) -> Result<u64, Problem> {
        match &mut self.begun {
            None => {
                let content = self.first.take().unwrap_or_default();
                let created = self.store.create(&self.name, content, Compare::Bytes, self.limit);
                created.await?;
            }
            Some(Begun::File(_)) => {
                self.check_absent().await?;
                if let Some(Begun::File(file)) = &mut self.begun {
                    file.complete().await?;
                }
            }
            Some(Begun::Pieces { tasks, done, .. }) => {
                while !tasks.is_empty() {
                    done.extend(next(tasks).await?);
                }
                done.sort_by_key(|(index, _)| *index);
                self.check_absent().await?;
                self.complete().await?;
            }
        }
        Ok(self.bytes)
    }

    async fn complete(&mut self) -> Result<(), Problem> {
        let Some(Begun::Pieces { uploads, id, done, .. }) = &self.begun else {
            return Ok(());
        };
        let (store, name, bytes) = (&self.store, &self.name, self.bytes);
        let path = &store.path(name)?;
        let complete = |_| async {
            let parts = done.iter().map(|(_, part)| part.clone()).collect();
            let Err(error) = uploads.complete_multipart(path, id, parts).await else {
                return Ok(());
            };
            // The answer may be lost; then the store does not know the upload any more.
            match store.size(name).await? {
                Some(size) if size == bytes => Ok(()),
                _ => Err(error.into()),
            }
        };
        store.retry(self.limit, complete).await
    }

    /// Gives up. It tries once to remove the pieces.
    pub async fn abort(mut self) {
        let Ok(path) = self.store.path(&self.name) else {
            return;
        };
        let abort = async {
            match self.begun.take() {
                None => Ok(()),
                Some(Begun::File(mut file)) => file.abort().await,
                Some(Begun::Pieces { uploads, id, tasks, .. }) => {
                    drop(tasks);
                    uploads.abort_multipart(&path, &id).await
                }
            }
        };
        // What is left takes room only.
        let _ = timeout(self.limit, abort).await;
    }
}

/// The next piece that is stored.
async fn next(tasks: &mut JoinSet<Result<(u32, PartId), Problem>>) -> Result<Option<(u32, PartId)>, Problem> {
    match tasks.join_next().await {
        None => Ok(None),
        Some(Ok(stored)) => stored.map(Some),
        Some(Err(error)) => Err(Problem::Unavailable(error.to_string())),
    }
}
