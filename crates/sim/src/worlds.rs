//! `sim search`: all states of a world of the model, of any size, also one that is too large for a test.

use sim::computing::{computed, per_second};
use sim::model::bounds::Bounds;
use sim::model::check::{archiving, cut, formed, given_up, parted, strict};
use sim::model::search::{Report, search_near, search_to_rest};
use sim::model::state::World;

/// The world to search, and how.
struct Wanted {
    members: u64,
    required: u8,
    start: String,
    bounds: Bounds,
    /// Records in a segment of WAL, if there is an archive.
    segment: u8,
    /// Search only states within this many steps, without the check that each becomes idle.
    steps: Option<usize>,
    limit: usize,
}

/// Searches; returns `false` if something is wrong, or if there are more states than the limit.
///
/// # Errors
/// Fails if the arguments name no world.
pub fn search(arguments: &[String]) -> Result<bool, String> {
    let wanted = parse(arguments)?;
    match wanted.members {
        2 => of::<2>(&wanted),
        3 => of::<3>(&wanted),
        4 => of::<4>(&wanted),
        5 => of::<5>(&wanted),
        other => Err(format!("{other} members: give 2, 3, 4 or 5")),
    }
}

fn parse(arguments: &[String]) -> Result<Wanted, String> {
    let mut wanted = Wanted {
        members: 3,
        required: 1,
        start: "formed".to_owned(),
        bounds: Bounds {
            records: 1,
            epochs: 2,
            ..Bounds::default()
        },
        segment: 0,
        steps: None,
        limit: 100_000_000,
    };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value = || rest.next().ok_or_else(|| format!("{argument} needs a value"));
        let mut small = || {
            let text = value()?;
            text.parse()
                .map_err(|_| format!("{text:?} is not a number from 0 to {}", u8::MAX))
        };
        let bounds = &mut wanted.bounds;
        match argument.as_str() {
            "--required" => wanted.required = small()?,
            "--faults" => bounds.faults = small()?,
            "--reboots" => bounds.reboots = small()?,
            "--records" => bounds.records = small()?,
            "--epochs" => bounds.epochs = small()?,
            "--edits" => bounds.edits = small()?,
            "--timed" => bounds.timed = true,
            "--losable" => bounds.losable = true,
            "--segment" => wanted.segment = small()?,
            "--members" => wanted.members = crate::number(value()?)?,
            "--steps" => wanted.steps = Some(crate::number(value()?)? as usize),
            "--limit" => wanted.limit = crate::number(value()?)? as usize,
            "--start" => value()?.clone_into(&mut wanted.start),
            other => return Err(format!("{other:?} is not an option of search")),
        }
    }
    Ok(wanted)
}

fn of<const N: usize>(wanted: &Wanted) -> Result<bool, String> {
    let required = wanted.required;
    if usize::from(required) >= N {
        return Err(format!("of {N} members {} can be required at most", N - 1));
    }
    let start: World<N> = match wanted.start.as_str() {
        "formed" => formed(required),
        "cut" => cut(required),
        "parted" => parted(required),
        "strict" => strict(required),
        "given-up" => given_up(required),
        other => return Err(format!("{other:?} is none of formed, cut, parted, strict, given-up")),
    };
    let start = match wanted.segment {
        0 => start,
        segment => archiving(start, segment),
    };
    let begun = computed();
    let report = match wanted.steps {
        Some(steps) => search_near(start, wanted.bounds, steps, wanted.limit),
        None => search_to_rest(start, wanted.bounds, wanted.limit),
    };
    let Report {
        states,
        steps,
        decisions,
        longest,
        spent,
        ..
    } = report;
    println!(
        "{states} unique states, {steps} steps, {decisions} decisions, {:.0} states a second of one core; \
         at most {longest} steps until idle; {spent} states have no more epochs or timelines",
        per_second(states, begun)
    );
    println!("{:?}", report.events);
    if report.wrong.is_some() {
        println!("WRONG: {}", report.explain());
    } else if !report.complete {
        println!("NOT ALL: there are more states than --limit {}", wanted.limit);
    }
    Ok(report.wrong.is_none() && report.complete)
}
