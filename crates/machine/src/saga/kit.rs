//! What every saga must stand, tried on a small world of its own: each action done twice, each request and each answer lost,
//! each action refused for good, the operator killed after each write, cancelled after each write, and old views.
//!
//! A saga's tests call [`check`] and nothing else; what it says is the first way in which the saga is not safe.

use api::operation::OperationPhase;
use chrono::{DateTime, TimeDelta, Utc};

use super::{Action, Machine, Observed, Progress, Saga, Target, Undo, Wanted};
use crate::reconcile::{Controller, FaultKind, Next, Pass};

/// What a saga works on.
pub trait World: Clone {
    /// The saga.
    type Saga: Saga;
    /// What the user asks for.
    fn spec(&self) -> <Self::Saga as Saga>::Spec;
    /// What the operator sees.
    fn observe(&self) -> <Self::Saga as Saga>::Observed;
    /// Does an action.
    ///
    /// # Errors
    /// When the world refuses it.
    fn perform(&mut self, action: &<Self::Saga as Saga>::Action) -> Result<(), FaultKind>;
    /// Everything but the operator moves on a little.
    fn tick(&mut self);
    /// What the saga is for has come about.
    fn is_achieved(&self) -> bool;
    /// What the saga has made and not taken away.
    fn leftovers(&self) -> Vec<String>;
}

/// What goes wrong in one run, each at the n-th write (from 1) of the status or of anything else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Plan {
    /// Each action arrives twice.
    repeats: bool,
    /// This request does not arrive, and fails.
    loses_request: Option<u32>,
    /// This request arrives, and its answer is lost.
    loses_answer: Option<u32>,
    /// From this write on every action is refused as invalid, except those that take something back.
    refuses_from: Option<u32>,
    /// The operator is killed after this write.
    killed_after: Option<u32>,
    /// The user takes the saga back after this write.
    cancelled_after: Option<u32>,
    /// After each write the operator sees for one decision what was there before it.
    sees_late: bool,
    /// Nobody approves what cannot be taken back.
    is_unapproved: bool,
}

/// How a run ended.
struct End<W> {
    world: W,
    progress: Progress,
    writes: u32,
    /// Steps that began, in their order.
    begun: Vec<String>,
}

/// So many decisions a run may have.
const LONGEST: u32 = 2_000;

/// Runs the saga in `world` with every single fault; returns how many runs that were.
///
/// # Errors
/// The first run that ends otherwise than it must, in words.
pub fn check<W: World>(world: &W) -> Result<u32, String> {
    let plain = run(world, Plan::default())?;
    must_complete(&plain, Plan::default())?;
    let mut runs = 1;
    let mut complete = |plan: Plan| -> Result<(), String> {
        runs += 1;
        must_complete(&run(world, plan)?, plan)
    };
    for (repeats, sees_late) in [(true, false), (false, true), (true, true)] {
        complete(Plan {
            repeats,
            sees_late,
            ..Plan::default()
        })?;
    }
    for write in 1..=plain.writes {
        let at = Some(write);
        complete(Plan {
            loses_request: at,
            ..Plan::default()
        })?;
        complete(Plan {
            loses_answer: at,
            ..Plan::default()
        })?;
        complete(Plan {
            killed_after: at,
            ..Plan::default()
        })?;
        complete(Plan {
            killed_after: at,
            sees_late: true,
            ..Plan::default()
        })?;
    }
    for write in 0..=plain.writes {
        for (repeats, sees_late) in [(false, false), (true, false), (false, true)] {
            for killed_after in [None, Some(write + 1), Some(write + 2), Some(write + 3)] {
                let plan = Plan {
                    cancelled_after: Some(write),
                    killed_after,
                    repeats,
                    sees_late,
                    ..Plan::default()
                };
                runs += 1;
                must_end(&run(world, plan)?, plan, OperationPhase::Cancelled)?;
            }
        }
        let plan = Plan {
            refuses_from: Some(write),
            ..Plan::default()
        };
        runs += 1;
        must_end_or_wait(&run(world, plan)?, plan)?;
    }
    let plan = Plan {
        is_unapproved: true,
        ..Plan::default()
    };
    let end = run(world, plan)?;
    let never = never::<W::Saga>();
    if let Some(step) = end.begun.iter().find(|step| never.contains(&step.as_str())) {
        return Err(format!(
            "the step {step} cannot be taken back, and began without being approved"
        ));
    }
    Ok(runs + 1)
}

fn never<S: Saga>() -> Vec<&'static str> {
    let steps = S::STEPS.iter().filter(|step| matches!(step.undo, Undo::Never));
    steps.map(|step| step.name).collect()
}

fn must_complete<W: World>(end: &End<W>, plan: Plan) -> Result<(), String> {
    let is_complete = end.progress.phase == Some(OperationPhase::Completed) && end.world.is_achieved();
    is_complete
        .then_some(())
        .ok_or_else(|| format!("not completed with {plan:?}: {:?}", end.progress))
}

/// It ended in `phase` with nothing left, or it was completed: then the fault came too late.
fn must_end<W: World>(end: &End<W>, plan: Plan, phase: OperationPhase) -> Result<(), String> {
    if end.progress.phase == Some(OperationPhase::Completed) {
        return must_complete(end, plan);
    }
    if end.progress.phase != Some(phase) {
        return Err(format!("not {phase:?} with {plan:?}: {:?}", end.progress));
    }
    match end.world.leftovers() {
        left if left.is_empty() => Ok(()),
        left => Err(format!(
            "{phase:?} with {plan:?}, and this is left: {}",
            left.join(", ")
        )),
    }
}

/// The same, but behind a step that cannot be taken back it waits for somebody to mend what is refused.
fn must_end_or_wait<W: World>(end: &End<W>, plan: Plan) -> Result<(), String> {
    let never = never::<W::Saga>();
    let is_behind = end.begun.iter().any(|step| never.contains(&step.as_str()));
    match end.progress.phase {
        Some(OperationPhase::Running) if is_behind => Ok(()),
        _ => must_end(end, plan, OperationPhase::Failed),
    }
}

fn run<W: World>(world: &W, plan: Plan) -> Result<End<W>, String> {
    let (mut world, mut progress) = (world.clone(), Progress::default());
    let mut pass: Pass<Target<<W::Saga as Saga>::Target>> = Pass::default();
    let mut now: DateTime<Utc> = DateTime::UNIX_EPOCH;
    let (mut writes, mut begun) = (0, Vec::new());
    let mut before: Option<W> = None;
    for _ in 0..LONGEST {
        let spec = world.spec();
        let wanted = Wanted {
            spec: &spec,
            cancel: plan.cancelled_after.is_some_and(|after| writes >= after),
            is_approved: !plan.is_unapproved,
        };
        pass.begin("uid", 1, |_| None);
        let seen = before
            .take()
            .filter(|_| plan.sees_late)
            .unwrap_or_else(|| world.clone());
        let observed = Observed {
            of_steps: seen.observe(),
            faults: pass.faults().clone(),
        };
        let decision = Machine::<W::Saga>::decide(&wanted, &observed, &progress, now);
        let next = Machine::<W::Saga>::status(&wanted, &observed, &progress, &decision, &(), now);
        let end = |world: W, progress: Progress| End {
            world,
            progress,
            writes,
            begun: begun.clone(),
        };
        let what = pass.next::<Machine<W::Saga>>(&observed, &progress, &next, &decision, now);
        if let Next::Sleep(until) = what {
            if progress.phase.is_some_and(OperationPhase::is_final) {
                return Ok(end(world, progress));
            }
            now = until.max(now + TimeDelta::milliseconds(1));
            world.tick();
            continue;
        }
        writes += 1;
        before = Some(world.clone());
        let arrives = plan.loses_request != Some(writes);
        let answered = arrives && plan.loses_answer != Some(writes);
        let (target, result) = match (what, &decision.action) {
            (Next::Confirm | Next::Perform, Action::Do(target, action)) => {
                let step = decision.step.unwrap_or_default();
                let refused = plan.refuses_from.is_some_and(|from| writes > from) && !progress.is_undoing();
                let result = match (arrives, refused) {
                    (_, true) => Err(FaultKind::Invalid),
                    (false, _) => Err(FaultKind::Transient),
                    (true, false) if plan.repeats => world.perform(action).and_then(|()| world.perform(action)),
                    (true, false) => world.perform(action),
                };
                if !begun.iter().any(|name| name == step) {
                    return Err(format!("the step {step} was acted for before it was recorded"));
                }
                (Target::Of(target.clone()), result)
            }
            (_, action) => {
                if let (true, Action::Begin(step)) = (arrives, action) {
                    begun.push((*step).to_owned());
                }
                if arrives {
                    progress = next;
                }
                (Target::Status, Ok(()))
            }
        };
        let result = if answered { result } else { Err(FaultKind::Transient) };
        match result {
            Ok(()) if target == Target::Status => pass.status_written(&target),
            Ok(()) => pass.succeeded(&target),
            Err(kind) => now = pass.failed(target, None, kind, "refused".to_owned(), now),
        }
        if plan.killed_after == Some(writes) {
            pass = Pass::default();
        }
        world.tick();
    }
    // Nobody ends it: it waits for ever.
    Ok(End {
        world,
        progress,
        writes,
        begun,
    })
}

impl Progress {
    fn is_undoing(&self) -> bool {
        self.undoing.is_some()
    }
}
