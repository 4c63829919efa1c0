//! The output of `pg_controldata`. Its format is the same from version 15 to 18; lines that the agent does not need may
//! come and go.

use std::collections::BTreeMap;

pub use machine::instance::EnforcedSettings;
use machine::protocol::{Lsn, Timeline};

/// What `pg_controldata` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlData {
    /// Database system identifier.
    pub system_id: String,
    /// The state that the server last wrote.
    pub state: ClusterState,
    /// Timeline of the last checkpoint.
    pub timeline: Timeline,
    /// Position of the last checkpoint: after a clean stop, the beginning of the WAL's last record.
    pub checkpoint: Lsn,
    /// The position from which the next start replays WAL.
    pub redo: Lsn,
    /// Bytes of a WAL segment, and of a page in it.
    pub wal_sizes: WalSizes,
    /// The position that recovery must reach before the data is consistent; 0/0 if the data is not a standby's.
    pub minimum_recovery_end: Lsn,
    /// Timeline of [`Self::minimum_recovery_end`]; 0 if none.
    pub minimum_recovery_timeline: Timeline,
    /// Settings that a standby must not set lower than its primary had them.
    pub enforced: EnforcedSettings,
    /// Data pages have checksums.
    pub checksums: bool,
    /// The data is a copy of another instance and has not been started yet: the state is that of the other instance.
    pub from_backup: bool,
}

/// The sizes of WAL files and pages, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalSizes {
    /// Of a segment, one file.
    pub segment: u32,
    /// Of a page in it.
    pub page: u32,
}

/// "Database cluster state" of `pg_controldata`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterState {
    /// "starting up".
    StartingUp,
    /// "shut down": a primary stopped cleanly.
    ShutDown,
    /// "shut down in recovery": a standby stopped cleanly.
    ShutDownInRecovery,
    /// "shutting down".
    ShuttingDown,
    /// "in crash recovery".
    InCrashRecovery,
    /// "in archive recovery": a standby that runs, or died.
    InArchiveRecovery,
    /// "in production": a primary that runs, or died.
    InProduction,
    /// Anything else.
    Unrecognized,
}

impl ControlData {
    /// True if a primary wrote it last, not a standby. A promoted standby is a primary.
    pub fn is_primarys(&self) -> bool {
        let recovering = [ClusterState::InArchiveRecovery, ClusterState::ShutDownInRecovery];
        !self.from_backup && !recovering.contains(&self.state)
    }

    /// Timeline of the last WAL that the data is known to hold. After a promotion the new timeline shows first in the
    /// minimum recovery end, and in the checkpoint only with the next checkpoint.
    pub fn newest_timeline(&self) -> Timeline {
        self.timeline.max(self.minimum_recovery_timeline)
    }

    /// The last position that the data is known to hold.
    pub fn end(&self) -> Lsn {
        self.checkpoint.max(self.minimum_recovery_end)
    }

    /// Reads the output of `pg_controldata` (with `LC_ALL=C`).
    ///
    /// # Errors
    /// Fails if the checksum is wrong or a needed line is missing or not understood; the text names it.
    pub(super) fn parse(output: &str) -> Result<Self, String> {
        if output.contains("Calculated CRC checksum does not match") {
            return Err("the checksum of pg_control is wrong".to_owned());
        }
        let lines: BTreeMap<&str, &str> = output
            .lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(key, value)| (key.trim(), value.trim()))
            .collect();
        let text = |key: &str| {
            lines
                .get(key)
                .copied()
                .ok_or_else(|| format!("pg_controldata does not say {key:?}"))
        };
        let number = |key: &str| {
            let value = text(key)?;
            value
                .parse::<u32>()
                .map_err(|_| format!("pg_controldata says {key:?} is {value:?}"))
        };
        let lsn = |key: &str| text(key)?.parse::<Lsn>().map_err(|error| format!("{key}: {error}"));
        let system_id = text("Database system identifier")?;
        if system_id.parse::<u64>().is_err() {
            return Err(format!("pg_controldata says the system identifier is {system_id:?}"));
        }
        Ok(Self {
            system_id: system_id.to_owned(),
            state: ClusterState::parse(text("Database cluster state")?),
            timeline: Timeline(number("Latest checkpoint's TimeLineID")?),
            checkpoint: lsn("Latest checkpoint location")?,
            redo: lsn("Latest checkpoint's REDO location")?,
            wal_sizes: WalSizes {
                segment: number("Bytes per WAL segment")?,
                page: number("WAL block size")?,
            },
            minimum_recovery_end: lsn("Minimum recovery ending location")?,
            minimum_recovery_timeline: Timeline(number("Min recovery ending loc's timeline")?),
            enforced: EnforcedSettings {
                max_connections: number("max_connections setting")?,
                max_worker_processes: number("max_worker_processes setting")?,
                max_wal_senders: number("max_wal_senders setting")?,
                max_prepared_transactions: number("max_prepared_xacts setting")?,
                max_locks_per_transaction: number("max_locks_per_xact setting")?,
            },
            checksums: number("Data page checksum version")? != 0,
            from_backup: false,
        })
    }
}

impl ClusterState {
    fn parse(text: &str) -> Self {
        match text {
            "starting up" => Self::StartingUp,
            "shut down" => Self::ShutDown,
            "shut down in recovery" => Self::ShutDownInRecovery,
            "shutting down" => Self::ShuttingDown,
            "in crash recovery" => Self::InCrashRecovery,
            "in archive recovery" => Self::InArchiveRecovery,
            "in production" => Self::InProduction,
            _ => Self::Unrecognized,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
pg_control version number:            1700
Catalog version number:               202406281
Database system identifier:           7444444444444444444
Database cluster state:               shut down in recovery
pg_control last modified:             Mon 02 Nov 2026 10:00:00 AM UTC
Latest checkpoint location:           0/3000060
Latest checkpoint's REDO location:    0/3000028
Latest checkpoint's REDO WAL file:    000000020000000000000003
Latest checkpoint's TimeLineID:       2
Latest checkpoint's PrevTimeLineID:   1
Time of latest checkpoint:            Mon 02 Nov 2026 10:00:00 AM UTC
Minimum recovery ending location:     0/3000100
Min recovery ending loc's timeline:   2
wal_level setting:                    replica
max_connections setting:              120
max_worker_processes setting:         8
max_wal_senders setting:              16
max_prepared_xacts setting:           3
max_locks_per_xact setting:           64
WAL block size:                       8192
Bytes per WAL segment:                16777216
Data page checksum version:           1
A line of a later version:            yes
";

    #[test]
    fn output_is_read() {
        let data = ControlData::parse(OUTPUT).expect("readable");
        assert_eq!(data.system_id, "7444444444444444444");
        assert_eq!(data.state, ClusterState::ShutDownInRecovery);
        assert_eq!((data.timeline, data.checkpoint), (Timeline(2), Lsn(0x300_0060)));
        assert_eq!(data.redo, Lsn(0x300_0028));
        assert_eq!((data.wal_sizes.segment, data.wal_sizes.page), (16 << 20, 8_192));
        assert_eq!(
            (data.minimum_recovery_timeline, data.minimum_recovery_end),
            (Timeline(2), Lsn(0x300_0100))
        );
        assert_eq!(
            (data.enforced.max_connections, data.enforced.max_prepared_transactions),
            (120, 3)
        );
        assert!(data.checksums);
    }

    #[test]
    fn a_missing_line_is_named() {
        let error = ControlData::parse(&OUTPUT.replace("max_connections setting", "x")).expect_err("a line is missing");
        assert!(error.contains("max_connections"), "{error}");
    }

    #[test]
    fn a_damaged_control_file_is_not_read() {
        let output = format!("WARNING: Calculated CRC checksum does not match value stored in file.\n{OUTPUT}");
        assert!(ControlData::parse(&output).is_err());
    }

    #[test]
    fn an_unknown_state_is_a_value() {
        let data = ControlData::parse(&OUTPUT.replace("shut down in recovery", "asleep")).expect("readable");
        assert_eq!(data.state, ClusterState::Unrecognized);
    }
}
