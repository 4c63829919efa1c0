//! The operator's program.

use anyhow::{Context, Result, anyhow};
use clap::Parser;
use operator::config::{Arguments, Command, LogFormat};
use tracing_subscriber::EnvFilter;

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(Command::Alive) = arguments.command {
        let socket = arguments
            .alive_socket
            .context("set ALIVE_SOCKET to the operator's own")?;
        return listen::alive::ask(&socket).map_err(anyhow::Error::msg);
    }
    logs(arguments.log_format);
    operator::panics::log_all();
    // Before any client is made: two providers may be compiled in, and rustls then refuses to choose.
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow!("a TLS provider is installed already"))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the runtime")?;
    let result = runtime.block_on(operator::run::run(arguments));
    if let Err(error) = &result {
        tracing::error!(error = format!("{error:#}"), "operator ends");
        // What is still under way must not go on without the lead.
        std::process::exit(1);
    }
    result
}

fn logs(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,kube=warn"));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Json => subscriber.json().flatten_event(true).init(),
        LogFormat::Pretty => subscriber.init(),
    }
}
