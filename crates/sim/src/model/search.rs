//! Breadth-first search: the shortest course to what is wrong is found first.

use std::collections::hash_map::{DefaultHasher, Entry};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{Hash, Hasher};

use super::bounds::{Bounds, Event};
use super::check::{is_ready, violation};
use super::observe::Decider;
use super::state::World;
use super::step::{Next, Stepper};

/// What a search has found.
#[derive(Debug)]
pub struct Report {
    /// Different states.
    pub states: usize,
    /// Steps between them.
    pub steps: u64,
    /// Different observations that were decided upon.
    pub decisions: usize,
    /// What was noticed, and how often.
    pub events: BTreeMap<Event, u64>,
    /// All states within the bounds were explored.
    pub complete: bool,
    /// The shortest course to a violation: what happened, and what is wrong at its end.
    pub wrong: Option<(Vec<String>, String)>,
}

/// Explores from `start` within `bounds`, at most `limit` states.
pub fn search(start: World, bounds: Bounds, limit: usize) -> Report {
    let mut decider = Decider::new(bounds.durability);
    let mut known: HashMap<u64, (u64, u16)> = HashMap::from([(fingerprint(&start), (0, 0))]);
    let mut queue = VecDeque::from([start]);
    let mut report = Report {
        states: 1,
        steps: 0,
        decisions: 0,
        events: BTreeMap::new(),
        complete: false,
        wrong: None,
    };
    while let Some(world) = queue.pop_front() {
        let from = fingerprint(&world);
        let successors = Stepper::new(&mut decider, bounds).successors(&world);
        for (ordinal, next) in successors.into_iter().enumerate() {
            report.steps += 1;
            if let Some(event) = next.event {
                *report.events.entry(event).or_default() += 1;
            }
            let wrong = match &next.world {
                Ok(world) => violation(world),
                Err(what) => Some(what.clone()),
            };
            if let Some(what) = wrong {
                let mut course = course(&known, start, from, bounds, &mut decider);
                course.push(next.label);
                report.wrong = Some((course, what));
                report.decisions = decider.known();
                return report;
            }
            let Ok(world) = next.world else { continue };
            if let Entry::Vacant(entry) = known.entry(fingerprint(&world)) {
                entry.insert((from, u16::try_from(ordinal).unwrap_or(u16::MAX)));
                report.states += 1;
                queue.push_back(world);
            }
        }
        if report.states >= limit {
            report.decisions = decider.known();
            return report;
        }
    }
    report.complete = true;
    report.decisions = decider.known();
    report
}

/// One step in so many is a fault, in a walk.
const FAULTS_OF: usize = 8;

/// Faults, and the end of a silence, are rare: between them, what they have begun goes on.
fn is_rare(next: &Next, before: &World) -> bool {
    let silent = |world: &World| world.members.iter().filter(|member| member.silent).count();
    next.world
        .as_ref()
        .is_ok_and(|world| world.faults > before.faults || silent(world) != silent(before))
}

/// Walks at random from `start`, `courses` times, at most `length` steps each, `seed` decides everything.
pub fn walk(decider: &mut Decider, start: World, bounds: Bounds, seed: u64, courses: usize, length: usize) -> Report {
    let mut random = Random(seed);
    let mut seen = std::collections::HashSet::new();
    let mut report = Report {
        states: 0,
        steps: 0,
        decisions: 0,
        events: BTreeMap::new(),
        complete: false,
        wrong: None,
    };
    for _ in 0..courses {
        let mut world = start;
        let mut course = Vec::new();
        for _ in 0..length {
            let mut successors = Stepper::new(decider, bounds).successors(&world);
            // An answer that was known already is no step.
            successors.retain(|next| next.world.as_ref() != Ok(&world));
            if successors.is_empty() {
                if world.lease.epoch + 1 < bounds.epochs && !is_ready(&world) {
                    report.wrong = Some((
                        course,
                        format!("nothing can happen any more, and it is not ready: {world:#?}"),
                    ));
                    return report;
                }
                break;
            }
            let faults: Vec<_> = (0..successors.len())
                .filter(|index| is_rare(&successors[*index], &world))
                .collect();
            let choice = if faults.len() == successors.len() || !faults.is_empty() && random.below(FAULTS_OF) == 0 {
                faults[random.below(faults.len())]
            } else {
                let others: Vec<_> = (0..successors.len()).filter(|index| !faults.contains(index)).collect();
                others[random.below(others.len())]
            };
            let next = successors.swap_remove(choice);
            report.steps += 1;
            course.push(next.label);
            if let Some(event) = next.event {
                *report.events.entry(event).or_default() += 1;
            }
            let wrong = match &next.world {
                Ok(world) => violation(world),
                Err(what) => Some(what.clone()),
            };
            if let Some(what) = wrong {
                report.wrong = Some((course, what));
                report.decisions = decider.known();
                report.states = seen.len();
                return report;
            }
            if let Ok(next) = next.world {
                seen.insert(fingerprint(&next));
                world = next;
            }
        }
    }
    report.decisions = decider.known();
    report.states = seen.len();
    report
}

/// SplitMix64 (Steele, Lea and Flood, 2014): the same seed, the same course.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((z ^ z >> 31) % bound as u64).unwrap_or(0)
    }
}

/// Two states with one fingerprint are taken for one: with ten million states that happens once in 400,000 searches.
fn fingerprint(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

/// What happened on the way from `start` to the state `to`.
fn course(
    known: &HashMap<u64, (u64, u16)>,
    start: World,
    to: u64,
    bounds: Bounds,
    decider: &mut Decider,
) -> Vec<String> {
    let mut ordinals = Vec::new();
    let mut at = to;
    let first = fingerprint(&start);
    while at != first {
        let (before, ordinal) = known[&at];
        ordinals.push(ordinal);
        at = before;
    }
    let mut world = start;
    let mut labels = Vec::new();
    for ordinal in ordinals.into_iter().rev() {
        let mut successors = Stepper::new(decider, bounds).successors(&world);
        let next = successors.swap_remove(usize::from(ordinal));
        labels.push(next.label);
        match next.world {
            Ok(next) => world = next,
            Err(_) => break,
        }
    }
    labels
}
