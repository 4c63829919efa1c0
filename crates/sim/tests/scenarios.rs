//! Scenarios of docs/scenarios.md, by number, in the simulator. Each is a script of faults with a transcript, which is
//! compared with a file in `golden/`. The simulator and the script check at every step what must hold in any
//! transcript. The operator only takes part in the scenario of section A.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::path::Path;

use api::WantedDurability;
use api::status::DurabilityMode;
use machine::timing::Timing;
use sim::simulator::{Fault, Injection, Line, Outcome, Plan, Target, run};

const PRIMARY: Target = Target::Primary;

/// A fault: begin and end in milliseconds, kind and target.
type Strike = (u64, u64, Fault, Target);

/// A finished run of a database with this many members, whose commits wait for this many standbys.
struct Told {
    outcome: Outcome,
    /// When the first fault begins.
    first: u64,
}

fn script(name: &str, members: usize, standbys: usize, strikes: &[Strike]) -> Told {
    let injections = strikes.iter().map(|&(at, lasts, fault, target)| Injection {
        fault,
        at,
        lasts,
        target,
        other: 0,
    });
    told(name, planned(members, standbys, injections.collect()))
}

fn planned(members: usize, standbys: usize, faults: Vec<Injection>) -> Plan {
    let ends = faults.iter().map(|fault| fault.at + fault.lasts).max().unwrap_or(0);
    let mode = match standbys {
        0 => DurabilityMode::Async,
        _ => DurabilityMode::Required,
    };
    Plan {
        members,
        replicas: members,
        durability: WantedDurability { mode, standbys },
        timing: Timing::DEFAULT,
        length: ends + 20_000,
        rates: vec![0; members],
        pace: 200,
        size: 8_000,
        gone: None,
        whole: false,
        bug: None,
        archive: None,
        faults,
        seed: 1,
    }
}

fn told(name: &str, plan: Plan) -> Told {
    let first = plan.faults.iter().map(|fault| fault.at).min().unwrap_or(0);
    let outcome = run(plan, true);
    let transcript = transcript(&outcome, first);
    assert_eq!(outcome.wrong, None, "{transcript}");
    assert_eq!(outcome.excused, None, "{transcript}");
    compare(name, &transcript);
    Told { outcome, first }
}

impl Told {
    /// The members that have taken the lease since the first fault, in order.
    fn holders(&self) -> Vec<&str> {
        let world = self.since().filter(|line| line.node.is_none());
        let taken = world.filter_map(|line| line.what.split_once(" holds the lease"));
        taken.map(|(who, _)| who).collect()
    }

    /// How often this was decided or happened since the first fault.
    fn count(&self, what: &str) -> usize {
        self.since().filter(|line| line.what.starts_with(what)).count()
    }

    /// How long after the first fault a primary opened, in milliseconds.
    fn opened_after(&self) -> u64 {
        let opened = self.since().find(|line| line.what.starts_with("open: "));
        opened.map_or(u64::MAX, |line| line.at - self.first)
    }

    fn since(&self) -> impl Iterator<Item = &Line> {
        self.outcome.lines.iter().filter(|line| line.at >= self.first)
    }
}

/// What happens from the first fault on, without the reports, renewals, readings and waits that happen all the time.
fn transcript(outcome: &Outcome, first: u64) -> String {
    let mut text = String::new();
    let mut last = std::collections::BTreeMap::new();
    for Line { at, node, what } in outcome.lines.iter().filter(|line| line.at >= first) {
        let usual = ["report: ", "renew: ", "read-lease: ", "wait: "]
            .iter()
            .any(|rule| what.starts_with(rule));
        if usual || last.insert(*node, what) == Some(what) {
            continue;
        }
        let who = node.map_or_else(|| "world".to_owned(), |node| format!("orders-{node}"));
        text += &format!("{:>7.1}  {who:<9} {what}\n", *at as f64 / 1_000.0);
    }
    text
}

/// Compares a transcript with its golden file; with `UPDATE=1` writes the file instead.
fn compare(name: &str, transcript: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.txt"));
    if std::env::var_os("UPDATE").is_some_and(|value| value == "1") {
        std::fs::write(&path, transcript).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == transcript,
        "golden/{name}.txt is not what happens; if that is right: UPDATE=1 cargo test -p sim --test scenarios\n{transcript}"
    );
}

/// Faults of a particular node, for all except the first.
const NODE: fn(usize) -> Target = Target::Node;

/// Here the operator takes part, and is away for half a minute, which the failover does not need.
#[test]
fn a_10_the_operator_and_the_primary_are_lost_at_once() {
    let faults = [Fault::KillOperator, Fault::Reboot].map(|fault| Injection {
        fault,
        at: 30_000,
        lasts: 30_000,
        target: PRIMARY,
        other: 0,
    });
    let plan = Plan {
        whole: true,
        ..planned(3, 1, faults.to_vec())
    };
    let told = told("10-operator-and-primary-lost", plan);
    assert_eq!(told.holders().len(), 1, "{:?}", told.holders());
    assert!(told.opened_after() < 5_000, "{}", told.opened_after());
}

#[test]
fn b_16_the_rule_grows_unseen_and_the_primary_dies() {
    let late = (1..5).map(|node| (4_000, 8_000, Fault::LagWatch, NODE(node), 0));
    let then = [
        (5_000, 0, Fault::EditDurability, PRIMARY, 4),
        (5_600, 20_000, Fault::Reboot, NODE(0), 0),
    ];
    let faults = late.chain(then).map(|(at, lasts, fault, target, other)| Injection {
        fault,
        at,
        lasts,
        target,
        other,
    });
    let told = told(
        "16-the-rule-grows-and-the-primary-dies",
        planned(5, 1, faults.collect()),
    );
    assert_eq!(told.holders().len(), 1, "{:?}", told.holders());
}

#[test]
fn e_38_the_postmaster_is_killed() {
    let told = script(
        "38-postmaster-killed",
        3,
        1,
        &[(5_000, 0, Fault::KillPostgres, PRIMARY)],
    );
    assert!(told.holders().is_empty(), "it recovers in place");
    assert!(told.opened_after() < 5_000);
}

#[test]
fn e_40_the_agent_is_killed() {
    let told = script("40-agent-killed", 3, 1, &[(5_000, 500, Fault::KillAgent, PRIMARY)]);
    assert!(told.opened_after() < 8_000);
    assert!(told.holders().is_empty(), "a new run takes its own lease again");
}

#[test]
fn e_41_the_agent_stands_still() {
    let told = script(
        "41-agent-stopped",
        3,
        1,
        &[(5_000, 25_000, Fault::FreezeAgent, PRIMARY)],
    );
    assert_eq!(told.count("the dead-man kills everything"), 1);
    assert_eq!(told.holders().len(), 1);
    assert!(told.opened_after() < 15_000);
}

#[test]
fn e_42_the_primary_is_cut_off_from_everything() {
    let told = script("42-primary-cut-off", 3, 1, &[(5_000, 25_000, Fault::CutNode, PRIMARY)]);
    assert_eq!(told.holders().len(), 1);
    assert!(told.opened_after() < 10_000);
}

#[test]
fn e_43_the_primary_is_cut_off_from_the_api_server_only() {
    let told = script(
        "43-primary-without-the-api-server",
        3,
        1,
        &[(5_000, 60_000, Fault::CutApi, PRIMARY)],
    );
    assert!(told.holders().is_empty() && told.count("fence: ") == 0, "it goes on");
    assert_eq!(told.count("PostgreSQL has ended"), 0);
}

#[test]
fn e_45_the_api_server_is_away_for_ten_minutes() {
    let told = script("45-no-api-server", 3, 1, &[(5_000, 600_000, Fault::ApiOutage, PRIMARY)]);
    assert!(told.holders().is_empty() && told.count("fence: ") == 0, "it goes on");
    assert_eq!(told.count("PostgreSQL has ended"), 0);
}

#[test]
fn e_46_the_api_server_fails_and_lags() {
    let late = (0..3).map(|node| (5_000, 60_000, Fault::LagWatch, NODE(node)));
    let strikes: Vec<_> = late.chain([(5_000, 60_000, Fault::ApiErrors, PRIMARY)]).collect();
    let told = script("46-a-failing-api-server", 3, 1, &strikes);
    assert_eq!((told.holders().len(), told.count("fence: ")), (0, 0), "nothing flaps");
}

#[test]
fn e_47_the_node_loses_its_power() {
    let told = script("47-power-lost", 3, 1, &[(5_000, 60_000, Fault::Reboot, PRIMARY)]);
    assert_eq!(told.holders().len(), 1);
    assert!(told.opened_after() < 10_000);
}

#[test]
fn e_50_the_whole_pod_is_frozen() {
    let told = script(
        "50-frozen-and-back",
        3,
        1,
        &[(5_000, 60_000, Fault::FreezePod, PRIMARY)],
    );
    assert_eq!(told.holders().len(), 1);
    assert!(told.opened_after() < 15_000);
    let mut ended = told
        .since()
        .filter(|line| line.what.starts_with("PostgreSQL has ended"));
    let ended = ended.next().map(|line| line.at);
    assert!(
        ended.is_some_and(|at| (65_000..66_000).contains(&at)),
        "killed as soon as it continues: {ended:?}"
    );
}

#[test]
fn e_51_the_disk_hangs() {
    let told = script("51-disk-hangs", 3, 1, &[(5_000, 60_000, Fault::HangDisk, PRIMARY)]);
    assert_eq!(told.holders().len(), 1);
    assert!(told.opened_after() < 25_000);
}

/// A primary whose disk takes seconds loses the lease to a member with a fast disk, and only once.
#[test]
fn e_51_the_primarys_disk_takes_seconds() {
    let told = script(
        "51-a-disk-that-takes-seconds",
        3,
        1,
        &[(5_000, 120_000, Fault::CrawlDisk, NODE(0))],
    );
    assert_eq!(told.holders().len(), 1, "{:?}", told.holders());
}

/// If all disks are so slow, no other member can take the lease in time: the holder steps down once, takes it back, and
/// then keeps it.
#[test]
fn e_51_all_disks_take_seconds() {
    // Two minutes after it stepped down it would do so again, to members whose disks are fast again first.
    let strikes = [0, 1, 2].map(|node| (5_000, 110_000, Fault::CrawlDisk, NODE(node)));
    let told = script("51-all-disks-take-seconds", 3, 1, &strikes);
    assert!(told.holders().is_empty(), "{:?}", told.holders());
    assert_eq!((told.count("take: "), told.count("PostgreSQL has ended")), (1, 1));
}

#[test]
fn e_54_one_standby_is_slow() {
    let told = script("54-a-slow-standby", 3, 1, &[(5_000, 60_000, Fault::SlowDisk, NODE(2))]);
    assert_eq!((told.holders().len(), told.count("PostgreSQL has ended")), (0, 0));
}

/// Both standbys and the primary reach the API server, but one standby and the primary do not reach each other.
#[test]
fn e_54_one_standby_is_cut_off_from_the_primary_only() {
    let faults = [(0, 0), (1, 1)].map(|(node, other)| Injection {
        fault: Fault::CutPair,
        at: 5_000,
        lasts: 60_000,
        target: NODE(node),
        other,
    });
    let told = told("54-cut-off-from-the-primary-only", planned(3, 1, faults.to_vec()));
    assert!(
        told.holders().is_empty(),
        "no member takes the lease of a primary that renews it"
    );
    assert_eq!((told.count("fence: "), told.count("PostgreSQL has ended")), (0, 0));
}

#[test]
fn f_56_the_synchronous_standby_is_lost() {
    let told = script(
        "56-synchronous-standbys-lost",
        3,
        1,
        &[
            (5_000, 30_000, Fault::Reboot, NODE(1)),
            (10_000, 30_000, Fault::Reboot, NODE(2)),
        ],
    );
    assert!(
        told.holders().is_empty(),
        "commits wait, and no other member takes over"
    );
}

#[test]
fn f_59_a_primary_restarts_with_commits_in_doubt_and_dies() {
    let told = script(
        "59-in-doubt-and-dead",
        3,
        1,
        &[
            (5_000, 3_000, Fault::FreezePostgres, NODE(1)),
            (5_000, 3_000, Fault::FreezePostgres, NODE(2)),
            (5_500, 0, Fault::KillPostgres, NODE(0)),
            (7_500, 30_000, Fault::Reboot, NODE(0)),
        ],
    );
    let opened = told
        .since()
        .find(|line| line.what.starts_with("open: "))
        .map(|line| line.node);
    assert!(
        opened.is_some() && opened != Some(Some(0)),
        "no application sees what is in doubt before it is safe"
    );
    assert_eq!(told.holders().len(), 1);
}

#[test]
fn f_61_the_source_of_a_rewind_dies() {
    let strikes = [
        (5_000, 10_000, Fault::Reboot, PRIMARY),
        (18_000, 60_000, Fault::Reboot, PRIMARY),
    ];
    let told = script("61-the-source-of-a-rewind-dies", 3, 1, &strikes);
    assert_eq!(told.outcome.coverage.reached.get("rewind broken off"), Some(&1));
    assert_eq!(told.holders().len(), 2, "{:?}", told.holders());
    assert!(told.outcome.coverage.reached.contains_key("cloned"));
}

#[test]
fn f_64_failovers_back_and_forth() {
    let strikes = [5_000, 25_000, 45_000, 65_000].map(|at| (at, 5_000, Fault::Reboot, PRIMARY));
    let told = script("64-to-and-fro", 3, 1, &strikes);
    assert_eq!(told.holders().len(), 4, "{:?}", told.holders());
}

#[test]
fn f_66_an_old_standby_returns_during_a_failover() {
    let told = script(
        "66-an-old-standby-returns",
        3,
        1,
        &[
            (5_000, 60_000, Fault::Reboot, NODE(2)),
            (64_500, 30_000, Fault::Reboot, NODE(0)),
        ],
    );
    assert_eq!(told.holders(), ["orders-1"], "the member that was away has less WAL");
}

#[test]
fn f_68_the_primary_is_lost_while_a_standby_is_copied() {
    let told = script(
        "68-lost-during-a-copy",
        3,
        1,
        &[
            (5_000, 0, Fault::LoseVolume, NODE(2)),
            (13_000, 30_000, Fault::Reboot, NODE(0)),
        ],
    );
    assert_eq!(told.holders(), ["orders-1"]);
}

/// The Lease is deleted and made again while its last holder is away. The standbys are asked, and lack WAL that only
/// the holder has.
#[test]
fn d_86_a_lease_that_was_made_again_waits_for_a_member_that_may_have_more() {
    for members in [2, 3] {
        let told = script(
            &format!("86-a-lease-made-again-of-{members}"),
            members,
            0,
            &[
                (4_000, 60_000, Fault::CutPair, PRIMARY),
                (6_000, 30_000, Fault::Reboot, NODE(0)),
                (6_500, 0, Fault::LoseLease, PRIMARY),
            ],
        );
        let takes = (told.count("take: "), told.count("win-election: "));
        assert_eq!(takes, (1, 0), "the last holder has commits that no other has");
    }
}

/// The holder continues to serve at once, without waiting for answers.
#[test]
fn d_86_a_lease_that_is_made_again_under_its_primary_is_its_own_at_once() {
    let told = script(
        "86-a-lease-made-again-under-its-primary",
        3,
        0,
        &[(5_000, 0, Fault::LoseLease, PRIMARY)],
    );
    assert_eq!((told.count("take: "), told.count("win-election: ")), (1, 0));
    assert!(told.opened_after() < 1_000, "{}", told.opened_after());
}

/// With all other faults, and commits that wait for no standby: a promotion that records no possible loss must have
/// every acknowledged commit.
#[test]
fn d_86_no_lease_that_is_made_again_costs_a_commit() {
    for seed in 0..150 {
        let mut plan = Plan::of(seed);
        plan.durability = WantedDurability {
            mode: DurabilityMode::Async,
            standbys: 0,
        };
        plan.gone = None;
        let kept = |fault: &Injection| !matches!(fault.fault, Fault::LoseVolume | Fault::EditDurability);
        plan.faults.retain(kept);
        plan.faults.extend((1..4).map(|part| Injection {
            fault: Fault::LoseLease,
            at: plan.length * part / 4,
            lasts: 0,
            target: PRIMARY,
            other: 0,
        }));
        assert_eq!(run(plan, false).wrong, None, "seed {seed}");
    }
}
