//! Deciding which connections are served, and which one is dropped for a new one.

use std::net::IpAddr;

/// The most connections that are served at a time; each number is at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// In all.
    pub all: usize,
    /// From one source address.
    pub each_source: usize,
}

/// The connections that are being served, the oldest first.
#[derive(Debug)]
pub struct Connections<C> {
    bounds: Bounds,
    open: Vec<(C, IpAddr)>,
}

impl<C> Connections<C> {
    /// No connections yet.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            open: Vec::new(),
        }
    }

    /// Adds a new connection from `source`. If there are too many now, returns the connection that must be dropped: the
    /// oldest one of the source that has most, the new connection included. If `source` alone has too many, it is one
    /// of its own.
    pub fn admit(&mut self, connection: C, source: IpAddr) -> Option<C> {
        let dropped = self.victim(source).map(|index| self.open.remove(index).0);
        self.open.push((connection, source));
        dropped
    }

    /// Forgets the connections that have ended.
    pub fn forget(&mut self, has_ended: impl Fn(&C) -> bool) {
        self.open.retain(|(connection, _)| !has_ended(connection));
    }

    fn victim(&self, newcomer: IpAddr) -> Option<usize> {
        let held = |source: IpAddr| {
            let open = self.open.iter().filter(|(_, other)| *other == source).count();
            open + usize::from(source == newcomer)
        };
        if held(newcomer) > self.bounds.each_source {
            return self.open.iter().position(|(_, source)| *source == newcomer);
        }
        if self.open.len() < self.bounds.all {
            return None;
        }
        // Of equal values `max_by_key` returns the last: here the oldest connection.
        (0..self.open.len()).rev().max_by_key(|index| held(self.open[*index].1))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    const BOUNDS: Bounds = Bounds { all: 6, each_source: 4 };

    fn source(number: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, number).into()
    }

    fn connections(sources: &[u8]) -> Connections<usize> {
        let mut connections = Connections::new(BOUNDS);
        for (connection, number) in sources.iter().enumerate() {
            assert_eq!(connections.admit(connection, source(*number)), None);
        }
        connections
    }

    #[test]
    fn a_source_with_too_many_loses_its_own_oldest() {
        let mut connections = connections(&[1, 2, 2, 2, 2]);
        assert_eq!(connections.admit(5, source(2)), Some(1));
        assert_eq!(connections.admit(6, source(2)), Some(2));
    }

    #[test]
    fn a_full_port_drops_the_oldest_of_the_source_with_most() {
        let mut connections = connections(&[1, 2, 3, 2, 3, 3]);
        assert_eq!(connections.admit(6, source(4)), Some(2));
        // The sources 2, 3 and 4 have two each now: the oldest of all of these is dropped.
        assert_eq!(connections.admit(7, source(4)), Some(1));
    }

    #[test]
    fn an_ended_connection_frees_its_place() {
        let mut connections = connections(&[1, 2, 3, 4, 5, 6]);
        connections.forget(|connection| *connection == 3);
        assert_eq!(connections.admit(6, source(7)), None);
        assert_eq!(connections.admit(7, source(8)), Some(0));
    }

    proptest! {
        /// Whatever connections come and end: the bounds hold, the newest is served, and a source with no more than its
        /// share of the places loses no connection to others.
        #[test]
        fn a_source_keeps_its_share(steps in prop::collection::vec((1..9_u8, any::<bool>(), 0..6_usize), 0..200)) {
            let mut connections = Connections::new(BOUNDS);
            let mut model: Vec<(usize, IpAddr)> = Vec::new();
            for (connection, (number, ends, which)) in steps.into_iter().enumerate() {
                if ends && which < model.len() {
                    let (ended, _) = model.remove(which);
                    connections.forget(|connection| *connection == ended);
                }
                let newcomer = source(number);
                let mut sources: Vec<IpAddr> = model.iter().map(|(_, source)| *source).chain([newcomer]).collect();
                let held = |source: IpAddr| sources.iter().filter(|other| **other == source).count();
                let dropped = connections.admit(connection, newcomer);
                if let Some(dropped) = dropped {
                    let index = model.iter().position(|(open, _)| *open == dropped).expect("it was open");
                    let (_, victim) = model[index];
                    prop_assert_eq!(model.iter().position(|(_, source)| *source == victim), Some(index), "its oldest");
                    prop_assert!(sources.iter().all(|source| held(*source) <= held(victim)) || victim == newcomer);
                    let kept = held(victim);
                    model.remove(index);
                    sources.sort_unstable();
                    sources.dedup();
                    prop_assert!(victim == newcomer || kept > BOUNDS.all / sources.len(), "no more than its share");
                }
                model.push((connection, newcomer));
                prop_assert_eq!(&connections.open, &model);
                prop_assert!(model.len() <= BOUNDS.all);
                let of_newcomer = model.iter().filter(|(_, source)| *source == newcomer).count();
                prop_assert!(of_newcomer <= BOUNDS.each_source);
            }
        }
    }
}
