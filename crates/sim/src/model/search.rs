//! Breadth-first search: it finds the shortest sequence to a violation first.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::BuildHasherDefault;

use super::bounds::{Bounds, Event};
use super::check::violation;
use super::fingerprint::Same;
use super::label::Label;
use super::observe::Decider;
use super::rest::Ways;
use super::state::World;
use super::step::Stepper;

/// One step of a sequence: what happened, and the world after it; `None`: the violation happened in this step.
pub type Stage<const N: usize> = (Label, Option<World<N>>);

/// The result of a search.
#[derive(Debug, Default)]
pub struct Report<const N: usize> {
    /// Different states, not counting those that differ only in the numbers of members.
    pub states: usize,
    /// Steps between them.
    pub steps: u64,
    /// Different views that were decided on.
    pub decisions: usize,
    /// Notable events, and how often each happened.
    pub events: BTreeMap<Event, u64>,
    /// Sequences whose end was seen to converge.
    pub converged: usize,
    /// The most steps that one of them took to converge.
    pub longest: usize,
    /// States that only count as converged because the numbers of this world, epochs or timelines, run out in them.
    pub spent: usize,
    /// True if all states within the bounds were explored.
    pub complete: bool,
    /// A sequence to a violation, and what is wrong at its end. [`search`] returns a shortest one.
    pub wrong: Option<(Vec<Stage<N>>, String)>,
}

/// Explores from `start` within `bounds`, at most `limit` states.
pub fn search<const N: usize>(start: World<N>, bounds: Bounds, limit: usize) -> Report<N> {
    explore(start, bounds, usize::MAX, limit, None)
}

/// Explores all states within `steps` steps: for worlds that are too large as a whole.
pub fn search_near<const N: usize>(start: World<N>, bounds: Bounds, steps: usize, limit: usize) -> Report<N> {
    explore(start, bounds, steps, limit, None)
}

/// The same, with a check of convergence. From each state a path without faults, edits and new records must lead to a
/// state in which the database is as wanted and all members wait, or in which the numbers of this world run out. If all
/// steps are equally likely, such a path is taken in the end.
pub fn search_to_rest<const N: usize>(start: World<N>, bounds: Bounds, limit: usize) -> Report<N> {
    explore(start, bounds, usize::MAX, limit, Some(Ways::default()))
}

fn explore<const N: usize>(
    start: World<N>,
    bounds: Bounds,
    steps: usize,
    limit: usize,
    mut ways: Option<Ways>,
) -> Report<N> {
    let mut decider = Decider::new(bounds.timed);
    // The number of each state.
    let mut known = HashMap::<u64, u32, BuildHasherDefault<Same>>::from_iter([(start.fingerprint(), 0)]);
    // How each state was reached: the number of the previous state, and which of its successors it is.
    let mut origins: Vec<(u32, u16)> = vec![(0, 0)];
    let mut queue = VecDeque::from([(start, 0, 0)]);
    let mut report = Report::default();
    let mut stepper = Stepper::new(&mut decider, bounds);
    let mut wrong = None;
    let (mut prints, mut numbers) = (Vec::new(), Vec::new());
    while let Some((world, from, so_far)) = queue.pop_front() {
        if so_far == steps {
            continue;
        }
        stepper.explore(&world);
        if let Some(ways) = &mut ways {
            ways.visit(from, &world, &stepper);
        }
        // Looks all of them up together: each look-up waits for memory, and these waits overlap.
        let good = stepper.next.iter().map_while(|next| next.world.as_ref().ok());
        prints.clear();
        prints.extend(good.map(World::fingerprint));
        numbers.clear();
        for print in &prints {
            let new = known.len() as u32;
            numbers.push(*known.entry(*print).or_insert(new));
        }
        for (ordinal, next) in stepper.next.iter().enumerate() {
            let number = numbers.get(ordinal).copied();
            if number == Some(from) {
                continue;
            }
            report.steps += 1;
            if let Some(event) = next.event {
                *report.events.entry(event).or_default() += 1;
            }
            if let (Some(ways), Some(number)) = (&mut ways, number) {
                ways.leads(from, number, &world, next);
            }
            let new = number.is_none_or(|number| number as usize == origins.len());
            let origin = (from, ordinal as u16);
            let found = match &next.world {
                _ if !new => continue,
                Err(what) => Some(what.clone()),
                Ok(after) => violation(after),
            };
            if let Some(what) = found {
                wrong = Some((origin, what));
                break;
            }
            if let Ok(after) = &next.world {
                queue.push_back((*after, origins.len() as u32, so_far + 1));
                origins.push(origin);
            }
        }
        if wrong.is_some() || origins.len() >= limit {
            break;
        }
    }
    report.complete = queue.is_empty() && wrong.is_none();
    if let Some(ways) = ways.filter(|_| report.complete) {
        (report.converged, report.spent) = (origins.len(), ways.spent);
        match ways.longest(origins.len()) {
            Ok(steps) => report.longest = steps,
            Err(stuck) => {
                let what = "from here it does not serve again, or does not become idle".to_owned();
                wrong = Some((origins[stuck], what));
            }
        }
    }
    report.wrong = wrong.map(|(last, what)| (course(&origins, start, last, &mut stepper), what));
    report.states = origins.len();
    report.decisions = decider.known();
    report
}

/// The steps from `start` to the last one.
fn course<const N: usize>(
    origins: &[(u32, u16)],
    start: World<N>,
    last: (u32, u16),
    stepper: &mut Stepper<N>,
) -> Vec<Stage<N>> {
    let mut ordinals = vec![last.1];
    let mut at = last.0;
    while at != 0 {
        let (before, ordinal) = origins[at as usize];
        ordinals.push(ordinal);
        at = before;
    }
    let mut world = start;
    let mut stages = Vec::new();
    for ordinal in ordinals.into_iter().rev() {
        stepper.explore(&world);
        let next = stepper.next.swap_remove(usize::from(ordinal));
        let after = next.world.ok();
        stages.push((next.label, after));
        world = after.unwrap_or(world);
    }
    stages
}
