//! The network: which messages arrive, and how late.

use super::random::Random;
use super::world::World;

/// Cuts are counted, because several faults may cut the same direction.
#[derive(Clone, Debug)]
pub struct Net {
    /// From each member to each.
    cut: Vec<Vec<u8>>,
    to_api: Vec<u8>,
    from_api: Vec<u8>,
    /// Additional delay in milliseconds, and lost messages per thousand.
    pub slow: u64,
    pub loss: u64,
}

/// One end of the API server's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    To,
    From,
}

impl Net {
    pub fn new(members: usize) -> Self {
        Self {
            cut: vec![vec![0; members]; members],
            to_api: vec![0; members],
            from_api: vec![0; members],
            slow: 0,
            loss: 0,
        }
    }
    pub fn hears(&self, from: usize, to: usize) -> bool {
        from == to || self.cut[from][to] == 0
    }
    /// True if messages pass both ways.
    pub fn joined(&self, one: usize, other: usize) -> bool {
        self.hears(one, other) && self.hears(other, one)
    }
    pub fn cut(&mut self, from: usize, to: usize, cut: bool) {
        count(&mut self.cut[from][to], cut);
    }
    pub fn cut_api(&mut self, node: usize, way: Way, cut: bool) {
        match way {
            Way::To => count(&mut self.to_api[node], cut),
            Way::From => count(&mut self.from_api[node], cut),
        }
    }
    pub fn reaches_api(&self, node: usize) -> bool {
        self.to_api[node] == 0
    }
    pub fn hears_api(&self, node: usize) -> bool {
        self.from_api[node] == 0
    }
    pub fn heal(&mut self) {
        *self = Self::new(self.to_api.len());
    }
    /// How long a message takes; `None`: it is lost.
    fn delay(&self, random: &mut Random) -> Option<u64> {
        let usual = 1 + random.below(3) + random.below(1 + self.slow);
        (!random.chance(self.loss)).then_some(usual)
    }
}

pub fn count(counter: &mut u8, up: bool) {
    *counter = if up { *counter + 1 } else { counter.saturating_sub(1) };
}

impl World {
    /// How long a message from one member to another takes; `None`: it does not arrive.
    pub fn travel(&mut self, from: usize, to: usize) -> Option<u64> {
        let delay = self.net.delay(&mut self.random.network);
        delay.filter(|_| self.net.hears(from, to) && self.nodes[to].on && self.nodes[from].on)
    }
}
