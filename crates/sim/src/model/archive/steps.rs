//! What the archiver, its worker and the store do next.

use machine::archive::{Answer, Charge, Room, Segment, WalFile, answer};
use machine::protocol::{Epoch, Lsn, Position, Timeline};
use machine::timing::BootTime;
use machine::units::Bytes;

use super::super::bounds::{Event, Mutant};
use super::super::label::{What, named};
use super::super::names::position;
use super::super::show::NOW;
use super::super::state::{Member, Postgres, Wal, World};
use super::super::step::Stepper;
use super::files::{Look, last, look, size};

const ROOMY: Room = Room {
    left: Bytes(1),
    waiting: Bytes(0),
};
const FULL: Room = Room {
    left: Bytes(0),
    waiting: Bytes(1),
};

impl<const N: usize> Stepper<'_, N> {
    /// What the archiver of this member's PostgreSQL and its worker do.
    pub(in super::super) fn archive(&mut self, world: &World<N>, me: usize) {
        let member = &world.members[me];
        if world.segment == 0 || matches!(member.postgres, Postgres::Down { .. }) {
            return;
        }
        let look = look(world, me, self.bounds.mutant);
        let is_primary = matches!(member.postgres, Postgres::Primary { .. });
        if look.waiting.is_empty() && !is_primary {
            return;
        }
        let charge = self.charge(world, me);
        if let Charge::Push { .. } = charge {
            self.look_at_archive(world, me, &look);
        }
        self.archiver_asks(world, me, &look, charge);
    }

    fn charge(&mut self, world: &World<N>, me: usize) -> Charge {
        let mut shown = *world;
        let seen = &mut shown.members[me].seen;
        if let (true, Some(archived)) = (self.has(Mutant::OldWordOfANewTimeline), &mut seen.archived) {
            archived.timeline = seen.written;
        }
        let archived = seen.archived.map(position);
        let forever = BootTime(u64::MAX);
        let everything = Position {
            timeline: Timeline(u32::MAX),
            lsn: Lsn(u64::MAX),
        };
        match (self.decider.charge(&shown, me), self.bounds.mutant) {
            (Charge::Confirm { .. }, Some(Mutant::UnarchivedIsStruckOff)) => Charge::Confirm {
                up_to: Some(everything),
            },
            (Charge::Confirm { .. }, Some(Mutant::AnotherHistoryCounts)) => Charge::Confirm { up_to: archived },
            (Charge::Wait, Some(Mutant::PushesWithoutLease)) => Charge::Push {
                epoch: Epoch(0),
                until: forever,
            },
            (charge, _) => charge,
        }
    }

    /// The worker of the member that fills the archive looks how far the archive is, each second.
    fn look_at_archive(&mut self, world: &World<N>, me: usize, look: &Look) {
        if !look.found.is_empty() {
            let mut after = *world;
            note_found(&mut after.members[me], look);
            self.push(after, me, What::LooksAtArchive, Some(Event::UnmarkedFound));
        }
    }

    /// PostgreSQL's archiver asks the worker about the first file that waits.
    fn archiver_asks(&mut self, world: &World<N>, me: usize, look: &Look, charge: Charge) {
        let Some(place) = look.waiting.first() else { return };
        let ((file, is_half), size) = (look.files[*place], size(world));
        let what = look.lineage.file(file, size);
        let mut after = *world;
        note_found(&mut after.members[me], look);
        let mut struck_off = after;
        struck_off.members[me].marks.strike_off(file, is_half);
        match answer(charge, what, size, ROOMY, NOW) {
            Answer::Archived => {
                let event = matches!(file, WalFile::Segment(_)).then_some(Event::StruckOff);
                self.push(struck_off, me, What::StrikesOff(what), event);
            }
            // A half is kept for inspection only, and the first one is enough.
            Answer::Push(_) if matches!(what, WalFile::Partial(_)) => {
                self.push(struck_off, me, What::StrikesOff(what), None);
            }
            Answer::Push(_) => {
                self.push_objects(&after, me, look);
                if world.store.has(what) {
                    self.push(struck_off, me, What::HearsOfPush(what), None);
                }
            }
            Answer::GiveUp | Answer::Later | Answer::End => {}
        }
        let gives_up = answer(charge, what, size, FULL, NOW) == Answer::GiveUp;
        if let (WalFile::Segment(segment), true, true) = (what, gives_up, world.faults < self.bounds.faults) {
            struck_off.faults += 1;
            struck_off.excused |= 1 << segment.number;
            self.push(struck_off, me, What::GivesUp(what), Some(Event::SegmentGivenUp));
        }
    }

    /// The worker sends the first file that waits to the store, and beside it the segments that wait behind it. Each
    /// may arrive at any time, or never.
    fn push_objects(&mut self, world: &World<N>, me: usize, look: &Look) {
        let member = &world.members[me];
        let (mut after, size) = (*world, size(world));
        let mut waiting = look.waiting.iter().map(|place| look.files[*place]);
        let first = waiting.next();
        let is_segment = |(file, _): &(WalFile, bool)| matches!(look.lineage.file(*file, size), WalFile::Segment(_));
        // Nothing goes beside a history: no segment is in the archive before the history of its timeline.
        let alone = !first.as_ref().is_some_and(is_segment) && !self.has(Mutant::SegmentsGoBesideAHistory);
        let beside = waiting.take_while(|next| !alone && is_segment(next));
        let begun = first.into_iter().chain(beside);
        let mut event = None;
        for (file, is_half) in begun {
            let what = What::Pushes(file);
            if member.confirmed.is_none() {
                return self.wrong(me, what, format!("{me} pushes {} without the lease", named(file)));
            }
            if is_half {
                return self.wrong(me, what, format!("{me} pushes a half as the whole {}", named(file)));
            }
            if world.store.has(file) || world.pushed.has(file) {
                continue;
            }
            after.pushed.add(file);
            let of_ancestor = |segment: Segment| last(segment, size).timeline < member.wal.timeline;
            if file.segment().is_some_and(of_ancestor) {
                event = Some(Event::ArchivedForTheLost);
            }
        }
        if let Some((file, _)) = first {
            self.push(after, me, What::Pushes(file), event);
        }
    }

    /// An object arrives at the store. It is created only if there is none of that name; the content of a name is always
    /// the same.
    pub(in super::super) fn store(&mut self, world: &World<N>) {
        if world.segment == 0 {
            return;
        }
        for file in world.pushed.files() {
            let mut after = *world;
            after.store.add(file);
            let newest = Wal {
                timeline: world.lease.written,
                end: u8::MAX,
            };
            let left = |segment| !world.contains(newest, last(segment, size(world)));
            let abandoned = world.lease.written > 0 && file.segment().is_some_and(left);
            let event = abandoned.then_some(Event::AbandonedBranchArchived);
            self.push(after, None, What::ReachesStore(file), event);
        }
    }
}

/// The worker marks what had no mark.
fn note_found<const N: usize>(member: &mut Member<N>, look: &Look) {
    for segment in look.found.iter().filter_map(|file| file.segment()) {
        member.marks.wait(segment);
    }
}
