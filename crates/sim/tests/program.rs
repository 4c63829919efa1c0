//! The program `sim`: what it takes, what it ends with, and that what it prints to be run again shows the same.

use std::process::Command;

/// How it ends, and what it prints: the answer, and the error.
fn sim(arguments: &str) -> (Option<i32>, String, String) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_sim"));
    let done = program.args(arguments.split_whitespace()).output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (done.status.code(), text(&done.stdout), text(&done.stderr))
}

/// The line that begins so.
fn line<'a>(text: &'a str, begins: &str) -> &'a str {
    let found = text.lines().find_map(|line| line.strip_prefix(begins));
    found.unwrap_or_else(|| panic!("no line {begins:?}: {text}"))
}

#[test]
fn what_cannot_be_understood_is_told_with_the_usage() {
    for (arguments, told) in [
        ("", "which command?"),
        ("dance", "\"dance\" is no command"),
        ("replay", "which seed?"),
        ("run 7", "run takes no seed"),
        ("run --seeds", "--seeds needs a value"),
        ("run --seeds many", "\"many\" is no number"),
        ("run --seeds 1 --for 1", "give --seeds or --for, not both"),
        ("run --fast", "\"--fast\" is no option"),
        ("replay 1 2", "\"2\" is one argument too many"),
        ("explain 1 --without 1,x", "\"x\" is no number"),
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
        ("search --faults 256", "\"256\" is no number from 0 to 255"),
        ("search --records", "--records needs a value"),
        ("search --seeds 1", "\"--seeds\" is no option of search"),
    ] {
        let (code, answer, error) = sim(arguments);
        assert_eq!((code, answer.as_str()), (Some(2), ""), "{arguments}");
        assert!(error.starts_with(&format!("sim: {told}")), "{arguments}: {error}");
        assert!(error.contains("usage: sim run"), "{arguments}: {error}");
    }
}

#[test]
fn where_nothing_is_wrong_it_says_so() {
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

/// What many seeds find is shrunk, and the line that it is told by shows it again.
#[test]
fn what_is_printed_to_be_run_again_shows_the_same() {
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
fn a_world_is_searched_as_a_whole_or_that_it_was_not_is_told() {
    let world = "search --members 2 --edits 1 --records 1 --epochs 2";
    let (code, answer, _) = sim(world);
    assert_eq!(code, Some(0), "{answer}");
    assert!(answer.starts_with("29710 unique states, "), "{answer}");
    let (code, answer, _) = sim(&format!("{world} --limit 1000"));
    assert_eq!(code, Some(1), "{answer}");
    assert!(answer.contains("NOT ALL: "), "{answer}");
    let (code, answer, _) = sim(&format!("{world} --steps 3"));
    assert_eq!(code, Some(0), "what so many steps lead to is all of it: {answer}");
}
