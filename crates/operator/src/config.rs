//! The operator's configuration: the command line and the environment.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

/// Where images come from if neither the resource nor the environment names one: `<this>:<major version>`.
const DEFAULT_POSTGRES_REPOSITORY: &str = "clustereddatabase/postgres";
/// The image with PgBouncer if neither the resource nor the environment names one.
const DEFAULT_POOLER_IMAGE: &str = "clustereddatabase/pooler:1.24";
/// Prefix of the environment variables with PostgreSQL's images, such as `POSTGRES_IMAGE_17`.
const POSTGRES_IMAGE_PREFIX: &str = "POSTGRES_IMAGE_";

/// The command line.
#[derive(Clone, Debug, Parser)]
#[command(name = "operator", version, about = "Runs highly available PostgreSQL on Kubernetes")]
pub struct Arguments {
    /// Namespace to look after; all namespaces if absent.
    #[arg(long, env = "WATCH_NAMESPACE")]
    pub namespace: Option<String>,
    /// Image with this operator and the agent, for the members' pods.
    #[arg(long, env = "OPERATOR_IMAGE", default_value = "clustereddatabase/operator:latest")]
    pub operator_image: String,
    /// Default image of one major version, as `17=repository:tag`; may be repeated. The environment says the same with
    /// `POSTGRES_IMAGE_17`.
    #[arg(long = "postgres-image", value_name = "MAJOR=IMAGE", value_parser = major_and_image)]
    pub postgres_images: Vec<(u16, String)>,
    /// Default image with PgBouncer, for poolers.
    #[arg(long, env = "POOLER_IMAGE", default_value = DEFAULT_POOLER_IMAGE)]
    pub pooler_image: String,
    /// The domain of the cluster's Services.
    #[arg(long, env = "CLUSTER_DOMAIN", default_value = "cluster.local")]
    pub cluster_domain: String,
    /// What to do instead of running the operator.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Address of `/metrics` and `/readyz`.
    #[arg(long, env = "LISTEN", default_value = "0.0.0.0:8081")]
    pub listen: SocketAddr,
    /// Address of `/decisions/<namespace>/<name>`, which anybody who reaches it may read.
    #[arg(long, env = "DECISIONS", default_value_t = crate::http::DECISIONS)]
    pub decisions: SocketAddr,
    /// Where the operator gives its sign of life, for its liveness probe: a Unix socket, which no network reaches. None if
    /// absent.
    #[arg(long, env = "ALIVE_SOCKET")]
    pub alive_socket: Option<PathBuf>,
    /// How the logs look.
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value_t = LogFormat::Json)]
    pub log_format: LogFormat,
    /// Do not wait to become the leader: for development, where only one operator runs.
    #[arg(long)]
    pub no_leader_election: bool,
    /// Namespace of the Lease for leader election; the operator's own by default.
    #[arg(long, env = "POD_NAMESPACE", default_value = "clustereddatabase-system")]
    pub leader_namespace: String,
    /// Name of this operator among its like; its pod's name by default.
    #[arg(long, env = "POD_NAME", default_value = "operator")]
    pub identity: String,
}

/// What the program does instead of running the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Asks the operator of this container for a sign of life: for its liveness probe.
    Alive,
}

/// How the logs look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people.
    Pretty,
}

/// What the builders need to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Image that brings the agent into the members' pods.
    pub agent_image: String,
    /// Images by major version that differ from the built-in default.
    pub postgres_images: BTreeMap<u16, String>,
    /// Default image with PgBouncer.
    pub pooler_image: String,
    /// The domain of the cluster's Services.
    pub cluster_domain: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            agent_image: "clustereddatabase/operator:latest".to_owned(),
            postgres_images: BTreeMap::new(),
            pooler_image: DEFAULT_POOLER_IMAGE.to_owned(),
            cluster_domain: "cluster.local".to_owned(),
        }
    }
}

impl Config {
    /// The configuration that the command line and these environment variables ask for; the command line wins.
    pub fn new(arguments: &Arguments, environment: impl Iterator<Item = (String, String)>) -> Self {
        let mut postgres_images: BTreeMap<u16, String> = environment
            .filter_map(|(name, image)| Some((name.strip_prefix(POSTGRES_IMAGE_PREFIX)?.parse().ok()?, image)))
            .filter(|(_, image)| !image.is_empty())
            .collect();
        postgres_images.extend(arguments.postgres_images.iter().cloned());
        Self {
            agent_image: arguments.operator_image.clone(),
            postgres_images,
            pooler_image: arguments.pooler_image.clone(),
            cluster_domain: arguments.cluster_domain.clone(),
        }
    }

    /// The default image of a major version.
    pub fn postgres_image(&self, major: u16) -> String {
        self.postgres_images
            .get(&major)
            .cloned()
            .unwrap_or_else(|| format!("{DEFAULT_POSTGRES_REPOSITORY}:{major}"))
    }
}

fn major_and_image(text: &str) -> Result<(u16, String), String> {
    let (major, image) = text.split_once('=').ok_or("expected MAJOR=IMAGE")?;
    let major = major
        .parse()
        .map_err(|error| format!("{major:?} is no major version: {error}"))?;
    Ok((major, image.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_come_from_the_command_line_then_the_environment_then_the_default() {
        let arguments = Arguments::parse_from(["operator", "--postgres-image", "17=a:17"]);
        let environment = [
            ("POSTGRES_IMAGE_16", "b:16"),
            ("POSTGRES_IMAGE_17", "b:17"),
            ("POSTGRES_IMAGE_X", "c"),
        ];
        let config = Config::new(
            &arguments,
            environment.map(|(k, v)| (k.to_owned(), v.to_owned())).into_iter(),
        );
        assert_eq!(config.postgres_image(17), "a:17");
        assert_eq!(config.postgres_image(16), "b:16");
        assert_eq!(config.postgres_image(15), "clustereddatabase/postgres:15");
    }
}
