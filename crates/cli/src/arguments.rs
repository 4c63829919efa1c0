//! The command line.

use std::path::PathBuf;

use api::backup::{BackupKind, BackupSource};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::cluster::Place;
use crate::drill::Drill;
use crate::kubectl::LogFlags;
use crate::what_if::Loss;

/// Shows what a highly available PostgreSQL database does, why, and what a change would do.
///
/// The exit code is 0 on success and 1 after an error; `plan`, `replay` and `upgrade-preview` have more.
#[derive(Clone, Debug, Parser)]
#[command(name = "kubectl-cdb", bin_name = "kubectl cdb", version)]
pub struct Arguments {
    /// Which cluster and namespace.
    #[command(flatten)]
    pub place: Place,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// The state of the database and of each of its instances, the verdict first. Without a name: all databases, the worst first.
    Status {
        /// The database; all of the namespace if absent.
        name: Option<String>,
        /// All databases of all namespaces.
        #[arg(short = 'A', long, conflicts_with = "name")]
        all_namespaces: bool,
        /// From where, and how to show it.
        #[command(flatten)]
        source: Source,
        /// Show it again whenever it changes, until interrupted.
        #[arg(short, long, conflicts_with = "file", requires = "name")]
        watch: bool,
    },
    /// The rule that decides about the database now, what it waits for, and who can end that.
    Why {
        /// Which database, from where, and how to show it.
        #[command(flatten)]
        view: View,
    },
    /// Its phases, how long each took, and its events.
    History {
        /// Which database, from where, and how to show it.
        #[command(flatten)]
        view: View,
    },
    /// What the operator would do about a new spec of a database, or which statements PostgreSQL lacks of a user (dbu/NAME) or
    /// of a SQL database (dbd/NAME). Nothing is changed.
    ///
    /// The exit code is 0 if nothing would be done, 2 if there are changes, 3 if the spec is refused, 1 after an error.
    Plan {
        /// Which database, from where, and how to show it.
        #[command(flatten)]
        view: View,
        /// The whole resource with its new spec. Of a user or a SQL database the status is shown, and there is no file.
        #[arg(short = 'f', long = "filename", value_name = "NEW.yaml")]
        new: Option<PathBuf>,
    },
    /// What the loss of something would mean now: whether commits continue, which instances may be elected, what can be lost.
    WhatIf {
        /// Which database, from where, and how to show it.
        #[command(flatten)]
        view: View,
        /// What is lost: instance=POD, node=NODE, api or operator.
        #[arg(long, value_name = "WHAT")]
        lose: Loss,
    },
    /// Write the operator's decisions about the database to a file, with everything that they were based on.
    Record {
        /// The database.
        name: String,
        /// The file; it must not exist yet. The standard output if absent.
        #[arg(short, long)]
        output: Option<PathBuf>,
    },
    /// Make recorded decisions again, with this program's version of the operator, and show which differ.
    ///
    /// The exit code is 0 if all are as recorded, 2 if some are not, 1 after an error.
    Replay {
        /// The file that `record` wrote.
        file: PathBuf,
        /// How to show it.
        #[arg(short, long, value_enum, default_value_t = Format::Text)]
        output: Format,
    },
    /// What the operator of this program's version would do about running databases. Nothing is changed.
    ///
    /// The exit code is 0 if nothing would change, 2 if something would, 1 after an error.
    UpgradePreview {
        /// The databases; all of the namespace if absent.
        names: Vec<String>,
        /// All databases of all namespaces.
        #[arg(short = 'A', long, conflicts_with_all = ["names", "file"])]
        all_namespaces: bool,
        /// Read this file instead of a cluster: YAML of the objects, a directory of such files, or the archive of `report`.
        #[arg(short = 'F', long, value_name = "PATH", requires = "names")]
        file: Option<PathBuf>,
        /// How to show it.
        #[arg(short, long, value_enum, default_value_t = Format::Text)]
        output: Format,
    },
    /// Move the primary to an instance, once, by a switchover.
    Promote(Instance),
    /// Take the operator's present default image of PostgreSQL. All pods are replaced, one at a time.
    TakeImage {
        /// The database.
        name: String,
        /// The default image, as the condition `OtherDefaultImage` names it.
        image: String,
    },
    /// Let the instances that are left elect a primary without those that are lost for good. Commits that only the lost ones have
    /// are lost with them. First make sure that the last primary's node is off.
    AcceptLoss {
        /// The database.
        name: String,
        /// The epoch of its Lease, as `status` and `why` name it: the loss is accepted in this one alone.
        epoch: u64,
    },
    /// Remove data that an instance has quarantined (condition `DataSetAside`). It may have commits that no other has.
    DiscardQuarantined {
        /// Which instance.
        #[command(flatten)]
        of: Instance,
        /// The data's name, as the condition says it.
        data: String,
    },
    /// Make the database's Lease again, which is lost, for the instance that held it last. First make sure that no other one can
    /// have been promoted since.
    RecreateLease(Name),
    /// Put another certificate authority in the place of the present one, and issue all certificates anew. Nobody restarts.
    RotateAuthority {
        /// The database.
        name: String,
        /// Its key is in wrong hands: applications that verify the server get no time to read the new authority.
        #[arg(long)]
        compromised: bool,
    },
    /// Take a backup now.
    Backup {
        /// The database.
        name: String,
        /// What is made.
        #[arg(long, value_enum, ignore_case = true, default_value_t)]
        kind: KindOf,
        /// Whose files are copied. A snapshot is always of the primary's volume.
        #[arg(long, value_enum, ignore_case = true, default_value_t)]
        source: CopyOf,
    },
    /// The backups of a database, or of all in the namespace.
    Backups {
        /// The database.
        name: Option<String>,
        /// How to show them.
        #[arg(short, long, value_enum, default_value_t = Format::Text)]
        output: Format,
    },
    /// Make a new database from the backups of one that is there, as it was at some time; or recover that one in place.
    Recover {
        /// The database whose backups are used.
        name: String,
        /// The name of the new database. The other one is not changed.
        #[arg(required_unless_present = "in_place", conflicts_with = "in_place")]
        new: Option<String>,
        /// Recover the database itself, under its name, on new volumes: all instances stop first. Those of before are kept until
        /// `confirm-recovery`.
        #[arg(long)]
        in_place: bool,
        /// The time, such as `2026-11-24T23:05:01Z` or `"10 minutes ago"`; the end of the archived WAL if absent.
        #[arg(long, value_name = "TIME")]
        to: Option<String>,
        /// The backup's name in the store, as `backups` shows it; the last one before the time if absent.
        #[arg(long)]
        backup: Option<String>,
        /// With --in-place: delete the volumes of before when the database has served again for so many hours, unless `confirm-recovery` or
        /// `undo-recovery` comes first.
        #[arg(long, value_name = "HOURS", requires = "in_place", value_parser = clap::value_parser!(u32).range(1..=10_000))]
        keep_hours: Option<u32>,
        /// Make nothing. With --in-place the primary looks through the store, and it is printed from what the database would be recovered,
        /// what it would lack, and what would be done; else the new database is printed as YAML.
        #[arg(long)]
        dry_run: bool,
    },
    /// Go back to what a database was before it was recovered in place. What was written since is kept until `confirm-recovery`.
    UndoRecovery(Name),
    /// Delete the volumes that a recovery in place, or its undoing, has left: there is no way back then.
    ConfirmRecovery(Name),
    /// Try the backups: make a database from the newest one and all archived WAL, check it, and remove it.
    Drill(Drill),
    /// Stop an instance's PostgreSQL cleanly and keep it stopped; its pod and volume stay.
    Fence(Instance),
    /// Start a fenced instance again.
    Unfence(Instance),
    /// Replace all instances' pods, one at a time: standbys first, then the primary after a switchover.
    Restart(Name),
    /// Stop the whole database cleanly and delete its pods; the volumes stay.
    Hibernate(Name),
    /// Bring a hibernated database back.
    Wake(Name),
    /// Stop all changes by the operator. The database keeps running, and its agents still fail over.
    Pause(Name),
    /// Allow the operator's changes again.
    Resume(Name),
    /// psql in the pod of the present primary (by the Lease), as superuser in the application's database.
    Psql {
        /// The database.
        name: String,
        /// Schemas in which psql looks for names without a schema. A user who may create objects in one of them can make the
        /// superuser run code of theirs.
        #[arg(long, value_name = "SCHEMAS", default_value = "pg_catalog")]
        search_path: String,
        /// psql's own arguments.
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// The logs of all instances, each line with its instance.
    Logs {
        /// The database.
        name: String,
        /// Which lines to show.
        #[command(flatten)]
        flags: LogFlags,
    },
    /// Write one archive that helps to understand the database, without secrets.
    Report {
        /// The database.
        name: String,
        /// The archive (.tar.gz); it must not exist yet.
        #[arg(short, long)]
        output: PathBuf,
    },
    /// Print a script that completes commands in a shell.
    Completion {
        /// The shell.
        shell: Shell,
    },
}

/// One database.
#[derive(Clone, Debug, Args)]
pub struct Name {
    /// The database.
    pub name: String,
}

/// One instance of a database.
#[derive(Clone, Debug, Args)]
pub struct Instance {
    /// The database.
    pub name: String,
    /// The instance (pod), such as NAME-1.
    pub instance: String,
}

/// Which database to show, and how.
#[derive(Clone, Debug, Args)]
pub struct View {
    /// The database.
    pub name: String,
    /// From where, and how to show it.
    #[command(flatten)]
    pub source: Source,
}

/// Where to read what is shown, and how to show it.
#[derive(Clone, Debug, Args)]
pub struct Source {
    /// Read this file instead of a cluster: YAML of the objects, a directory of such files, or the archive of `report`.
    #[arg(short = 'F', long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// How to show it.
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    pub output: Format,
}

/// How to show a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// What a backup is, as `spec.kind` of a DatabaseBackup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum KindOf {
    /// All files, copied into the store.
    #[default]
    #[value(name = "Full")]
    Full,
    /// A VolumeSnapshot, made by the storage.
    #[value(name = "Snapshot")]
    Snapshot,
}

impl From<KindOf> for BackupKind {
    fn from(of: KindOf) -> Self {
        match of {
            KindOf::Full => Self::Full,
            KindOf::Snapshot => Self::Snapshot,
        }
    }
}

/// Whose files a backup copies, as `spec.source` of a DatabaseBackup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum CopyOf {
    /// Those of a standby that streams and is near the primary; without one, those of the primary.
    #[default]
    #[value(name = "PreferStandby")]
    PreferStandby,
    /// Those of the primary.
    #[value(name = "Primary")]
    Primary,
}

impl From<CopyOf> for BackupSource {
    fn from(of: CopyOf) -> Self {
        match of {
            CopyOf::PreferStandby => Self::PreferStandby,
            CopyOf::Primary => Self::Primary,
        }
    }
}
