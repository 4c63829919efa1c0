//! `replay`: recorded decisions, made again by this program's machine.

use std::path::Path;

use anyhow::{Context, Result, bail};
use api::operation::OperationPhase;
use chrono::{DateTime, Utc};
use machine::operation::{Action, Decision};
use operator::recording::{self, AskedEntry, FORMAT, Header, Line, VERSION};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::plan::{CHANGES, Change, NOTHING, changes, unknown};
use crate::text::{Page, Style, Tone, instant};
use crate::words;

/// This program's version, which is its machine's.
const PROGRAM: &str = env!("CARGO_PKG_VERSION");

/// A parsed record.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// Its first line.
    pub header: Header,
    /// The decisions, the oldest first.
    pub lines: Vec<Line>,
}

/// The page.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplayPage {
    /// The database's name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Version of the operator that decided.
    pub operator: String,
    /// Version of the machine that decides again.
    pub program: &'static str,
    /// How many older decisions the operator had dropped.
    pub dropped: u64,
    /// How many decisions differ now.
    pub differing: usize,
    /// The decisions, the oldest first.
    pub decisions: Vec<Replayed>,
}

/// One decision, as it is made now.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Replayed {
    /// Its line in the file.
    pub line: usize,
    /// When it was made.
    pub at: DateTime<Utc>,
    /// The operation or backup that it is about, as kubectl names it; `None`: the database itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// The phase after it; empty if there is none yet.
    pub phase: String,
    /// The rule that decides.
    pub rule: &'static str,
    /// The action.
    pub action: String,
    /// The fact behind it.
    pub because: String,
    /// The differences: the old value is the recorded one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub differs: Vec<Change>,
}

impl ReplayPage {
    /// The program's exit code: as of `plan`.
    pub fn exit(&self) -> u8 {
        if self.differing == 0 { NOTHING } else { CHANGES }
    }
}

/// Reads a file that `record` wrote.
///
/// # Errors
/// If the file is no record, is cut off, or has a version that this program does not know.
pub fn read(path: &Path) -> Result<Recording> {
    let cannot = || format!("cannot use {}", path.display());
    let bytes = std::fs::read(path).with_context(cannot)?;
    match String::from_utf8(bytes) {
        Ok(text) => parse(&text).with_context(cannot),
        Err(_) => Err(no_recording()).with_context(cannot),
    }
}

fn no_recording() -> anyhow::Error {
    anyhow::anyhow!("it is no record of decisions: give the file that `kubectl cdb record NAME -o FILE` wrote")
}

/// The record in a text.
///
/// # Errors
/// As [`read`] does.
pub fn parse(text: &str) -> Result<Recording> {
    let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    let Some((_, first)) = lines.next() else {
        bail!("it is empty: record the decisions again with `kubectl cdb record NAME -o FILE`");
    };
    let header = header(first)?;
    let lines = lines
        .map(|(number, line)| read_line(&header, number, line))
        .collect::<Result<_>>()?;
    Ok(Recording { header, lines })
}

fn header(line: &str) -> Result<Header> {
    let Ok(value) = serde_json::from_str::<Value>(line) else {
        return Err(no_recording());
    };
    if value["format"] != FORMAT {
        return Err(no_recording());
    }
    if value["version"] != VERSION {
        let operator = value["operator"].as_str().unwrap_or("unknown");
        bail!(
            "line 1: it has version {} of the format, and this program reads version {VERSION}: take kubectl cdb {operator}, \
             which is the version of the operator that wrote it",
            value["version"]
        );
    }
    let operator = value["operator"].as_str().unwrap_or("unknown").to_owned();
    known(value, 1, &operator)
}

fn read_line(header: &Header, number: usize, line: &str) -> Result<Line> {
    let value = match serde_json::from_str::<Value>(line) {
        Ok(value) => value,
        Err(error) if error.is_eof() => {
            bail!("line {number} is cut off: remove it, or record the decisions again")
        }
        Err(error) => bail!(
            "line {number} is no JSON (column {}): record the decisions again",
            error.column()
        ),
    };
    known(value, number, &header.operator)
}

/// The value as its type, if this program knows all of its fields.
fn known<T: DeserializeOwned + Serialize>(value: Value, number: usize, operator: &str) -> Result<T> {
    let way_out = if operator == PROGRAM {
        "the file was changed: record the decisions again".to_owned()
    } else {
        format!(
            "it was written by operator {operator}, and this is kubectl cdb {PROGRAM}: take that version, or a later one"
        )
    };
    let typed: T = match serde_json::from_value(value.clone()) {
        Ok(typed) => typed,
        Err(error) => bail!("line {number} cannot be understood ({error}): {way_out}"),
    };
    let understood = serde_json::to_value(&typed).context("cannot write what was read")?;
    let unknown = unknown("", &value, &understood);
    if !unknown.is_empty() {
        bail!("line {number} has unknown fields ({}): {way_out}", unknown.join(", "));
    }
    Ok(typed)
}

/// The page of a record.
pub fn page(recording: &Recording) -> ReplayPage {
    let header = &recording.header;
    let decisions: Vec<_> = recording.lines.iter().enumerate().map(replayed).collect();
    ReplayPage {
        name: header.name.clone(),
        namespace: header.namespace.clone(),
        operator: header.operator.clone(),
        program: PROGRAM,
        dropped: header.dropped,
        differing: decisions.iter().filter(|decision| !decision.differs.is_empty()).count(),
        decisions,
    }
}

fn replayed((index, line): (usize, &Line)) -> Replayed {
    // The first line is the header.
    let number = index + 2;
    match line {
        Line::Database(entry) => {
            let decision = entry.replay();
            Replayed {
                line: number,
                at: entry.at,
                object: None,
                phase: decision.phase.to_string(),
                rule: decision.rule,
                action: words::action(&decision.action, &entry.wanted.name),
                because: decision.because.to_string(),
                differs: changes("", &entry.decision, &recording::value(&decision)),
            }
        }
        Line::Operation { operation } => asked(number, "cdbop", operation, operation.stored.phase, &operation.replay()),
        Line::Backup { backup } => asked(number, "dbb", backup, backup.stored.operation.phase, &backup.replay()),
    }
}

fn asked<S, O, T>(
    line: usize,
    kind: &str,
    entry: &AskedEntry<S, O, T>,
    before: Option<OperationPhase>,
    decision: &Decision,
) -> Replayed {
    let (phase, action, because) = match &decision.action {
        Action::Enter(phase, why) => (Some(*phase), format!("note that it is {phase:?}"), why.clone()),
        Action::Wait(Some(what)) => (before, format!("wait for {what}"), what.clone()),
        Action::Wait(None) => (before, "nothing: it has ended".to_owned(), String::new()),
    };
    Replayed {
        line,
        at: entry.at,
        object: Some(format!("{kind}/{}", entry.name)),
        phase: phase.map_or(String::new(), |phase| format!("{phase:?}")),
        rule: decision.rule,
        action,
        because,
        differs: changes("", &entry.decision, &recording::value(decision)),
    }
}

/// The page as text.
pub fn text(page: &ReplayPage, style: Style) -> String {
    let mut out = Page::default();
    let name = format!("{} in {}", page.name, page.namespace);
    out.field("Decisions", style.paint(Tone::Strong, &format!("about {name}")));
    out.field("Recorded", format!("by operator {}", page.operator));
    out.field("Replayed", format!("by the machine of kubectl cdb {}", page.program));
    if page.dropped > 0 {
        out.field("Dropped", format!("{} older ones, to make room", page.dropped));
    }
    out.line("");
    let rows: Vec<_> = page.decisions.iter().map(|decision| row(decision, style)).collect();
    if !rows.is_empty() {
        out.table(&["LINE", "TIME", "OBJECT", "PHASE", "RULE", "ACTION", ""], &rows);
        out.line("");
    }
    for decision in page.decisions.iter().filter(|decision| !decision.differs.is_empty()) {
        out.line(format!("Line {}, recorded -> now", decision.line));
        decision
            .differs
            .iter()
            .for_each(|change| out.line(format!("  {change}")));
    }
    let all = match page.decisions.len() {
        1 => "1 decision".to_owned(),
        number => format!("{number} decisions"),
    };
    out.line(match page.differing {
        0 => style.paint(Tone::Good, &format!("{all}, as recorded.")),
        1 => style.paint(Tone::Bad, &format!("{all}, of which 1 differs now.")),
        several => style.paint(Tone::Bad, &format!("{all}, of which {several} differ now.")),
    });
    out.finish()
}

fn row(decision: &Replayed, style: Style) -> Vec<String> {
    let differs = if decision.differs.is_empty() {
        String::new()
    } else {
        style.paint(Tone::Bad, "differs")
    };
    vec![
        decision.line.to_string(),
        instant(decision.at),
        decision.object.clone().unwrap_or_else(|| "cdb".to_owned()),
        decision.phase.clone(),
        decision.rule.to_owned(),
        decision.action.clone(),
        differs,
    ]
}
