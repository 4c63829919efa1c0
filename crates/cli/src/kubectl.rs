//! What kubectl does better itself: a terminal in a pod, and logs. This program becomes kubectl, with the user's configuration.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Result, anyhow};
use api::names::{CONTAINER, LABEL_CLUSTER};

use crate::cluster::Place;

/// No database has more instances.
const INSTANCES: usize = 9;

/// What `logs` shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct LogFlags {
    /// Continue to show new lines.
    #[arg(short, long)]
    pub follow: bool,
    /// How many of the last lines of each instance; all if absent.
    #[arg(long)]
    pub tail: Option<u64>,
    /// Only lines of this last time, such as 5m.
    #[arg(long)]
    pub since: Option<String>,
    /// The logs before each container's last restart.
    #[arg(short, long, conflicts_with = "follow")]
    pub previous: bool,
}

/// How psql is started.
pub struct Psql<'a> {
    /// The pod that it runs in.
    pub pod: &'a str,
    /// The database that it connects to, unless its arguments say otherwise.
    pub database: &'a str,
    /// The schemas of names without a schema: `search_path`.
    pub search_path: &'a str,
    /// The user sits at a terminal.
    pub terminal: bool,
    /// psql's own arguments.
    pub arguments: &'a [String],
}

/// kubectl's arguments for psql in a pod.
pub fn psql(place: &Place, namespace: &str, psql: &Psql) -> Vec<String> {
    let mut command = common(place, namespace);
    command.extend(["exec", "--stdin"].map(str::to_owned));
    if psql.terminal {
        command.push("--tty".to_owned());
    }
    command.extend([psql.pod, "--container", CONTAINER, "--"].map(str::to_owned));
    command.extend(psql_in_pod(psql));
    command
}

/// The command for psql, as it runs in the pod.
pub fn psql_in_pod(psql: &Psql) -> Vec<String> {
    // A backslash keeps the blank after it in the value.
    let search_path = psql.search_path.replace('\\', r"\\").replace(' ', r"\ ");
    let mut command = vec![
        "env".to_owned(),
        format!("PGDATABASE={}", psql.database),
        format!("PGOPTIONS=-c search_path={search_path}"),
        "psql".to_owned(),
    ];
    command.extend_from_slice(psql.arguments);
    command
}

/// kubectl's arguments for the logs of all instances.
pub fn logs(place: &Place, namespace: &str, name: &str, flags: &LogFlags) -> Vec<String> {
    let mut command = common(place, namespace);
    command.extend([
        "logs".to_owned(),
        format!("--selector={LABEL_CLUSTER}={name}"),
        format!("--container={CONTAINER}"),
        "--prefix".to_owned(),
        format!("--max-log-requests={INSTANCES}"),
    ]);
    // With a selector, kubectl shows ten lines by default.
    command.push(
        flags
            .tail
            .map_or("--tail=-1".to_owned(), |tail| format!("--tail={tail}")),
    );
    command.extend(flags.since.iter().map(|since| format!("--since={since}")));
    command.extend(flags.follow.then(|| "--follow".to_owned()));
    command.extend(flags.previous.then(|| "--previous".to_owned()));
    command
}

fn common(place: &Place, namespace: &str) -> Vec<String> {
    let mut flags = vec![format!("--namespace={namespace}")];
    flags.extend(place.context.iter().map(|context| format!("--context={context}")));
    flags.extend(
        place
            .kubeconfig
            .iter()
            .map(|path| format!("--kubeconfig={}", path.display())),
    );
    flags
}

/// Becomes kubectl. Returns only if that is not possible.
///
/// # Errors
/// If there is no kubectl.
pub fn become_kubectl(arguments: &[String]) -> Result<()> {
    let error = Command::new("kubectl").args(arguments).exec();
    Err(anyhow!(
        "cannot run kubectl ({error}): install it, or put it into the PATH"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psql_runs_in_the_primary_with_the_users_set_up() {
        let place = Place {
            context: Some("prod".to_owned()),
            kubeconfig: Some("/k".into()),
            ..Place::default()
        };
        let arguments = ["-c".to_owned(), "select 1".to_owned()];
        let how = Psql {
            pod: "demo-1",
            database: "app",
            search_path: "pg_catalog",
            terminal: true,
            arguments: &arguments,
        };
        assert_eq!(
            psql(&place, "shop", &how).join(" "),
            "--namespace=shop --context=prod --kubeconfig=/k exec --stdin --tty demo-1 --container postgres -- \
             env PGDATABASE=app PGOPTIONS=-c search_path=pg_catalog psql -c select 1"
        );
        let other = Psql {
            search_path: r#"my\app, "public""#,
            terminal: false,
            ..how
        };
        let command = psql(&place, "shop", &other);
        assert!(command.contains(&r#"PGOPTIONS=-c search_path=my\\app,\ "public""#.to_owned()));
        assert!(!command.contains(&"--tty".to_owned()));
    }

    #[test]
    fn logs_are_those_of_all_instances() {
        let flags = LogFlags {
            follow: true,
            since: Some("5m".to_owned()),
            ..LogFlags::default()
        };
        assert_eq!(
            logs(&Place::default(), "shop", "demo", &flags).join(" "),
            "--namespace=shop logs --selector=clustereddatabase.io/cluster=demo --container=postgres --prefix \
             --max-log-requests=9 --tail=-1 --since=5m --follow"
        );
    }
}
