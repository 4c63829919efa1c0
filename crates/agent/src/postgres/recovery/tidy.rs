//! What a recovery leaves in the data directory, and must not stay.

use std::fs;
use std::io;
use std::path::Path;

use machine::protocol::{Fork, Timeline};

use crate::postgres::server::remove_if_there;
use crate::volume::{forks, write_for_now};

/// Files of the backup and of recovery that nothing reads any more.
const REMAINS: [&str; 3] = ["backup_label.old", "tablespace_map.old", "backup_manifest"];

/// Puts the data in order after recovery has ended on `timeline` and the server was stopped cleanly, so that only WAL of this timeline is
/// needed.
/// - The source's WAL is removed, and what PostgreSQL has noted about it: this database's own archive has nothing of it.
/// - The history of the new timeline tells the truth, and is to be archived: recovery has ended without an archive.
///
/// Returns where the new timeline begins.
///
/// # Errors
/// Fails if a file cannot be read, written or removed, and if the new timeline has no history.
pub(super) fn tidy(pgdata: &Path, timeline: Timeline) -> io::Result<Fork> {
    REMAINS
        .iter()
        .try_for_each(|name| remove_if_there(&pgdata.join(name)))?;
    let wal = pgdata.join("pg_wal");
    let own = format!("{:08X}", timeline.0);
    remove_from(&wal, |name| name.len() == 24 && !name.starts_with(&own))?;
    let marks = wal.join("archive_status");
    remove_from(&marks, |_| true)?;
    let history = wal.join(format!("{own}.history"));
    let text = fs::read_to_string(&history)?;
    let ancestors = shorten(forks(&text).map_err(io::Error::other)?);
    write_for_now(&history, render(&ancestors).as_bytes(), 0o600)?;
    write_for_now(&marks.join(format!("{own}.history.ready")), b"", 0o600)?;
    let left = ancestors.last().copied();
    left.ok_or_else(|| io::Error::other(format!("{own}.history names no ancestor")))
}

fn remove_from(directory: &Path, is_removed: impl Fn(&str) -> bool) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(&is_removed) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Ends a history at the timeline on which recovery has stopped. PostgreSQL copies the whole history of the timeline that it was to
/// follow, also if it has stopped before a fork of it: then positions go back.
fn shorten(mut ancestors: Vec<Fork>) -> Vec<Fork> {
    let Some(end) = ancestors.last().map(|fork| fork.end) else {
        return ancestors;
    };
    if let Some(at) = ancestors.iter().position(|fork| fork.end > end) {
        ancestors.truncate(at + 1);
        ancestors[at].end = end;
    }
    ancestors
}

fn render(ancestors: &[Fork]) -> String {
    let line = |fork: &Fork| format!("{}\t{}\trecovered from a backup\n", fork.timeline.0, fork.end);
    ancestors.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use machine::protocol::Lsn;

    use super::*;

    #[test]
    fn a_history_ends_where_recovery_has_stopped() {
        let history = |forks: &[(u32, u64)]| {
            let forks = forks.iter().map(|&(timeline, end)| Fork {
                timeline: Timeline(timeline),
                end: Lsn(end),
            });
            forks.collect::<Vec<_>>()
        };
        for (written, expected) in [
            (&[(1, 0x100), (2, 0x200)][..], &[(1, 0x100), (2, 0x200)][..]),
            (&[(1, 0x100), (2, 0x90)], &[(1, 0x90)]),
            (&[(1, 0x100), (2, 0x200), (4, 0x150)], &[(1, 0x100), (2, 0x150)]),
            (&[(1, 0x100), (2, 0x100)], &[(1, 0x100), (2, 0x100)]),
            (&[], &[]),
        ] {
            assert_eq!(shorten(history(written)), history(expected));
        }
        let text = render(&history(&[(1, 0x100), (2, 0x1_0000_0000)]));
        assert_eq!(
            forks(&text).expect("a history"),
            history(&[(1, 0x100), (2, 0x1_0000_0000)])
        );
    }
}
