//! The caches of everything that the operator watches: the resources, and the objects with a resource's label.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::names::{LABEL_CLUSTER, LEASE_POSITIONS, Names, parse_claim};
use api::operation::OperationPhase;
use api::operation::Request;
use api::status::NotedRequest;
use api::{
    ClusteredDatabase, ClusteredDatabaseOperation, Database, DatabaseBackup, DatabaseUser, Guarded, Pooler, Unreadable,
};
use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::ListParams;
use kube::core::{ObjectMeta, PartialObjectMeta};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use machine::cluster::OWNED;
use machine::operation::Candidate;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::cache::{AnyCache, Cache, Kept, Key, Kind, LARGEST, Lister};
use crate::prune;
use crate::requests::{Refused, Requests};

/// Which objects of a kind are watched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Select {
    /// Those with the label of a database.
    Labelled,
    /// All of them.
    All,
}

/// A kind that belongs to single databases, and has a row in the table.
pub trait Watched: Kept {
    /// Its cache.
    fn cache(caches: &Caches) -> &Cache<Self>;
}

/// One row a kind that decisions look at, and everything that is the same for each of them. A row says: the field and its
/// type; the kind; to which resource of ours an object belongs; which changes are worth a look at that resource; what of an
/// object is not kept; how many bytes of it may be kept; which objects are watched. A row of `of_ours` ends with what else is
/// to be done when one of them changes: it returns the other resources that have to look.
macro_rules! watched {
    (
        of_ours { $($(#[$our_doc:meta])* $our:ident: $our_type:ty = ($our_kind:expr, $our_key:expr, $our_prune:expr, $our_largest:expr, $settle:expr),)* }
        of_databases { $($(#[$doc:meta])* $field:ident: $type:ty = ($kind:expr, $owner:expr, $changes:expr, $prune:expr, $largest:expr, $select:expr),)* }
        of_all { $($(#[$all_doc:meta])* $all:ident: $all_type:ty = ($all_kind:expr, $all_changes:expr, $all_prune:expr),)* }
    ) => {
        /// One cache a kind.
        #[derive(Debug)]
        pub struct Caches {
            $($(#[$our_doc])* pub $our: Cache<$our_type>,)*
            $($(#[$doc])* pub $field: Cache<$type>,)*
            $($(#[$all_doc])* pub $all: Cache<$all_type>,)*
            /// The resources have been listed. What belongs to databases is listed after them: of what belongs to none nothing
            /// is kept.
            listed: Notify,
            /// What declares something in each database, and its operations and backups that have not ended.
            waiting: Mutex<BTreeMap<Key, BTreeSet<Key>>>,
            made: Instant,
        }

        $(impl Watched for $type {
            fn cache(caches: &Caches) -> &Cache<Self> {
                &caches.$field
            }
        })*

        impl Default for Caches {
            fn default() -> Self {
                Self {
                    $($our: Cache::new($our_kind, $our_key, always).pruning($our_prune).up_to($our_largest),)*
                    $($field: Cache::new($kind, $owner, $changes).pruning($prune).up_to($largest),)*
                    $($all: Cache::new($all_kind, |_, _| Some(Key::all()), $all_changes).pruning($all_prune),)*
                    listed: Notify::new(),
                    waiting: Mutex::default(),
                    made: Instant::now(),
                }
            }
        }

        impl Caches {
            /// The caches of the resources that have a machine.
            pub(crate) fn of_ours(&self) -> impl Iterator<Item = &dyn AnyCache> {
                [$(&self.$our as &dyn AnyCache),*].into_iter()
            }

            /// The caches of what belongs to single databases.
            fn of_databases(&self) -> impl Iterator<Item = &dyn AnyCache> {
                [$(&self.$field as &dyn AnyCache),*].into_iter()
            }

            /// The caches of what belongs to no database in particular.
            fn of_all(&self) -> impl Iterator<Item = &dyn AnyCache> {
                [$(&self.$all as &dyn AnyCache),*].into_iter()
            }

            /// Watches everything in `namespace` (everywhere if `None`), for ever.
            pub fn watch<R: Report>(
                self: &Arc<Self>,
                client: &Client,
                namespace: Option<&str>,
                report: &Arc<R>,
            ) -> JoinSet<()> {
                let mut tasks = JoinSet::new();
                $(tasks.spawn(self.follow_ours(scoped(client, namespace), report, |caches| &caches.$our, $settle));)*
                $(tasks.spawn(self.follow(scoped(client, namespace), $select, report, <$type as Watched>::cache));)*
                $(tasks.spawn(self.follow(Api::all(client.clone()), Select::All, report, |caches| &caches.$all));)*
                tasks
            }

            /// Reads what the watches have shown of a database before it existed, since nothing of it was kept then.
            ///
            /// # Errors
            /// When one of these objects cannot be asked for.
            pub async fn read_not_kept(&self, key: &Key, requests: &Requests) -> Result<(), Refused> {
                $(read_not_kept(&self.$field, key, requests).await?;)*
                Ok(())
            }

            /// Puts what `lister` lists into the caches.
            ///
            /// # Errors
            /// When a list cannot be read.
            pub fn fill<L: Lister>(&self, lister: &L) -> Result<(), L::Error> {
                $(self.$our.fill(lister)?;)*
                $(self.$field.fill(lister)?;)*
                $(self.$all.fill(lister)?;)*
                Ok(())
            }
        }
    };
}

watched! {
    of_ours {
        /// The resources.
        databases: ClusteredDatabase = (DATABASE, itself, prune::database, LARGE, Caches::database_changed),
        /// Each under its own key.
        operations: ClusteredDatabaseOperation =
            (OPERATION, operation, prune::names_only, LARGEST, Caches::asking_changed),
        /// Each under its own key.
        backups: DatabaseBackup = (BACKUP, backup, prune::names_only, LARGEST, Caches::asking_changed),
        /// Each under its own key.
        users: DatabaseUser = (USER, user, prune::names_only, LARGE, Caches::asking_changed),
        /// Each under its own key.
        sql_databases: Database = (SQL_DATABASE, sql_database, prune::names_only, LARGE, Caches::asking_changed),
        /// Each under its own key.
        poolers: Pooler = (POOLER, pooler, prune::names_only, LARGE, Caches::asking_changed),
    }
    of_databases {
        /// The objects of this kind.
        service_accounts: ServiceAccount =
            ("ServiceAccount", owned, always, prune::service_account, LARGEST, Select::Labelled),
        /// The objects of this kind.
        roles: Role = ("Role", owned, always, prune::role, LARGEST, Select::Labelled),
        /// The objects of this kind.
        role_bindings: RoleBinding = ("RoleBinding", owned, always, prune::role_binding, LARGEST, Select::Labelled),
        /// Metadata only: by its type the watch asks for no more, and no content of a Secret comes.
        secrets: PartialObjectMeta<Secret> = (SECRET, owned, always, prune::secret, LARGEST, Select::Labelled),
        /// What primaries tell of DatabaseUsers and Databases.
        config_maps: ConfigMap = (CONFIG_MAP, owned, always, prune::config_map, LARGE, Select::Labelled),
        /// The objects of this kind.
        services: Service = ("Service", owned, always, prune::service, LARGEST, Select::Labelled),
        /// The objects of this kind.
        endpoint_slices: EndpointSlice =
            ("EndpointSlice", owned, route_changes, prune::endpoint_slice, LARGEST, Select::Labelled),
        /// The objects of this kind.
        leases: Lease = ("Lease", owned, lease_changes, prune::lease, LARGEST, Select::Labelled),
        /// The objects of this kind.
        budgets: PodDisruptionBudget =
            ("PodDisruptionBudget", owned, always, prune::budget, LARGEST, Select::Labelled),
        /// The objects of this kind.
        network_policies: NetworkPolicy =
            ("NetworkPolicy", owned, always, prune::network_policy, LARGEST, Select::Labelled),
        /// The objects of this kind.
        stateful_sets: StatefulSet = ("StatefulSet", owned, always, prune::stateful_set, LARGE, Select::Labelled),
        /// Those of poolers.
        deployments: Deployment = (DEPLOYMENT, pooled, always, prune::deployment, LARGEST, Select::Labelled),
        /// The objects of this kind.
        pods: Pod = ("Pod", member, always, prune::pod, LARGEST, Select::Labelled),
        /// All claims with names that could be a database's, labelled or not: a StatefulSet takes what has the right name.
        claims: PersistentVolumeClaim =
            ("PersistentVolumeClaim", claimed, always, prune::claim, LARGEST, Select::All),
    }
    of_all {
        /// The objects of this kind.
        storage_classes: StorageClass = (STORAGE_CLASS, always, prune::storage_class),
        /// The objects of this kind.
        nodes: Node = (NODE, cordon_changes, prune::node),
    }
}

/// A StatefulSet or a resource may be so large after pruning: users choose annotations, affinities and tolerations.
const LARGE: usize = 512 << 10;
/// The longest time after the start in which nothing is decided while a kind has not been listed. The lists of a
/// thousand databases take seconds.
const LISTING: Duration = Duration::from_secs(30);
/// The number of objects that a page of a list asks for. A StatefulSet has some 20 KB with its `managedFields`.
const PAGE: u32 = 100;

/// What a watch tells: the databases that an event concerns, or that the watch failed.
pub trait Report: Send + Sync + 'static {
    /// An object of this database has changed.
    fn touched(&self, key: Key);
    /// The watch of this kind failed. It is retried after a while.
    fn failed(&self, kind: &'static str, error: &watcher::Error);
    /// This object has become unreadable, or is unreadable for another reason than before. Only its own database waits
    /// until that changes.
    fn unreadable(&self, kind: &'static str, object: &Unreadable);
}

impl Caches {
    /// Follows one kind of ours, for ever. `settle` gets what an event concerns, and whether it ends the first list.
    fn follow_ours<K: Kept + Resource<DynamicType = ()>, R: Report>(
        self: &Arc<Self>,
        api: Api<Guarded<K>>,
        report: &Arc<R>,
        cache: fn(&Self) -> &Cache<K>,
        settle: fn(&Self, &[Key], bool) -> Vec<Key>,
    ) -> impl Future<Output = ()> + Send + use<K, R> {
        let (caches, report) = (Arc::clone(self), Arc::clone(report));
        let stream = watcher(api, watcher::Config::default().page_size(PAGE)).default_backoff();
        async move {
            let settle = |concerned: &[Key], first: bool| {
                let others = settle(&caches, concerned, first);
                others.into_iter().for_each(|key| report.touched(key));
            };
            // That one is gone has to be looked at, too.
            feed(stream, cache(&caches), &*report, |_| true, settle).await;
        }
    }

    fn database_changed(&self, concerned: &[Key], first: bool) -> Vec<Key> {
        let gone = concerned.iter().filter(|key| !self.databases.has(key));
        gone.for_each(|key| self.forget_contents(key));
        if first {
            self.listed.notify_waiters();
        }
        concerned.iter().flat_map(|key| self.readers(key)).collect()
    }

    /// Other resources that read this database.
    pub fn readers(&self, database: &Key) -> Vec<Key> {
        let mut readers = self.waiting_for(database);
        readers.extend(self.of_drill(database));
        readers.extend(self.recovered_from(database));
        readers
    }

    /// Databases that wait for this one, since they are made from its backups.
    fn recovered_from(&self, source: &Key) -> Vec<Key> {
        let waits =
            |db: &ClusteredDatabase| db.spec.recovered_from() == Some(&*source.name) && db.recovery_source().is_none();
        self.in_namespace(source, waits).collect()
    }

    /// The databases in the namespace of `other` of which this is true.
    fn in_namespace(&self, other: &Key, is_meant: impl Fn(&ClusteredDatabase) -> bool) -> impl Iterator<Item = Key> {
        let mut keys = self.databases.keys();
        keys.retain(|key| {
            let found = self.databases.get(key, &key.name).flatten();
            key.namespace == other.namespace && found.is_some_and(|db| is_meant(&db))
        });
        keys.into_iter()
    }

    /// The database that makes this drill.
    fn of_drill(&self, drill: &Key) -> Option<Key> {
        if !machine::drill::may_be(&drill.name) {
            return None;
        }
        let makes_it = |db: &ClusteredDatabase| {
            let run = db.status.as_ref().and_then(|status| status.memo.drill.as_ref());
            run.is_some_and(|run| run.name.as_deref() == Some(&*drill.name))
        };
        self.in_namespace(drill, makes_it).next()
    }

    fn asking_changed(&self, concerned: &[Key], first: bool) -> Vec<Key> {
        // What the first list shows is not known before its end.
        let all = if first {
            [
                self.operations.keys(),
                self.backups.keys(),
                self.users.keys(),
                self.sql_databases.keys(),
                self.poolers.keys(),
            ]
            .concat()
        } else {
            concerned.to_vec()
        };
        all.iter().flat_map(|key| self.note_asking(key)).collect()
    }

    /// Waits until the resources have been listed.
    async fn databases_listed(&self) {
        loop {
            let listed = self.listed.notified();
            tokio::pin!(listed);
            // From now on the signal cannot be missed.
            listed.as_mut().enable();
            if self.are_ready() {
                return;
            }
            listed.await;
        }
    }

    /// Follows one kind, for ever: what it shows of databases that exist is reported.
    fn follow<K: Kept + Resource<DynamicType = ()>, R: Report>(
        self: &Arc<Self>,
        api: Api<Guarded<K>>,
        select: Select,
        report: &Arc<R>,
        cache: fn(&Self) -> &Cache<K>,
    ) -> impl Future<Output = ()> + Send + use<K, R> {
        let (caches, report) = (Arc::clone(self), Arc::clone(report));
        let mut config = watcher::Config::default().page_size(PAGE);
        if select == Select::Labelled {
            config = config.labels(LABEL_CLUSTER);
        }
        let stream = watcher(api, config).default_backoff();
        async move {
            let exists = |key: &Key| *key == Key::all() || caches.databases.has(key);
            caches.databases_listed().await;
            // What is handed on and told of declarations stands in objects of their database; so are the pods of poolers.
            let wakes_declarations = [SECRET, CONFIG_MAP, DEPLOYMENT].contains(&cache(&caches).kind());
            let settle = |concerned: &[Key], _: bool| {
                let concerned = concerned.iter().filter(|_| wakes_declarations);
                let declarations = concerned.flat_map(|key| caches.declared_in(key));
                declarations.for_each(|key| report.touched(key));
            };
            feed(stream, cache(&caches), &*report, exists, settle).await;
        }
    }

    /// The cache of the objects of one database that have this kind.
    pub fn of_kind(&self, kind: &str) -> Option<&dyn AnyCache> {
        self.of_databases().find(|cache| cache.kind() == kind)
    }

    /// All that a decision looks at has been listed; or something cannot be listed, and databases are told that they wait for it.
    pub fn are_complete(&self) -> bool {
        let is_listed = self.of_ours().chain(self.of_databases()).all(AnyCache::is_listed);
        is_listed || self.made.elapsed() > LISTING
    }

    /// Forgets the content of the objects of a database that does not exist.
    fn forget_contents(&self, key: &Key) {
        self.of_databases().for_each(|cache| cache.forget_contents(key));
    }

    /// The health of every cache.
    pub fn health(&self) -> Vec<CacheHealth> {
        let all = self.of_ours().chain(self.of_databases()).chain(self.of_all());
        all.map(CacheHealth::of).collect()
    }

    /// The bytes that are kept of the objects of one database, by kind.
    pub fn bytes(&self, key: &Key) -> Vec<(&'static str, usize)> {
        let database: [&dyn AnyCache; 1] = [&self.databases];
        let all = self.of_databases().chain(database);
        all.map(|cache| (cache.kind(), cache.bytes(key))).collect()
    }

    /// The unreadable objects of one database.
    pub fn unreadable(&self, key: &Key) -> Vec<machine::cluster::Unreadable> {
        let mut found = Vec::new();
        for cache in self.of_databases() {
            for object in cache.unreadable(key) {
                let name = object.metadata.name.as_deref().unwrap_or_default();
                found.push(machine::cluster::Unreadable {
                    object: format!("{} {name}", cache.kind()),
                    why: object.why.clone(),
                });
            }
        }
        found
    }

    /// The database that a user or an SQL database belongs to, or that an operation or a backup asks, as long as that has not ended.
    fn asked(&self, key: &Key) -> Option<Key> {
        let (cluster, phase) = match key.kind {
            Kind::Database => return None,
            Kind::Operation => {
                let found = self.operations.get(key, &key.name)??;
                let phase = found.status.as_ref().and_then(|status| status.phase);
                (found.spec.cluster_ref.name.clone(), phase)
            }
            Kind::Backup => {
                let found = self.backups.get(key, &key.name)??;
                let phase = found.status.as_ref().and_then(|status| status.operation.phase);
                (found.spec.cluster_ref.name.clone(), phase)
            }
            Kind::User => {
                let found = self.users.get(key, &key.name)??;
                (found.spec.cluster_ref.name.clone(), None)
            }
            Kind::SqlDatabase => {
                let found = self.sql_databases.get(key, &key.name)??;
                (found.spec.cluster_ref.name.clone(), None)
            }
            Kind::Pooler => {
                let found = self.poolers.get(key, &key.name)??;
                (found.spec.cluster_ref.name.clone(), None)
            }
        };
        let has_ended = phase.is_some_and(OperationPhase::is_final);
        (!has_ended).then(|| Key::database(&*key.namespace, cluster))
    }

    /// Notes whether an operation or a backup has ended, or a declaration is there. Returns the databases that this may concern.
    pub fn note_asking(&self, key: &Key) -> Vec<Key> {
        let database = self.asked(key);
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut concerned: Vec<Key> = Vec::new();
        waiting.retain(|of, keys| {
            if of.namespace == key.namespace && database.as_ref() != Some(of) && keys.remove(key) {
                concerned.push(of.clone());
            }
            !keys.is_empty()
        });
        if let Some(database) = database {
            waiting.entry(database.clone()).or_default().insert(key.clone());
            concerned.push(database);
        }
        concerned
    }

    /// What declares an object of PostgreSQL in a database: its users, SQL databases and poolers.
    pub fn declared_in(&self, database: &Key) -> Vec<Key> {
        let mut all = self.waiting_for(database);
        all.retain(|key| [Kind::User, Kind::SqlDatabase, Kind::Pooler].contains(&key.kind));
        all
    }

    /// What declares something in a database, and its operations and backups that have not ended.
    pub fn waiting_for(&self, database: &Key) -> Vec<Key> {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.get(database).into_iter().flatten().cloned().collect()
    }

    /// What the operations of a database ask it for: `None` if that cannot be known now.
    pub fn request(&self, database: &Key, noted: Option<&NotedRequest>) -> Option<Option<Candidate>> {
        if !self.operations.is_listed() {
            return None;
        }
        let keys = self.waiting_for(database);
        let open = keys.iter().filter_map(|key| {
            let found = self.operations.get(key, &key.name)??;
            let is_open = machine::operation::is_open(&found.spec, &found.status.clone().unwrap_or_default());
            let request = Request::new(&found.spec, &found.uid()?)?;
            is_open.then(|| candidate(&*found, request))?
        });
        Some(machine::operation::next(open, noted))
    }

    /// The backup of a database that its primary is to take: `None` if that cannot be known now. `asked` is the UID of the one that it
    /// was asked for last.
    pub fn backup(&self, database: &Key, asked: Option<&str>) -> Option<Option<Candidate<machine::backup::Request>>> {
        if !self.backups.is_listed() {
            return None;
        }
        let keys = self.waiting_for(database);
        let open = keys.iter().filter_map(|key| {
            let found = self.backups.get(key, &key.name)??;
            let is_open = machine::backup::is_open(&found.spec, &found.status.clone().unwrap_or_default());
            let request = machine::backup::Request {
                uid: found.uid()?,
                source: found.spec.source,
                kind: found.spec.kind,
            };
            is_open.then(|| candidate(&*found, request))?
        });
        Some(machine::backup::next(open, asked))
    }

    /// True if the resources have been listed, so that decisions can be made.
    pub fn are_ready(&self) -> bool {
        self.databases.is_listed()
    }
}

/// The health of one cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheHealth {
    /// The kind.
    pub kind: &'static str,
    /// The time since its watch last reported anything.
    pub silence: Duration,
    /// The number of events that were older than the operator's own writes.
    pub stale_events: u64,
    /// The number of its unreadable objects.
    pub unreadable: usize,
}

impl CacheHealth {
    fn of(cache: &dyn AnyCache) -> Self {
        Self {
            kind: cache.kind(),
            silence: cache.silence(),
            stale_events: cache.stale_events(),
            unreadable: cache.count_unreadable(),
        }
    }
}

fn scoped<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

/// Takes the events of a watch, for ever. It reports only databases that `exists` knows, and keeps the content of their
/// objects only. After each event, and before anything is reported, `settle` is called with the databases that the
/// event concerns, and whether it ends the first list.
async fn feed<K: Kept>(
    stream: impl futures::Stream<Item = watcher::Result<watcher::Event<Guarded<K>>>> + Send,
    cache: &Cache<K>,
    report: &impl Report,
    exists: impl Fn(&Key) -> bool + Send,
    settle: impl Fn(&[Key], bool) + Send,
) {
    futures::pin_mut!(stream);
    while let Some(event) = stream.next().await {
        match event {
            Ok(event) => {
                let first = matches!(event, watcher::Event::InitDone) && !cache.is_listed();
                let place = match &event {
                    watcher::Event::Apply(object) | watcher::Event::InitApply(object) => cache.place(object.meta()),
                    watcher::Event::Delete(_) | watcher::Event::Init | watcher::Event::InitDone => None,
                };
                let unreadable = || place.as_ref().and_then(|(key, name)| cache.find_unreadable(key, name));
                let before = unreadable();
                let concerned = cache.take(event);
                settle(&concerned, first);
                if let Some((key, _)) = place.as_ref().filter(|(key, _)| !exists(key)) {
                    cache.forget_contents(key);
                }
                concerned
                    .into_iter()
                    .filter(|key| exists(key))
                    .for_each(|key| report.touched(key));
                let is_news = |now: &Arc<Unreadable>| before.as_ref().is_none_or(|before| before.why != now.why);
                if let Some(object) = unreadable().filter(is_news) {
                    report.unreadable(cache.kind, &object);
                }
                if first {
                    // The kind was unknown so far, for every database.
                    report.touched(Key::all());
                }
            }
            Err(error) => {
                report.failed(cache.kind, &error);
                if unread(cache.kind).is_some() && is_forbidden(&error) {
                    tokio::time::sleep(FORBIDDEN_PAUSE).await;
                }
            }
        }
    }
}

async fn read_not_kept<K>(cache: &Cache<K>, key: &Key, requests: &Requests) -> Result<(), Refused>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Kept,
{
    for (name, uid) in cache.not_kept(key) {
        let api: Api<Guarded<K>> = Api::namespaced(requests.client().clone(), &key.namespace);
        // The operator may list the kinds that it watches; it may not read each of them by name.
        let named = ListParams::default().fields(&format!("metadata.name={name}"));
        match requests.limited(api.list(&named)).await?.items.pop() {
            Some(object) => cache.put_guarded(object),
            None => cache.forget(key, &name, &uid),
        }
    }
    Ok(())
}

const DATABASE: &str = "ClusteredDatabase";
const STORAGE_CLASS: &str = "StorageClass";
const NODE: &str = "Node";
const OPERATION: &str = "ClusteredDatabaseOperation";
const BACKUP: &str = "DatabaseBackup";
const USER: &str = "DatabaseUser";
const SQL_DATABASE: &str = "Database";
const POOLER: &str = "Pooler";
const DEPLOYMENT: &str = "Deployment";
const SECRET: &str = "Secret";
const CONFIG_MAP: &str = "ConfigMap";

/// The facts that are unknown without this kind; `None` if the operator cannot do without it. An operator for one
/// namespace may have no rights beyond it.
pub fn unread(kind: &str) -> Option<&'static str> {
    match kind {
        STORAGE_CLASS => Some("whether one is missing, and whether volumes can grow, is not known"),
        OPERATION => Some("what operations ask for is not known, and none is done: is its definition installed?"),
        BACKUP => Some("which backups are to be taken is not known: is its definition installed?"),
        USER => Some("which users are declared is not known: is its definition installed?"),
        SQL_DATABASE => Some("which databases are declared is not known: is its definition installed?"),
        POOLER => Some("which poolers there are to be is not known: is its definition installed?"),
        DEPLOYMENT => Some("whether poolers serve is not known"),
        CONFIG_MAP => Some("what primaries tell of users and databases is not known"),
        NODE => Some("which are drained is not known, and no primary is moved away from them"),
        _ => None,
    }
}

/// The pause between attempts to read a kind that was forbidden.
const FORBIDDEN_PAUSE: Duration = Duration::from_secs(60);

/// True if the API server does not allow this kind to be read, or does not have it.
pub fn is_forbidden(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(kube::Error::Api(status))
    | watcher::Error::WatchStartFailed(kube::Error::Api(status))
    | watcher::Error::WatchFailed(kube::Error::Api(status))) = error
    else {
        return false;
    };
    status.is_forbidden() || status.is_not_found()
}

fn itself(metadata: &ObjectMeta, _: &str) -> Option<Key> {
    Some(Key::database(metadata.namespace.clone()?, metadata.name.clone()?))
}

fn operation(metadata: &ObjectMeta, _: &str) -> Option<Key> {
    Some(Key::operation(metadata.namespace.clone()?, metadata.name.clone()?))
}

fn backup(metadata: &ObjectMeta, _: &str) -> Option<Key> {
    Some(Key::backup(metadata.namespace.clone()?, metadata.name.clone()?))
}

fn user(metadata: &ObjectMeta, _: &str) -> Option<Key> {
    Some(Key::user(metadata.namespace.clone()?, metadata.name.clone()?))
}

fn sql_database(metadata: &ObjectMeta, _: &str) -> Option<Key> {
    Some(Key::sql_database(metadata.namespace.clone()?, metadata.name.clone()?))
}

fn pooler(metadata: &ObjectMeta, _: &str) -> Option<Key> {
    Some(Key::pooler(metadata.namespace.clone()?, metadata.name.clone()?))
}

/// The database that the pods of a Deployment pool, by label.
fn pooled(metadata: &ObjectMeta, _: &str) -> Option<Key> {
    labelled(metadata)
}

/// One that may be next; `None` if it is being deleted.
fn candidate<K: ResourceExt, R>(object: &K, request: R) -> Option<Candidate<R>> {
    let created = object.creation_timestamp().as_ref().map(crate::observe::time);
    let going = object.meta().deletion_timestamp.is_some();
    (!going).then(|| Candidate {
        name: object.name_any(),
        created: created.unwrap_or_default(),
        request,
    })
}

/// The database that an object's label names.
fn labelled(metadata: &ObjectMeta) -> Option<Key> {
    Some(Key::database(
        metadata.namespace.clone()?,
        metadata.labels.as_ref()?.get(LABEL_CLUSTER)?.clone(),
    ))
}

/// The database of an object that is made once, by label and name: one of another name is never looked at.
fn owned(metadata: &ObjectMeta, kind: &str) -> Option<Key> {
    let name = metadata.name.as_deref()?;
    let key = labelled(metadata)?;
    let suffix = name.strip_prefix(&*key.name)?;
    let is_owned = OWNED.iter().any(|owned| owned.kind == kind && owned.suffix == suffix);
    let is_of_declarations = [SECRET, CONFIG_MAP].contains(&kind) && name == Names::new(&*key.name).access();
    (is_owned || is_of_declarations).then_some(key)
}

/// The database of a member's pod, by label and name.
fn member(metadata: &ObjectMeta, _: &str) -> Option<Key> {
    let key = labelled(metadata)?;
    Names::new(&*key.name).ordinal(metadata.name.as_deref()?)?;
    Some(key)
}

/// The database that a claim of this name is for: `data-<database>-<ordinal>`, or `data1-…` in another set of volumes.
fn claimed(claim: &ObjectMeta, _: &str) -> Option<Key> {
    let name = claim.name.as_deref()?;
    let (_, _, pod) = parse_claim(name)?;
    let (database, ordinal) = pod.rsplit_once('-')?;
    let fits = ordinal.parse::<u32>().is_ok();
    fits.then(|| Some(Key::database(claim.namespace.clone()?, database.to_owned())))?
}

fn always<K>(_: &K, _: &K) -> bool {
    true
}

fn route_changes(old: &EndpointSlice, new: &EndpointSlice) -> bool {
    metadata_changes(old, new) || old.endpoints != new.endpoints
}

fn metadata_changes<K: Resource>(old: &K, new: &K) -> bool {
    let (old, new) = (old.meta(), new.meta());
    old.labels != new.labels
        || old.owner_references != new.owner_references
        || old.deletion_timestamp != new.deletion_timestamp
        || old.uid != new.uid
}

/// True if more than renewal and WAL positions has changed: these change all the time, and the operator decides nothing
/// by them.
fn lease_changes(old: &Lease, new: &Lease) -> bool {
    let told = |lease: &Lease| {
        let mut annotations = lease.metadata.annotations.clone().unwrap_or_default();
        annotations.remove(LEASE_POSITIONS);
        let spec = lease.spec.clone().unwrap_or_default();
        (annotations, spec.holder_identity, spec.lease_transitions)
    };
    metadata_changes(old, new) || told(old) != told(new)
}

/// True if the node was cordoned, or is no longer. Kubelets report all the time, but decisions only ask for this.
fn cordon_changes(old: &Node, new: &Node) -> bool {
    is_cordoned(old) != is_cordoned(new)
}

/// Taints of a node that is being drained: by `kubectl cordon`, the cluster autoscaler, or Karpenter (two generations
/// of it).
const DRAIN_TAINTS: [&str; 4] = [
    "node.kubernetes.io/unschedulable",
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
];

/// True if somebody empties this node on purpose. One under pressure is not cordoned, though it takes no pods either.
pub fn is_cordoned(node: &Node) -> bool {
    let Some(spec) = &node.spec else { return false };
    let mut taints = spec.taints.iter().flatten();
    let drains = |taint: &k8s_openapi::api::core::v1::Taint| {
        DRAIN_TAINTS.contains(&taint.key.as_str()) && ["NoSchedule", "NoExecute"].contains(&taint.effect.as_str())
    };
    spec.unschedulable == Some(true) || taints.any(drains)
}

#[cfg(test)]
mod tests;
