use super::*;

const MS: u64 = MILLI;
/// The fault of every test.
const FAULT: u64 = 3_000 * MS;

fn attempt(stream: &str, seq: u64, at: u64, outcome: Outcome) -> Attempt {
    Attempt {
        stream: stream.parse().unwrap(),
        seq,
        count: 1,
        sent: at * MS,
        done: at * MS + 2 * MS,
        outcome,
        server: None,
        timeline: Some(1),
        error: None,
    }
}

/// A row every 10 ms in `[from, to)`, acknowledged by `server` on `timeline`.
fn acked(stream: &str, server: &str, timeline: u32, from: u64, to: u64) -> Vec<Attempt> {
    (from..to)
        .step_by(10)
        .map(|at| Attempt {
            server: Some(server.to_owned()),
            timeline: Some(timeline),
            ..attempt(stream, at / 10 + 1, at, Outcome::Acked)
        })
        .collect()
}

fn history(parts: Vec<Vec<Attempt>>) -> History {
    let mut attempts: Vec<Attempt> = parts.into_iter().flatten().collect();
    attempts.sort_by_key(|attempt| attempt.done);
    History {
        attempts,
        ..History::default()
    }
}

/// Final tables with all rows whose attempt did not fail.
fn all_there(history: &History) -> Vec<Rows> {
    let kept = history.attempts.iter().filter(|a| a.outcome == Outcome::Acked);
    kept.map(|a| Rows {
        stream: a.stream.clone(),
        from: a.seq,
        to: a.seq,
    })
    .collect()
}

fn measure(history: &History, rows: Vec<Rows>) -> Report {
    Report::of(history, &facts(rows))
}

fn facts(rows: Vec<Rows>) -> Facts {
    Facts {
        primary: "a".to_owned(),
        injected: FAULT,
        released: None,
        rows,
    }
}

#[test]
fn the_longest_gap_is_the_outage_and_all_long_ones_are_summed() {
    let history = history(vec![
        acked("service", "a", 1, 0, 3_100),
        acked("service", "b", 2, 4_500, 5_000),
        acked("service", "b", 2, 5_300, 6_000),
    ]);
    let report = measure(&history, all_there(&history));
    // From the row of 3090 ms to that of 4500; then from 4990 to 5300.
    assert_eq!((report.outage, report.gaps_sum, report.gaps), (1_410.0, 1_720.0, 2));
    assert_eq!((report.baseline_gap, report.outage_open), (10.0, false));
    assert_eq!(report.primary_after, "b");
    assert_eq!(
        (report.stages.stopped, report.stages.reconnected),
        (Some(92.0), Some(1_502.0))
    );
    assert!(report.is_safe());
}

#[test]
fn a_gap_before_the_fault_is_no_outage_and_one_across_it_is() {
    let before = history(vec![
        acked("service", "a", 1, 0, 1_000),
        acked("service", "a", 1, 2_000, 4_000),
    ]);
    let report = measure(&before, all_there(&before));
    assert_eq!((report.outage, report.baseline_gap, report.gaps), (10.0, 1_010.0, 0));
    let across = history(vec![
        acked("service", "a", 1, 0, 2_950),
        acked("service", "a", 1, 3_950, 5_000),
    ]);
    assert_eq!(measure(&across, all_there(&across)).outage, 1_010.0);
}

#[test]
fn an_outage_that_does_not_end_lasts_to_the_end_of_the_run() {
    let mut refused = attempt("service", 9_000, 60_000, Outcome::Error);
    refused.count = 500;
    let history = history(vec![acked("service", "a", 1, 0, 3_000), vec![refused]]);
    let report = measure(&history, all_there(&history));
    assert!(report.outage_open);
    assert_eq!(report.outage, 57_010.0);
    assert_eq!(report.outcomes[&Outcome::Error], 500);
    assert_eq!(report.stages.reconnected, None);
}

#[test]
fn other_writers_that_end_later_make_no_gap() {
    let history = history(vec![
        acked("service", "a", 1, 0, 6_000),
        acked("inside/held", "a", 1, 0, 7_000),
        acked("held", "a", 1, 0, 6_000),
    ]);
    let report = measure(&history, all_there(&history));
    assert_eq!((report.outage, report.gaps, report.outage_open), (10.0, 0, false));
    assert_eq!(report.held_until, None);
}

#[test]
fn rows_are_lost_ghosts_or_unexplained() {
    let history = history(vec![vec![
        attempt("service", 1, 10, Outcome::Acked),
        attempt("service", 2, 20, Outcome::Acked),
        attempt("service", 3, 30, Outcome::Unknown),
        attempt("service", 4, 40, Outcome::Unknown),
        attempt("service", 5, 50, Outcome::Error),
        attempt("pod/a", 1, 50, Outcome::Acked),
    ]]);
    let rows = |from, to| Rows {
        stream: SERVICE,
        from,
        to,
    };
    // 2 is missing, 3 is there, 5 was refused and is there, 6 was never tried, and the pod's own row is missing.
    let report = measure(&history, vec![rows(1, 1), rows(3, 3), rows(5, 6)]);
    assert_eq!((report.lost.count, report.ghosts.count), (2, 1));
    assert_eq!(report.lost.first, ["service 2", "pod/a 1"]);
    assert_eq!(report.unexplained.first, ["service 5", "service 6"]);
    assert!(!report.is_safe());
}

#[test]
fn an_old_primary_that_acknowledges_after_the_new_one_is_an_overlap() {
    let history = history(vec![
        acked("service", "a", 1, 0, 3_000),
        acked("inside/held", "a", 1, 0, 5_000),
        acked("service", "b", 2, 4_000, 6_000),
    ]);
    let report = measure(&history, all_there(&history));
    let overlap = report.overlap.clone().unwrap();
    assert_eq!((overlap.old.as_str(), overlap.new.as_str()), ("a", "b"));
    // b's first is known at 4002; a's rows of 4010 to 4990 count, the last known at 4992.
    assert_eq!((overlap.rows, overlap.milliseconds), (99, 990.0));
    assert!(!report.is_safe());
}

#[test]
fn a_row_under_way_while_the_new_primary_acknowledges_is_no_overlap() {
    let mut late = attempt("service", 900, 3_990, Outcome::Acked);
    late.server = Some("a".to_owned());
    late.done = 4_500 * MS;
    let history = history(vec![
        acked("service", "a", 1, 0, 3_000),
        vec![late],
        acked("pod/b", "b", 2, 4_000, 6_000),
    ]);
    assert_eq!(measure(&history, all_there(&history)).overlap, None);
}

#[test]
fn going_back_on_a_new_timeline_is_no_overlap_and_alternating_on_one_is() {
    let back = history(vec![
        acked("service", "a", 1, 0, 1_000),
        acked("service", "b", 2, 1_500, 2_000),
        acked("service", "a", 3, 2_500, 3_500),
    ]);
    assert_eq!(measure(&back, all_there(&back)).overlap, None);
    let alternating = history(vec![
        acked("service", "a", 1, 0, 1_000),
        acked("service", "b", 1, 1_500, 2_000),
        acked("service", "a", 1, 2_500, 3_500),
    ]);
    assert_eq!(measure(&alternating, all_there(&alternating)).overlap.unwrap().old, "a");
}

#[test]
fn stages_are_those_of_the_longest_gap() {
    let mut history = history(vec![
        acked("service", "a", 1, 0, 3_100),
        acked("pod/a", "a", 1, 0, 3_100),
        acked("pod/b", "b", 2, 4_200, 6_000),
        acked("service", "b", 2, 4_500, 6_000),
    ]);
    history.mark(1_000 * MS, "lease db a");
    history.mark(4_000 * MS, "lease db b");
    history.mark(4_300 * MS, "route 10.0.0.2");
    history.mark(5_000 * MS, "lease db b");
    let stages = measure(&history, all_there(&history)).stages;
    assert_eq!(stages.elected, Some(1_000.0));
    assert_eq!((stages.promoted, stages.routed), (Some(1_202.0), Some(1_300.0)));
}

#[test]
fn a_primary_that_comes_back_is_promoted_at_the_end_of_its_silence() {
    let history = history(vec![
        acked("service", "a", 1, 0, 2_900),
        // The last rows before the fault takes effect are not those of a new primary.
        acked("pod/a", "a", 1, 0, 3_100),
        acked("pod/a", "a", 1, 4_000, 6_000),
        acked("service", "a", 1, 4_300, 6_000),
    ]);
    let stages = measure(&history, all_there(&history)).stages;
    assert_eq!(stages.promoted, Some(1_002.0));
}

#[test]
fn a_pod_streams_again_when_it_shows_a_row_of_the_time_after() {
    let mut history = history(vec![
        acked("service", "a", 1, 0, 3_000),
        acked("service", "b", 2, 4_000, 9_000),
    ]);
    // Row 401 is the first after the gap.
    history.follows = vec![
        (4_500 * MS, "c".to_owned(), 300),
        (5_000 * MS, "c".to_owned(), 450),
        (8_000 * MS, "a".to_owned(), 700),
        (8_100 * MS, "a".to_owned(), 710),
    ];
    let report = measure(&history, all_there(&history));
    assert_eq!(report.streaming["c"], 2_000.0);
    assert_eq!(report.old_primary_streaming(), Some(5_000.0));
    let undone = Facts {
        released: Some(7_000 * MS),
        ..facts(all_there(&history))
    };
    let report = Report::of(&history, &undone);
    assert_eq!((report.streaming["c"], report.streaming["a"]), (2_000.0, 1_000.0));
}

#[test]
fn a_held_session_ends_with_its_last_row() {
    let history = history(vec![
        acked("service", "a", 1, 0, 9_000),
        acked("held", "a", 1, 0, 4_000),
        vec![attempt("held", 5_000, 4_000, Outcome::Unknown)],
    ]);
    assert_eq!(measure(&history, all_there(&history)).held_until, Some(992.0));
}
