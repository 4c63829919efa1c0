//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::cluster::Place;
use crate::kubectl::LogFlags;
use crate::what_if::Loss;

/// Says what a highly available PostgreSQL database is doing, why, and what a change would do.
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
    /// Where the database stands, and each of its instances.
    Status {
        /// Which database, from where, and how to show it.
        #[command(flatten)]
        view: View,
        /// Show it again whenever it changes, until interrupted.
        #[arg(short, long, conflicts_with = "file")]
        watch: bool,
    },
    /// The rule that decides about the database now, what it waits for, and who can end that.
    Why {
        /// Which database, from where, and how to show it.
        #[command(flatten)]
        view: View,
    },
    /// The phases that it went through, how long each took, and its events.
    History {
        /// Which database, from where, and how to show it.
        #[command(flatten)]
        view: View,
    },
    /// What the operator would do about a new spec. Nothing is changed.
    ///
    /// The exit code is 0 if nothing would be done, 2 if there are changes, 3 if the spec is refused, 1 after an error.
    Plan {
        /// Which database, from where, and how to show it.
        #[command(flatten)]
        view: View,
        /// The whole resource with its new spec.
        #[arg(short = 'f', long = "filename", value_name = "NEW.yaml")]
        new: PathBuf,
    },
    /// What the loss of something would mean now: whether commits go on, who may be elected, what can be lost.
    WhatIf {
        /// Which database, from where, and how to show it.
        #[command(flatten)]
        view: View,
        /// What is lost: instance=POD, node=NODE, api or operator.
        #[arg(long, value_name = "WHAT")]
        lose: Loss,
    },
    /// Write down what the operator has decided about the database, with all that it decided upon.
    Record {
        /// The database.
        name: String,
        /// The file; it must not exist yet. The standard output if absent.
        #[arg(short, long)]
        output: Option<PathBuf>,
    },
    /// Make recorded decisions again, by this program's version of the operator, and show which are other ones.
    ///
    /// The exit code is 0 if all are as recorded, 2 if some are not, 1 after an error.
    Replay {
        /// What `record` wrote.
        file: PathBuf,
        /// How to show it.
        #[arg(short, long, value_enum, default_value_t = Format::Text)]
        output: Format,
    },
    /// What the operator of this program's version would do about databases that run. Nothing is changed.
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
    /// Stop an instance's PostgreSQL cleanly and keep it stopped; its pod and volume stay.
    Fence(Instance),
    /// Let a fenced instance run again.
    Unfence(Instance),
    /// Replace all instances' pods, one at a time: standbys first, then the primary after a switchover.
    Restart(Name),
    /// Stop the whole database cleanly and take its pods away; the volumes stay.
    Hibernate(Name),
    /// Bring a hibernated database back.
    Wake(Name),
    /// Let the operator change nothing any more. The database goes on, and its agents still fail over.
    Pause(Name),
    /// Let the operator go on.
    Resume(Name),
    /// psql in the pod of the present primary (by the Lease), as superuser in the application's database.
    Psql {
        /// The database.
        name: String,
        /// Schemas in which names are looked for that name none. Whoever may create objects in one of them can have their own
        /// code run by the superuser.
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
        /// Which lines.
        #[command(flatten)]
        flags: LogFlags,
    },
    /// Write what helps to understand the database into one archive, without secrets.
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

/// Which database is shown, and how.
#[derive(Clone, Debug, Args)]
pub struct View {
    /// The database.
    pub name: String,
    /// Read this file instead of a cluster: YAML of the objects, a directory of such files, or the archive of `report`.
    #[arg(short = 'F', long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// How to show it.
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    pub output: Format,
}

/// How a page is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}
