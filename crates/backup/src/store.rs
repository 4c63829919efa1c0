//! Reads and create-only writes.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt, TryStreamExt};
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use tokio::time::{Instant, sleep, timeout_at};

use crate::{Access, Fence, Place, Problem, open};

/// A store of objects that are created once and never changed. Clones are cheap and share connections.
///
/// Names are relative to the path of the [`Place`]. Every call has a `limit`: the time after which it fails. Within it
/// a call tries again after transient problems, but begins no attempt later than 30 s after its start.
#[derive(Clone)]
pub struct Store {
    pub(crate) objects: Arc<dyn ObjectStore>,
    /// Absent for a [`Place::Volume`].
    pub(crate) uploads: Option<Arc<dyn MultipartStore>>,
    root: Path,
    /// The directory of a [`Place::Volume`].
    directory: Option<PathBuf>,
    fence: Fence,
}

/// `object_store` would show the credentials.
impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("root", &self.root)
            .field("fence", &self.fence)
            .finish_non_exhaustive()
    }
}

/// How [`Store::create`] finds out if an object holds the same content.
#[derive(Clone, Copy)]
pub enum Compare<'a> {
    /// It compares all bytes. For small objects.
    Bytes,
    /// It asks this function, with the first [`HEADER`] bytes of the stored object, or all if there are fewer.
    Header(&'a (dyn Fn(&[u8]) -> bool + Sync)),
}

/// Bytes of a stored object that [`Compare::Header`] sees.
pub const HEADER: usize = 4 << 10;

/// Bytes of the pieces in which large objects are written and read. Stores want at least 5 MiB, and at most 10,000
/// pieces, so that an object may have 80 GB.
pub const PIECE: usize = 8 << 20;
/// Pieces that are asked for at the same time.
const READ_AHEAD: usize = 2;

/// What became of a create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// This call has written the object.
    New,
    /// The object was there with the same content, perhaps from an earlier attempt whose answer was lost.
    Same,
}

/// An object in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name.
    pub name: String,
    /// The size in bytes.
    pub bytes: u64,
}

/// What is directly in a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folder {
    /// Names of the folders in it, sorted.
    pub folders: Vec<String>,
    /// The objects in it, sorted by name.
    pub objects: Vec<Listed>,
}

/// No attempt begins later than this after the start of a call: PostgreSQL and its shutdown wait for the archive
/// command.
const ATTEMPTS: Duration = Duration::from_secs(30);
/// Pauses between attempts grow from the first to the last of these.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

impl Store {
    /// Opens the store. It sends no request. Until [`Store::with_fence`] says otherwise, it takes the store for one
    /// that overwrites.
    ///
    /// # Errors
    /// Fails with [`Problem::Unusable`] if place or credentials are malformed, and with [`Problem::NoBucket`] if a
    /// directory does not exist.
    pub fn open(place: &Place, access: &Access) -> Result<Self, Problem> {
        let root = Path::parse(place.path()).map_err(|error| Problem::Unusable(error.to_string()))?;
        let directory = match place {
            Place::Volume(volume) => Some(volume.directory.clone()),
            _ => None,
        };
        let open::Connection { objects, uploads } = open::connect(place, access)?;
        Ok(Self {
            objects,
            uploads,
            root,
            directory,
            fence: Fence::BestEffort,
        })
    }

    /// The same store, with what [`Store::probe`] has found out.
    #[must_use]
    pub fn with_fence(self, fence: Fence) -> Self {
        Self { fence, ..self }
    }

    /// What it is taken for.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// Creates an object; never changes one. If the store refuses, or its answer is lost, the object is read back and
    /// compared. With [`Fence::BestEffort`] that is also done before and after the write.
    ///
    /// # Errors
    /// Fails with [`Problem::Conflict`] if the name holds other content. After another problem the object may exist;
    /// the call can be repeated.
    pub async fn create(
        &self,
        name: &str,
        content: Bytes,
        compare: Compare<'_>,
        limit: Duration,
    ) -> Result<Created, Problem> {
        self.retry(limit, |end| self.try_create(name, content.clone(), compare, end))
            .await
    }

    async fn try_create(
        &self,
        name: &str,
        content: Bytes,
        compare: Compare<'_>,
        end: Instant,
    ) -> Result<Created, Problem> {
        if self.fence == Fence::BestEffort && self.holds(name, &content, compare).await? {
            return Ok(Created::Same);
        }
        // A quarter of the time is left for reading back.
        let limit = end - end.saturating_duration_since(Instant::now()) / 4;
        let written = timeout_at(limit, self.put(name, content.clone())).await;
        match written.unwrap_or_else(|_| Err(Problem::Unavailable("no answer to a write in time".to_owned()))) {
            Ok(()) if self.fence == Fence::Enforced => Ok(Created::New),
            Ok(()) if self.holds(name, &content, compare).await? => Ok(Created::New),
            Ok(()) => Err(Problem::Unavailable(format!("{name} was written and is not there"))),
            // The words are the store's: if nothing is stored, the refusal was not for other content.
            Err(Problem::Conflict(words) | Problem::Unavailable(words)) => {
                match self.holds(name, &content, compare).await? {
                    true => Ok(Created::Same),
                    false => Err(Problem::Unavailable(words)),
                }
            }
            Err(problem) => Err(problem),
        }
    }

    /// True if the name holds this content, false if there is no such object.
    async fn holds(&self, name: &str, content: &[u8], compare: Compare<'_>) -> Result<bool, Problem> {
        let length = match compare {
            Compare::Bytes => content.len() + 1,
            Compare::Header(_) => HEADER,
        };
        let stored = match self.beginning(name, length).await {
            Err(Problem::NotFound(_)) => return Ok(false),
            stored => stored?,
        };
        let is_same = match compare {
            Compare::Bytes => stored == content,
            Compare::Header(is_same) => is_same(&stored),
        };
        is_same
            .then_some(true)
            .ok_or_else(|| Problem::Conflict(name.to_owned()))
    }

    /// The size of an object in bytes; `None` if the store itself says that there is no such object. One attempt.
    pub(crate) async fn size(&self, name: &str) -> Result<Option<u64>, Problem> {
        // An answer to HEAD has no body, and a 404 without the store's words is no proof.
        let options = GetOptions {
            range: self.directory.is_none().then_some(GetRange::Bounded(0..1)),
            ..GetOptions::default()
        };
        match self.objects.get_opts(&self.path(name)?, options).await {
            Ok(found) => Ok(Some(found.meta.size)),
            Err(error) if is_out_of_range(&error) => Ok(Some(0)),
            Err(error) => match error.into() {
                Problem::NotFound(_) => Ok(None),
                problem => Err(problem),
            },
        }
    }

    /// The first bytes of an object, at most `length`.
    async fn beginning(&self, name: &str, length: usize) -> Result<Bytes, Problem> {
        // Stores refuse any range of an empty object. Files are read piece by piece without a range.
        let range = GetRange::Bounded(0..length as u64);
        let options = GetOptions {
            range: self.directory.is_none().then_some(range),
            ..GetOptions::default()
        };
        let mut pieces = match self.objects.get_opts(&self.path(name)?, options).await {
            Ok(found) => found.into_stream(),
            Err(error) if is_out_of_range(&error) => return Ok(Bytes::new()),
            Err(error) => return Err(error.into()),
        };
        let mut bytes = BytesMut::new();
        while bytes.len() < length
            && let Some(piece) = pieces.try_next().await?
        {
            bytes.extend_from_slice(&piece);
        }
        bytes.truncate(length);
        Ok(bytes.freeze())
    }

    /// One attempt to create an object. [`Problem::Conflict`] if the store refuses.
    pub(crate) async fn put(&self, name: &str, content: Bytes) -> Result<(), Problem> {
        let created = self.put_as(name, content.clone(), PutMode::Create).await;
        match (created, self.fence) {
            // Some stores know no conditions.
            (Err(Problem::Unusable(_)), Fence::BestEffort) => self.put_as(name, content, PutMode::Overwrite).await,
            (created, _) => created,
        }
    }

    async fn put_as(&self, name: &str, content: Bytes, mode: PutMode) -> Result<(), Problem> {
        let options = PutOptions::from(mode);
        let path = self.path(name)?;
        self.objects
            .put_opts(&path, PutPayload::from_bytes(content), options)
            .await
            .map(drop)
            .map_err(Problem::from)
    }

    /// The whole object.
    ///
    /// # Errors
    /// Fails with [`Problem::NotFound`] only if the store itself says that there is no such object.
    pub async fn read(&self, name: &str, limit: Duration) -> Result<Bytes, Problem> {
        self.get(name, GetOptions::default(), limit).await
    }

    /// The part of an object. If it ends earlier, what there is of it.
    ///
    /// # Errors
    /// As [`Store::read`]; fails with [`Problem::Unusable`] if the range is empty or begins after the end.
    pub async fn read_range(&self, name: &str, range: Range<u64>, limit: Duration) -> Result<Bytes, Problem> {
        if range.is_empty() {
            return Err(Problem::Unusable(format!("the range {range:?} is empty")));
        }
        let options = GetOptions {
            range: Some(GetRange::Bounded(range)),
            ..GetOptions::default()
        };
        self.get(name, options, limit).await
    }

    /// The first `bytes` bytes of an object, in pieces. At most three pieces of [`PIECE`] bytes are in memory. Each has
    /// the time limit, and is asked for again after a transient problem. If the object is shorter, the last pieces are.
    pub fn read_stream(
        &self,
        name: &str,
        bytes: u64,
        limit: Duration,
    ) -> impl Stream<Item = Result<Bytes, Problem>> + Send + 'static {
        let (store, name) = (self.clone(), name.to_owned());
        let begins = (0..bytes).step_by(PIECE);
        let read = move |begin: u64| {
            let (store, name) = (store.clone(), name.clone());
            let end = bytes.min(begin + PIECE as u64);
            async move { store.read_range(&name, begin..end, limit).await }
        };
        futures::stream::iter(begins).map(read).buffered(READ_AHEAD)
    }

    async fn get(&self, name: &str, options: GetOptions, limit: Duration) -> Result<Bytes, Problem> {
        let path = &self.path(name)?;
        self.retry(limit, |_| async {
            let found = self.objects.get_opts(path, options.clone()).await?;
            Ok(found.bytes().await?)
        })
        .await
    }

    /// All objects whose names begin with `folder` and a slash, sorted by name. It is never only a part of them.
    ///
    /// # Errors
    /// Fails if the list is not complete.
    pub async fn list(&self, folder: &str, limit: Duration) -> Result<Vec<Listed>, Problem> {
        let path = &self.path(folder)?;
        let mut found = self
            .retry(limit, |_| async {
                let found = self.objects.list(Some(path)).map(|found| Ok(self.listed(found?)));
                found.try_collect::<Vec<_>>().await
            })
            .await?;
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// The folders and objects directly in `folder`.
    ///
    /// # Errors
    /// As [`Store::list`].
    pub async fn list_folder(&self, folder: &str, limit: Duration) -> Result<Folder, Problem> {
        let path = &self.path(folder)?;
        let found = self
            .retry(limit, |_| async {
                Ok(self.objects.list_with_delimiter(Some(path)).await?)
            })
            .await?;
        let mut folder = Folder {
            folders: found.common_prefixes.iter().map(|path| self.name(path)).collect(),
            objects: found.objects.into_iter().map(|found| self.listed(found)).collect(),
        };
        folder.folders.sort();
        folder.objects.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(folder)
    }

    fn listed(&self, found: ObjectMeta) -> Listed {
        Listed {
            name: self.name(&found.location),
            bytes: found.size,
        }
    }

    fn name(&self, path: &Path) -> String {
        let name = path.as_ref();
        let name = name.strip_prefix(self.root.as_ref()).unwrap_or(name);
        name.trim_start_matches('/').to_owned()
    }

    pub(crate) fn path(&self, name: &str) -> Result<Path, Problem> {
        Path::parse(format!("{}/{name}", self.root)).map_err(|error| Problem::Unusable(error.to_string()))
    }

    /// Attempts until one succeeds or has a lasting problem, or the time is over. Each gets the end of the whole call.
    pub(crate) async fn retry<T, F>(&self, limit: Duration, mut attempt: impl FnMut(Instant) -> F) -> Result<T, Problem>
    where
        F: Future<Output = Result<T, Problem>>,
    {
        let start = Instant::now();
        let end = start + limit;
        let mut longest = PAUSES[0];
        loop {
            self.check_directory()?;
            let problem = match timeout_at(end, attempt(end)).await {
                Ok(Err(problem)) if problem.is_transient() => problem,
                Ok(done) => return done,
                Err(_) => return Err(Problem::Unavailable(format!("no answer within {limit:?}"))),
            };
            let pause = longest.mul_f64(0.5 + fastrand::f64() / 2.0);
            if Instant::now() + pause >= end.min(start + ATTEMPTS) {
                return Err(problem);
            }
            sleep(pause).await;
            longest = PAUSES[1].min(longest * 2);
        }
    }

    /// Without this check, a volume that is no longer mounted would look like an empty store.
    fn check_directory(&self) -> Result<(), Problem> {
        match &self.directory {
            Some(directory) if !directory.is_dir() => {
                Err(Problem::NoBucket(format!("{} is no directory", directory.display())))
            }
            _ => Ok(()),
        }
    }
}

fn is_out_of_range(error: &object_store::Error) -> bool {
    crate::problem::find::<crate::transport::Answer>(error).is_some_and(|answer| answer.status.as_u16() == 416)
}

/// A store whose objects can also be deleted. Only retention has one.
#[derive(Clone, Debug)]
pub struct Remover(Store);

impl Remover {
    /// As [`Store::open`]. The credentials must allow deletes.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open(place: &Place, access: &Access) -> Result<Self, Problem> {
        Store::open(place, access).map(Self)
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.0
    }

    /// Deletes an object. It succeeds if there is no such object.
    ///
    /// # Errors
    /// Fails if the object may still be there.
    pub async fn delete(&self, name: &str, limit: Duration) -> Result<(), Problem> {
        let path = &self.0.path(name)?;
        let deleted = self
            .0
            .retry(limit, |_| async { Ok(self.0.objects.delete(path).await?) });
        match deleted.await {
            Err(Problem::NotFound(_)) => Ok(()),
            deleted => deleted,
        }
    }
}
