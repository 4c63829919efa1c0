//! Long random sequences, which go deeper than a search.

use std::collections::HashSet;
use std::hash::BuildHasherDefault;

use super::bounds::{Bounds, Event};
use super::check::violation;
use super::converge::converge;
use super::fingerprint::Same;
use super::label::What;
use super::observe::Decider;
use super::random::Random;
use super::search::{Report, Stage};
use super::state::{Task, World};
use super::step::{Next, Stepper};

/// The walk.
#[derive(Clone, Copy, Debug)]
pub struct Walk {
    /// The seed of all random choices.
    pub seed: u64,
    /// How many sequences.
    pub courses: usize,
    /// At most this many steps in each.
    pub length: usize,
    /// The end of one sequence in this many must converge; 0: of none.
    pub converge: usize,
}

/// Kinds of steps.
const KINDS: usize = 19;

/// How likely each member takes each kind of step in one sequence. Steps that are rare in one sequence are common in
/// another, so that distant corners are reached ("swarm testing": Groce and others, 2012).
struct Mood<const N: usize>([[usize; KINDS]; N]);

impl<const N: usize> Mood<N> {
    fn new(random: &mut Random) -> Self {
        let rare: [usize; KINDS] = std::array::from_fn(|_| [0, 1, 8][random.below(3)]);
        let mut weight = |kind: usize| match kind {
            0..6 => rare[kind],
            _ => [2, 32, 256][random.below(3)],
        };
        Self(std::array::from_fn(|_| std::array::from_fn(&mut weight)))
    }

    fn weight(&self, next: &Next<N>, before: &World<N>) -> usize {
        let costs = next.world.as_ref().is_ok_and(|world| world.faults > before.faults);
        let kind = match next.label.what {
            What::DoesNotHear | What::HearsAgain => 0,
            What::IsKilled => 1,
            What::CannotRenew
            | What::Fails(_)
            | What::GivesUpWrite
            | What::LosesWrite
            | What::DiesPromoting(_)
            | What::DiesRewinding
            | What::LeaseIsDeleted
            | What::LeaseIsScribbled
            | What::Reboots
            | What::CannotBePromoted
            | What::GivesUp(_) => 2,
            What::UserFences(_)
            | What::UserFencesNobody
            | What::UserWants(_)
            | What::UserWantsStandbys(_)
            | What::UserPrefersStandbys(_)
            | What::UserAcceptsLoss(_)
            | What::LeaseIsPutRight => 3,
            What::Decides(_) if costs => 4,
            What::TimePasses { .. } if costs => 5,
            What::TimePasses { .. } => 6,
            What::Decides(_) | What::HandsOverNoMore => 7,
            What::Done(Task::SetSync(_)) => 18,
            What::Done(_) | What::Pushes(_) => 8,
            What::Asks { .. } => 9,
            What::AsksFailsafe { .. } => 10,
            What::SeesLease => 11,
            What::WriteArrives(_) => 12,
            What::HearsOfWrite(_) | What::HearsOfPush(_) | What::LooksAtArchive => 13,
            What::Writes => 14,
            What::Streams(_) | What::Receives(_) => 15,
            What::Acknowledges(_) | What::Flushes | What::StrikesOff(_) => 16,
            What::ReachesStore(_) | What::LateWriteArrives(_) | What::LeaseIsMadeEmpty => 17,
        };
        self.0[next.label.actor.map_or(0, usize::from)][kind]
    }

    /// Picks one of the possible next steps; `None` if there is none.
    fn step(&self, stepper: &mut Stepper<N>, random: &mut Random, world: &World<N>) -> Option<Next<N>> {
        let successors = stepper.successors(world);
        let weights: Vec<_> = successors.iter().map(|next| self.weight(next, world)).collect();
        (!weights.is_empty()).then(|| successors.swap_remove(random.pick(&weights)))
    }
}

/// The states of the first sequence, of at most `walk.courses`, in which `event` happens, up to that event.
pub fn way_to<const N: usize>(event: Event, start: World<N>, bounds: Bounds, walk: Walk) -> Option<Vec<World<N>>> {
    let mut random = Random(walk.seed);
    let mut decider = Decider::new(bounds.timed);
    let mut stepper = Stepper::new(&mut decider, bounds);
    (0..walk.courses).find_map(|_| {
        let mood = Mood::new(&mut random);
        let mut states = vec![start];
        while states.len() < walk.length {
            let next = mood.step(&mut stepper, &mut random, states.last()?)?;
            states.push(next.world.ok()?);
            if next.event == Some(event) {
                return Some(states);
            }
        }
        None
    })
}

/// Walks from `start` within `bounds`.
pub fn walk<const N: usize>(decider: &mut Decider<N>, start: World<N>, bounds: Bounds, walk: Walk) -> Report<N> {
    let mut random = Random(walk.seed);
    let mut seen = HashSet::<u64, BuildHasherDefault<Same>>::default();
    let mut report = Report::default();
    for number in 0..walk.courses {
        let mood = Mood::new(&mut random);
        let mut stages: Vec<Stage<N>> = Vec::new();
        let mut wrong = None;
        let mut world = start;
        while stages.len() < walk.length && wrong.is_none() {
            let Some(next) = mood.step(&mut Stepper::new(decider, bounds), &mut random, &world) else {
                break;
            };
            report.steps += 1;
            if let Some(event) = next.event {
                *report.events.entry(event).or_default() += 1;
            }
            stages.push((next.label, next.world.as_ref().ok().copied()));
            match next.world {
                Err(what) => wrong = Some(what),
                Ok(next) => {
                    seen.insert(next.fingerprint());
                    wrong = violation(&next);
                    world = next;
                }
            }
        }
        if wrong.is_none() && walk.converge > 0 && number % walk.converge == 0 {
            match converge(decider, world, bounds, walk.seed) {
                Ok(0) => {}
                Ok(steps) => {
                    report.converged += 1;
                    report.longest = report.longest.max(steps);
                }
                Err(what) => wrong = Some(what),
            }
        }
        if let Some(what) = wrong {
            report.wrong = Some((stages, what));
            break;
        }
    }
    report.decisions = decider.known();
    report.states = seen.len();
    report
}
