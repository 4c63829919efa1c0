use super::kit::{World, check};
use super::*;

/// Moves a database to another place: reserves a name there, copies, switches clients over, removes the old one.
struct Move;

/// Which faults of a careless author the example has.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Careless {
    counts_reservations: bool,
    forgets_reservation: bool,
    trusts_the_copy: bool,
}

#[derive(Clone, Default)]
struct Places {
    careless: Careless,
    reservations: u32,
    copy: Copy,
    switched: bool,
    lost_data: bool,
    is_old_gone: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Copy {
    #[default]
    None,
    Begun(u8),
    Whole,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Do {
    Reserve,
    Release,
    Copy,
    RemoveCopy,
    Switch,
    RemoveOld,
}

const fn known(is: bool) -> Known<bool> {
    Known::Known(is)
}

impl Saga for Move {
    type Spec = Careless;
    type Observed = Places;
    type Action = Do;
    type Target = Do;
    const STEPS: &'static [Step<Self>] = &[
        Step {
            name: "reserve",
            what: "Reserves the name.",
            is_done: |facts| known(facts.observed.reservations > 0),
            act: |_| Act::Do(Do::Reserve),
            undo: Undo::By {
                is_undone: |facts| known(facts.observed.reservations == 0 || facts.spec.forgets_reservation),
                act: |_| Act::Do(Do::Release),
            },
        },
        Step {
            name: "copy",
            what: "Copies the data.",
            is_done: |facts| match facts.observed.copy {
                Copy::Whole => known(true),
                Copy::Begun(_) => known(facts.spec.trusts_the_copy),
                Copy::None => known(false),
            },
            act: |facts| match facts.observed.copy {
                Copy::None => Act::Do(Do::Copy),
                Copy::Begun(_) | Copy::Whole => Act::Wait("the copy to be whole".to_owned()),
            },
            undo: Undo::By {
                is_undone: |facts| known(facts.observed.copy == Copy::None),
                act: |_| Act::Do(Do::RemoveCopy),
            },
        },
        Step {
            name: "switch",
            what: "Lets clients go to the new place.",
            is_done: |facts| known(facts.observed.switched),
            act: |_| Act::Do(Do::Switch),
            undo: Undo::Never,
        },
        Step {
            name: "remove-old",
            what: "Removes the old place.",
            is_done: |facts| known(facts.observed.is_old_gone),
            act: |_| Act::Do(Do::RemoveOld),
            undo: Undo::Nothing,
        },
    ];

    fn target(action: &Do) -> Do {
        *action
    }

    fn confirms(_: &Places, action: &Do) -> bool {
        *action == Do::RemoveOld
    }
}

impl World for Places {
    type Saga = Move;

    fn spec(&self) -> Careless {
        self.careless
    }

    fn observe(&self) -> Places {
        self.clone()
    }

    fn perform(&mut self, action: &Do) -> Result<(), FaultKind> {
        match action {
            Do::Reserve if self.careless.counts_reservations => self.reservations += 1,
            Do::Reserve => self.reservations = 1,
            Do::Release => self.reservations = self.reservations.saturating_sub(1),
            Do::Copy if self.copy == Copy::None => self.copy = Copy::Begun(0),
            Do::Copy => {}
            Do::RemoveCopy => self.copy = Copy::None,
            Do::Switch => {
                self.lost_data |= self.copy != Copy::Whole;
                self.switched = true;
            }
            Do::RemoveOld => self.is_old_gone = true,
        }
        Ok(())
    }

    fn tick(&mut self) {
        self.copy = match self.copy {
            Copy::Begun(3) => Copy::Whole,
            Copy::Begun(part) => Copy::Begun(part + 1),
            same @ (Copy::None | Copy::Whole) => same,
        };
    }

    fn is_achieved(&self) -> bool {
        self.reservations == 1 && self.switched && !self.lost_data && self.is_old_gone
    }

    fn leftovers(&self) -> Vec<String> {
        let reserved = (self.reservations > 0).then(|| "a reservation".to_owned());
        let copied = (self.copy != Copy::None).then(|| "a copy".to_owned());
        reserved.into_iter().chain(copied).collect()
    }
}

#[test]
fn a_sound_saga_stands_every_single_fault() {
    let runs = check(&Places::default()).expect("it stands them");
    assert!(runs > 100, "{runs} runs");
}

#[test]
fn the_kit_finds_a_step_that_does_harm_when_it_is_done_twice() {
    let careless = Careless {
        counts_reservations: true,
        ..Careless::default()
    };
    let found = check(&Places {
        careless,
        ..Places::default()
    })
    .unwrap_err();
    assert!(found.contains("repeats: true"), "{found}");
}

#[test]
fn the_kit_finds_what_is_not_taken_back() {
    let careless = Careless {
        forgets_reservation: true,
        ..Careless::default()
    };
    let found = check(&Places {
        careless,
        ..Places::default()
    })
    .unwrap_err();
    assert!(found.contains("this is left: a reservation"), "{found}");
}

#[test]
fn the_kit_finds_a_step_that_is_believed_too_soon() {
    let careless = Careless {
        trusts_the_copy: true,
        ..Careless::default()
    };
    let found = check(&Places {
        careless,
        ..Places::default()
    })
    .unwrap_err();
    assert!(found.contains("not completed"), "{found}");
}

fn decide(observed: Places, stored: &Progress, cancel: bool, is_approved: bool) -> ActionOf<Move> {
    let observed = Observed {
        of_steps: observed,
        faults: BTreeMap::new(),
    };
    let wanted = Wanted {
        spec: &Careless::default(),
        cancel,
        is_approved,
    };
    Machine::<Move>::decide(&wanted, &observed, stored, DateTime::UNIX_EPOCH).action
}

fn at(step: &str) -> Progress {
    Progress {
        phase: Some(OperationPhase::Running),
        step: Some(step.to_owned()),
        ..Progress::default()
    }
}

#[test]
fn a_step_is_recorded_before_it_is_acted_for() {
    let pending = Progress {
        phase: Some(OperationPhase::Pending),
        ..Progress::default()
    };
    assert_eq!(
        decide(Places::default(), &pending, false, true),
        Action::Begin("reserve")
    );
    assert_eq!(
        decide(Places::default(), &at("reserve"), false, true),
        Action::Do(Do::Reserve, Do::Reserve)
    );
}

#[test]
fn a_step_that_cannot_be_taken_back_waits_for_approval_and_then_ignores_cancel() {
    let copied = Places {
        reservations: 1,
        copy: Copy::Whole,
        ..Places::default()
    };
    assert!(
        matches!(decide(copied.clone(), &at("copy"), false, false), Action::Wait(Some(what)) if what.contains("approve"))
    );
    assert_eq!(
        decide(copied.clone(), &at("copy"), false, true),
        Action::Begin("switch")
    );
    assert_eq!(
        decide(copied.clone(), &at("copy"), true, true),
        Action::TakeBack(Ending::Cancelled)
    );
    assert_eq!(
        decide(copied, &at("switch"), true, true),
        Action::Do(Do::Switch, Do::Switch)
    );
}

#[test]
fn the_end_is_absorbing_and_an_unknown_step_changes_nothing() {
    for phase in [
        OperationPhase::Completed,
        OperationPhase::Failed,
        OperationPhase::Cancelled,
    ] {
        let ended = Progress {
            phase: Some(phase),
            ..at("copy")
        };
        assert_eq!(decide(Places::default(), &ended, true, true), Action::Wait(None));
    }
    assert!(matches!(
        decide(Places::default(), &at("fold"), true, true),
        Action::Wait(Some(_))
    ));
}
