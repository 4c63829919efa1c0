//! Scripts that run on this model of PostgreSQL and on real servers, and what both show after each step. The model is
//! trusted for what PostgreSQL was seen to do.

mod bench;
pub mod requests;
mod scripts;
mod view;

pub use bench::Bench;
pub use scripts::{Script, beginning, scripts};
pub use view::{Commit, Position, Runs, Seen, View};

/// Members of each script.
pub const MEMBERS: usize = 3;
/// Bytes of WAL that a row adds. Positions that differ by less than a quarter of that count as one.
pub const ROW: u64 = 256 * 1024;

/// One step. Members are numbers; rules are `ANY required (names)`, or empty if no standby is required.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// An application commits a row, and does not wait for the answer.
    Write(usize, u32),
    /// `synchronous_standby_names` of a primary.
    SetRule(usize, Rule),
    /// SIGKILL to all processes of a server.
    Kill(usize),
    /// Shutdown, fast.
    Stop(usize),
    /// The node loses power while this row is written: what was not flushed is lost.
    PowerLoss(usize, u32),
    /// Start as a primary.
    Serve(usize, Rule),
    /// Start the first as a standby of the second; or make it follow the second from now on.
    Follow(usize, usize),
    /// Messages between the two are lost, in both directions.
    Cut(usize, usize),
    /// Messages between the two pass again.
    Heal(usize, usize),
    /// The standby receives nothing any more.
    Promise(usize),
    /// The standby is promoted, to this timeline.
    Promote(usize, u32, Rule),
    /// `pg_rewind` of the first, with the second as its source.
    Rewind(usize, usize),
    /// The first's data is removed, and copied from the second.
    Copy(usize, usize),
    /// A slot on the first for the second.
    Admit(usize, usize),
    /// All slots on the first are dropped, except these.
    DropSlots(usize, Vec<usize>),
    /// A checkpoint.
    Checkpoint(usize),
    /// The WAL continues in the next segment.
    SwitchWal(usize),
}

/// The standbys that commits wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// How many of the names must acknowledge.
    pub required: usize,
    /// The names.
    pub names: Vec<usize>,
}
