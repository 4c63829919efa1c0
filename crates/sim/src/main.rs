//! `sim`: runs the simulator, searches worlds of the model, and shows what they find.

mod worlds;

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::Duration;

use sim::computing::computed;
use sim::simulator::{Bug, Coverage, Fault, Line, Outcome, Plan, Target, run, shrink};

const USAGE: &str = "\
usage: sim run [--seeds N | --for SECONDS] [--from SEED] [--all] [--table] [--bug NAME]   many seeds, until one fails or all of them
       (any command with --whole: an operator runs, too; with --archive: the store fails, and primaries are lost)
       sim replay SEED [--without N,N…] [--bug NAME]                    one seed, twice: is it the same?
       sim explain SEED [--without N,N…] [--bug NAME]                   one seed, as a table
       sim shrink SEED [--bug NAME]                                     as few faults as still fail, and their table
       sim failovers [--runs N] [--fault NAME]                          how many failovers per minute
       sim search [--members N] [--required N] [--faults N] [--reboots N] [--edits N] [--records N] [--epochs N] [--timed] [--losable] [--segment N]
                  [--start formed|cut|parted|strict|given-up] [--steps N] [--limit STATES]   all states of a world of the model";

/// The options after the command.
#[derive(Default)]
struct Options {
    seed: Option<u64>,
    seeds: Option<u64>,
    seconds: Option<u64>,
    from: u64,
    all: bool,
    whole: bool,
    archive: bool,
    table: bool,
    runs: Option<u64>,
    without: BTreeSet<usize>,
    bug: Option<Bug>,
    fault: Option<Fault>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match command(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("sim: {error}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn command(arguments: &[String]) -> Result<bool, String> {
    let (command, rest) = arguments.split_first().ok_or("which command?")?;
    if command == "search" {
        return worlds::search(rest);
    }
    let options = parse(rest)?;
    let plan = || {
        let seed = options.seed.ok_or("which seed? Give its number after the command")?;
        Ok::<_, String>(planned(seed, &options))
    };
    match command.as_str() {
        "run" if options.seed.is_none() => many(&options),
        "run" => Err("run takes no seed: replay, explain and shrink do".to_owned()),
        "replay" => Ok(replay(plan()?)),
        "explain" => Ok(explain(plan()?)),
        "shrink" => Ok(smallest(plan()?, &options)),
        "failovers" => Ok(failovers(
            options.runs.unwrap_or(50),
            options.fault.unwrap_or(Fault::Reboot),
        )),
        other => Err(format!("{other:?} is not a command")),
    }
}

fn parse(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options::default();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value = || rest.next().ok_or_else(|| format!("{argument} needs a value"));
        match argument.as_str() {
            "--seeds" => options.seeds = Some(number(value()?)?),
            "--for" => options.seconds = Some(number(value()?)?),
            "--from" => options.from = number(value()?)?,
            "--all" => options.all = true,
            "--whole" => options.whole = true,
            "--archive" => options.archive = true,
            "--table" => options.table = true,
            "--runs" => options.runs = Some(number(value()?)?),
            "--without" => {
                let numbers = value()?.split(',').map(number);
                options.without = numbers
                    .map(|number| number.map(|number| number as usize))
                    .collect::<Result<_, _>>()?;
            }
            "--bug" => {
                let name = value()?;
                let known: Vec<_> = Bug::ALL.iter().map(|bug| format!("{bug:?}")).collect();
                let unknown = || format!("{name:?} is none of {}", known.join(", "));
                options.bug = Some(Bug::named(name).ok_or_else(unknown)?);
            }
            "--fault" => {
                let name = value()?;
                let known: Vec<_> = Fault::ALL.iter().map(|fault| format!("{fault:?}")).collect();
                let unknown = || format!("{name:?} is none of {}", known.join(", "));
                options.fault = Some(Fault::named(name).ok_or_else(unknown)?);
            }
            other if other.starts_with('-') => return Err(format!("{other:?} is not an option")),
            other if options.seed.is_none() => options.seed = Some(number(other)?),
            other => return Err(format!("{other:?} is one argument too many")),
        }
    }
    if options.seeds.is_some() && options.seconds.is_some() {
        return Err("give --seeds or --for, not both".to_owned());
    }
    Ok(options)
}

fn number(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is not a number from 0 to {}", u64::MAX))
}

fn planned(seed: u64, options: &Options) -> Plan {
    let bug = options.bug;
    let plan = match (options.whole, options.archive) {
        (true, _) => Plan::whole(seed),
        (false, true) => Plan::archived(seed),
        (false, false) => Plan::of(seed),
    };
    Plan { bug, ..plan }.without(&options.without)
}

/// Runs one seed after the other. The first that fails is shrunk and explained.
fn many(options: &Options) -> Result<bool, String> {
    let begun = computed();
    let last = Duration::from_secs(options.seconds.unwrap_or(u64::MAX >> 16));
    let count = options
        .seeds
        .unwrap_or(if options.seconds.is_some() { u64::MAX } else { 2_000 });
    let (mut coverage, mut seeds, mut excused, mut failed) = (Coverage::default(), 0, 0, 0);
    for seed in (options.from..).take(usize::try_from(count).unwrap_or(usize::MAX)) {
        if computed() - begun >= last {
            break;
        }
        let outcome = run(planned(seed, options), false);
        coverage.add(&outcome.coverage);
        (seeds, excused) = (seeds + 1, excused + u64::from(outcome.excused.is_some()));
        if let Some(wrong) = outcome.wrong {
            println!("seed {seed}, after {seeds} seeds: {wrong}");
            failed += 1;
            if options.all {
                continue;
            }
            println!("shrinking …");
            return Ok(!smallest(planned(seed, options), options));
        }
    }
    let took = (computed() - begun).as_secs_f64();
    print_coverage(&coverage, options.table);
    println!(
        "{seeds} seeds in {took:.1} s of one core: {} failovers ({:.0} a minute), {} promotions, {} acknowledged commits, {:.1} hours, {} events; \
         {excused} ended without a primary for a valid reason; {} promotions lost commits that an asynchronous cluster may lose",
        coverage.failovers,
        coverage.failovers as f64 * 60.0 / took,
        coverage.promotions,
        coverage.acknowledged,
        coverage.time as f64 / 3_600_000.0,
        coverage.events,
        coverage.losses,
    );
    println!(
        "{} combinations of fault, rule and action of agents; {} of phase, fault, rule, action and reason of the operator",
        coverage.decisions.len(),
        coverage.operator.len(),
    );
    let missing = if options.whole {
        coverage.missing_operated()
    } else {
        coverage.missing()
    };
    if !missing.is_empty() {
        println!("never reached: {}", missing.join(", "));
    }
    Ok(failed == 0)
}

/// Prints what was reached. `table`: also each decision with its phase, its reason and its fault.
fn print_coverage(coverage: &Coverage, table: bool) {
    let agents = coverage.decisions.iter();
    print_sums(agents.map(|((rule, action, _), count)| (format!("{rule}: {action}"), count)));
    let operator = coverage.operator.iter();
    print_sums(operator.map(|(decided, count)| (format!("operator: {}: {}", decided.rule, decided.action), count)));
    if table {
        for ((rule, action, fault), count) in &coverage.decisions {
            let fault = fault.map_or_else(|| "none".to_owned(), |fault| format!("{fault:?}"));
            println!("{count:>10}  {fault}: {rule}: {action}");
        }
        for (decided, count) in &coverage.operator {
            println!("{count:>10}  operator: {decided}");
        }
    }
    for (fault, count) in &coverage.faults {
        println!("{count:>10}  fault {fault:?}");
    }
    for (goal, count) in &coverage.reached {
        println!("{count:>10}  {goal}");
    }
}

fn print_sums<'a>(counts: impl Iterator<Item = (String, &'a u64)>) {
    let mut sums = BTreeMap::new();
    for (what, count) in counts {
        *sums.entry(what).or_insert(0) += count;
    }
    for (what, count) in sums {
        println!("{count:>10}  {what}");
    }
}

fn replay(plan: Plan) -> bool {
    let (one, two) = (run(plan.clone(), false), run(plan, false));
    conclude(&one);
    println!("fingerprint {:016x}, again {:016x}", one.fingerprint, two.fingerprint);
    one.wrong.is_none() && one.fingerprint == two.fingerprint
}

fn explain(plan: Plan) -> bool {
    println!(
        "seed {}: {} members, {:?}, {:?}; clocks {:?} millionths faster than the world's; a write of {} bytes each {} ms and node",
        plan.seed, plan.members, plan.durability, plan.timing, plan.rates, plan.size, plan.pace
    );
    for (index, fault) in plan.chosen() {
        let target = match fault.target {
            Target::Primary => "the primary".to_owned(),
            Target::Node(node) => format!("orders-{node}"),
        };
        println!(
            "fault {index}: {:?} of {target}, at {} for {} ms",
            fault.fault, fault.at, fault.lasts
        );
    }
    let outcome = run(plan, true);
    for Line { at, node, what } in &outcome.lines {
        let who = node.map_or_else(|| "world".to_owned(), |node| format!("orders-{node}"));
        println!("{:>9.3}  {who:<9} {what}", *at as f64 / 1_000.0);
    }
    conclude(&outcome);
    outcome.wrong.is_none()
}

/// Prints the smallest plan that still fails; returns `false` if nothing is wrong.
fn smallest(plan: Plan, options: &Options) -> bool {
    let Some(left_out) = shrink(&plan) else {
        println!("seed {}: nothing is wrong", plan.seed);
        return false;
    };
    let again = again(&plan, &left_out, options);
    explain(plan.without(&left_out));
    println!("again: {again}");
    true
}

/// The command that explains the same run.
fn again(plan: &Plan, left_out: &BTreeSet<usize>, options: &Options) -> String {
    let mut command = format!("sim explain {}", plan.seed);
    for (is_given, option) in [(options.whole, " --whole"), (options.archive, " --archive")] {
        command += if is_given { option } else { "" };
    }
    if let Some(bug) = plan.bug {
        command += &format!(" --bug {bug:?}");
    }
    if !left_out.is_empty() {
        let numbers: Vec<_> = left_out.iter().map(usize::to_string).collect();
        command += &format!(" --without {}", numbers.join(","));
    }
    command
}

fn conclude(outcome: &Outcome) {
    let (acknowledged, unknown, refused) = outcome.writes;
    println!("writes: {acknowledged} acknowledged, {unknown} unknown, {refused} refused");
    match (&outcome.wrong, &outcome.excused) {
        (Some(wrong), _) => println!("WRONG: {wrong}"),
        (None, Some(why)) => println!("it does not serve in the end, for a valid reason: {why}"),
        (None, None) => println!("all is well"),
    }
}

/// Measures failovers: runs with no other faults, 20 failovers in each.
fn failovers(runs: u64, fault: Fault) -> bool {
    let begun = computed();
    let mut coverage = Coverage::default();
    for seed in 0..runs {
        let outcome = run(Plan::failovers(seed, fault, 20), false);
        coverage.add(&outcome.coverage);
        if let Some(wrong) = outcome.wrong {
            println!("run {seed}: {wrong}");
            return false;
        }
    }
    let took = (computed() - begun).as_secs_f64();
    println!(
        "{} failovers in {took:.2} s of one core: {:.0} a minute; {:.1} hours of the world, {} events, {} acknowledged commits",
        coverage.failovers,
        coverage.failovers as f64 * 60.0 / took,
        coverage.time as f64 / 3_600_000.0,
        coverage.events,
        coverage.acknowledged,
    );
    true
}
