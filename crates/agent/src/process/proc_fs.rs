//! What `/proc` says of processes.

/// One process that is not a zombie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Its id.
    pub pid: u32,
    /// Its parent's id.
    pub parent: u32,
    /// Name of its program (`comm`, up to 15 bytes).
    pub name: String,
    /// When it started, in clock ticks since boot: with the id, names a process for ever.
    pub started: u64,
}

/// Every living process of the PID namespace (zombies left out), by id.
pub fn processes() -> std::io::Result<Vec<ProcessInfo>> {
    todo!()
}

/// The living descendants of `ancestor`, itself left out.
pub fn descendants(_ancestor: u32) -> std::io::Result<Vec<ProcessInfo>> {
    todo!()
}

/// The living processes called `postgres` that belong to this agent: of the whole PID namespace if it is PID 1, else of
/// its descendants.
pub fn postgres_processes() -> std::io::Result<Vec<ProcessInfo>> {
    todo!()
}
