//! Scripts that run on this model of PostgreSQL and on real servers, and what is seen of both after each step: what the model
//! may be trusted for is what PostgreSQL was seen to do.

mod bench;
pub mod requests;
mod scripts;
mod view;

pub use bench::Bench;
pub use scripts::{Script, beginning, scripts};
pub use view::{Commit, Position, Runs, Seen, View};

/// Members of each script.
pub const MEMBERS: usize = 3;
/// Bytes of WAL that a row brings with it: positions that are less than a quarter of it apart count as one.
pub const ROW: u64 = 256 * 1024;

/// One step. Members have numbers; rules are `ANY required (names)`, or nobody if none is required.
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
    /// Started as a primary.
    Serve(usize, Rule),
    /// Started as a standby of the second; or told to follow it from now on.
    Follow(usize, usize),
    /// Nothing goes from one to the other, either way.
    Cut(usize, usize),
    /// It does again.
    Heal(usize, usize),
    /// A standby receives nothing any more.
    Promise(usize),
    /// A standby is promoted, to this timeline.
    Promote(usize, u32, Rule),
    /// `pg_rewind` of the first, with the second as its source.
    Rewind(usize, usize),
    /// The first's data is removed, and copied from the second.
    Copy(usize, usize),
    /// A slot on the first for the second.
    Admit(usize, usize),
    /// Slots on the first go away, but these.
    DropSlots(usize, Vec<usize>),
    /// A checkpoint.
    Checkpoint(usize),
    /// The WAL goes on in the next segment.
    SwitchWal(usize),
}

/// Whom commits wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// So many of these.
    pub required: usize,
    /// Members.
    pub names: Vec<usize>,
}
