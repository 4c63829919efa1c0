//! Each rule of the failover protocol has something that would find its loss, and docs/model.md says what.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use sim::model::bounds::Mutant;

/// What holds in every state, or from every state on. In the model's words: docs/model.md.
const LOST: &str = "nothing acknowledged is lost";
const PROMISED: &str = "who receives has promised this epoch, and none above";
const TWICE: &str = "no timeline is begun twice";
const ALONE: &str = "no two acknowledge alone";
const SERVES: &str = "it comes to serve, and to rest";
const HALF: &str = "nothing starts on half-rewound data";

/// A rule: its name, what of the above needs it, and what of it is outside of the model's world.
type Row = (&'static str, &'static [&'static str], &'static str);

const RULES: [Row; 22] = [
    (
        "Members are incarnations",
        &[],
        "no two runs share a volume, and no volume is lost: `machine::instance::exploration` has two pods on one",
    ),
    ("The promise store", &[PROMISED, LOST], ""),
    (
        "Who may acknowledge",
        &[LOST],
        "certificates and slots; that a name is one server is in it",
    ),
    (
        "Order of a promise",
        &[PROMISED, LOST],
        "the steps within one task are one event",
    ),
    ("Position", &[LOST], ""),
    ("Adopt on follow", &[PROMISED], ""),
    ("Bump", &[SERVES], ""),
    ("The holder's own promise", &[LOST], ""),
    ("Ranking, and number of promises", &[LOST], ""),
    ("Changing the rule", &[LOST], ""),
    ("Proof of reload", &[LOST], ""),
    ("Take by compare-and-swap", &[LOST, TWICE], ""),
    ("Names before promotion, hold-back", &[LOST], ""),
    ("One reservation, one promotion", &[TWICE], ""),
    ("Resume after an agent's crash", &[TWICE], ""),
    ("Release and switchover", &[LOST, SERVES], ""),
    (
        "Rewind",
        &[HALF, LOST],
        "WAL that the source has removed: a unit test of the machine",
    ),
    (
        "Lease missing is Unknown",
        &[TWICE, LOST],
        "that the user has it made again: a convergence test of the machine",
    ),
    ("API outage", &[ALONE], ""),
    ("`Preferred` and `Async`", &[ALONE, LOST], "the mode `Preferred` itself"),
    ("Availability", &[SERVES], ""),
    (
        "Scope",
        &[],
        "no clients that cancel and no settings: that a fence kills those who wait is a unit test of the machine, that `fsync = off` is refused one of crate `api`",
    ),
];

/// A row of docs/mutants.md: the mutant, what it breaks, and what finds it.
struct Found {
    name: String,
    rung: String,
}

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The machine's mutants by the rule that they break.
fn of_machine() -> BTreeMap<usize, Vec<Found>> {
    let mut found: BTreeMap<usize, Vec<Found>> = BTreeMap::new();
    for row in page("mutants.md").lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let rule = cells[3].strip_prefix("protocol ").and_then(|rule| rule.parse().ok());
        if let Some(rule) = rule {
            found.entry(rule).or_default().push(Found {
                name: cells[1].to_owned(),
                rung: cells[4].to_owned(),
            });
        }
    }
    found
}

fn of_model(rule: usize) -> Vec<String> {
    let breaks = |mutant: &&Mutant| mutant.rules().iter().any(|broken| usize::from(*broken) == rule);
    Mutant::ALL
        .iter()
        .filter(breaks)
        .map(|mutant| format!("`{mutant:?}`"))
        .collect()
}

/// Whatever rule is left out, a check of whole courses fails; where the world cannot express it, it is said what fails.
#[test]
fn each_rule_has_what_would_find_its_loss() {
    let machine = of_machine();
    for (number, (name, always, outside)) in (1..).zip(RULES) {
        let of_machine = machine.get(&number).map_or(&[][..], Vec::as_slice);
        let courses = ["model", "exploration", "convergence test"];
        let whole = of_machine.iter().any(|found| courses.contains(&found.rung.as_str()));
        assert!(
            whole || !of_model(number).is_empty() || !outside.is_empty() && !of_machine.is_empty(),
            "rule {number} ({name}): no mutant of the model's or the machine's breaks it"
        );
        assert!(
            of_model(number).is_empty() || !always.is_empty(),
            "rule {number} ({name}): by what is its mutant found?"
        );
    }
}

const BEGIN: &str = "<!-- Rules: written by `UPDATE=1 cargo test -p sim --test rules`. -->\n";
const END: &str = "<!-- End of rules. -->\n";

#[test]
fn the_page_says_what_would_find_the_loss_of_each_rule() {
    let machine = of_machine();
    let mut table =
        "\n| Rule | Always | Mutants of the model | Mutants of the machine | Not in this world |\n|---|---|---|---|---|\n"
            .to_owned();
    for (number, (name, always, outside)) in (1..).zip(RULES) {
        let of_machine = machine.get(&number).map_or(&[][..], Vec::as_slice);
        let of_machine: Vec<_> = of_machine
            .iter()
            .map(|found| format!("{} ({})", found.name, found.rung))
            .collect();
        let cells = [
            format!("{number} {name}"),
            always.join("; "),
            of_model(number).join(", "),
            of_machine.join(", "),
            outside.to_owned(),
        ];
        table += &format!("| {} |\n", cells.join(" | "));
    }
    let page = page("model.md");
    let (before, rest) = page.split_once(BEGIN).expect("where the table begins");
    let (written, after) = rest.split_once(END).expect("where the table ends");
    let table = format!("{table}\n");
    if std::env::var_os("UPDATE").is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/model.md");
        fs::write(path, format!("{before}{BEGIN}{table}{END}{after}")).expect("write docs/model.md");
    } else {
        assert_eq!(written, table, "UPDATE=1 cargo test -p sim --test rules");
    }
}
