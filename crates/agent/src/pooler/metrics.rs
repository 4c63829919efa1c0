//! What PgBouncer tells of its pools, for scrapers.

use std::collections::BTreeMap;
use std::fmt::Write as _;

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
pub(super) type Values = BTreeMap<(String, String, usize), u64>;

/// Adds the values of a pool.
pub(super) fn add(values: &mut Values, database: &str, user: &str, number: impl Fn(&str) -> u64) {
    for (gauge, (_, _, column, _)) in GAUGES.iter().enumerate() {
        put(values, (database.to_owned(), user.to_owned(), gauge), number(column));
    }
}

fn put(values: &mut Values, key: (String, String, usize), value: u64) {
    // Of waits the longest counts.
    let longest = GAUGES[key.2].2 == "maxwait";
    let sum = values.entry(key).or_default();
    *sum = if longest { value.max(*sum) } else { *sum + value };
}

/// The text for scrapers, of the values of each process that answers.
pub(super) fn text<'a>(processes: impl Iterator<Item = &'a Values>) -> String {
    let (mut all, mut up) = (Values::new(), 0);
    for values in processes {
        up += 1;
        for (key, value) in values {
            put(&mut all, key.clone(), *value);
        }
    }
    rendered(&all, up)
}

fn rendered(values: &Values, up: u32) -> String {
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
        let values: Values = values.into();
        let text = text([&values, &Values::new()].into_iter());
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
