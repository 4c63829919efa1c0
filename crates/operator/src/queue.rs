//! Which databases have to be looked at, and when: each at most once at a time, no two copies of one wait, and those of one
//! namespace in the way of no other's ([`machine::turns`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use machine::turns::{Next, Turns, Waiting};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::cache::Key;

/// How many databases are looked at at once: enough that one slow request holds up nobody, and few enough that a restart
/// with a thousand databases does not flood the API server.
pub const WORKERS: usize = 8;

/// The databases that wait for their turn.
#[derive(Debug, Default)]
pub struct Queue {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    due: BTreeMap<Key, Instant>,
    running: BTreeSet<Key>,
    turns: Turns,
    closed: bool,
}

impl Default for State {
    fn default() -> Self {
        Self {
            due: BTreeMap::new(),
            running: BTreeSet::new(),
            turns: Turns::new(WORKERS),
            closed: false,
        }
    }
}

impl Queue {
    /// Looks at `key` at `at`, or earlier if that was asked for already.
    pub fn add(&self, key: Key, at: Instant) {
        let mut state = self.lock();
        let due = state.due.entry(key).or_insert(at);
        *due = at.min(*due);
        drop(state);
        self.changed.notify_waiters();
    }

    /// The next database to look at; `None` once the queue is closed. [`Queue::done`] must follow.
    pub async fn next(&self) -> Option<Key> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // From here on no change is missed.
            changed.as_mut().enable();
            match self.take(Instant::now()) {
                Turn::Now(key) => return Some(key),
                Turn::Closed => return None,
                Turn::At(at) => tokio::select! { () = changed => {}, () = sleep_until(at) => {} },
                Turn::Unknown => changed.await,
            }
        }
    }

    /// `key` has been looked at; what came in meanwhile has its turn now.
    pub fn done(&self, key: &Key) {
        let mut state = self.lock();
        state.running.remove(key);
        state.turns.end(&key.namespace);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Nothing is given out any more.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_waiters();
    }

    /// How many databases wait or are being looked at.
    pub fn len(&self) -> usize {
        let state = self.lock();
        state.due.len() + state.running.iter().filter(|key| !state.due.contains_key(*key)).count()
    }

    /// Nothing waits, and nothing is being looked at.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn take(&self, now: Instant) -> Turn {
        let mut state = self.lock();
        if state.closed {
            return Turn::Closed;
        }
        let waiting = state.due.iter().filter(|(key, _)| !state.running.contains(*key));
        let waiting = waiting.map(|(key, due)| Waiting {
            namespace: &key.namespace,
            database: key,
            due: *due,
        });
        match state.turns.next(waiting, now) {
            Next::Nothing => Turn::Unknown,
            Next::At(at) => Turn::At(at),
            Next::Now(key) => {
                let key = key.clone();
                state.due.remove(&key);
                state.running.insert(key.clone());
                state.turns.begin(&key.namespace);
                Turn::Now(key)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Turn {
    Now(Key),
    At(Instant),
    Unknown,
    Closed,
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    fn key(name: &str) -> Key {
        Key::database("ns", name.to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_is_first_and_the_earlier_request_wins() {
        let queue = Queue::default();
        let now = Instant::now();
        queue.add(key("late"), now + Duration::from_secs(60));
        queue.add(key("soon"), now + Duration::from_secs(10));
        queue.add(key("late"), now + Duration::from_secs(5));
        queue.add(key("late"), now + Duration::from_secs(50));
        assert_eq!(queue.next().await, Some(key("late")));
        assert_eq!(Instant::now() - now, Duration::from_secs(5));
        assert_eq!(queue.next().await, Some(key("soon")));
        assert_eq!(Instant::now() - now, Duration::from_secs(10));
    }

    #[tokio::test(start_paused = true)]
    async fn a_database_is_never_looked_at_twice_at_once_and_loses_no_request() {
        let queue = Arc::new(Queue::default());
        queue.add(key("a"), Instant::now());
        let first = queue.next().await.unwrap();
        queue.add(key("a"), Instant::now());
        let second = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { queue.next().await }
        });
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(!second.is_finished());
        queue.done(&first);
        assert_eq!(second.await.unwrap(), Some(key("a")));
    }

    /// So many databases of one namespace are due again and again, and each look takes a second: how long one of another
    /// namespace waits for its turn.
    async fn waits_behind(others: u32) -> Duration {
        let queue = Arc::new(Queue::default());
        for number in 0..others {
            queue.add(key(&format!("broken-{number}")), Instant::now());
        }
        for _ in 0..WORKERS {
            let queue = Arc::clone(&queue);
            tokio::spawn(async move {
                while let Some(key) = queue.next().await {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    if key.namespace == "ns" {
                        queue.add(key.clone(), Instant::now());
                    }
                    queue.done(&key);
                }
            });
        }
        let other = Key::database("other", "db");
        // Each database has a time at which it is looked at, also if nothing happens.
        queue.add(other.clone(), Instant::now() + Duration::from_secs(600));
        tokio::time::sleep(Duration::from_millis(60_500)).await;
        let asked = Instant::now();
        queue.add(other.clone(), asked);
        while !queue.lock().running.contains(&other) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        asked.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_database_does_not_wait_for_those_of_another_namespace() {
        assert!(waits_behind(0).await <= Duration::from_millis(10));
        assert!(waits_behind(500).await <= Duration::from_millis(10));
    }

    #[tokio::test]
    async fn closing_ends_the_wait() {
        let queue = Arc::new(Queue::default());
        let waiting = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { queue.next().await }
        });
        tokio::task::yield_now().await;
        queue.close();
        assert_eq!(waiting.await.unwrap(), None);
    }
}
