//! `history`: the phases that the database went through, how long each took, and its Kubernetes events.

use api::Phase;
use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;
use serde_json::Value;

use crate::look::Look;
use crate::snapshot::Snapshot;
use crate::text::{Page, Style, Tone, instant, span};

/// The page.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryPage {
    /// The database's name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// The phases, oldest first; the operator keeps the last twenty.
    pub phases: Vec<Entry>,
    /// The resource's events, oldest first; Kubernetes keeps them for an hour.
    pub events: Vec<EventLine>,
    /// Events could be read.
    pub events_read: bool,
}

/// One phase.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// The phase.
    pub phase: Phase,
    /// When it began.
    pub since: DateTime<Utc>,
    /// How long it took, in seconds; so far, if it is the present one.
    pub seconds: i64,
    /// It has not ended.
    pub present: bool,
    /// Why it began.
    pub because: String,
}

/// One event.
#[derive(Clone, Debug, Serialize)]
pub struct EventLine {
    /// When it was last reported.
    pub at: DateTime<Utc>,
    /// `Normal` or `Warning`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The reason, in a word.
    pub reason: String,
    /// The message.
    pub message: String,
    /// How many times.
    pub count: u64,
}

/// The page of one snapshot.
pub fn page(look: &Look, snapshot: &Snapshot) -> HistoryPage {
    let history = look.status().history;
    let ends = history.iter().skip(1).map(|next| Some(next.at)).chain([None]);
    let phases = history.iter().zip(ends).map(|(change, end)| Entry {
        phase: change.to,
        since: change.at,
        seconds: (end.unwrap_or(look.now) - change.at).num_seconds().max(0),
        present: end.is_none(),
        because: change.because.clone(),
    });
    let phases = phases.collect();
    let name = look.db.metadata.name.clone().unwrap_or_default();
    let about = |event: &&Value| {
        let regarding = &event["involvedObject"];
        regarding["kind"] == "ClusteredDatabase"
            && regarding["name"] == name.as_str()
            && event["metadata"]["namespace"] == look.namespace()
    };
    let mut events: Vec<_> = snapshot.of("Event").filter(about).filter_map(event_line).collect();
    events.sort_by_key(|event| event.at);
    HistoryPage {
        name,
        namespace: look.namespace().to_owned(),
        phases,
        events,
        events_read: snapshot.knows("Event"),
    }
}

fn event_line(event: &Value) -> Option<EventLine> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let times = [
        &event["series"]["lastObservedTime"],
        &event["lastTimestamp"],
        &event["eventTime"],
    ];
    let count = event["series"]["count"]
        .as_u64()
        .or(event["count"].as_u64())
        .unwrap_or(1);
    Some(EventLine {
        at: times.into_iter().find_map(|time| time.as_str()?.parse().ok())?,
        kind: text(&event["type"]),
        reason: text(&event["reason"]),
        message: text(&event["message"]),
        count: count.max(1),
    })
}

/// The page as text.
pub fn text(page: &HistoryPage, style: Style) -> String {
    let mut out = Page::default();
    out.line(style.paint(Tone::Strong, &format!("Phases of {} in {}", page.name, page.namespace)));
    let rows: Vec<_> = page.phases.iter().map(|entry| row(entry, style)).collect();
    if rows.is_empty() {
        out.line("None yet: the operator has not seen this database.");
    } else {
        out.table(&["SINCE", "FOR", "PHASE", "BECAUSE"], &rows);
    }
    out.line("");
    out.line(style.paint(Tone::Strong, "Events"));
    let rows: Vec<_> = page.events.iter().map(|event| event_row(event, style)).collect();
    match (page.events_read, rows.is_empty()) {
        (false, _) => out.line("This program could not read them."),
        (true, true) => out.line("None: Kubernetes keeps them for an hour."),
        (true, false) => out.table(&["LAST", "TYPE", "REASON", "COUNT", "MESSAGE"], &rows),
    }
    out.finish()
}

fn row(entry: &Entry, style: Style) -> Vec<String> {
    let took = span(TimeDelta::seconds(entry.seconds));
    vec![
        instant(entry.since),
        if entry.present { format!("{took} so far") } else { took },
        style.phase(Some(entry.phase)),
        entry.because.clone(),
    ]
}

fn event_row(event: &EventLine, style: Style) -> Vec<String> {
    let kind = match event.kind.as_str() {
        "Warning" => style.paint(Tone::Bad, "Warning"),
        other => other.to_owned(),
    };
    vec![
        instant(event.at),
        kind,
        event.reason.clone(),
        event.count.to_string(),
        event.message.clone(),
    ]
}
