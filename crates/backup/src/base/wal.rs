//! Which WAL there is.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::WalRange;
use crate::layout::{ClusterFolder, LineObject, Name, Object, Segment};
use crate::{Listed, Problem, Store};

/// The WAL of a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WalList {
    /// The complete segments.
    pub segments: BTreeSet<Segment>,
    /// Some of them are encrypted.
    pub has_encrypted: bool,
    /// The content of each history file, by its timeline.
    pub histories: BTreeMap<u32, String>,
}

/// The folders of a line's segments, as their names' first sixteen digits, and the content of each history file. That is far less to
/// list than all segments. `limit` is the time limit of each request.
///
/// # Errors
/// As [`wal`].
pub async fn outline(
    store: &Store,
    folder: &ClusterFolder,
    line: u32,
    limit: Duration,
) -> Result<(Vec<String>, BTreeMap<u32, String>), Problem> {
    let found = store.list_folder(&folder.wal_folder(line), limit).await?;
    let mut histories = BTreeMap::new();
    for listed in &found.objects {
        if let Some(LineObject::History(timeline)) = parse(listed) {
            histories.insert(timeline, history(store, &listed.name, limit).await?);
        }
    }
    let last = |folder: &String| folder.rsplit('/').next().unwrap_or_default().to_owned();
    let of_segments = found.folders.iter().map(last).filter(|name| name.len() == 16);
    Ok((of_segments.collect(), histories))
}

/// The names of all objects in these folders of a line's WAL that belong to a segment which `is_before` is true for. `limit` is the time
/// limit of each request.
///
/// # Errors
/// Fails if the list is not complete.
pub async fn wal_before(
    store: &Store,
    folder: &ClusterFolder,
    line: u32,
    folders: &[&str],
    is_before: impl Fn(&Segment) -> bool,
    limit: Duration,
) -> Result<Vec<String>, Problem> {
    let mut names = Vec::new();
    for of_segments in folders {
        let of_segments = format!("{}/{of_segments}", folder.wal_folder(line));
        for listed in store.list(&of_segments, limit).await? {
            let segment = match parse(&listed) {
                Some(
                    LineObject::Segment(segment) | LineObject::Partial(segment) | LineObject::Conflict { segment, .. },
                ) => segment,
                _ => continue,
            };
            if is_before(&segment) {
                names.push(listed.name);
            }
        }
    }
    Ok(names)
}

/// All WAL of a line. `limit` is the time limit of each request.
///
/// # Errors
/// Fails if the list is not complete, or a history file is no text.
pub async fn wal(store: &Store, folder: &ClusterFolder, line: u32, limit: Duration) -> Result<WalList, Problem> {
    let mut list = WalList::default();
    for listed in store.list(&folder.wal_folder(line), limit).await? {
        match parse(&listed) {
            Some(LineObject::Segment(segment)) => {
                list.segments.insert(segment);
                list.has_encrypted |= listed.name.parse::<Name>().is_ok_and(|name| name.is_encrypted);
            }
            Some(LineObject::History(timeline)) => {
                list.histories
                    .insert(timeline, history(store, &listed.name, limit).await?);
            }
            _ => {}
        }
    }
    Ok(list)
}

async fn history(store: &Store, name: &str, limit: Duration) -> Result<String, Problem> {
    let content = store.read(name, limit).await?;
    String::from_utf8(content.into()).map_err(|_| Problem::Unusable(format!("{name} is no text")))
}

/// The segments that hold these ranges, in their order.
pub fn needed(ranges: &[WalRange], segment_size: u64) -> Vec<Segment> {
    let segments = ranges.iter().flat_map(|range| {
        let last = range.stop_lsn.saturating_sub(1).max(range.start_lsn);
        let numbers = range.start_lsn / segment_size..=last / segment_size;
        numbers.filter_map(|number| Segment::of(range.timeline, number, segment_size))
    });
    segments.collect()
}

/// Those of the `needed` segments that are not in the store, in their order. It lists only their folders. `limit` is the
/// time limit of each request.
///
/// # Errors
/// Fails if the list is not complete.
pub async fn missing(
    store: &Store,
    folder: &ClusterFolder,
    line: u32,
    needed: &[Segment],
    limit: Duration,
) -> Result<Vec<Segment>, Problem> {
    let folders: BTreeSet<&str> = needed.iter().map(Segment::folder).collect();
    let mut found = BTreeSet::new();
    for of_segments in folders {
        let of_segments = format!("{}/{of_segments}", folder.wal_folder(line));
        let listed = store.list(&of_segments, limit).await?;
        found.extend(listed.iter().filter_map(|listed| match parse(listed) {
            Some(LineObject::Segment(segment)) => Some(segment),
            _ => None,
        }));
    }
    let is_missing = |segment: &&Segment| !found.contains(*segment);
    Ok(needed.iter().filter(is_missing).cloned().collect())
}

fn parse(listed: &Listed) -> Option<LineObject> {
    match listed.name.parse::<Name>().ok()?.object {
        Object::Line(_, object) => Some(object),
        Object::Cluster | Object::Probe(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_of_ranges() {
        let range = |timeline, start_lsn, stop_lsn| WalRange {
            timeline,
            start_lsn,
            stop_lsn,
        };
        let names = |ranges: &[WalRange], size: u64| {
            let names = needed(ranges, size).into_iter().map(|segment| segment.to_string());
            names.collect::<Vec<_>>()
        };
        let one = range(2, 0x200_0028, 0x200_0100);
        assert_eq!(names(&[one], 16 << 20), ["000000020000000000000002"]);
        // The stop position is the first byte that is not needed.
        let whole = range(1, 0x1_0000_0000 - 1, 0x1_0100_0000);
        assert_eq!(
            names(&[whole], 16 << 20),
            ["0000000100000000000000FF", "000000010000000100000000"]
        );
        let large = range(1, 0x1_4000_0000, 0x1_4000_0001);
        assert_eq!(names(&[one, large], 1 << 30)[1], "000000010000000100000001");
    }
}
