//! The files in `pg_wal/archive_status`, by which PostgreSQL's archiver knows what is left to do.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use machine::archive::{Lineage, Mark, Progress, WalFile, newest_timeline, progress, unmarked};
use machine::protocol::Timeline;
use machine::units::Bytes;

use super::forks;

const STATUS: &str = "archive_status";
const READY: &str = ".ready";
const DONE: &str = ".done";

/// Marks every file that counts as archived as one that is to be archived. The marks of a copy are those of its source, or of the tool
/// that made it, which takes all WAL that it copies for archived: so a standby asks about each anew, before it starts.
///
/// # Errors
/// Fails if the marks cannot be read or renamed.
pub(super) fn ask_again(wal: &Path) -> io::Result<()> {
    let folder = wal.join(STATUS);
    for name in names(&folder)? {
        if let Some(file) = name.strip_suffix(DONE) {
            fs::rename(folder.join(&name), folder.join(format!("{file}{READY}")))?;
        }
    }
    Ok(())
}

/// How far the archive is complete, by PostgreSQL's marks, and of which history its WAL is. Complete segments and histories that have no
/// mark ([`unmarked`]) are marked as ready.
pub(crate) fn read(wal: &Path, size: Bytes) -> io::Result<(Progress, Lineage)> {
    // All from one list: a mark that comes between two would let the archive look complete beyond a gap.
    let mut marks = all(wal, size)?;
    let lineage = lineage(wal, &marks)?;
    let names = names(wal)?;
    let files: BTreeMap<WalFile, &String> = names
        .iter()
        .filter_map(|name| Some((WalFile::parse(name, size)?, name)))
        .collect();
    for file in unmarked(files.keys().copied(), &marks, &lineage, size) {
        let Some(name) = files.get(&file) else { continue };
        eprintln!("{name} is complete and was not marked: it is to be archived, too");
        fs::write(wal.join(STATUS).join(format!("{name}{READY}")), "")?;
        marks.push((file, Mark::Ready));
    }
    Ok((progress(marks, &lineage, size), lineage))
}

fn lineage(wal: &Path, marks: &[(WalFile, Mark)]) -> io::Result<Lineage> {
    let timeline = newest_timeline(marks).unwrap_or(Timeline(1));
    let history = wal.join(format!("{:08X}.history", timeline.0));
    let ancestors = match fs::read_to_string(history) {
        Ok(text) => forks(&text).map_err(io::Error::other)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    Ok(Lineage { timeline, ancestors })
}

fn all(wal: &Path, size: Bytes) -> io::Result<Vec<(WalFile, Mark)>> {
    let names = names(&wal.join(STATUS))?;
    let marks = names.iter().filter_map(|name| {
        let (file, mark) = match (name.strip_suffix(READY), name.strip_suffix(DONE)) {
            (Some(file), _) => (file, Mark::Ready),
            (None, Some(file)) => (file, Mark::Done),
            (None, None) => return None,
        };
        Some((WalFile::parse(file, size)?, mark))
    });
    Ok(marks.collect())
}

/// The files that wait for the archive, in the order of their names.
pub(crate) fn waiting(wal: &Path) -> io::Result<Vec<String>> {
    let names = names(&wal.join(STATUS))?;
    let mut files: Vec<String> = names
        .iter()
        .filter_map(|name| name.strip_suffix(READY).map(str::to_owned))
        .collect();
    files.sort_unstable();
    Ok(files)
}

fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let name = |entry: io::Result<fs::DirEntry>| entry.map(|entry| entry.file_name().to_string_lossy().into_owned());
    entries.map(name).collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use machine::protocol::{Lsn, Position};

    use super::*;

    fn wal(name: &str, marks: &[&str]) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("cdb-marks-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join(STATUS)).expect("made");
        for mark in marks {
            fs::write(folder.join(STATUS).join(mark), "").expect("written");
        }
        folder
    }

    #[test]
    fn a_copy_asks_about_all_that_its_source_had_archived() {
        let marks = [
            "000000010000000000000001.done",
            "00000002.history.done",
            "000000010000000000000002.ready",
        ];
        let wal = wal("copy", &marks);
        assert_eq!(waiting(&wal).expect("read"), ["000000010000000000000002"]);
        ask_again(&wal).expect("marked");
        let all = [
            "000000010000000000000001",
            "000000010000000000000002",
            "00000002.history",
        ];
        assert_eq!(waiting(&wal).expect("read"), all);
        fs::remove_dir_all(wal).expect("removed");
        ask_again(Path::new("/nonexistent")).expect("nothing to do");
    }

    #[test]
    fn what_postgresql_has_not_marked_is_marked() {
        let marks = ["000000010000000000000003.done", "000000020000000000000007.ready"];
        let wal = wal("complete", &marks);
        let size = Bytes::mib(1);
        fs::write(
            wal.join("00000002.history"),
            "1\t0/680000\tno recovery target specified\n",
        )
        .expect("written");
        for name in [
            "000000010000000000000003",
            "000000010000000000000005",
            "000000010000000000000006",
            "000000020000000000000006",
            "000000020000000000000007",
            "000000020000000000000008",
        ] {
            fs::write(wal.join(name), "").expect("written");
        }
        let (_, lineage) = read(&wal, size).expect("marked");
        let fork = lineage.ancestors.iter().map(|fork| (fork.timeline.0, fork.end.0));
        assert_eq!(
            (lineage.timeline, fork.collect()),
            (Timeline(2), vec![(1, 0x0068_0000)])
        );
        let found = [
            "000000010000000000000005",
            "00000002.history",
            "000000020000000000000006",
            "000000020000000000000007",
        ];
        assert_eq!(waiting(&wal).expect("read"), found);
        fs::remove_dir_all(wal).expect("removed");
    }

    #[test]
    fn a_history_that_has_lost_its_mark_is_marked() {
        let wal = wal("history", &["000000030000000000000007.done"]);
        let history = "1\t0/680000\tx\n2\t0/700000\tx\n";
        for name in ["00000002.history", "00000003.history", "00000004.history"] {
            fs::write(wal.join(name), history).expect("written");
        }
        let (found, _) = read(&wal, Bytes::mib(1)).expect("marked");
        assert_eq!(waiting(&wal).expect("read"), ["00000002.history", "00000003.history"]);
        let up_to = Position {
            timeline: Timeline(1),
            lsn: Lsn(0x0068_0000),
        };
        assert_eq!(found.up_to, Some(up_to), "they count in the same look");
        fs::remove_dir_all(wal).expect("removed");
    }

    #[test]
    fn progress_is_read_from_the_marks() {
        let marks = [
            "000000010000000000000003.done",
            "000000010000000000000004.ready",
            "other",
            "x.ready",
        ];
        let wal = wal("progress", &marks);
        let size = Bytes::mib(1);
        let (found, _) = read(&wal, size).expect("read");
        let up_to = Position {
            timeline: Timeline(1),
            lsn: Lsn(4 << 20),
        };
        assert_eq!((found.up_to, found.waiting), (Some(up_to), size));
        fs::remove_dir_all(wal).expect("removed");
    }
}
