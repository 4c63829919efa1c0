//! `cargo xtask testbed …`: a real Kubernetes on this machine.

use std::io::Write;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use testbed::{Options, Outcome, Status, Testbed, Timing};

/// What to do with the testbed.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Which of the testbeds of this machine, 0 to 7, which run beside each other; or `auto`: the
    /// one that this checkout holds, else a free one.
    #[arg(long, global = true, env = testbed::INSTANCE_VARIABLE, default_value = "0")]
    instance: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start it, or say that it is up; installs and builds what is missing.
    Up(UpArguments),
    /// Install and build what is missing for `up`, and start nothing.
    Prepare,
    /// End it and remove all of it.
    Down {
        /// Also when another checkout holds it.
        #[arg(long)]
        force: bool,
    },
    /// Show its holder, whether its nodes are Ready, and where things are.
    Status,
    /// Load an image, by its name in buildah's store or by the path of an archive, into all nodes.
    Load {
        /// Name or path.
        image: String,
    },
    /// Cut a node off the network.
    Cut {
        /// The node's name, such as n1.
        node: String,
    },
    /// Mend what `cut` did.
    Heal {
        /// The node's name, such as n1.
        node: String,
    },
}

/// Times are in seconds; without them Kubernetes' own defaults hold.
#[derive(Debug, Args)]
struct UpArguments {
    /// Number of nodes, 1 to 9.
    #[arg(long, default_value_t = 3)]
    nodes: u8,
    /// Silence after which a node counts as unreachable (Kubernetes: 50).
    #[arg(long, value_name = "SECONDS")]
    node_monitor_grace: Option<u32>,
    /// How often nodes are checked (Kubernetes: 5).
    #[arg(long, value_name = "SECONDS")]
    node_monitor_period: Option<u32>,
    /// How often a kubelet computes its status (Kubernetes: 10).
    #[arg(long, value_name = "SECONDS")]
    node_status_update: Option<u32>,
    /// How long a node's lease is valid (Kubernetes: 40).
    #[arg(long, value_name = "SECONDS")]
    node_lease: Option<u32>,
    /// How long pods stay on an unreachable node (Kubernetes: 300).
    #[arg(long, value_name = "SECONDS")]
    unreachable_toleration: Option<u32>,
}

/// Runs `cargo xtask testbed`.
///
/// # Errors
/// When the testbed cannot do what was asked; the error says what to do.
pub async fn run(arguments: Arguments) -> Result<()> {
    let options = Options::named(&arguments.instance)?;
    let instance = options.instance;
    match arguments.command {
        Command::Up(up) => start(options.with_nodes(up.nodes).with_timing(up.timing())).await,
        Command::Prepare => Testbed::prepare().await,
        Command::Down { force } => {
            let found = Testbed::down(&options, force).await?;
            tell(if found {
                "The testbed is gone."
            } else {
                "There was no testbed."
            });
            Ok(())
        }
        Command::Status => status(instance).await,
        Command::Load { image } => Testbed::attach(instance)?.load_image(&image).await,
        Command::Cut { node } => Testbed::attach(instance)?.cut(&node).await,
        Command::Heal { node } => Testbed::attach(instance)?.heal(&node).await,
    }
}

impl UpArguments {
    fn timing(&self) -> Timing {
        Timing {
            node_monitor_grace: self.node_monitor_grace,
            node_monitor_period: self.node_monitor_period,
            node_status_update: self.node_status_update,
            node_lease: self.node_lease,
            unreachable_toleration: self.unreachable_toleration,
        }
    }
}

async fn start(options: Options) -> Result<()> {
    let (testbed, outcome) = Testbed::up(options).await?;
    match outcome {
        Outcome::AlreadyUp => tell("The testbed is already up."),
        Outcome::Started(time) => tell(&format!(
            "The testbed is up: nodes Ready after {:.1} s.",
            time.as_secs_f64()
        )),
    }
    tell(&format!("export KUBECONFIG={}", testbed.kubeconfig_path().display()));
    Ok(())
}

async fn status(instance: u8) -> Result<()> {
    match Status::read(instance).await? {
        None => tell(&format!("There is no testbed {instance}.")),
        Some(status) => {
            tell(&status.to_string());
            if !status.is_healthy() {
                bail!("the testbed is not whole");
            }
        }
    }
    Ok(())
}

/// Prints a line; a closed pipe is no error.
fn tell(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
