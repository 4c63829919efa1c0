//! Many seeds of the simulator: nothing may be lost, and the goals of a simulator must be reached.

#[path = "support/seeds.rs"]
mod seeds;

use machine::units::Bytes;
use sim::computing::{computed, per_second};
use sim::simulator::{Archive, Bug, Fault, Injection, Line, Outcome, Plan, Target, run, shrink};

#[test]
fn one_seed_is_one_run() {
    seeds::one_seed_is_one_run(Plan::of, 40);
}

#[test]
fn nothing_is_lost_and_all_goals_are_reached() {
    let coverage = seeds::nothing_is_wrong(Plan::of, 2_000, "");
    let missing = coverage.missing();
    assert!(missing.is_empty(), "never reached: {}", missing.join(", "));
    seeds::pairs_are_reached("agents", coverage, Plan::of, 2_000);
}

/// Within how many seeds each broken rule must be found.
const BUDGETS: [(Bug, u64); 7] = [
    (Bug::FenceIsSkipped, 20),
    (Bug::StalePromiseCounts, 60),
    (Bug::AnyPositionWins, 150),
    (Bug::LeaseIsOverwritten, 20),
    (Bug::TimelineIsUsedTwice, 150),
    (Bug::EpochIsNotRaised, 60),
    (Bug::NothingIsKept, 150),
];

#[test]
fn broken_rules_are_found() {
    seeds::broken_rules_are_found(Plan::of, &BUDGETS);
}

#[test]
fn what_fails_is_shrunk_to_fewer_faults_that_still_fail() {
    let broken = |seed| Plan {
        bug: Some(Bug::LeaseIsOverwritten),
        ..Plan::of(seed)
    };
    let fails = |seed: &u64| run(broken(*seed), false).wrong.is_some() && broken(*seed).faults.len() > 5;
    let seed = (0..200).find(fails).expect("a seed that fails");
    let left_out = shrink(&broken(seed)).expect("it fails");
    assert!(
        !left_out.is_empty(),
        "all {} faults were needed",
        broken(seed).faults.len()
    );
    assert!(run(broken(seed).without(&left_out), false).wrong.is_some());
}

#[test]
fn the_archive_has_all_wal() {
    let coverage = seeds::nothing_is_wrong(Plan::archived, 200, " --archive");
    let reached = |goal: &str| coverage.reached.get(goal).copied().unwrap_or(0);
    for goal in [
        "archived in the end",
        "pushed by a former primary",
        "struck off by a standby",
        "a history struck off by a standby",
    ] {
        assert!(reached(goal) > 20, "{goal}: {}", reached(goal));
    }
}

/// Commits wait for no standby. 1 has less WAL than 2 and 3, is elected while these are cut off, archives WAL of its own
/// timeline, and is lost. The user accepts that. 2 and 3 elect one of them, which has not told yet how far the archive
/// is: what 1 has told is about other WAL than theirs.
#[test]
fn nothing_is_struck_off_by_what_an_abandoned_timeline_had() {
    let mut reached = 0;
    for seed in 0..20 {
        let outcome = run(abandoned(seed), true);
        assert_eq!(outcome.wrong, None, "seed {seed}");
        let follows = |line: &Line| line.at > 42_000 && line.what.starts_with("promoted to timeline 3");
        reached += usize::from(outcome.lines.iter().any(follows));
    }
    assert!(reached > 10, "the situation came about {reached} times");
}

fn abandoned(seed: u64) -> Plan {
    let mut plan = Plan::failovers(seed, Fault::CutNode, 1);
    (plan.members, plan.replicas, plan.rates) = (4, 4, vec![0; 4]);
    plan.durability = api::WantedDurability::default();
    plan.archive = Some(Archive {
        segment: Bytes(64 << 10),
        room: Bytes::gib(1),
    });
    plan.length = 70_000;
    plan.faults = vec![
        strike(Fault::StoreOutage, 3_000, 9_000, 0, 0),
        strike(Fault::CutPair, 5_000, 9_000, 0, 0),
        strike(Fault::CutNode, 8_500, 30_100, 2, 0),
        strike(Fault::CutNode, 8_500, 30_100, 3, 0),
        strike(Fault::Reboot, 8_600, 69_000, 0, 0),
        strike(Fault::StoreOutage, 29_900, 60_000, 0, 0),
        strike(Fault::Reboot, 30_000, 69_000, 1, 0),
        strike(Fault::AcceptLoss, 42_000, 42_001, 0, 1),
    ];
    plan
}

/// A primary's PostgreSQL is stalled for 1.1 s while an impostor replicates under a member's name. When it continues it
/// answers the earlier question, so its agent sees the impostor in time.
#[test]
fn a_postgres_that_continues_answers_earlier_questions() {
    let outcome = run(Plan::of(9_100_486).without(&[0, 2].into()), false);
    assert_eq!(outcome.wrong, None);
}

#[test]
fn a_primary_that_is_killed_is_replaced_each_time() {
    let begun = computed();
    for seed in 0..5 {
        let outcome = run(Plan::failovers(seed, Fault::Reboot, 20), false);
        assert_eq!(outcome.wrong, None);
        assert_eq!(outcome.coverage.failovers, 20);
    }
    println!(
        "figure: simulator, failovers alone: {:.0} a minute of one core",
        60.0 * per_second(5 * 20, begun)
    );
}

/// A fault of a node, from one time to another.
fn strike(fault: Fault, at: u64, until: u64, node: usize, other: usize) -> Injection {
    Injection {
        fault,
        at,
        lasts: until - at,
        target: Target::Node(node),
        other,
    }
}

/// Five members, of which two standbys have each commit, with no faults except those that are added.
fn of_five(seed: u64) -> Plan {
    let mut plan = Plan::failovers(seed, Fault::CutNode, 1);
    (plan.members, plan.replicas, plan.rates) = (5, 5, vec![0; 5]);
    plan.durability.standbys = 2;
    plan
}

/// The primary's node is gone, and with it the API server that serves another member's watch. That member votes, and
/// must learn in another way which member was elected: without it the elected primary cannot open.
#[test]
fn a_watch_that_is_dead_keeps_no_elected_primary_closed() {
    let mut others = 0;
    for seed in 0..20 {
        let mut plan = Plan::failovers(seed, Fault::Reboot, 1);
        (plan.length, plan.faults) = (
            75_000,
            vec![
                strike(Fault::KillWatch, 4_000, 68_000, 2, 0),
                strike(Fault::Reboot, 5_000, 69_000, 0, 0),
            ],
        );
        let outcome = run(plan, true);
        assert_eq!(outcome.wrong, None);
        let opened = outcome
            .lines
            .iter()
            .find(|line| line.at > 5_000 && line.what.starts_with("open: "));
        let opened = opened.expect("a primary serves");
        assert!(opened.at < 12_000, "seed {seed}: closed until {} ms", opened.at);
        others += u64::from(opened.node == Some(1));
    }
    assert!(others > 0, "the member with the dead watch was elected each time");
}

/// The WAL volumes of these nodes are full from 5 s to 305 s; the primary is on the first node.
fn full_volumes(seed: u64, nodes: &[usize]) -> Plan {
    let full = |node: &usize| Injection {
        fault: Fault::FillDisk,
        at: 5_000,
        lasts: 300_000,
        target: Target::Node(*node),
        other: 0,
    };
    let mut plan = Plan::failovers(seed, Fault::FillDisk, 0);
    (plan.length, plan.faults) = (330_000, nodes.iter().map(full).collect());
    plan
}

/// How often the Lease was taken after the first 5 s, for another holder or another timeline; and when a primary first
/// served after `since`.
fn takes_and_opens(outcome: &Outcome, since: u64) -> (usize, u64) {
    let taken = |line: &&Line| {
        let took = ["take: ", "win-election: ", "reserve-again: "];
        line.at > 5_000 && took.iter().any(|rule| line.what.starts_with(rule))
    };
    let takes = outcome.lines.iter().filter(taken).count();
    let mut later = outcome.lines.iter().filter(|line| line.at > since);
    let opens = later.find(|line| line.what.starts_with("open: "));
    (takes, opens.expect("a primary serves").at)
}

/// No WAL can be written anywhere: no member takes the lease from one that is as able as itself, and the primary serves
/// as soon as it has room.
#[test]
fn if_all_wal_volumes_are_full_the_primary_keeps_the_lease() {
    for seed in 0..10 {
        let outcome = run(full_volumes(seed, &[0, 1, 2]), true);
        assert_eq!(outcome.wrong, None);
        let (takes, opens) = takes_and_opens(&outcome, 5_000);
        assert!(takes <= 2, "seed {seed}: the Lease was taken {takes} times");
        assert!((305_000..325_000).contains(&opens), "seed {seed}: at {opens} ms");
    }
}

/// The primary is lost as well. One of the others is elected, because some member must serve as soon as it has room.
/// Meanwhile it does not try one promotion after another, each of which costs a timeline.
#[test]
fn a_member_elected_with_a_full_volume_waits_for_room() {
    for seed in 0..10 {
        let mut plan = full_volumes(seed, &[0, 1, 2]);
        plan.faults.push(Injection {
            fault: Fault::Reboot,
            at: 7_000,
            lasts: 310_000,
            target: Target::Node(0),
            other: 0,
        });
        let outcome = run(plan, true);
        assert_eq!(outcome.wrong, None);
        let (takes, opens) = takes_and_opens(&outcome, 5_000);
        assert!(
            (1..=5).contains(&takes),
            "seed {seed}: the Lease was taken {takes} times"
        );
        assert!((305_000..317_000).contains(&opens), "seed {seed}: at {opens} ms");
    }
}

/// Two of four volumes have room: one of these members serves soon, even if a member without room is elected first.
#[test]
fn a_member_with_room_serves_when_the_volumes_of_others_are_full() {
    let mut passed_on = 0;
    for seed in 0..10 {
        let mut plan = full_volumes(seed, &[0, 1]);
        (plan.members, plan.replicas, plan.rates) = (4, 4, vec![0; 4]);
        let outcome = run(plan, true);
        assert_eq!(outcome.wrong, None);
        let (takes, opens) = takes_and_opens(&outcome, 5_000);
        assert!(
            (1..=3).contains(&takes),
            "seed {seed}: the Lease was taken {takes} times"
        );
        assert!(opens < 25_000, "seed {seed}: at {opens} ms");
        let by = outcome
            .lines
            .iter()
            .find(|line| line.at == opens && line.what.starts_with("open: "));
        let by = by.and_then(|line| line.node);
        assert!(by.is_some_and(|node| node > 1), "seed {seed}: {by:?} serves");
        passed_on += usize::from(takes > 1);
    }
    assert!(passed_on > 0, "a member with room was elected first each time");
}

/// A lost Lease is written again while applications are served. It stays lost if commits wait for no standby.
#[test]
fn a_lost_lease_heals_without_an_outage_if_the_holder_can_prove_its_right() {
    for (fault, seed) in [Fault::DeleteLease, Fault::ScribbleLease].into_iter().zip([0, 100]) {
        for seed in seed..seed + 10 {
            let plan = Plan::failovers(seed, fault, 1);
            let outcome = run(plan.clone(), true);
            assert_eq!(outcome.wrong, None, "{fault:?}, seed {seed}");
            let did = |rule: &str| {
                let mut since = outcome.lines.iter().filter(|line| line.at >= 5_000);
                since.any(|line| line.what.starts_with(rule))
            };
            assert!(did("restore-lease: "), "{fault:?}, seed {seed}");
            let stopped = ["fence: ", "take: ", "win-election: "]
                .into_iter()
                .find(|rule| did(rule));
            assert_eq!(stopped, None, "{fault:?}, seed {seed}");

            let asynchronous = api::WantedDurability::default();
            let outcome = run(
                Plan {
                    durability: asynchronous,
                    ..plan
                },
                true,
            );
            assert_eq!(outcome.wrong, None, "{fault:?}, seed {seed}, asynchronous");
            let healed = outcome
                .lines
                .iter()
                .any(|line| line.what.starts_with("restore-lease: "));
            assert!(!healed, "{fault:?}, seed {seed}, asynchronous");
        }
    }
}

/// No other check would notice: the primary stays, and the standby follows it by all that its agent has done.
#[test]
fn a_standby_that_lost_its_stream_behind_its_agents_back_streams_again() {
    for how in 0..3 {
        for seed in 0..10 {
            let mut plan = Plan::failovers(seed, Fault::LoseUpstream, 1);
            let [fault] = &mut plan.faults[..] else {
                panic!("one fault")
            };
            (fault.target, fault.other) = (Target::Node(1), how);
            let outcome = run(plan, true);
            assert_eq!(outcome.wrong, None, "{how}, seed {seed}");
            let did = |rule: &str| {
                outcome
                    .lines
                    .iter()
                    .any(|line| line.at > 5_000 && line.what.starts_with(rule))
            };
            let by = if how == 0 { "configure: " } else { "follow-again: " };
            assert!(did(by), "{how}, seed {seed}");
        }
    }
}

/// A primary that is cut off leaves WAL that only it has. One of the others is elected, and the member that voted for
/// it is lost before it receives WAL from the elected one. Then the elected primary cannot open before the former one
/// has come back and flushed what is in doubt. So the former primary must not delay its rewind until the elected one
/// opens.
#[test]
fn an_elected_primary_and_a_former_one_do_not_wait_for_each_other() {
    let (back, mut closed) = (9_500, 0);
    for (seed, lost) in (0..12).flat_map(|seed| (7_600..7_900).step_by(100).map(move |lost| (seed, lost))) {
        let mut plan = Plan::failovers(seed, Fault::CutNode, 1);
        (plan.length, plan.faults) = (
            40_000,
            vec![
                strike(Fault::CutNode, 5_000, back, 0, 0),
                strike(Fault::FreezePod, lost, lost + 20_000, 1, 0),
            ],
        );
        let outcome = run(plan, true);
        assert_eq!(outcome.wrong, None);
        let first = |what: &str| {
            let mut lines = outcome.lines.iter().filter(|line| line.at > 5_000);
            lines.find(|line| line.what.starts_with(what))
        };
        let (Some(elected), Some(opens)) = (first("promoted to"), first("open: ")) else {
            continue;
        };
        let Some(rewinds) = first("rewind: Rewind") else {
            continue;
        };
        if elected.node != Some(2) || elected.at > back || opens.at < rewinds.at {
            continue;
        }
        closed += 1;
        assert!(
            rewinds.at < back + 4_000,
            "seed {seed}: it waits until {} ms",
            rewinds.at
        );
    }
    assert!(closed > 0, "the elected primary opened without it each time");
}

/// A standby and the primary are cut off with WAL that the others lack. The former primary comes back, is rewound, and
/// becomes primary again before the standby can be reached: the standby's PostgreSQL still uses that address, and its
/// agent has an old Lease.
#[test]
fn a_follower_of_an_earlier_tenure_is_not_counted() {
    let mut reached = 0;
    for (seed, heals) in (0..20).flat_map(|seed| [17_300, 17_600].map(|heals| (seed, heals))) {
        let outcome = run(long_ago(seed, heals), true);
        assert_eq!(outcome.wrong, None, "seed {seed}, heals at {heals}");
        let again = |line: &Line| line.node == Some(0) && line.at > 13_000 && line.what.starts_with("promote: ");
        let first = outcome.lines.iter().find(|line| again(line));
        let diverged = |line: &Line| line.node == Some(4) && line.what.starts_with("rewind: ");
        let last = outcome.lines.iter().find(|line| diverged(line));
        reached += usize::from(
            first
                .zip(last)
                .is_some_and(|(first, last)| first.at < heals && last.at > heals),
        );
    }
    assert!(reached > 10, "the situation came about {reached} times");
}

fn long_ago(seed: u64, heals: u64) -> Plan {
    let mut plan = of_five(seed);
    (plan.pace, plan.length) = (20, 40_000);
    plan.faults = vec![
        strike(Fault::CutPair, 4_500, 9_500, 0, 0),
        strike(Fault::CutPair, 4_500, 9_500, 0, 1),
        strike(Fault::CutPair, 4_500, 9_500, 0, 2),
        strike(Fault::CutNode, 5_000, 9_500, 0, 0),
        strike(Fault::CutNode, 5_000, heals, 4, 0),
        strike(Fault::KillWatch, 4_000, 64_000, 4, 0),
        strike(Fault::EditPrimary, 13_000, 64_000, 0, 0),
    ];
    plan
}

/// A standby's WAL end is not final while it still follows a former primary. That one is deposed, does not know it, and
/// starts again at this moment: what it sends goes beyond the fork.
#[test]
fn a_standby_leaves_a_former_primary_before_it_follows_another() {
    let (mut left, mut found) = (0, None);
    for seed in 0..40 {
        let outcome = run(comes_back(seed), true);
        assert_eq!(outcome.wrong, None, "seed {seed}");
        let leaves = |line: &Line| line.node == Some(4) && line.what.starts_with("leave-former-primary: ");
        left += usize::from(outcome.lines.iter().any(leaves));
        let bug = Some(Bug::FollowedEndIsFinal);
        let broken = run(
            Plan {
                bug,
                ..comes_back(seed)
            },
            false,
        )
        .wrong;
        found = found.or(broken.map(|wrong| (seed, wrong)));
    }
    assert!(left > 30, "it left the former primary {left} times");
    let (seed, wrong) = found.expect("the broken rule is found");
    println!("{:?}: seed {seed}: {wrong}", Bug::FollowedEndIsFinal);
    assert!(wrong.contains("orders-4 streams from "), "seed {seed}: {wrong}");
}

/// The postmaster of 0 is killed, and 0 cannot start it again before its disk works. 1, 2 and 3 do not hear 0 any more,
/// nor does the API server, and elect one of them. 4 hears the agent of 0 all the time, and promises nothing.
fn comes_back(seed: u64) -> Plan {
    let mut plan = of_five(seed);
    plan.length = 20_000;
    let back = 7_400 + seed * 37 % 200;
    plan.faults = vec![
        strike(Fault::CutApi, 5_000, 15_000, 0, 0),
        strike(Fault::HangDisk, 5_000, back, 0, 0),
        strike(Fault::KillPostgres, 5_001, 5_001, 0, 0),
    ];
    for other in 1..4 {
        plan.faults.push(strike(Fault::CutPair, 5_000, 15_000, 0, other - 1));
        plan.faults
            .push(strike(Fault::CutPair, 5_000, 15_000, other, 4 - other));
    }
    plan
}

/// Of five members, one has more WAL than the others, answers them, and does not reach the API server: it can never
/// take the lease. The three others are enough once all of them are back, and wait for it at most 10 s.
#[test]
fn a_member_with_the_most_wal_that_does_not_reach_the_api_server_does_not_block_an_election() {
    let mut ahead = 0;
    for seed in 0..20 {
        let mut plan = of_five(seed);
        (plan.pace, plan.length) = (50, 60_000);
        // The last WAL of 0 reaches 4 alone. 1 comes back after 4 has answered 2 and 3.
        plan.faults = (0..3)
            .map(|other| strike(Fault::CutPair, 4_700, 5_000, 0, other))
            .collect();
        plan.faults.push(strike(Fault::CutNode, 4_700, 9_000, 1, 0));
        plan.faults.push(strike(Fault::CutApi, 4_700, 60_000, 4, 0));
        plan.faults.push(strike(Fault::Reboot, 5_000, 60_000, 0, 0));
        let outcome = run(plan, true);
        assert_eq!(outcome.wrong, None, "seed {seed}");
        let mut since = outcome.lines.iter().filter(|line| line.at > 5_000);
        let waits = |line: &Line| line.what.contains("cdb_4_") && line.what.contains("has WAL up to");
        ahead += u64::from(since.clone().any(waits));
        let opened = since
            .find(|line| line.what.starts_with("open: "))
            .expect("a primary serves");
        assert!(opened.at < 20_000, "seed {seed}: at {} ms", opened.at);
    }
    assert!(ahead > 10, "others waited for it {ahead} times");
}
