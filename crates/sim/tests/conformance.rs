//! The model of PostgreSQL answers each script as real servers did. `UPDATE=1` records what the model answers. After
//! that run `cargo test -p agent --test conformance`, which asks PostgreSQL.

use std::fmt::Write;

use sim::simulator::conformance::{Bench, beginning, scripts};

const ANSWERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/postgres.txt");

#[test]
fn the_model_answers_as_postgres_did() {
    let mut answers = String::new();
    for script in scripts() {
        writeln!(answers, "# {}", script.name).expect("memory");
        let mut bench = Bench::new();
        let mut before = String::new();
        for step in beginning() {
            before = bench.take(&step).to_string();
        }
        for step in &script.steps {
            let view = bench.take(step).to_string();
            let changed = view.lines().filter(|line| !before.lines().any(|known| known == *line));
            let changed: Vec<&str> = changed.collect();
            writeln!(answers, "{step:?}\n{}", changed.join("\n")).expect("memory");
            before = view;
        }
        answers.push('\n');
    }
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(ANSWERS, &answers).expect("written");
    }
    let known = std::fs::read_to_string(ANSWERS).expect("readable");
    let differs = known.lines().zip(answers.lines()).position(|(known, now)| known != now);
    if let Some(line) = differs {
        let before: Vec<&str> = answers.lines().take(line + 1).collect();
        let script = before
            .iter()
            .rposition(|line| line.starts_with('#'))
            .unwrap_or_default();
        panic!(
            "postgres.txt, line {}: PostgreSQL answered\n{}\nand the model does not:\n{}",
            line + 1,
            known.lines().nth(line).unwrap_or_default(),
            before[script..].join("\n")
        );
    }
    assert_eq!(known.lines().count(), answers.lines().count(), "postgres.txt");
}
