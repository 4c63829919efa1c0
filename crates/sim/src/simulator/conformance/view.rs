//! What a database shows, without absolute positions.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};

use super::{MEMBERS, ROW};

/// What is seen after a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// True if the step was refused, and changed nothing.
    pub refused: bool,
    /// Each member.
    pub members: Vec<Seen>,
    /// The outcome of each row's commit.
    pub commits: BTreeMap<u32, Commit>,
}

/// A member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// What runs.
    pub runs: Runs,
    /// Where its WAL ends; `None`: it does not report it.
    pub position: Option<Position>,
    /// Rows that a session sees.
    pub rows: BTreeSet<u32>,
    /// The members that stream from it.
    pub senders: BTreeSet<usize>,
    /// The members whose slots it has.
    pub slots: BTreeSet<usize>,
}

/// An end of WAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Its timeline.
    pub timeline: u32,
    /// Its position, in bytes.
    pub lsn: u64,
}

/// What runs on a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Runs {
    /// Nothing runs, and there is no data.
    #[default]
    Nothing,
    /// Nothing runs; the data is a primary's, or was stopped cleanly, as the fields say.
    Down {
        /// True if the data is a primary's.
        primary: bool,
        /// True if it was stopped cleanly.
        clean: bool,
    },
    /// A server that accepts no connections.
    Recovers,
    /// A standby, with the member that it streams from.
    Standby(Option<usize>),
    /// A primary, whose timeline has these ancestors.
    Primary(Vec<u32>),
}

/// What an application knows of its commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// It is acknowledged.
    Acknowledged,
    /// It still waits.
    Waits,
    /// The session ended before the answer.
    Unknown,
}

impl Position {
    fn order(self, other: Position) -> Ordering {
        let near = self.lsn.abs_diff(other.lsn) < ROW / 4;
        let bytes = if near {
            Ordering::Equal
        } else {
            self.lsn.cmp(&other.lsn)
        };
        self.timeline.cmp(&other.timeline).then(bytes)
    }
}

impl Display for View {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.refused {
            writeln!(f, "  refused")?;
        }
        for (member, seen) in self.members.iter().enumerate() {
            write!(f, "  {member} {}", seen.runs)?;
            if let Some(position) = seen.position {
                write!(f, ", timeline {}", position.timeline)?;
            }
            list(f, "rows", &seen.rows)?;
            list(f, "sends to", &seen.senders)?;
            list(f, "slots", &seen.slots)?;
            writeln!(f)?;
        }
        let pairs = (0..MEMBERS).flat_map(|one| (one + 1..MEMBERS).map(move |other| (one, other)));
        let ordered = pairs.filter_map(|(one, other)| {
            let at = |member: usize| self.members.get(member)?.position;
            let sign = match at(one)?.order(at(other)?) {
                Ordering::Less => '<',
                Ordering::Equal => '=',
                Ordering::Greater => '>',
            };
            Some(format!("{one}{sign}{other}"))
        });
        let commits = self.commits.iter().map(|(row, commit)| format!("{row} {commit}"));
        let last: Vec<String> = ordered.chain(commits).collect();
        writeln!(f, "  {}", last.join(", "))
    }
}

fn list<T: Display>(f: &mut Formatter<'_>, what: &str, of: &BTreeSet<T>) -> fmt::Result {
    let words: Vec<String> = of.iter().map(T::to_string).collect();
    match words.is_empty() {
        true => Ok(()),
        false => write!(f, ", {what} {}", words.join(" ")),
    }
}

impl Display for Runs {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Runs::Nothing => write!(f, "has no data"),
            Runs::Down { primary, clean } => write!(
                f,
                "is down, a {}'s data{}",
                if *primary { "primary" } else { "standby" },
                if *clean { ", stopped cleanly" } else { "" }
            ),
            Runs::Recovers => write!(f, "recovers"),
            Runs::Standby(None) => write!(f, "is a standby without an upstream"),
            Runs::Standby(Some(from)) => write!(f, "is a standby of {from}"),
            Runs::Primary(history) if history.is_empty() => write!(f, "is a primary"),
            Runs::Primary(history) => write!(f, "is a primary after {history:?}"),
        }
    }
}

impl Display for Commit {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Commit::Acknowledged => "acknowledged",
            Commit::Waits => "waits",
            Commit::Unknown => "unknown",
        })
    }
}
