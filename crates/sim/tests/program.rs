//! The program `sim`: its arguments, its exit codes, and that the commands that it prints reproduce the same run.

use std::process::Command;

/// Its exit code and its output: the answer, and the error.
fn sim(arguments: &str) -> (Option<i32>, String, String) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_sim"));
    let done = program.args(arguments.split_whitespace()).output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (done.status.code(), text(&done.stdout), text(&done.stderr))
}

/// The line that begins with `begins`.
fn line<'a>(text: &'a str, begins: &str) -> &'a str {
    let found = text.lines().find_map(|line| line.strip_prefix(begins));
    found.unwrap_or_else(|| panic!("no line {begins:?}: {text}"))
}

#[test]
fn invalid_arguments_are_reported_with_the_usage() {
    for (arguments, told) in [
        ("", "which command?"),
        ("dance", "\"dance\" is not a command"),
        ("replay", "which seed?"),
        ("run 7", "run takes no seed"),
        ("run --seeds", "--seeds needs a value"),
        ("run --seeds many", "\"many\" is not a number"),
        ("run --seeds 1 --for 1", "give --seeds or --for, not both"),
        ("run --fast", "\"--fast\" is not an option"),
        ("replay 1 2", "\"2\" is one argument too many"),
        ("explain 1 --without 1,x", "\"x\" is not a number"),
        ("shrink 1 --bug Nothing", "\"Nothing\" is none of FenceIsSkipped"),
        ("failovers --fault Nothing", "\"Nothing\" is none of KillPostgres"),
        ("search --members 7", "7 members: give 2, 3, 4 or 5"),
        (
            "search --members 3 --required 3",
            "of 3 members 2 can be required at most",
        ),
        (
            "search --start moon",
            "\"moon\" is none of formed, cut, parted, strict, given-up",
        ),
        ("search --faults 256", "\"256\" is not a number from 0 to 255"),
        ("search --records", "--records needs a value"),
        ("search --seeds 1", "\"--seeds\" is not an option of search"),
    ] {
        let (code, answer, error) = sim(arguments);
        assert_eq!((code, answer.as_str()), (Some(2), ""), "{arguments}");
        assert!(error.starts_with(&format!("sim: {told}")), "{arguments}: {error}");
        assert!(error.contains("usage: sim run"), "{arguments}: {error}");
    }
}

#[test]
fn without_a_failure_it_says_so() {
    let (code, answer, _) = sim("run --seeds 3");
    assert_eq!(code, Some(0), "{answer}");
    assert!(answer.contains("3 seeds in "), "{answer}");
    let (code, answer, _) = sim("replay 3");
    assert_eq!(code, Some(0), "{answer}");
    let (one, two) = line(&answer, "fingerprint ").split_once(", again ").expect("two");
    assert_eq!(one, two);
    assert_eq!(sim("explain 3 --whole").0, Some(0));
    let (code, answer, _) = sim("shrink 3");
    assert_eq!(
        (code, answer.as_str()),
        (Some(1), "seed 3: nothing is wrong\n"),
        "there is nothing to shrink"
    );
    assert!(sim("failovers --runs 1 --fault KillAgent").1.contains(" failovers in "));
}

/// A failure of many seeds is shrunk, and the printed command shows it again.
#[test]
fn the_printed_command_shows_the_same_failure() {
    for whole in ["", " --whole"] {
        let (code, answer, _) = sim(&format!("run --seeds 30 --bug LeaseIsOverwritten{whole}"));
        assert_eq!(code, Some(1), "{answer}");
        let again = line(&answer, "again: sim ");
        assert_eq!(again.contains("--whole"), !whole.is_empty(), "{again}");
        let (code, told, error) = sim(again);
        assert_eq!(code, Some(1), "{again}: {error}{told}");
        assert_eq!(line(&told, "WRONG: "), line(&answer, "WRONG: "), "{again}");
    }
}

#[test]
fn a_search_says_whether_it_was_complete() {
    let world = "search --members 2 --edits 1 --records 1 --epochs 2";
    let (code, answer, _) = sim(world);
    assert_eq!(code, Some(0), "{answer}");
    assert!(answer.starts_with("29710 unique states, "), "{answer}");
    let (code, answer, _) = sim(&format!("{world} --limit 1000"));
    assert_eq!(code, Some(1), "{answer}");
    assert!(answer.contains("NOT ALL: "), "{answer}");
    let (code, answer, _) = sim(&format!("{world} --steps 3"));
    assert_eq!(code, Some(0), "all states are within that many steps: {answer}");
}
