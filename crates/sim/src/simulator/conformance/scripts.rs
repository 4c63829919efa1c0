//! The scripts: one for each claim that the model makes of PostgreSQL, and some that a seed draws.

use super::super::random::Random;
use super::Step::{self, *};
use super::{MEMBERS, Rule};

/// A sequence of steps.
#[derive(Clone, Debug)]
pub struct Script {
    /// What it shows.
    pub name: String,
    /// The steps.
    pub steps: Vec<Step>,
}

/// Seeds of random scripts. (Seed 1 kills a standby that has just changed its timeline. Its control file does not show
/// that yet, which the model does not know.)
const DRAWN: [u64; 3] = [0, 2, 3];
/// The shortest length of a random script.
const LENGTH: usize = 14;

/// The beginning of each script: a primary and its standbys, which were stopped cleanly.
pub fn beginning() -> [Step; MEMBERS] {
    [Serve(0, nobody()), Follow(1, 0), Follow(2, 0)]
}

/// All scripts.
pub fn scripts() -> Vec<Script> {
    let script = |name: &str, steps| Script {
        name: name.to_owned(),
        steps,
    };
    let written = written().into_iter().map(|(name, steps)| script(name, steps));
    let drawn = DRAWN.map(|seed| script(&format!("drawn by seed {seed}"), drawn(seed, LENGTH)));
    written.chain(drawn).collect()
}

fn nobody() -> Rule {
    Rule::default()
}

fn any(required: usize, names: &[usize]) -> Rule {
    let names = names.to_vec();
    Rule { required, names }
}

fn written() -> Vec<(&'static str, Vec<Step>)> {
    vec![
        (
            "commits wait for as many standbys as the rule says, and only for those that it names",
            vec![
                SetRule(0, any(1, &[1, 2])),
                Write(0, 1),
                Cut(1, 0),
                Write(0, 2),
                Cut(2, 0),
                Write(0, 3),
                Heal(1, 0),
                SetRule(0, any(2, &[1, 2])),
                Write(0, 4),
                SetRule(0, any(1, &[2])),
                Write(0, 5),
                SetRule(0, any(1, &[1])),
                SetRule(0, nobody()),
                Write(0, 6),
                Heal(2, 0),
            ],
        ),
        (
            "a killed primary recovers alone; waiting commits are visible then, and their sessions are gone",
            vec![
                SetRule(0, any(1, &[1])),
                Cut(1, 0),
                Cut(2, 0),
                Write(0, 1),
                Kill(0),
                Serve(0, any(1, &[1])),
                Write(0, 2),
                Heal(1, 0),
                Heal(2, 0),
            ],
        ),
        (
            "a standby that is killed or stopped continues where it was",
            vec![
                Write(0, 1),
                Kill(1),
                Stop(2),
                Write(0, 2),
                Follow(1, 0),
                Follow(2, 0),
                Write(0, 3),
            ],
        ),
        (
            "a primary that is stopped cleanly sends all: it follows the next one as it is, and keeps its slots until they are dropped",
            vec![
                Write(0, 1),
                Stop(0),
                Promise(1),
                Promise(2),
                Promote(1, 2, any(1, &[0, 2])),
                Follow(2, 1),
                Write(1, 2),
                Follow(0, 1),
                Write(1, 3),
                DropSlots(0, vec![]),
                Write(1, 4),
            ],
        ),
        (
            "a standby of a standby continues when that one is promoted, and is counted",
            vec![
                Write(0, 1),
                Follow(2, 1),
                Write(0, 2),
                Stop(0),
                Promise(1),
                Promote(1, 2, any(1, &[0, 2])),
                Write(1, 3),
                Cut(2, 1),
                Write(1, 4),
                Heal(2, 1),
                Write(1, 5),
            ],
        ),
        (
            "a primary that is stopped without a standby has more WAL than it: it must be rewound",
            vec![
                Write(0, 1),
                Promise(1),
                Promise(2),
                Stop(0),
                Promote(1, 2, any(1, &[0, 2])),
                Follow(2, 1),
                Follow(0, 1),
                Write(1, 2),
                Stop(0),
                Rewind(0, 1),
                Follow(0, 1),
                Write(1, 3),
            ],
        ),
        (
            "a killed primary whose rows all are in the next timeline follows as it is",
            vec![
                Write(0, 1),
                Kill(0),
                Promise(1),
                Promise(2),
                Promote(1, 2, any(1, &[0, 2])),
                Follow(0, 1),
                Write(1, 2),
                Follow(2, 1),
            ],
        ),
        (
            "a killed primary with rows of its own cannot follow, counts as if it had the next one's, and is rewound",
            vec![
                Promise(1),
                Promise(2),
                Write(0, 1),
                Write(0, 4),
                Kill(0),
                Promote(1, 2, any(1, &[0])),
                Follow(0, 1),
                Write(1, 2),
                Follow(2, 1),
                Stop(0),
                Rewind(0, 1),
                Follow(0, 1),
                Write(1, 3),
            ],
        ),
        (
            "a standby that is ahead of the fork cannot follow, and yet counts for commits that it does not have",
            vec![
                Cut(1, 0),
                Write(0, 1),
                Write(0, 2),
                Kill(0),
                Promise(2),
                Promote(1, 2, any(1, &[2])),
                Write(1, 3),
                Follow(2, 1),
                SetRule(1, any(1, &[0])),
                Write(1, 4),
                Stop(2),
                Rewind(2, 1),
                Follow(2, 1),
                SetRule(1, any(1, &[2])),
            ],
        ),
        (
            "after a promise a standby receives nothing before it follows again",
            vec![
                SetRule(0, any(1, &[1])),
                Promise(1),
                Write(0, 1),
                Kill(1),
                Follow(2, 0),
                Follow(1, 0),
                Write(0, 2),
            ],
        ),
        (
            "rewound data recovers to where its source was, with or without it",
            vec![
                Promise(1),
                Promise(2),
                Write(0, 1),
                Kill(0),
                Promote(1, 2, nobody()),
                Write(1, 2),
                Admit(1, 0),
                Rewind(0, 1),
                Kill(1),
                Follow(0, 1),
                Promote(0, 3, nobody()),
                Write(0, 3),
            ],
        ),
        (
            "a copy needs a slot, has none of its own, and no longer needs its source",
            vec![
                Write(0, 1),
                Stop(2),
                DropSlots(0, vec![1]),
                Copy(2, 0),
                Admit(0, 2),
                Copy(2, 0),
                Kill(0),
                Follow(2, 0),
                Promote(2, 2, any(1, &[1])),
                Follow(1, 2),
                Write(2, 2),
            ],
        ),
        (
            "a member without a slot does not stream; a streaming member keeps its slot",
            vec![
                DropSlots(0, vec![]),
                Stop(2),
                DropSlots(0, vec![1]),
                Follow(2, 0),
                Write(0, 1),
                Admit(0, 2),
                Write(0, 2),
            ],
        ),
        (
            "two promotions after each other: the second is above the first, and a member that missed the first follows the second",
            vec![
                Write(0, 1),
                Kill(0),
                Promise(1),
                Promise(2),
                Promote(1, 2, nobody()),
                Write(1, 2),
                Admit(1, 2),
                Follow(2, 1),
                Kill(1),
                Promise(2),
                Promote(2, 5, any(1, &[0, 1])),
                Write(2, 3),
                Follow(0, 2),
                Follow(1, 2),
                Write(2, 4),
            ],
        ),
        (
            "data that is started as a primary stays on its timeline",
            vec![Promise(1), Write(0, 1), Stop(1), Serve(1, nobody())],
        ),
        (
            "what was not flushed is lost with the power, and a standby never had it",
            vec![
                Write(0, 1),
                Checkpoint(0),
                Cut(1, 0),
                Cut(2, 0),
                PowerLoss(0, 2),
                Serve(0, nobody()),
                Heal(1, 0),
                Heal(2, 0),
                Write(0, 3),
            ],
        ),
        (
            "a segment that is ended early is ended for the standbys too",
            vec![
                Write(0, 1),
                Cut(1, 0),
                SwitchWal(0),
                Write(0, 2),
                Kill(2),
                Kill(0),
                Serve(0, nobody()),
                Heal(1, 0),
            ],
        ),
        (
            "a standby with a slot sends on what it receives",
            vec![
                Write(0, 1),
                Stop(0),
                Promise(1),
                Promote(1, 2, any(1, &[0])),
                Follow(0, 1),
                Write(1, 2),
                Promise(2),
                Follow(2, 0),
                Write(1, 3),
                Follow(2, 1),
            ],
        ),
        (
            "a tool does not reach a member that is cut off, and changes nothing then",
            vec![
                Promise(1),
                Write(0, 1),
                Kill(0),
                Promote(1, 2, nobody()),
                Admit(1, 0),
                Cut(0, 1),
                Rewind(0, 1),
                Heal(0, 1),
                Kill(1),
                Rewind(0, 1),
                Serve(1, nobody()),
                Rewind(0, 1),
                Follow(0, 1),
            ],
        ),
        (
            "a rewind that is not needed changes nothing",
            vec![
                Write(0, 1),
                Stop(0),
                Promise(1),
                Promote(1, 2, any(1, &[0])),
                Write(1, 2),
                Admit(1, 0),
                Rewind(0, 1),
                Follow(0, 1),
            ],
        ),
    ]
}

/// Random steps, most of them such as are possible after the previous ones.
fn drawn(seed: u64, length: usize) -> Vec<Step> {
    let mut random = Random::of(seed, "script");
    let mut steps = Vec::new();
    let (mut row, mut timeline, mut primary) = (0, 1, 0);
    while steps.len() < length {
        let others: Vec<usize> = (0..MEMBERS).filter(|member| *member != primary).collect();
        let other = random.one(&others);
        let rule = match random.below(3) {
            0 => nobody(),
            1 => any(1, &others),
            _ => any(1, &[other]),
        };
        match random.below(11) {
            0..4 => {
                row += 1;
                steps.push(Write(primary, row));
            }
            4 => steps.push(SetRule(primary, rule)),
            5 => steps.push(Kill(other)),
            6 => steps.push(Cut(other, primary)),
            7 => steps.push(Heal(other, primary)),
            8 => steps.push(Stop(other)),
            9 => steps.extend([Admit(primary, other), Follow(other, primary)]),
            _ => {
                timeline += 1;
                let ends = if random.chance(500) {
                    Kill(primary)
                } else {
                    Stop(primary)
                };
                let third = MEMBERS - primary - other;
                for standby in [other, third] {
                    steps.extend([
                        Heal(standby, primary),
                        Admit(primary, standby),
                        Follow(standby, primary),
                    ]);
                }
                steps.extend([
                    ends,
                    Promise(other),
                    Promote(other, timeline, any(1, &[primary, third])),
                ]);
                if random.chance(500) {
                    steps.push(Rewind(primary, other));
                }
                steps.extend([Follow(primary, other), Follow(third, other)]);
                primary = other;
            }
        }
    }
    steps
}
