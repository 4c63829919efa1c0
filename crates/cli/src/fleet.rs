//! `status` without a name: all databases, one line each, the worst first.

use std::collections::BTreeMap;

use api::{ClusteredDatabase, Guarded, Phase};
use chrono::{DateTime, Utc};
use kube::ResourceExt;
use serde::Serialize;

use crate::text::{Page, Style, Tone, span};
use crate::verdict::{Actor, Headline, Verdict, headline};

/// A problem is cut to this many characters: one line each.
const PROBLEM: usize = 60;

/// The page.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub struct FleetPage {
    /// The databases, the worst first.
    pub databases: Vec<Line>,
    /// Whether to show namespaces.
    #[serde(skip)]
    pub namespaces: bool,
}

/// One database.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The verdict.
    #[serde(flatten)]
    pub headline: Headline,
    /// `status.phase`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Ready and wanted instances.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ready: String,
    /// The serving primary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary: Option<String>,
}

/// The page of these databases, with their namespaces if that is asked for, or if they have several.
pub fn page(databases: &[Guarded<ClusteredDatabase>], namespaces: bool, now: DateTime<Utc>) -> FleetPage {
    let mut databases: Vec<_> = databases.iter().map(|db| line(db, now)).collect();
    databases.sort_by(|a, b| {
        let key = |line: &Line| (line.headline.verdict, line.name.clone(), line.namespace.clone());
        key(a).cmp(&key(b))
    });
    let first = databases.first().map(|line| line.namespace.clone());
    let several = databases.iter().any(|line| Some(&line.namespace) != first.as_ref());
    let namespaces = namespaces || several;
    FleetPage { databases, namespaces }
}

fn line(db: &Guarded<ClusteredDatabase>, now: DateTime<Utc>) -> Line {
    let (namespace, name) = (db.namespace().unwrap_or_default(), db.name_any());
    match &db.0 {
        Ok(db) => {
            let status = db.status.clone().unwrap_or_default();
            Line {
                namespace,
                name,
                headline: headline(db, now),
                phase: status.phase,
                ready: status.ready,
                primary: status.current_primary,
            }
        }
        Err(unreadable) => Line {
            namespace,
            name,
            headline: Headline {
                verdict: Verdict::Unknown,
                since: None,
                lasts: None,
                problem: Some(format!("cannot be read: {}", unreadable.why)),
                actor: Some(Actor::You),
                action: None,
            },
            phase: None,
            ready: String::new(),
            primary: None,
        },
    }
}

/// The page as text.
pub fn text(page: &FleetPage, style: Style) -> String {
    let mut out = Page::default();
    if page.databases.is_empty() {
        out.line(if page.namespaces {
            "No databases."
        } else {
            "No databases here: choose another --namespace, or --all-namespaces."
        });
        return out.finish();
    }
    let heads = [
        "NAMESPACE",
        "NAME",
        "VERDICT",
        "FOR",
        "PHASE",
        "READY",
        "PRIMARY",
        "PROBLEM",
    ];
    let skipped = usize::from(!page.namespaces);
    let rows: Vec<_> = page
        .databases
        .iter()
        .map(|line| row(line, style).split_off(skipped))
        .collect();
    out.table(&heads[skipped..], &rows);
    out.line("");
    out.line(count(page, style));
    out.finish()
}

fn row(line: &Line, style: Style) -> Vec<String> {
    let or = |text: Option<String>| text.filter(|text| !text.is_empty()).unwrap_or_else(|| "-".to_owned());
    let headline = &line.headline;
    let mut problem = headline.problem.clone().unwrap_or_default();
    if let (Verdict::Failed, Some(message)) = (headline.verdict, &headline.action) {
        problem = format!("{problem}: {message}");
    }
    if let Some((end, _)) = problem.char_indices().nth(PROBLEM) {
        problem = format!("{}…", problem[..end].trim_end());
    }
    if headline.actor == Some(Actor::You) {
        problem = format!("{}: {problem}", style.paint(Tone::Bad, "needs YOU"));
    }
    vec![
        line.namespace.clone(),
        line.name.clone(),
        headline.verdict.paint(style),
        or(headline.lasts.map(span)),
        line.phase.map_or_else(|| "-".to_owned(), |phase| phase.to_string()),
        or(Some(line.ready.clone())),
        or(line.primary.clone()),
        problem,
    ]
}

/// How many databases there are with each verdict.
fn count(page: &FleetPage, style: Style) -> String {
    let mut verdicts: BTreeMap<Verdict, usize> = BTreeMap::new();
    for line in &page.databases {
        *verdicts.entry(line.headline.verdict).or_default() += 1;
    }
    let counts: Vec<_> = verdicts
        .iter()
        .map(|(verdict, count)| format!("{count} {}", verdict.paint(style)))
        .collect();
    let all = match page.databases.len() {
        1 => "1 database".to_owned(),
        all => format!("{all} databases"),
    };
    let needy = |line: &&Line| line.headline.actor == Some(Actor::You);
    let you = match page.databases.iter().filter(needy).count() {
        0 => "none needs you".to_owned(),
        1 => "1 needs YOU".to_owned(),
        several => format!("{several} need YOU"),
    };
    format!("{all}: {}; {you}.", counts.join(", "))
}
