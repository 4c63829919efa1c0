//! From which states of a search the database serves again and becomes idle.

use std::collections::VecDeque;

use super::check::is_lost_for_good;
use super::converge::is_at_rest;
use super::label::What;
use super::observe::{Decided, Effect};
use super::state::{Member, TIMELINES, World};
use super::step::{Next, Stepper};

/// Stands for no state, and for no distance.
const NONE: u32 = u32::MAX;

/// Steps between states in which nothing goes wrong.
#[derive(Default)]
pub(super) struct Ways {
    /// Each step: from which state, to which one.
    steps: Vec<(u32, u32)>,
    /// States in which the world is idle.
    ends: Vec<u32>,
    /// How many of these only count because the numbers of this world run out.
    pub(super) spent: usize,
}

/// True if a member with these decisions would begin an epoch that this world does not have.
fn goes_beyond(decided: &[Decided; 2], epochs: u8) -> bool {
    let beyond = |effect| matches!(effect, Some(Effect::Write { content, .. }) if content.epoch > epochs);
    decided.iter().any(|decided| beyond(decided.effect))
}

impl Ways {
    /// Notes the state with this number, which was explored last.
    pub(super) fn visit<const N: usize>(&mut self, number: u32, world: &World<N>, stepper: &Stepper<N>) {
        let epochs = stepper.bounds.epochs;
        let lease = &world.lease;
        let beyond = |member: &Member<N>| member.promise > epochs;
        let last = lease.epoch >= epochs;
        let spent = usize::from(lease.reserved) + 1 >= TIMELINES
            || world.members.iter().any(beyond)
            || last && stepper.decided.iter().any(|decided| goes_beyond(decided, epochs));
        // Commits wait for more standbys than the user has left unfenced.
        let fenced = N as u32 - world.fenced.count_ones() <= world.durability.into();
        let ends = fenced || is_lost_for_good(world) || is_at_rest(world, &stepper.decided);
        if spent || ends {
            self.ends.push(number);
        }
        self.spent += usize::from(spent && !ends);
    }

    /// Notes a step from state `from` to state `to`.
    pub(super) fn leads<const N: usize>(&mut self, from: u32, to: u32, before: &World<N>, next: &Next<N>) {
        let same = |after: &World<N>| after.troubles() == before.troubles();
        if next.world.as_ref().is_ok_and(same) && next.label.what != What::Writes {
            self.steps.push((from, to));
        }
    }

    /// The number of steps that is enough from each of `states` states.
    ///
    /// # Errors
    /// The number of the first state from which no path leads to an end.
    pub(super) fn longest(&self, states: usize) -> Result<usize, usize> {
        // For each state, a linked list of the states that lead to it: its first element, and for each element the
        // next.
        let mut first = vec![NONE; states];
        let mut next = vec![NONE; self.steps.len()];
        for (step, (_, to)) in self.steps.iter().enumerate() {
            let to = *to as usize;
            (next[step], first[to]) = (first[to], step as u32);
        }
        let mut distance = vec![NONE; states];
        let mut queue: VecDeque<u32> = self.ends.iter().copied().collect();
        for end in &self.ends {
            distance[*end as usize] = 0;
        }
        let mut longest = 0;
        while let Some(at) = queue.pop_front() {
            longest = distance[at as usize];
            let mut step = first[at as usize];
            while step != NONE {
                let from = self.steps[step as usize].0;
                if distance[from as usize] == NONE {
                    distance[from as usize] = longest + 1;
                    queue.push_back(from);
                }
                step = next[step as usize];
            }
        }
        match distance.iter().position(|steps| *steps == NONE) {
            None => Ok(longest as usize),
            Some(stuck) => Err(stuck),
        }
    }
}
