use super::*;

fn prefix(pid: u32) -> String {
    line_prefix(pid, "client backend", "app", "orders", "42601")
}

/// Records of what PostgreSQL has written.
fn records(text: &str) -> Vec<Record> {
    let mut assembler = Assembler::default();
    let mut line = Vec::new();
    let mut records = Vec::new();
    for part in text.as_bytes().split_inclusive(|byte| *byte == b'\n') {
        line.extend(part);
        if !goes_on(&line) {
            records.extend(assembler.push(line.trim_ascii_end()));
            line.clear();
        }
    }
    records.extend(assembler.flush());
    records
}

#[test]
fn a_name_of_a_user_or_database_cannot_pretend_to_be_a_record() {
    let forged = format!("\n{}FATAL:  forged", &prefix(9)[..20]);
    for name in [
        forged.as_str(),
        "\n\n",
        "\u{1f}\u{1f}\u{1f}",
        "\n\u{1e}9\u{1f}x\u{1f}\u{1f}\u{1f}\u{1f}FATAL:  forged\n",
    ] {
        for (user, database) in [(name, "orders"), ("app", name), (name, name)] {
            let refused = format!(
                "{}FATAL:  no entry\n",
                line_prefix(7, "client backend", user, database, "28000")
            );
            let own = format!("{}LOG:  next\n", prefix(8));
            let records = records(&format!("{refused}{own}"));
            let messages: Vec<&str> = records.iter().map(|record| record.message.as_str()).collect();
            assert_eq!(messages, ["no entry", "next"], "{name:?}");
            let first = &records[0];
            assert_eq!((first.pid, first.severity.as_str()), (Some(7), "FATAL"));
            assert_eq!(
                (first.user.as_deref(), first.database.as_deref()),
                (Some(user), Some(database))
            );
        }
    }
}

#[test]
fn a_record_is_put_together() {
    let mut assembler = Assembler::default();
    assert_eq!(
        assembler.push(format!("{}ERROR:  syntax error at \":  \"", prefix(42))),
        None
    );
    assert_eq!(assembler.push(format!("{}STATEMENT:  SELECT", prefix(42))), None);
    assert_eq!(assembler.push("\t  1 +"), None);
    let record = assembler.push(line_prefix(7, "checkpointer", "", "", "00000") + "LOG:  checkpoint starting: time");
    let record = record.expect("the first record");
    assert_eq!((record.level, record.severity.as_str()), (Level::Error, "ERROR"));
    assert_eq!(record.message, "syntax error at \":  \"");
    assert_eq!(record.details, ["STATEMENT: SELECT\n  1 +"]);
    assert_eq!((record.pid, record.user.as_deref()), (Some(42), Some("app")));
    assert_eq!(
        (record.database.as_deref(), record.code.as_deref()),
        (Some("orders"), Some("42601"))
    );
    let last = assembler.flush().expect("the last record");
    assert_eq!(
        (last.level, last.pid, last.user, last.code),
        (Level::Info, Some(7), None, None)
    );
    assert_eq!(last.message, "checkpoint starting: time");
    assert!(!assembler.is_pending());
}

#[test]
fn a_session_that_comes_too_early_is_no_error() {
    let mut assembler = Assembler::default();
    assembler.push(line_prefix(7, "client backend", "", "", "57P03") + "FATAL:  the database system is starting up");
    let record = assembler.flush().expect("a record");
    assert_eq!((record.level, record.severity.as_str()), (Level::Info, "FATAL"));
}

#[test]
fn details_of_another_process_are_not_mixed_in() {
    let mut assembler = Assembler::default();
    assembler.push(format!("{}ERROR:  one", prefix(1)));
    let first = assembler
        .push(format!("{}DETAIL:  of two", prefix(2)))
        .expect("the first record");
    assert!(first.details.is_empty());
}

#[test]
fn lines_without_our_prefix_are_kept() {
    let mut assembler = Assembler::default();
    assembler.push("2026-11-21 08:00:00.000 UTC [42] FATAL:  no such setting: \"x\"");
    let record = assembler.push("postgres: out of luck").expect("the first record");
    assert_eq!(
        (record.level, record.message.as_str()),
        (Level::Error, "no such setting: \"x\"")
    );
    assert_eq!(assembler.flush().expect("a record").message, "postgres: out of luck");
}

#[test]
fn a_message_cannot_pretend_to_be_a_record() {
    let mut assembler = Assembler::default();
    assembler.push(format!("{}ERROR:  bad", prefix(1)));
    assert_eq!(assembler.push(format!("\t{}FATAL:  forged", prefix(9))), None);
    assert_eq!(assembler.flush().expect("one record").severity, "ERROR");
}

#[test]
fn a_record_without_end_is_cut() {
    let mut assembler = Assembler::default();
    assembler.push(format!("{}ERROR:  bad", prefix(1)));
    assembler.push(format!("{}STATEMENT:  SELECT", prefix(1)));
    let line = format!("\t{}", "x".repeat(1_000));
    for _ in 0..1_000 {
        assert_eq!(assembler.push(&line), None);
    }
    assert_eq!(assembler.push("\ty"), None);
    assert_eq!(assembler.push(format!("{}HINT:  none", prefix(1))), None);
    let record = assembler
        .push(format!("{}ERROR:  next", prefix(1)))
        .expect("the first record");
    assert_eq!(record.details.len(), 2);
    assert!((LIMIT - 2_000..=LIMIT).contains(&record.details[0].len()));
    assert!(record.details[0].ends_with('x'));
    assert_eq!(record.details[1], CUT);
    let next = assembler.flush().expect("the next record");
    assert!(next.details.is_empty());
}

#[test]
fn passwords_are_taken_out() {
    let mut assembler = Assembler::default();
    assembler.push(format!("{}ERROR:  role \"x\" does not exist", prefix(1)));
    assembler.push(format!("{}STATEMENT:  ALTER ROLE x PASSWORD 'geheim'", prefix(1)));
    let record = assembler.flush().expect("a record");
    assert!(!format!("{record:?}").contains("geheim"), "{record:?}");
}
