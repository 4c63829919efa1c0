//! What the first process of a pooler's pod does next. It keeps PgBouncer running with the present configuration, and stops it in an
//! order that lets clients finish first.

use super::settings::Server;

/// How long a terminating pod still takes clients, in milliseconds: nobody tells it when the last node has taken it out of the Service.
pub const STILL_FOUND_MS: u64 = 3_000;
/// How long transactions are then waited for, in milliseconds.
pub const LAST_TRANSACTIONS_MS: u64 = 5_000;
/// How soon a process that has ended by itself is started again, in milliseconds.
pub const AGAIN_MS: u64 = 1_000;

/// What is observed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// The configuration that there is to be, by process; `None`: something that it follows from is not known yet.
    pub wanted: Option<Wanted>,
    /// What the files say.
    pub written: Option<Wanted>,
    /// The processes.
    pub processes: Vec<Process>,
    /// The pod has been terminating for this many milliseconds.
    pub stopping_ms: Option<u64>,
    /// How long clients may finish, in milliseconds.
    pub drain_ms: u64,
    /// How many clients there are; `None`: that is not known.
    pub clients: Option<u64>,
    /// PostgreSQL is about to stop: transactions are held back for so many milliseconds more ([`super::pause`]).
    pub pause_ms: Option<u64>,
}

/// A configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The texts of the files, by process.
    pub files: Vec<String>,
    /// The server.
    pub server: Server,
    /// What the certificates are, in short.
    pub certificates: String,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Process {
    /// It does not run; it ended this many milliseconds ago, if it ever ran.
    Down {
        /// So long.
        since_ms: Option<u64>,
    },
    /// It runs.
    Up {
        /// What it has read: [`digest`] of a configuration.
        read: Option<String>,
        /// What it was told last of its end.
        told: Option<Stop>,
        /// It was told to pause, and not to go on.
        pause: Option<Paused>,
    },
}

/// How far the pause of a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paused {
    /// New transactions wait, and those under way are waited for.
    Partly,
    /// No connection to PostgreSQL is left.
    Wholly,
}

/// How a process is stopped. PgBouncer could also wait until its last client leaves, but then it can neither pause nor end
/// transactions in time: until that is due, it goes on as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// It ends each connection at the end of its transaction.
    AfterTransactions,
    /// Now.
    Now,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing now; look again after this many milliseconds, if something else does not happen before.
    Wait(Option<u64>),
    /// Write the files.
    Write,
    /// Start the process with this number, from 0.
    Start(usize),
    /// Have it read its file again: connections to another server are closed as they become free.
    Reload(usize),
    /// Have it let transactions end, and hold new ones back.
    Pause(usize),
    /// Have it go on.
    Resume(usize),
    /// Tell it to end.
    Stop(usize, Stop),
    /// All has ended.
    Exit,
}

/// A configuration in short, as a process has read it.
pub fn digest(wanted: &Wanted) -> String {
    format!("{}\n{}", wanted.files.concat(), wanted.certificates)
}

/// Decides.
pub fn decide(observed: &Observed) -> Action {
    // Before anything else: nothing makes a pause longer.
    let is_paused = |process: &Process| {
        matches!(
            process,
            Process::Up {
                pause: Some(_),
                told: None,
                ..
            }
        )
    };
    if observed.pause_ms.is_none()
        && let Some(number) = observed.processes.iter().position(is_paused)
    {
        return Action::Resume(number);
    }
    if let Some(action) = configure(observed) {
        return action;
    }
    if let Some(action) = pause(observed) {
        return action;
    }
    match observed.stopping_ms {
        Some(since) => stop(observed, since),
        None => start(observed),
    }
}

/// Has all that runs read what is wanted, also in a pod that goes.
fn configure(observed: &Observed) -> Option<Action> {
    let wanted = observed.wanted.as_ref()?;
    if observed.written.as_ref() != Some(wanted) {
        return Some(Action::Write);
    }
    let present = Some(digest(wanted));
    let is_outdated = |process: &Process| matches!(process, Process::Up { read, told: None, .. } if *read != present);
    observed.processes.iter().position(is_outdated).map(Action::Reload)
}

fn start(observed: &Observed) -> Action {
    if observed.wanted.is_none() {
        return Action::Wait(None);
    }
    let mut again = None;
    for (number, process) in observed.processes.iter().enumerate() {
        match process {
            Process::Down { since_ms: Some(since) } if *since < AGAIN_MS => {
                again = Some(AGAIN_MS - since).max(again);
            }
            Process::Down { .. } => return Action::Start(number),
            Process::Up { .. } => {}
        }
    }
    Action::Wait(again)
}

/// Has each process pause that is to, and waits until that is over: nothing else is due meanwhile.
fn pause(observed: &Observed) -> Option<Action> {
    let left = observed.pause_ms?;
    let serves = |process: &Process| {
        matches!(
            process,
            Process::Up {
                pause: None,
                told: None,
                ..
            }
        )
    };
    let next = observed.processes.iter().position(serves);
    Some(next.map_or(Action::Wait(Some(left)), Action::Pause))
}

fn stop(observed: &Observed, since: u64) -> Action {
    let drained = STILL_FOUND_MS.saturating_add(observed.drain_ms);
    let ended = drained.saturating_add(LAST_TRANSACTIONS_MS);
    let (due, next) = match since {
        ..STILL_FOUND_MS => (None, Some(STILL_FOUND_MS)),
        _ if since < drained && observed.clients != Some(0) => (None, Some(drained)),
        _ if since < ended => (Some(Stop::AfterTransactions), Some(ended)),
        _ => (Some(Stop::Now), None),
    };
    let mut up = false;
    for (number, process) in observed.processes.iter().enumerate() {
        let Process::Up { told, .. } = process else { continue };
        up = true;
        if let Some(due) = due.filter(|due| *told < Some(*due)) {
            return Action::Stop(number, due);
        }
    }
    if up {
        Action::Wait(next.map(|next| next - since))
    } else {
        Action::Exit
    }
}

/// Whether the primary's agent is asked for a pause: of the server to which the processes are led, not of the next one, since its answer
/// would end the pause while they are led to the former one.
pub fn asks(observed: &Observed) -> bool {
    let is_ending = |process: &Process| matches!(process, Process::Up { told: Some(_), .. });
    let is_up = |process: &Process| matches!(process, Process::Up { .. });
    let is_led = observed.wanted.is_some() && configure(observed).is_none();
    is_led && observed.processes.iter().any(is_up) && !observed.processes.iter().any(is_ending)
}

/// Whether the pod pauses as a whole: none of its processes has a connection to PostgreSQL.
pub fn is_paused(observed: &Observed) -> bool {
    let is_free = |process: &Process| match process {
        Process::Down { .. } => true,
        Process::Up { pause, .. } => *pause == Some(Paused::Wholly),
    };
    observed.pause_ms.is_some() && observed.processes.iter().all(is_free)
}

/// Whether the pod takes clients: it is not terminating, and every process runs with a configuration.
pub fn is_ready(observed: &Observed) -> bool {
    let runs = |process: &Process| matches!(process, Process::Up { read: Some(_), .. });
    observed.stopping_ms.is_none() && !observed.processes.is_empty() && observed.processes.iter().all(runs)
}
