//! Assembling PostgreSQL's log lines into records.

use super::redact::redact;

/// `log_line_prefix`: process, kind of backend, user, database and SQLSTATE between control characters, which no log
/// message begins a line with: PostgreSQL puts a tab before every further line of a message.
///
/// A client chooses the names of user and database before it gives a password; they may hold line breaks and control
/// characters. PostgreSQL cuts them to [`NAME`] bytes, and here pads them to as many bytes: so the length tells where a
/// name ends, and no name can begin a record. (17.0 to 17.2 did not cut them.)
pub const LINE_PREFIX: &str = "\u{1e}%p\u{1f}%b\u{1f}%-63u\u{1f}%-63d\u{1f}%e\u{1f}";
/// Bytes of a user's or a database's name in the prefix.
const NAME: usize = 63;

/// The most bytes of a record; further lines are left out. A statement may have gigabytes.
const LIMIT: usize = 64 * 1024;
/// The last detail of a record if lines of it were left out.
const CUT: &str = "CUT: further lines are left out";

const BEGIN: u8 = 0x1e;
const SEPARATOR: u8 = 0x1f;

/// The severity, as a level of the agent's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

/// One log record of PostgreSQL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) level: Level,
    /// PostgreSQL's severity (`LOG`, `FATAL` …); empty if the line had none.
    pub(super) severity: String,
    pub(super) message: String,
    pub(super) pid: Option<u32>,
    /// Kind of backend (`client backend`, `checkpointer` …).
    pub(super) backend: Option<String>,
    pub(super) user: Option<String>,
    pub(super) database: Option<String>,
    /// SQLSTATE, of errors.
    pub(super) code: Option<String>,
    /// The lines `DETAIL`, `HINT`, `CONTEXT`, `STATEMENT` … that followed.
    pub(super) details: Vec<String>,
}

/// True if the text up to a line break ends inside a name of the prefix, so that the line goes on.
pub(super) fn goes_on(line: &[u8]) -> bool {
    line.first() == Some(&BEGIN) && matches!(names(line), Some(names) if line[names..].len() < 2 * NAME + 2)
}

/// The offset of the names: behind the process and the kind of backend, which PostgreSQL writes itself.
fn names(line: &[u8]) -> Option<usize> {
    let separators = line.iter().enumerate().filter(|(_, byte)| **byte == SEPARATOR);
    separators.map(|(at, _)| at + 1).nth(1)
}

/// Assembles lines. A record is complete when the next one begins.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    pending: Option<Record>,
    /// Bytes in the record.
    size: usize,
    /// Further lines of the record were left out.
    cut: bool,
}

impl Assembler {
    /// Takes a line (without its end); returns the record that it completes.
    pub(super) fn push(&mut self, line: impl AsRef<[u8]>) -> Option<Record> {
        let line = line.as_ref();
        if let (Some(rest), Some(pending)) = (line.strip_prefix(b"\t"), &mut self.pending) {
            let rest = &*String::from_utf8_lossy(rest);
            if !has_room(&mut self.size, &mut self.cut, rest) {
                return None;
            }
            let last = pending.details.last_mut().unwrap_or(&mut pending.message);
            last.push('\n');
            last.push_str(rest);
            return None;
        }
        let record = parse(line);
        if is_addition(&record.severity)
            && let Some(pending) = &mut self.pending
            && pending.pid == record.pid
        {
            if !has_room(&mut self.size, &mut self.cut, &record.message) {
                return None;
            }
            pending.details.push(format!("{}: {}", record.severity, record.message));
            return None;
        }
        let complete = self.flush();
        self.size = record.message.len();
        self.pending = Some(record);
        complete
    }

    /// Returns the pending record, since nothing more comes for now.
    pub(super) fn flush(&mut self) -> Option<Record> {
        let cut = std::mem::take(&mut self.cut);
        let mut record = self.pending.take()?;
        if cut {
            record.details.push(CUT.to_owned());
        }
        Some(finish(record))
    }

    /// True if a record is pending.
    pub(super) fn is_pending(&self) -> bool {
        self.pending.is_some()
    }
}

/// Counts `more`. Returns `false` if it must be left out; everything after it is then left out, too.
fn has_room(size: &mut usize, cut: &mut bool, more: &str) -> bool {
    let wanted = size.saturating_add(more.len() + 1);
    *cut |= wanted > LIMIT;
    if !*cut {
        *size = wanted;
    }
    !*cut
}

fn finish(mut record: Record) -> Record {
    record.message = redact(&record.message);
    record.details = record.details.iter().map(|detail| redact(detail)).collect();
    record
}

fn parse(line: &[u8]) -> Record {
    // Before PostgreSQL has read its settings, it writes no prefix of ours.
    let (fields, text) = fields(line).unwrap_or(([&[]; 5], line));
    let [pid, backend, user, database, code] = fields.map(|field| {
        let field = String::from_utf8_lossy(field).trim_end_matches(' ').to_owned();
        Some(field).filter(|field| !field.is_empty() && *field != "[unknown]")
    });
    let text = &*String::from_utf8_lossy(text);
    let (severity, message) = split_severity(text);
    Record {
        level: if code.as_deref().is_some_and(is_routine) {
            Level::Info
        } else {
            level(severity)
        },
        severity: severity.to_owned(),
        message: message.to_owned(),
        pid: pid.and_then(|pid| pid.parse().ok()),
        backend,
        user,
        database,
        code: code.filter(|code| code != "00000"),
        details: Vec::new(),
    }
}

/// The fields between the control characters of the prefix, and the text after it.
fn fields(line: &[u8]) -> Option<([&[u8]; 5], &[u8])> {
    let split = |bytes: &'_ [u8]| bytes.iter().position(|byte| *byte == SEPARATOR);
    let own = line.strip_prefix(&[BEGIN])?;
    let (pid, rest) = own.split_at(split(own)?);
    let (backend, rest) = rest[1..].split_at(split(&rest[1..])?);
    let (user, rest) = rest[1..].split_at_checked(NAME)?;
    let (database, rest) = rest.strip_prefix(&[SEPARATOR])?.split_at_checked(NAME)?;
    let rest = rest.strip_prefix(&[SEPARATOR])?;
    let (code, text) = rest.split_at(split(rest)?);
    Some(([pid, backend, user, database, code], &text[1..]))
}

fn split_severity(text: &str) -> (&str, &str) {
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit());
    match text.split_once(":  ") {
        Some((severity, message)) if is_word(severity) => (severity, message),
        // `2026-11-21 08:00:00.000 UTC [42] FATAL:  …`
        Some((head, message)) => match head.rsplit_once("] ") {
            Some((_, severity)) if is_word(severity) => (severity, message),
            _ => ("", text),
        },
        None => ("", text),
    }
}

fn level(severity: &str) -> Level {
    match severity {
        "WARNING" => Level::Warn,
        "ERROR" | "FATAL" | "PANIC" => Level::Error,
        debug if debug.starts_with("DEBUG") => Level::Debug,
        _ => Level::Info,
    }
}

/// PostgreSQL logs `FATAL` for sessions that end because the server stops, and for sessions that come too early. The
/// agent treats these as routine.
fn is_routine(code: &str) -> bool {
    const ADMIN_SHUTDOWN: &str = "57P01";
    const CANNOT_CONNECT_NOW: &str = "57P03";
    [ADMIN_SHUTDOWN, CANNOT_CONNECT_NOW].contains(&code)
}

fn is_addition(severity: &str) -> bool {
    [
        "DETAIL",
        "HINT",
        "QUERY",
        "CONTEXT",
        "LOCATION",
        "BACKTRACE",
        "STATEMENT",
    ]
    .contains(&severity)
}

/// The prefix as PostgreSQL writes it.
#[cfg(test)]
pub(super) fn line_prefix(pid: u32, backend: &str, user: &str, database: &str, code: &str) -> String {
    let fill = |name: &str| format!("{name}{}", " ".repeat(NAME - name.len()));
    let (user, database) = (fill(user), fill(database));
    format!("\u{1e}{pid}\u{1f}{backend}\u{1f}{user}\u{1f}{database}\u{1f}{code}\u{1f}")
}

#[cfg(test)]
mod tests;
