//! What PgBouncer tells of its pools, for scrapers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use tokio_postgres::SimpleQueryRow;

use super::console;

/// How often PgBouncer is asked.
const EVERY: Duration = Duration::from_secs(10);

/// A gauge: its name, what it means, the column of `SHOW POOLS`, and a label with its value.
type Gauge = (&'static str, &'static str, &'static str, Option<&'static str>);

const GAUGES: [Gauge; 6] = [
    ("cdb_pooler_clients", "Clients.", "cl_active", Some("active")),
    ("cdb_pooler_clients", "Clients.", "cl_waiting", Some("waiting")),
    (
        "cdb_pooler_servers",
        "Connections to PostgreSQL.",
        "sv_active",
        Some("active"),
    ),
    (
        "cdb_pooler_servers",
        "Connections to PostgreSQL.",
        "sv_idle",
        Some("idle"),
    ),
    (
        "cdb_pooler_servers",
        "Connections to PostgreSQL.",
        "sv_login",
        Some("login"),
    ),
    (
        "cdb_pooler_wait_seconds",
        "How long the first client in the queue has waited.",
        "maxwait",
        None,
    ),
];

/// Values by database, user and number of the gauge.
type Values = BTreeMap<(String, String, usize), u64>;

/// Asks each process for ever, and tells the text.
pub(super) async fn collect(processes: u32, tell: impl Fn(String)) {
    loop {
        let mut values = Values::new();
        let mut up = 0;
        for process in 1..=processes {
            if let Ok(rows) = console::pools(process).await {
                up += 1;
                add(&mut values, &rows);
            }
        }
        tell(text(&values, up));
        tokio::time::sleep(EVERY).await;
    }
}

fn add(values: &mut Values, rows: &[SimpleQueryRow]) {
    for row in rows {
        let column = |name: &str| row.try_get(name).ok().flatten();
        let (Some(database), Some(user)) = (column("database"), column("user")) else {
            continue;
        };
        for (number, (_, _, name, _)) in GAUGES.iter().enumerate() {
            let value: u64 = column(name).and_then(|text| text.parse().ok()).unwrap_or(0);
            let sum = values
                .entry((database.to_owned(), user.to_owned(), number))
                .or_default();
            // Of waits the longest counts.
            *sum = if *name == "maxwait" {
                value.max(*sum)
            } else {
                *sum + value
            };
        }
    }
}

fn text(values: &Values, up: u32) -> String {
    let mut text = format!(
        "# HELP cdb_pooler_processes Processes of PgBouncer that answer.\n# TYPE cdb_pooler_processes gauge\ncdb_pooler_processes {up}\n"
    );
    let mut before = "";
    // Writing to a String cannot fail.
    for (number, (name, help, _, state)) in GAUGES.iter().enumerate() {
        if *name != before {
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n");
            before = name;
        }
        let own = values.iter().filter(|((_, _, of), _)| *of == number);
        for ((database, user, _), value) in own {
            let state = state.map_or(String::new(), |state| format!(",state=\"{state}\""));
            let _ = writeln!(
                text,
                "{name}{{database=\"{}\",user=\"{}\"{state}}} {value}",
                escaped(database),
                escaped(user)
            );
        }
    }
    text
}

fn escaped(label: &str) -> String {
    label.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_each_gauge_has_one_head() {
        let values = [
            (("a\"b".to_owned(), "u".to_owned(), 0), 3),
            (("a\"b".to_owned(), "u".to_owned(), 1), 4),
            (("a\"b".to_owned(), "u".to_owned(), 5), 5),
        ];
        let text = text(&values.into(), 2);
        assert!(
            text.contains("cdb_pooler_clients{database=\"a\\\"b\",user=\"u\",state=\"active\"} 3\n"),
            "{text}"
        );
        assert!(
            text.contains("cdb_pooler_wait_seconds{database=\"a\\\"b\",user=\"u\"} 5\n"),
            "{text}"
        );
        assert_eq!(text.matches("# TYPE cdb_pooler_clients gauge").count(), 1);
        assert!(text.contains("cdb_pooler_processes 2\n"));
    }
}
