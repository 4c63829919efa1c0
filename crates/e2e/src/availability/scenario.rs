//! What can happen to a database, as data.

use std::time::Duration;

/// A scenario: what is done, for how long, and how long it is observed at least.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// Its name on the command line and in tables.
    pub name: String,
    /// What happens.
    pub fault: Fault,
    /// When it is undone.
    pub heal: Heal,
    /// Writes are observed at least this long before they count as back: some faults take effect late.
    pub observe: Duration,
}

/// What happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The spec prefers another instance as primary (`spec.primary.prefer`).
    Switchover,
    /// The primary's pod is deleted, with this grace (its own if `None`).
    DeletePod(Option<u32>),
    /// A signal to the primary's postmaster.
    Postmaster(Signal),
    /// A signal to the first process of the primary's container.
    FirstProcess(Signal),
    /// The primary's node is cut off from everything, silently.
    CutNode,
    /// The primary's node, and all pods on it, cannot reach the API server.
    CutApi,
    /// The API server is stopped.
    StopApi,
    /// The primary's disk hangs: writes to it wait.
    HangDisk,
    /// The primary's disk is full.
    FillDisk,
    /// All of the primary's pod is stopped, as when a virtual machine is paused.
    Freeze,
    /// A parameter that needs a restart.
    Parameter,
    /// Another image of the same PostgreSQL.
    Image,
    /// Another CPU request.
    Resources,
    /// The node of a standby is cut off from everything, silently.
    CutStandby,
    /// Every CPU of the machine is busy. Nothing may happen to the database.
    Load,
    /// A command of the user.
    Command {
        /// What is run by `sh -c`.
        inject: String,
        /// What undoes it, if that is needed.
        heal: Option<String>,
    },
}

/// Signals of the scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGKILL.
    Kill,
    /// SIGSTOP; undone by SIGCONT.
    Stop,
}

/// When a fault is undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heal {
    /// There is nothing to undo.
    Nothing,
    /// This long after its beginning, in any case.
    After(Duration),
    /// When writes are back, or do not come back within the bound.
    WhenBack,
}

/// What a scenario needs, besides Kubernetes and a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing.
    Nothing,
    /// That the database runs on the testbed: the fault is one of the machine.
    Testbed,
    /// The testbed, and volumes with a file system of their own.
    TestbedWithLoopVolumes,
    /// That it is a `ClusteredDatabase`: the fault is a change of its spec.
    Own,
    /// Both.
    OwnOnTestbed,
}

impl Fault {
    /// What this action needs.
    #[must_use]
    pub fn needs(&self) -> Needs {
        match self {
            Self::DeletePod(_) | Self::Command { .. } => Needs::Nothing,
            Self::Postmaster(_)
            | Self::FirstProcess(_)
            | Self::CutNode
            | Self::CutApi
            | Self::StopApi
            | Self::Freeze
            | Self::CutStandby => Needs::Testbed,
            Self::HangDisk | Self::FillDisk => Needs::TestbedWithLoopVolumes,
            Self::Switchover | Self::Parameter | Self::Resources => Needs::Own,
            Self::Image | Self::Load => Needs::OwnOnTestbed,
        }
    }
}

impl Scenario {
    /// True if the primary cannot come back before the fault is undone. A preference in the spec keeps no primary away.
    #[must_use]
    pub fn keeps_away(&self) -> bool {
        self.heal != Heal::Nothing && self.fault != Fault::Switchover
    }
}

/// All scenarios that the benchmark knows, in the order in which they run.
#[must_use]
pub fn all() -> Vec<Scenario> {
    let seconds = Duration::from_secs;
    let scenario = |name: &str, fault, heal, observe| Scenario {
        name: name.to_owned(),
        fault,
        heal,
        observe: seconds(observe),
    };
    vec![
        // The preference is reverted, because it would call the primary back after later faults.
        scenario("switchover", Fault::Switchover, Heal::WhenBack, 5),
        scenario("pod-delete", Fault::DeletePod(None), Heal::Nothing, 5),
        scenario("pod-delete-forced", Fault::DeletePod(Some(0)), Heal::Nothing, 5),
        scenario("postmaster-kill", Fault::Postmaster(Signal::Kill), Heal::Nothing, 5),
        scenario("container-kill", Fault::FirstProcess(Signal::Kill), Heal::Nothing, 5),
        // Existing sessions work: the agent notices within 12 s that no new one begins.
        scenario("postmaster-stop", Fault::Postmaster(Signal::Stop), Heal::WhenBack, 25),
        // The dead-man acts when the fence time is over.
        scenario("agent-stop", Fault::FirstProcess(Signal::Stop), Heal::WhenBack, 15),
        scenario("node-cut", Fault::CutNode, Heal::WhenBack, 10),
        // The primary serves until it must give up its lease, or does not serve again.
        scenario("api-cut", Fault::CutApi, Heal::WhenBack, 20),
        scenario("api-down", Fault::StopApi, Heal::After(seconds(120)), 120),
        scenario("freeze", Fault::Freeze, Heal::After(seconds(30)), 30),
        scenario("standby-cut", Fault::CutStandby, Heal::WhenBack, 15),
        scenario("rolling-parameter", Fault::Parameter, Heal::Nothing, 5),
        scenario("rolling-resources", Fault::Resources, Heal::Nothing, 5),
        scenario("rolling-image", Fault::Image, Heal::Nothing, 5),
        scenario("disk-hang", Fault::HangDisk, Heal::WhenBack, 10),
        scenario("disk-full", Fault::FillDisk, Heal::WhenBack, 10),
    ]
}

/// Every CPU is busy for this long. It runs only on request, because it takes that time.
#[must_use]
pub fn load(time: Duration) -> Scenario {
    Scenario {
        name: "load".to_owned(),
        fault: Fault::Load,
        heal: Heal::After(time),
        observe: time,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_fit_a_pods_name() {
        let mut names: Vec<String> = all().into_iter().map(|scenario| scenario.name).collect();
        names.push(load(Duration::ZERO).name);
        assert!(names.iter().all(|name| name.len() <= 20));
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn stops_and_cuts_are_undone() {
        for scenario in all() {
            let lasting = match &scenario.fault {
                Fault::Postmaster(signal) | Fault::FirstProcess(signal) => *signal == Signal::Stop,
                Fault::CutNode | Fault::CutApi | Fault::StopApi | Fault::HangDisk => true,
                Fault::FillDisk | Fault::Freeze | Fault::CutStandby | Fault::Switchover | Fault::Load => true,
                Fault::DeletePod(_) | Fault::Command { .. } => false,
                Fault::Parameter | Fault::Image | Fault::Resources => false,
            };
            assert_eq!(lasting, scenario.heal != Heal::Nothing, "{}", scenario.name);
        }
    }
}
