//! Watching one object by its name.

use std::fmt::Debug;
use std::future::Future;

use api::Guarded;
use futures::StreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use machine::instance::Reading;
use serde::de::DeserializeOwned;

/// Length of one watch, in seconds. A connection that died silently is noticed at the latest after this time and a
/// margin of kube's own.
const WATCH_SECONDS: u32 = 60;

/// Watches the object called `name` for ever, and calls `tell` with each of its versions.
/// - [`Reading::Missing`]: the API server says that the object does not exist.
/// - [`Reading::Unknown`]: the object exists and is not understood.
///
/// After errors the watch is retried with growing pauses; the last version stays valid.
pub async fn watch<K, F>(api: Api<Guarded<K>>, name: String, tell: impl Fn(Reading<K>) -> F)
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    F: Future<Output = ()>,
{
    let config = watcher::Config::default()
        .fields(&format!("metadata.name={name}"))
        .timeout(WATCH_SECONDS);
    let mut events = watcher(api, config).default_backoff().boxed();
    let mut listed = None;
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed = None,
            Ok(Event::InitApply(object)) => listed = Some(object),
            Ok(Event::InitDone) => tell(listed.take().map_or(Reading::Missing, |object| reading(&name, object))).await,
            Ok(Event::Apply(object)) => tell(reading(&name, object)).await,
            Ok(Event::Delete(_)) => tell(Reading::Missing).await,
            Err(error) => tracing::warn!(name, kind = std::any::type_name::<K>(), "watch: {error}"),
        }
    }
}

fn reading<K>(name: &str, object: Guarded<K>) -> Reading<K> {
    match object.0 {
        Ok(object) => Reading::Is(object),
        Err(unreadable) => {
            let kind = std::any::type_name::<K>();
            tracing::error!(name, kind, "the object cannot be read: {}", unreadable.why);
            Reading::Unknown
        }
    }
}
