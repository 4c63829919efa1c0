//! A sequence as a table, one line per step.

use machine::archive::WalFile;

use super::search::{Report, Stage};
use super::state::{Member, Postgres, TIMELINES, World};

impl<const N: usize> Report<N> {
    /// What is wrong, with the sequence that led to it; empty if nothing is wrong.
    pub fn explain(&self) -> String {
        self.wrong
            .as_ref()
            .map_or(String::new(), |(course, what)| format!("{what}\n{}", table(course)))
    }
}

/// The table: step, actor and event; the Lease (holder, its epoch); each member (its role, its WAL end, `!` if
/// applications may connect, `<` and the member from which it receives); and the newest acknowledged record of each
/// timeline, with what the Lease says of the archive and what the store has.
pub fn table<const N: usize>(course: &[Stage<N>]) -> String {
    let mut rows = vec![header(N)];
    rows.extend(course.iter().enumerate().map(|(step, stage)| row(step + 1, stage)));
    let widths: Vec<_> = (0..rows[0].len())
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join(" | ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn header(members: usize) -> Vec<String> {
    let mut header: Vec<_> = ["step", "event", "lease"].map(str::to_owned).into();
    header.extend((0..members).map(|member| format!("member {member}")));
    header.push("acknowledged".to_owned());
    header
}

fn row<const N: usize>(step: usize, (label, world): &Stage<N>) -> Vec<String> {
    let mut row = vec![step.to_string(), label.to_string()];
    match world {
        None => row.resize(N + 4, String::new()),
        Some(world) => {
            row.push(lease(world));
            row.extend(world.members.iter().map(member));
            row.push(acknowledged(world));
        }
    }
    row
}

fn lease<const N: usize>(world: &World<N>) -> String {
    let holder = world
        .lease
        .holder
        .map_or("-".to_owned(), |(holder, _)| holder.to_string());
    format!("{holder} e{}", world.lease.epoch)
}

fn member<const N: usize>(member: &Member<N>) -> String {
    let (role, mark) = match member.postgres {
        Postgres::Down { .. } => ("down", String::new()),
        Postgres::Standby {
            upstream: Some((from, _)),
            receiving: true,
        } => ("standby", format!(" <{from}")),
        Postgres::Standby { .. } => ("standby", String::new()),
        Postgres::Primary { open: true, .. } => ("primary", "!".to_owned()),
        Postgres::Primary { open: false, .. } => ("primary", String::new()),
    };
    format!("{role}@{}{mark}", member.wal)
}

fn acknowledged<const N: usize>(world: &World<N>) -> String {
    let newest = (1..TIMELINES).filter(|timeline| world.acknowledged[*timeline] > 0);
    let newest: Vec<_> = newest
        .map(|timeline| format!("{timeline}/{}", world.acknowledged[timeline]))
        .collect();
    newest.join(" ") + &archive(world)
}

fn archive<const N: usize>(world: &World<N>) -> String {
    if world.segment == 0 {
        return String::new();
    }
    let up_to = world.lease.archived.map_or("-".to_owned(), |up_to| up_to.to_string());
    let stored = world.store.files().into_iter().map(|file| match file {
        WalFile::Segment(segment) => format!(" {}:{}", segment.timeline.0, segment.number),
        WalFile::History(timeline) => format!(" {}h", timeline.0),
        WalFile::Partial(_) | WalFile::BackupNote => String::new(),
    });
    format!("; archived to {up_to}:{}", stored.collect::<String>())
}
