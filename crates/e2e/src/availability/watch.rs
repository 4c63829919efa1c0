//! Events of the API server during a run: Leases with a new holder, routes that change, pods that appear and disappear.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::availability::pod::{WriterPod, wall_clock};
use crate::availability::subject::{Subject, ready_addresses, targets};

/// After this time pods are checked for new addresses even without an event.
const LOOK: Duration = Duration::from_secs(1);

/// What was seen, by the local wall clock. Watching ends when this is dropped.
#[derive(Default)]
pub struct Watch {
    marks: Arc<Mutex<Vec<(u64, String)>>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Watch {
    /// Watches a database, and sends the addresses of its pods to the writer.
    #[must_use]
    pub fn start(subject: &Subject, writer: Arc<WriterPod>) -> Self {
        let mut this = Self::default();
        let marks = this.marks.clone();
        let leases = subject.namespace.api::<Lease>();
        this.tasks.push(tokio::spawn(changes(
            leases,
            "lease",
            marks.clone(),
            |lease: &Lease| {
                let spec = lease.spec.clone().unwrap_or_default();
                let holder = spec.holder_identity.filter(|holder| !holder.is_empty())?;
                Some(format!("{holder} {}", spec.lease_transitions.unwrap_or(0)))
            },
        )));
        let slices = subject.namespace.api::<EndpointSlice>();
        let service = subject.service.clone();
        this.tasks.push(tokio::spawn(changes(
            slices,
            "route",
            marks,
            move |slice: &EndpointSlice| {
                let of = slice.labels().get("kubernetes.io/service-name");
                let addresses = ready_addresses(slice).join(" ");
                (of == Some(&service) && !addresses.is_empty()).then_some(addresses)
            },
        )));
        this.tasks.push(tokio::spawn(follow_pods(subject.clone(), writer)));
        this
    }

    /// What was seen so far.
    #[must_use]
    pub fn marks(&self) -> Vec<(u64, String)> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Marks every change of what `look` returns for the objects of a kind; the initial state is no change.
async fn changes<K>(
    api: kube::Api<K>,
    what: &'static str,
    marks: Arc<Mutex<Vec<(u64, String)>>>,
    look: impl Fn(&K) -> Option<String>,
) where
    K: kube::Resource + Clone + std::fmt::Debug + Send + serde::de::DeserializeOwned + 'static,
    K::DynamicType: Default,
{
    let mut seen: BTreeMap<String, Option<String>> = BTreeMap::new();
    let mut events = watch(api, watcher::Config::default()).default_backoff().boxed();
    while let Some(event) = events.next().await {
        let Ok(Event::Apply(object) | Event::InitApply(object)) = event else {
            continue;
        };
        let (name, now) = (object.name_any(), look(&object));
        let before = seen.insert(name.clone(), now.clone());
        if let (Some(before), Some(value)) = (before, &now)
            && before != now
        {
            let mark = (wall_clock(), format!("{what} {name} {value}"));
            marks.lock().unwrap_or_else(PoisonError::into_inner).push(mark);
        }
    }
}

/// Tells the writer whenever a pod has another address.
async fn follow_pods(subject: Subject, writer: Arc<WriterPod>) {
    let pods = watch(subject.namespace.api::<Pod>(), watcher::Config::default());
    let mut changes = pods.default_backoff().boxed();
    let mut told = BTreeMap::new();
    loop {
        if let Ok(members) = subject.members().await {
            let mut now = told.clone();
            // The writer keeps writing to a pod that is gone until another has its name: it may not be dead.
            now.extend(targets(&members));
            if now != told {
                let list: Vec<_> = now.clone().into_iter().collect();
                if writer.set_targets(&list).await.is_ok() {
                    told = now;
                }
            }
        }
        let _ = timeout(LOOK, changes.next()).await;
    }
}
