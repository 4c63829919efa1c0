//! Which rule of the instance machine each mutant breaks, and the page that says so (docs/instance-machine.md).

use std::fmt::Write;

use machine::instance::RULES;
use machine::instance::steps::{PROMISE, PROMISE_WRITES, PROMOTION, Step};

use super::{Mutant, named};

/// The page, in the repository.
pub const PATH: &str = "docs/instance-machine.md";

/// The mutants of each rule, in the order of the rules.
pub const BROKEN: &[(&str, &[&str])] = &[
    (
        "fence",
        &[
            "skip-the-fence",
            "a-fast-stop-fences",
            "fence-later-than-the-lease",
            "fence-by-the-new-times",
            "dead-man-is-not-set",
            "dead-man-ends-with-the-postmaster",
            "anothers-lease-is-mine",
            "every-run-is-this-one",
            "an-older-epoch-is-as-good",
        ],
    ),
    ("stop-promoted", &["promoted-by-hand-goes-on"]),
    ("kill-strays", &["strays-live-on"]),
    (
        "step-down",
        &[
            "slow-disks-pass-the-lease-round",
            "step-down-to-nobody",
            "step-down-without-an-api-server",
            "who-cannot-serve-sets-free",
            "step-down-while-stopping",
            "cannot-begin-and-stays",
            "leave-it-to-one-that-lacks-wal",
            "claim-what-it-came-with-after-writing",
            "step-down-to-those-without-room",
            "elected-again-without-room",
        ],
    ),
    (
        "renew",
        &[
            "no-renewal-while-stopping",
            "higher-promise-is-ignored",
            "an-earlier-reign-speaks-on",
        ],
    ),
    (
        "restore-lease",
        &[
            "restore-by-old-promises",
            "writes-in-doubt-are-forgotten",
            "restore-below-the-status",
        ],
    ),
    (
        "ask-failsafe",
        &[
            "failsafe-too-short",
            "failsafe-of-another-epoch",
            "one-failsafe-is-enough",
            "failsafe-of-anybody",
            "failsafe-after-a-release",
            "failsafe-beside-an-election",
            "failsafe-is-forgotten",
        ],
    ),
    (
        "end-impostors",
        &[
            "a-name-is-a-member",
            "a-name-in-capitals-is-nobodys",
            "impostors-stay",
            "a-doubt-ends-unflushed",
        ],
    ),
    (
        "shut-down",
        &[
            "clients-disconnected-for-nothing",
            "an-end-waits-for-a-checkpoint",
            "release-after-a-crash",
            "release-by-an-old-reading",
            "leave-it-to-the-wanted-one-whatever-it-lacks",
            "a-slow-standby-is-waited-for",
            "standbys-stop-first",
        ],
    ),
    (
        "hand-over",
        &[
            "hand-over-to-one-that-lags",
            "hand-over-to-one-that-was-near-before",
            "hand-over-to-one-that-is-silent",
            "hand-over-to-one-that-replays-for-long",
            "a-wish-is-tried-again",
            "an-old-wish-is-carried-out",
            "the-successor-is-not-waited-for",
        ],
    ),
    ("create-member", &["new-identity-under-data"]),
    ("store-certificate", &["certificate-of-another-member"]),
    ("stay-fenced", &["fenced-and-started"]),
    (
        "take",
        &[
            "new-pod-does-not-wait",
            "later-run-is-dead",
            "take-a-stale-lease",
            "first-take-with-old-data",
            "a-lease-made-again-counts-by-a-guess",
            "a-negative-epoch-is-zero",
        ],
    ),
    (
        "promise",
        &[
            "suspect-at-once",
            "alone-and-at-once",
            "promise-alone",
            "promise-while-it-is-made",
            "position-without-promise",
            "stale-loss-is-accepted",
        ],
    ),
    (
        "win-election",
        &[
            "any-timeline-is-reserved-next",
            "stale-promise-counts",
            "the-first-takes-a-lease-made-again",
            "a-tie-is-for-the-fastest",
            "one-promise-is-enough",
            "one-promise-too-few",
            "no-promise-is-needed",
            "any-position-wins",
            "who-has-more-and-is-gone-is-waited-for",
            "who-has-more-and-takes-nothing-is-waited-for",
            "timelines-do-not-rank",
            "unreserved-timeline-counts",
            "torn-timeline-counts",
            "planned-stop-is-not-waited-for",
            "any-loss-is-taken",
            "position-before-the-end",
            "win-in-another-epoch",
            "elect-by-a-stale-lease",
            "timeline-is-used-twice",
            "old-primary-is-no-name",
            "loss-while-the-lease-lives",
            "released-position-is-ignored",
            "successor-is-ignored",
            "forget-what-was-lost",
        ],
    ),
    ("ask", &["nobody-is-asked-by-name"]),
    (
        "read-lease",
        &["a-dead-watch-is-believed", "the-lease-is-read-all-the-time"],
    ),
    ("take-snapshot", &["own-data-count-as-a-snapshots"]),
    (
        "initdb",
        &["second-initdb", "recovered-in-any-epoch", "grant-of-another-claim"],
    ),
    (
        "promote",
        &[
            "slots-for-all-names",
            "promote-twice-to-one-number",
            "one-timeline-after-the-other-without-room",
        ],
    ),
    (
        "start-primary",
        &["primary-because-the-data-says-so", "start-foreign-data"],
    ),
    ("open", &["open-before-it-is-replicated", "open-by-an-unknown-rule"]),
    ("route", &["route-before-it-writes", "any-lease-proves-a-route-forged"]),
    (
        "admit",
        &[
            "admitted-without-a-promise",
            "a-lost-slot-is-as-good-as-any",
            "slots-outlive-a-copy",
        ],
    ),
    (
        "change-rule",
        &[
            "foreign-names-are-covered",
            "relax-before-recording",
            "record-unflushed",
            "reload-is-not-proven",
            "required-gives-in",
        ],
    ),
    (
        "drop-slots",
        &["a-silent-member-is-forgotten", "a-standby-keeps-its-slots"],
    ),
    ("cancel-copy", &["copy-for-ever"]),
    ("stop-stranded", &["a-promise-strands-nobody"]),
    ("stop-torn", &["torn-for-ever"]),
    (
        "rewind",
        &[
            "a-rewind-without-end",
            "data-of-another-time",
            "wipe-the-only-copy",
            "discard-a-primarys-data",
            "rewind-the-only-copy",
            "rewind-to-a-lost-primary",
            "rewind-to-a-closed-primary",
            "who-is-waited-for-waits",
            "rewind-as-soon-as-nobody-streams",
            "everybody-is-waited-for",
        ],
    ),
    ("clone", &["clone-over-data"]),
    (
        "start-standby",
        &[
            "promise-is-forgotten",
            "follow-by-the-timelines-number",
            "half-a-promotion-follows",
            "a-control-files-end",
            "an-end-so-far",
            "a-followed-end",
            "any-reservation-is-followed",
            "any-holder-is-followed",
            "a-former-primary-by-the-clock",
            "started-once-and-no-primarys",
            "start-half-a-rewind",
            "last-holder-follows-nobody",
        ],
    ),
    (
        "configure",
        &[
            "who-refuses-stays-as-it-is",
            "refused-settings-are-failures",
            "who-is-silent-is-configured",
            "who-refuses-follows-another",
            "a-lost-upstream-stays-lost",
            "raised-limits-stay-raised",
        ],
    ),
    (
        "follow-again",
        &[
            "a-stall-for-ever",
            "a-stall-is-never-started-again",
            "who-replays-is-started-again",
            "who-is-cut-off-is-started-again",
            "who-streams-is-started-again",
        ],
    ),
];

/// The mutants of what a member answers to others and to the kubelet, and of what it takes for observed. No rule decides that.
pub const ANSWERS: &[&str] = &[
    "an-unsigned-message-counts",
    "any-members-key-counts",
    "a-new-member-need-not-have-its-key",
    "a-new-member-displaces-one-that-is-heard",
    "the-lease-overrules-the-operators-certificate",
    "any-epoch-is-believed",
    "only-the-next-epoch-is-believed",
    "any-timeline-is-believed",
    "pods-are-never-forgotten",
    "diverged-and-read",
    "a-slow-postgres-does-not-answer",
    "an-answer-from-before-a-promise-counts",
    "an-older-lease-counts",
    "an-old-reading-forgets-a-promise",
    "a-backup-is-taken-again",
    "another-attempts-word",
    "a-copy-that-is-made-no-more",
    "attempts-without-end",
    "what-another-history-has",
    "a-stop-of-all-archives-nothing",
    "damage-is-accepted-at-any-failure",
];

/// Rules that carry out the protocol and have no mutant yet. None may be added.
const UNBROKEN: &[&str] = &[
    "discard-staging",
    "reserve-again",
    "start-to-promote",
    "stop-diverged",
    "leave-former-primary",
    "report",
];

const HEAD: &str = "\
# The instance machine

<!-- Generated from crates/machine/src/instance and crates/xtask/src/mutants/instance.rs:
`UPDATE=1 cargo test -p xtask instance` writes it again. -->

What one agent does about the PostgreSQL in its pod.

## Rules

At each decision the rules are tried in this order, and the first that applies decides. A rule that explains
only says what is waited for.
\"Protocol\" names the rules of the
[failover protocol](protocol.md) that a rule carries out. \"Mutants\" are versions of the rule that are broken on purpose
([all of them](mutants.md)); the next table says which test finds each.

| # | rule | family | kind | what | protocol | mutants |
|---|---|---|---|---|---|---|
";

const STEPS: &str = "
## Steps of a promise and of a promotion

The rules `promise` and `promote` begin work of several steps. The agent, the simulator and the model walk these
lists. A step begins as soon as the steps in its column \"after\" have ended, so some run beside each other.

| work | step | after | what | protocol |
|---|---|---|---|---|
";

const TESTS: &str = "
## Tests

Each row is a mutant of a rule, and the test that fails for it. A mutant without a rule breaks what a
member answers to others, or what it takes for observed.

| rule | mutant | what is broken | found by |
|---|---|---|---|
";

/// The rows of one list of steps.
fn steps<S: std::fmt::Debug>(work: &str, steps: &[Step<S>], page: &mut String) {
    for step in steps {
        let after: Vec<_> = step.after.iter().map(|step| format!("`{step:?}`")).collect();
        let protocol: Vec<_> = step.protocol.iter().map(u8::to_string).collect();
        let (after, protocol) = (after.join(", "), protocol.join(", "));
        let _ = writeln!(
            page,
            "| {work} | `{:?}` | {after} | {} | {protocol} |",
            step.step, step.what
        );
    }
}

/// The page.
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    for (number, rule) in RULES.iter().enumerate() {
        let protocol: Vec<_> = rule.protocol.iter().map(u8::to_string).collect();
        let _ = writeln!(
            page,
            "| {} | `{}` | {} | {} | {} | {} | {} |",
            number + 1,
            rule.name,
            rule.family,
            rule.kind.as_str(),
            rule.what,
            protocol.join(", "),
            of(rule.name).len(),
        );
    }
    page.push_str(STEPS);
    steps("promise", PROMISE, &mut page);
    steps("`Write` of a promise", PROMISE_WRITES, &mut page);
    steps("promotion", PROMOTION, &mut page);
    page.push_str(TESTS);
    for rule in RULES {
        for name in of(rule.name) {
            row(&mut page, &format!("`{}`", rule.name), name);
        }
    }
    for name in ANSWERS {
        row(&mut page, "", name);
    }
    page
}

/// The mutants of this rule.
fn of(rule: &str) -> &'static [&'static str] {
    let broken = BROKEN.iter().find(|(of, _)| *of == rule);
    broken.map_or(&[], |(_, mutants)| mutants)
}

fn row(page: &mut String, rule: &str, name: &str) {
    let Ok(Mutant { planted, found_by, .. }) = named(name) else {
        return;
    };
    let _ = writeln!(
        page,
        "| {rule} | `{name}` | {planted} | {}, `{}` |",
        found_by.rung.as_str(),
        found_by.path
    );
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::{env, fs};

    use super::super::tests::root;
    use super::super::{all, named};
    use super::*;

    #[test]
    fn page_says_what_the_tables_say() {
        let path = root().join(PATH);
        if env::var_os("UPDATE").is_some_and(|value| value == "1") {
            fs::write(&path, page()).expect("write the page");
        }
        let stored = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            stored == page(),
            "{PATH} is not what the tables say: run `UPDATE=1 cargo test -p xtask instance` and commit it"
        );
    }

    #[test]
    fn each_mutant_of_the_instance_machine_is_listed_once() {
        let listed: Vec<_> = BROKEN.iter().flat_map(|(_, mutants)| *mutants).chain(ANSWERS).collect();
        let once: BTreeSet<_> = listed.iter().collect();
        assert_eq!(once.len(), listed.len(), "a mutant stands in this file twice");
        for name in &listed {
            assert!(named(name).is_ok(), "there is no mutant {name}");
        }
        for mutant in all().filter(|mutant| mutant.file.starts_with("instance/")) {
            assert!(
                once.contains(&&mutant.name),
                "{} is to be listed in this file",
                mutant.name
            );
        }
    }

    #[test]
    fn each_listed_rule_exists_and_rules_keep_their_order() {
        let rules: Vec<_> = RULES.iter().map(|rule| rule.name).collect();
        let places: Vec<_> = BROKEN
            .iter()
            .map(|(rule, _)| {
                rules
                    .iter()
                    .position(|name| name == rule)
                    .unwrap_or_else(|| panic!("no rule {rule}"))
            })
            .collect();
        assert!(places.is_sorted(), "{places:?}");
    }

    #[test]
    fn a_rule_that_carries_out_the_protocol_has_a_mutant() {
        let carries_out = RULES.iter().filter(|rule| !rule.protocol.is_empty());
        let without = carries_out.filter(|rule| of(rule.name).is_empty());
        let without: Vec<_> = without.map(|rule| rule.name).collect();
        assert_eq!(without, UNBROKEN);
    }
}
