//! A process of the agent's own program that is told and tells things line by line.

use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::unix::pipe;

use super::{Running, Supervisor};

/// Such a process, with its pipes.
pub(crate) struct Helper {
    /// The process.
    pub process: Running,
    /// What it is told.
    pub stdin: pipe::Sender,
    /// What it tells, for the agent.
    pub said: Lines<BufReader<pipe::Receiver>>,
    /// What it says, for people.
    pub words: Lines<BufReader<pipe::Receiver>>,
}

impl Helper {
    /// Starts it.
    pub fn start(supervisor: &Supervisor, mut command: Command) -> anyhow::Result<Self> {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = supervisor.spawn_reporting(None, command)?;
        let pipes = (process.stdin.take(), process.stdout.take(), process.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            anyhow::bail!("it has no pipes");
        };
        let lines = |fd: OwnedFd| pipe::Receiver::from_owned_fd(fd).map(|pipe| BufReader::new(pipe).lines());
        Ok(Self {
            process,
            stdin: pipe::Sender::from_owned_fd(OwnedFd::from(stdin))?,
            said: lines(stdout.into())?,
            words: lines(stderr.into())?,
        })
    }
}
