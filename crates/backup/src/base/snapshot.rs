//! A backup whose files are in a VolumeSnapshot: the store has its `backup.json` and its WAL.

use super::copies::{WalRange, parse_start_time};
use super::info::parse_lsn;
use super::writer::{Target, Written};
use super::{BaseError, LIMIT, Snapshot};
use crate::Store;
use crate::layout::{BackupName, ClusterFolder};

impl Written {
    /// The backup `name`, of which `snapshot` has the files, and whose backup mode has ended at `stop_lsn`, as `pg_backup_stop` says it.
    ///
    /// # Errors
    /// Fails with [`BaseError::Manifest`] if the label is not understood.
    pub fn of_snapshot(
        store: Store,
        folder: ClusterFolder,
        line: u32,
        name: BackupName,
        snapshot: Snapshot,
        stop_lsn: &str,
    ) -> Result<Self, BaseError> {
        let range = range(&snapshot.label, stop_lsn);
        let range =
            range.ok_or_else(|| BaseError::Manifest(format!("the label is not understood: {}", snapshot.label)))?;
        Ok(Self {
            target: Target {
                store,
                folder,
                line,
                name,
                recipients: None,
                limit: LIMIT,
            },
            parts: Vec::new(),
            ranges: vec![range],
            start_time: parse_start_time(snapshot.label.as_bytes()),
            snapshot: Some(snapshot),
        })
    }
}

/// The WAL that is needed by a label, and by the position at which backup mode ended.
fn range(label: &str, stop_lsn: &str) -> Option<WalRange> {
    let field = |name: &str| label.lines().find_map(|line| line.strip_prefix(name));
    Some(WalRange {
        timeline: field("START TIMELINE: ")?.trim().parse().ok()?,
        start_lsn: parse_lsn(field("START WAL LOCATION: ")?.split(' ').next()?)?,
        stop_lsn: parse_lsn(stop_lsn)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_says_where_the_wal_begins() {
        let label = "START WAL LOCATION: 1/2000028 (file 000000030000000100000002)\nCHECKPOINT LOCATION: 1/2000060\n\
                     BACKUP METHOD: streamed\nBACKUP FROM: primary\nSTART TIME: 2026-11-28 12:00:00 UTC\nLABEL: shop\n\
                     START TIMELINE: 3\n";
        let expected = WalRange {
            timeline: 3,
            start_lsn: 0x1_0200_0028,
            stop_lsn: 0x1_0300_0100,
        };
        assert_eq!(range(label, "1/3000100"), Some(expected));
        assert_eq!(range(label, "?"), None);
        for left_out in ["START TIMELINE", "START WAL LOCATION"] {
            let lines: Vec<&str> = label.lines().filter(|line| !line.starts_with(left_out)).collect();
            assert_eq!(range(&lines.join("\n"), "1/3000100"), None, "{left_out}");
        }
    }
}
