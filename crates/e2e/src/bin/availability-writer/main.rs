//! The writer of the availability benchmark, a static program in a pod of its own. It writes a row every 10 ms through
//! the Service, on one session held open, and to every pod directly, and notes the outcome of each attempt.
//!
//! Without an argument it writes until the stop command. The other commands are run beside it, by `exec` in its pod:
//! `targets POD=ADDRESS…` sets the pods to write to, `status` shows the present state, `clock` the time here, `stop` ends the
//! writing, `dump FROM` prints notes from a byte on (a part of them, if they are many), `rows` prints what the tables hold.
//!
//! With `lists` as argument it is the clients of `cargo xtask soak`: they append numbers to lists and read them. `status`, `stop` and
//! `dump` are as above; `final [ADDRESS]` prints what the lists hold, at the Service or at that pod.

mod files;
mod lists;
mod notes;
mod rows;
mod session;
mod settings;
mod streams;
mod tls;

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::settings::Settings;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&words).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(words: &[&str]) -> Result<()> {
    match words {
        [] => streams::run(Settings::from_env()?).await,
        ["targets", targets @ ..] => files::write_targets(targets),
        ["status"] => print(&files::status()?),
        ["clock"] => print(&notes::wall().to_string()),
        ["stop"] => files::stop(),
        ["dump", from] => print(&files::history(from.parse().context("read the position")?)?),
        ["lists"] => lists::run(Settings::from_env()?).await,
        ["final"] => print(&rows::lists(&Settings::from_env()?, None).await?),
        ["final", address] => {
            let address = address.parse().context("read the address")?;
            print(&rows::lists(&Settings::from_env()?, Some(address)).await?)
        }
        ["rows"] => print(&rows::read(&Settings::from_env()?).await?),
        other => bail!("{other:?} is no command; see the program's documentation"),
    }
}

fn print(text: &str) -> Result<()> {
    std::io::stdout().write_all(text.as_bytes()).context("print")
}
