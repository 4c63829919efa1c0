//! Which database has its turn next, so that the databases of one namespace hold up no other namespace's.
//!
//! - Namespaces take turns: the one whose last turn is longest ago is first.
//! - Of one namespace, the database that has been due for longest is first.
//! - A namespace takes at most half of the places while there is another one. A turn is never broken off, and one that waits
//!   for a slow API server takes seconds: the other half is free for others at once.

use std::collections::BTreeMap;

/// The turns that namespaces have had and have.
#[derive(Clone, Debug)]
pub struct Turns {
    /// How many turns there can be at a time.
    places: usize,
    /// How many turns have begun.
    begun: u64,
    /// By namespace: the turns that it has, and the number of its last one.
    namespaces: BTreeMap<String, (usize, u64)>,
}

/// A database that waits.
#[derive(Clone, Copy, Debug)]
pub struct Waiting<'a, K, T> {
    /// Its namespace.
    pub namespace: &'a str,
    /// The database.
    pub database: K,
    /// When it is due.
    pub due: T,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next<K, T> {
    /// This database has its turn.
    Now(K),
    /// A database is due then, if nothing changes before.
    At(T),
    /// Nothing, until a database is added or a turn ends.
    Nothing,
}

impl Turns {
    /// No turn yet, of so many at a time.
    pub fn new(places: usize) -> Self {
        Self {
            places,
            begun: 0,
            namespaces: BTreeMap::new(),
        }
    }

    /// Which of the waiting databases has its turn. There is a free place.
    pub fn next<'a, K, T: Ord + Copy>(
        &'a self,
        waiting: impl Iterator<Item = Waiting<'a, K, T>> + Clone,
        now: T,
    ) -> Next<K, T> {
        let most = self.most_of_one(waiting.clone().map(|waiting| waiting.namespace));
        let turns = |namespace: &str| self.namespaces.get(namespace).copied().unwrap_or_default();
        let mut first: Option<((u64, T), K)> = None;
        let mut later: Option<T> = None;
        for Waiting {
            namespace,
            database,
            due,
        } in waiting
        {
            let (taken, last) = turns(namespace);
            if due > now {
                later = Some(later.map_or(due, |later| later.min(due)));
            } else if taken < most && first.as_ref().is_none_or(|(before, _)| (last, due) < *before) {
                first = Some(((last, due), database));
            }
        }
        match (first, later) {
            (Some((_, database)), _) => Next::Now(database),
            (None, Some(later)) => Next::At(later),
            (None, None) => Next::Nothing,
        }
    }

    /// A turn of this namespace begins.
    pub fn begin(&mut self, namespace: &str) {
        self.begun += 1;
        let begun = self.begun;
        let turns = self.namespaces.entry(namespace.to_owned()).or_default();
        *turns = (turns.0 + 1, begun);
    }

    /// A turn of this namespace ends.
    pub fn end(&mut self, namespace: &str) {
        if let Some((taken, _)) = self.namespaces.get_mut(namespace) {
            *taken = taken.saturating_sub(1);
        }
        // Whose last turn is longer ago than all others can have waited for is as if it had had none.
        let (begun, known) = (self.begun, u64::try_from(self.namespaces.len()).unwrap_or(u64::MAX));
        self.namespaces
            .retain(|_, (taken, last)| *taken > 0 || begun - *last <= known);
    }

    /// How many places one namespace may take, where databases of these wait.
    fn most_of_one<'a>(&'a self, waiting: impl Iterator<Item = &'a str>) -> usize {
        let busy = self.namespaces.iter().filter(|(_, (taken, _))| *taken > 0);
        let mut all = busy.map(|(namespace, _)| &**namespace).chain(waiting);
        let first = all.next();
        match all.any(|namespace| Some(namespace) != first) {
            true => self.places.div_ceil(2),
            false => self.places,
        }
    }
}

#[cfg(test)]
mod tests;
