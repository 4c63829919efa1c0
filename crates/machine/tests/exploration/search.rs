//! A breadth-first search through all states, so that the reported sequence is a shortest one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Write as _};

use machine::cluster::Action;
use machine::cluster::model::{Scene, World, Write};

use crate::rules;
use crate::view::{PARTS, Part, View};
use crate::waits;

/// What may happen, and how often.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Views that are outdated or not listed yet.
    pub views: u8,
    /// Writes that arrive after their operator has ended.
    pub late: u8,
    /// Pods and primaries that are lost.
    pub damage: u8,
    /// Edits.
    pub edits: u8,
    /// Among these.
    pub wishes: &'static [Edit],
}

/// An edit of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    Replicas(i32),
    Revision(&'static str),
    Prefer(u32),
    Hibernate(bool),
    Delete,
}

/// All that there is.
#[derive(Clone, Debug)]
pub struct State {
    pub world: World,
    pub view: View,
    /// A write of an operator that has ended.
    pub sent: Option<Box<Sent>>,
    pub left: Bounds,
    /// True if something was lost.
    pub damaged: bool,
}

/// A write in flight.
#[derive(Clone, Debug)]
pub struct Sent {
    /// What its operator had seen.
    seen: Scene,
    write: Write,
}

/// One step.
#[derive(Clone, Debug)]
#[expect(dead_code, reason = "its fields are only printed")]
pub enum Event {
    Writes(String),
    Passes,
    Time,
    SeesAll,
    Arrives,
    IsLost,
    Sends(String),
    SeesOld(Part),
    SeesNothing(Part),
    KillsPod(u32),
    LosesPrimary,
    Edits(Edit),
}

impl Event {
    /// True if it needs no fault and no user.
    fn is_free(&self) -> bool {
        matches!(
            self,
            Event::Writes(_) | Event::Passes | Event::Time | Event::SeesAll | Event::Arrives | Event::IsLost
        )
    }
}

/// The result of a search that found nothing wrong.
pub struct Found {
    pub states: usize,
    /// Steps from the state that is farthest from idle, in any order.
    pub steps: u32,
    /// Decision rules that have decided.
    pub rules: BTreeSet<&'static str>,
    rest: usize,
    refused: usize,
    waits: usize,
}

impl Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Found {
            states,
            steps,
            rules,
            rest,
            refused,
            waits,
        } = self;
        write!(
            f,
            "{states} states, {rest} of them idle, {refused} writes refused, {waits} waits that are true, idle after {steps} \
             steps at most; rules: {rules:?}"
        )
    }
}

/// Text that is hashed instead of kept.
struct Fingerprint(u64);

impl fmt::Write for Fingerprint {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut mix = |word: u64| self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
        let mut words = text.as_bytes().chunks_exact(8);
        for word in words.by_ref() {
            mix(u64::from_le_bytes(word.try_into().unwrap()));
        }
        let rest = words.remainder();
        mix(rest
            .iter()
            .fold(rest.len() as u64, |word, byte| word << 8 | u64::from(*byte)));
        Ok(())
    }
}

fn fingerprint(state: &State) -> u64 {
    let mut fingerprint = Fingerprint(0);
    write!(fingerprint, "{state:?}").unwrap();
    fingerprint.0 ^ fingerprint.0 >> 29
}

/// How a state was reached.
struct Place {
    before: u32,
    event: Option<Event>,
    /// The steps that can follow without a fault.
    free: Vec<u32>,
}

/// Goes through all states. `Err`: a sequence to the first one in which something is wrong.
pub fn search(world: World, bounds: Bounds, versions: bool) -> Result<Found, String> {
    let mut start = State {
        world,
        view: View::Whole,
        sent: None,
        left: bounds,
        damaged: false,
    };
    start.world.trim();
    let mut known = BTreeMap::from([(fingerprint(&start), 0_u32)]);
    let mut places = vec![Place {
        before: 0,
        event: None,
        free: Vec::new(),
    }];
    let mut border = vec![(0_u32, start)];
    let (mut rest, mut refused, mut waits, mut rules) = (0, 0, 0, BTreeSet::new());
    while !border.is_empty() {
        let mut next = Vec::new();
        for (at, state) in border {
            let Followers {
                all,
                refused: refusals,
                rule,
                wait,
            } = followers(&state, versions);
            refused += refusals;
            rules.extend(rule);
            match wait {
                Some(Ok(())) => waits += 1,
                Some(Err(wrong)) => return Err(told(&places, at, &wrong)),
                None => {}
            }
            let mut free = Vec::new();
            for (event, follower, wrong) in all {
                let fresh = u32::try_from(places.len()).unwrap();
                let to = *known.entry(fingerprint(&follower)).or_insert(fresh);
                if to == at {
                    continue;
                }
                if event.is_free() {
                    free.push(to);
                }
                if to == fresh {
                    places.push(Place {
                        before: at,
                        event: Some(event),
                        free: Vec::new(),
                    });
                    if let Some(wrong) = wrong.or_else(|| rules::state(&follower)) {
                        return Err(told(&places, to, &wrong));
                    }
                    next.push((to, follower));
                } else if let Some(wrong) = wrong {
                    return Err(format!("{}\nthen {event:?}", told(&places, at, &wrong)));
                }
            }
            if free.is_empty() {
                if let Some(wrong) = rules::rest(&state) {
                    return Err(told(&places, at, &wrong));
                }
                rest += 1;
            }
            places[at as usize].free = free;
        }
        border = next;
    }
    let steps = farthest(&places)?;
    Ok(Found {
        states: places.len(),
        steps,
        rules,
        rest,
        refused,
        waits,
    })
}

/// The longest path without faults from any state until idle; an error if a path goes round in a circle.
fn farthest(places: &[Place]) -> Result<u32, String> {
    let mut steps: Vec<Option<u32>> = vec![None; places.len()];
    let mut entered = vec![false; places.len()];
    for first in 0..places.len() {
        let mut path = vec![(first, 0)];
        while let Some((at, tried)) = path.pop() {
            if steps[at].is_some() {
                continue;
            }
            entered[at] = true;
            match places[at].free.get(tried) {
                Some(&to) => {
                    path.push((at, tried + 1));
                    if steps[to as usize].is_none() {
                        if entered[to as usize] {
                            return Err(told(places, to, "from here it goes round in a circle, without a fault"));
                        }
                        path.push((to as usize, 0));
                    }
                }
                None => {
                    let longest = places[at]
                        .free
                        .iter()
                        .map(|to| steps[*to as usize].unwrap_or(0) + 1)
                        .max();
                    steps[at] = Some(longest.unwrap_or(0));
                }
            }
        }
    }
    Ok(steps.into_iter().flatten().max().unwrap_or(0))
}

/// The sequence to a state, as a table.
fn told(places: &[Place], to: u32, wrong: &str) -> String {
    let mut events = Vec::new();
    let mut at = to as usize;
    while let Some(event) = &places[at].event {
        events.push(event);
        at = places[at].before as usize;
    }
    let mut text = format!("{wrong}\nafter {} steps:\n", events.len());
    for (number, event) in events.iter().rev().enumerate() {
        writeln!(text, "{:>4}  {event:?}", number + 1).unwrap();
    }
    text
}

/// All that can happen next.
#[derive(Default)]
struct Followers {
    /// With what is wrong with it.
    all: Vec<(Event, State, Option<String>)>,
    /// Refused writes.
    refused: usize,
    /// The decision rule of the operator's decision.
    rule: Option<&'static str>,
    /// True if the wait's reason is true; an error: it is false.
    wait: Option<Result<(), String>>,
}

/// An operator that sees everything must not wait for something that is false.
fn judged(state: &State, action: &Action) -> Option<Result<(), String>> {
    let (View::Whole, Action::Wait(waiting)) = (&state.view, action) else {
        return None;
    };
    let so = waits::is_so(&state.world, waiting)?;
    Some(
        so.then_some(())
            .ok_or_else(|| format!("it waits for {:?}, which is false", waiting.what)),
    )
}

fn followers(state: &State, versions: bool) -> Followers {
    if state.world.gone {
        return Followers::default();
    }
    let mut all = Vec::new();
    let mut refused = 0;
    let mut push = |event: Event, state: State, wrong: Option<String>| all.push((event, state, wrong));
    let seen = state.view.of(&state.world);
    let (decision, write) = Write::next(&seen);
    if let Some(write) = &write {
        let mut after = state.clone();
        match after.world.write(&seen, write, false, versions) {
            Ok(()) => {
                after.view.wrote(write, &after.world);
                let wrong = after
                    .world
                    .impossible
                    .clone()
                    .or_else(|| rules::write(state, write, &after));
                push(Event::Writes(describe(write, decision.rule)), after, wrong);
            }
            Err(refusal) => {
                refused += 1;
                after.view.refused(refusal, &after.world);
                push(
                    Event::Writes(format!("{refusal:?}: {}", describe(write, decision.rule))),
                    after,
                    None,
                );
            }
        }
    }
    let mut passed = state.clone();
    passed.world.pass();
    let still = fingerprint(&passed) == fingerprint(state);
    push(Event::Passes, passed, None);
    // A late write may arrive after a new pod was waited for.
    let settles = decision.rule == "await-settled";
    let undisturbed = matches!(state.view, View::Whole) && (state.sent.is_none() || settles);
    if still && undisturbed && write.is_none() && !rules::is_at_rest(&state.world) {
        let mut later = state.clone();
        later.world.scene.now = decision.wake;
        push(Event::Time, later, None);
    }
    if !matches!(state.view, View::Whole) {
        let view = View::Whole;
        push(Event::SeesAll, State { view, ..state.clone() }, None);
    }
    if let Some(sent) = &state.sent {
        let mut after = State {
            sent: None,
            ..state.clone()
        };
        push(Event::IsLost, after.clone(), None);
        if after.world.write(&sent.seen, &sent.write, true, versions).is_ok() {
            // A decision from before an edit may arrive after it.
            let edited = sent.seen.generation != state.world.scene.generation;
            let broken = rules::write(state, &sent.write, &after).filter(|_| !edited);
            let wrong = after.world.impossible.clone().or(broken);
            push(Event::Arrives, after, wrong);
        }
    }
    for (event, follower) in faults(state, &seen, write.as_ref()) {
        push(event, follower, None);
    }
    let rule = Some(decision.rule);
    let wait = judged(state, &decision.action);
    Followers {
        all,
        refused,
        rule,
        wait,
    }
}

/// The remaining faults and edits.
fn faults(state: &State, seen: &Scene, write: Option<&Write>) -> Vec<(Event, State)> {
    let mut all = Vec::new();
    let left = state.left;
    if left.views > 0 && matches!(state.view, View::Whole) {
        let less = Bounds {
            views: left.views - 1,
            ..left
        };
        for part in PARTS {
            let mut views = vec![(Event::SeesOld(part), View::old(part, &state.world))];
            if part != Part::Resource {
                views.push((Event::SeesNothing(part), View::Unlisted(part)));
            }
            for (event, view) in views {
                all.push((
                    event,
                    State {
                        view,
                        left: less,
                        ..state.clone()
                    },
                ));
            }
        }
    }
    // A claim in use is protected by Kubernetes, and not in this world.
    let sent = write.filter(|write| !matches!(write, Write::Act(Action::DeleteClaim(_))));
    if let (true, Some(write), None) = (left.late > 0, sent, &state.sent) {
        let less = Bounds {
            late: left.late - 1,
            ..left
        };
        let sent = Some(Box::new(Sent {
            seen: seen.clone(),
            write: write.clone(),
        }));
        let event = Event::Sends(describe(write, "sent"));
        all.push((
            event,
            State {
                sent,
                left: less,
                ..state.clone()
            },
        ));
    }
    if left.damage > 0 {
        let less = Bounds {
            damage: left.damage - 1,
            ..left
        };
        for pod in state.world.scene.pods().iter().filter(|pod| !pod.terminating) {
            let mut after = State {
                left: less,
                damaged: true,
                ..state.clone()
            };
            after.world.scene.pod_mut(pod.ordinal).terminating = true;
            all.push((Event::KillsPod(pod.ordinal), after));
        }
        let mut after = State {
            left: less,
            damaged: true,
            ..state.clone()
        };
        after.world.lose_primary();
        if after.world.scene != state.world.scene {
            all.push((Event::LosesPrimary, after));
        }
    }
    for edit in left.wishes.iter().filter(|_| left.edits > 0) {
        let mut after = state.clone();
        after.left.edits -= 1;
        if make(&mut after.world, *edit) {
            all.push((Event::Edits(*edit), after));
        }
    }
    all
}

/// False if nothing would change.
fn make(world: &mut World, edit: Edit) -> bool {
    let before = world.scene.clone();
    if before.deleting || !before.finalizer {
        return false;
    }
    match edit {
        Edit::Replicas(replicas) => {
            world.scene.scale(replicas);
            world.scene.generation = before.generation;
        }
        Edit::Revision(revision) => world.scene.revision = revision.to_owned(),
        Edit::Prefer(ordinal) => world.scene.spec.primary.prefer = Some(format!("demo-{ordinal}")),
        Edit::Hibernate(hibernated) => world.scene.spec.hibernated = hibernated,
        Edit::Delete => world.scene.deleting = true,
    }
    let changed = world.scene != before;
    world.scene.generation += 1;
    changed
}

fn describe(write: &Write, rule: &str) -> String {
    match write {
        Write::Status(_) => format!("status, for {rule}"),
        Write::Act(action) => format!("{} {:?}, by {rule}", action.name(), action.target()),
    }
}
