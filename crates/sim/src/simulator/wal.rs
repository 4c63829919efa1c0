//! All WAL that was ever written: a tree of branches. A branch is what one primary wrote on one timeline; all members
//! that have its WAL up to a position have the same bytes. (Two branches with the same timeline number would be two
//! histories: that is a violation.)

use machine::protocol::{Fork, Lsn, Position, Timeline};

/// Number of a branch, in the order of creation.
pub type Branch = usize;

/// An end of WAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Its branch.
    pub branch: Branch,
    /// Its position, in bytes.
    pub lsn: u64,
}

/// What is known of one branch.
#[derive(Clone, Debug)]
pub struct Written {
    /// Its timeline.
    pub timeline: u32,
    /// Where it left its parent.
    pub base: Option<End>,
    /// Up to here its WAL was acknowledged, or could be seen by applications; 0: nothing.
    pub acknowledged: u64,
    /// The same, including what a promotion without a synchronous rule has lost since.
    pub ever: u64,
}

/// All branches.
#[derive(Clone, Debug)]
pub struct Wal(pub Vec<Written>);

/// Where the first timeline's WAL begins.
pub const FIRST: u64 = 0x0300_0000;

impl Wal {
    /// Timeline 1, empty.
    pub fn new() -> Self {
        Self(vec![Written {
            timeline: 1,
            base: None,
            acknowledged: 0,
            ever: 0,
        }])
    }

    /// The number of a branch's timeline.
    pub fn timeline(&self, branch: Branch) -> u32 {
        self.0[branch].timeline
    }

    /// The branch that has a timeline's number.
    pub fn branch(&self, timeline: u32) -> Option<Branch> {
        self.0.iter().position(|branch| branch.timeline == timeline)
    }

    /// The position in the machine's type.
    pub fn position(&self, end: End) -> Position {
        Position {
            timeline: Timeline(self.timeline(end.branch)),
            lsn: Lsn(end.lsn),
        }
    }

    /// True if WAL that ends at `head` includes all WAL up to `at`.
    pub fn contains(&self, mut head: End, at: End) -> bool {
        loop {
            if head.branch == at.branch {
                return at.lsn <= head.lsn;
            }
            let Some(base) = self.0[head.branch].base else {
                return false;
            };
            head = End {
                branch: base.branch,
                lsn: base.lsn.min(head.lsn),
            };
        }
    }

    /// The same, but `at` may be the begin of its branch: that is the parent's WAL.
    pub fn keeps(&self, head: End, at: End) -> bool {
        self.contains(head, self.at(at, at.lsn))
    }

    /// The position `lsn` in the WAL that ends at `head`, on the branch that wrote it.
    pub fn at(&self, mut head: End, lsn: u64) -> End {
        while let Some(base) = self.0[head.branch].base.filter(|base| lsn <= base.lsn) {
            head = base;
        }
        End {
            lsn: lsn.min(head.lsn),
            ..head
        }
    }

    /// The last position that both have.
    pub fn common(&self, mut mine: End, theirs: End) -> End {
        loop {
            let mut at = theirs;
            loop {
                if at.branch == mine.branch {
                    return End {
                        branch: at.branch,
                        lsn: at.lsn.min(mine.lsn),
                    };
                }
                let Some(base) = self.0[at.branch].base else { break };
                at = End {
                    branch: base.branch,
                    lsn: base.lsn.min(at.lsn),
                };
            }
            let Some(base) = self.0[mine.branch].base else {
                return End {
                    branch: mine.branch,
                    lsn: FIRST,
                };
            };
            mine = End {
                branch: base.branch,
                lsn: base.lsn.min(mine.lsn),
            };
        }
    }

    /// Ancestors of a branch, oldest first.
    pub fn history(&self, branch: Branch) -> Vec<Fork> {
        let mut forks = Vec::new();
        let mut at = self.0[branch].base;
        while let Some(base) = at {
            forks.push(Fork {
                timeline: Timeline(self.timeline(base.branch)),
                end: Lsn(base.lsn),
            });
            at = self.0[base.branch].base;
        }
        forks.reverse();
        forks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1 up to 100; 2 from 1 at 50; 3 from 2 at 70; 4 from 1 at 80.
    fn tree() -> Wal {
        let mut wal = Wal::new();
        for (timeline, branch, lsn) in [(2, 0, 50), (3, 1, 70), (4, 0, 80)] {
            wal.0.push(Written {
                timeline,
                base: Some(End { branch, lsn }),
                acknowledged: 0,
                ever: 0,
            });
        }
        wal
    }
    fn end(branch: Branch, lsn: u64) -> End {
        End { branch, lsn }
    }

    #[test]
    fn what_a_branch_has_ends_where_it_left_its_parent() {
        let wal = tree();
        assert!(wal.contains(end(2, 90), end(0, 50)));
        assert!(!wal.contains(end(2, 90), end(0, 51)));
        assert!(wal.contains(end(2, 90), end(1, 70)));
        assert!(!wal.contains(end(2, 90), end(3, 80)));
        assert!(!wal.contains(end(0, 100), end(1, 51)));
    }

    #[test]
    fn a_position_is_on_the_branch_that_wrote_it() {
        let wal = tree();
        for (lsn, branch) in [(40, 0), (50, 0), (51, 1), (70, 1), (71, 2), (90, 2)] {
            assert_eq!(wal.at(end(2, 90), lsn), end(branch, lsn));
        }
        assert_eq!(wal.at(end(2, 90), 95), end(2, 90));
    }

    #[test]
    fn a_rewind_goes_back_to_what_both_have() {
        let wal = tree();
        assert_eq!(wal.common(end(0, 100), end(2, 90)), end(0, 50));
        assert_eq!(wal.common(end(2, 90), end(3, 95)), end(0, 50));
        assert_eq!(wal.common(end(1, 60), end(2, 90)), end(1, 60));
        assert_eq!(
            wal.history(2).iter().map(|fork| fork.end.0).collect::<Vec<_>>(),
            [50, 70]
        );
    }
}
