//! What is decided about a run before it begins, all by its seed. Each kind of fault has its own random stream, and all
//! faults are drawn beforehand: leaving one out does not change when another comes.

use std::collections::BTreeSet;

use api::WantedDurability;
use api::status::DurabilityMode;
use machine::timing::Timing;
use machine::units::Bytes;

use super::archive::Archive;
use super::distort::Bug;
use super::random::Random;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// SIGKILL to the postmaster and all its children.
    KillPostgres,
    /// The container's processes are killed; the kubelet starts it again.
    KillAgent,
    /// The node loses power, and comes back: what was not flushed is lost.
    Reboot,
    /// The node neither receives nor sends anything.
    CutNode,
    /// The node does not reach the API server, but it reaches its peers.
    CutApi,
    /// Answers and news of the API server do not reach the node; its requests arrive.
    DeafToApi,
    /// What one node sends to another is lost.
    CutPair,
    /// The agent is stopped (SIGSTOP); PostgreSQL and the dead-man are not.
    FreezeAgent,
    /// PostgreSQL is stopped; agent and dead-man are not.
    FreezePostgres,
    /// All of the pod is stopped, including its dead-man (a frozen cgroup, a paused virtual machine): scripts only.
    FreezePod,
    /// A standby's PostgreSQL loses its stream, and its upstream or its credential: scripts only.
    LoseUpstream,
    /// The Lease is deleted, and by the user's order made again at once for its last holder: scripts only.
    LoseLease,
    /// The disk flushes nothing.
    HangDisk,
    /// The disk is full.
    FillDisk,
    /// The disk is slow.
    SlowDisk,
    /// The disk takes seconds, at times longer than the canary's time limit: scripts only.
    CrawlDisk,
    /// The API server cannot be reached.
    ApiOutage,
    /// Many requests to the API server fail, are lost, or are executed without an answer.
    ApiErrors,
    /// News of the API server arrive late.
    LagWatch,
    /// The connection of a watch is dead, and that is noticed only when a new connection is due.
    KillWatch,
    /// Messages between nodes take long, and some are lost.
    SlowNetwork,
    /// The user wants another durability.
    EditDurability,
    /// The user wants another primary.
    EditPrimary,
    /// The user fences an instance for a while.
    EditFenced,
    /// The user accepts a loss, in the present epoch or, too late, in the one before.
    AcceptLoss,
    /// The volume is lost: the pod comes back with an empty one.
    LoseVolume,
    /// The container is asked to end (SIGTERM), and started again: a rolling change.
    Terminate,
    /// The user wants another image.
    EditTemplate,
    /// The user wants another value of a parameter that needs a restart.
    EditParameter,
    /// The user asks for a switchover.
    RequestSwitchover,
    /// The user wants another number of instances.
    EditReplicas,
    /// The user hibernates the database for a while.
    EditHibernated,
    /// The user deletes a pod.
    DeletePod,
    /// A node is drained for a while: it accepts no pods, and its pod is evicted when the disruption budget allows
    /// that.
    DrainNode,
    /// The operator's process is killed, and started again.
    KillOperator,
    /// The operator's process is stopped (SIGSTOP).
    FreezeOperator,
    /// The operator's watches deliver late.
    LagOperator,
    /// Some of the operator's watches deliver nothing.
    BlindOperator,
    /// The operator's process is stopped, another one leads meanwhile, and then the first continues for a moment.
    ReplaceOperator,
    /// A role that may replicate does so from the primary under a member's name, and again whenever it is ended.
    Impersonate,
    /// A user deletes the Lease.
    DeleteLease,
    /// A user edits the Lease so that no agent understands it.
    ScribbleLease,
    /// The store of archived WAL does not answer.
    StoreOutage,
    /// Requests to the store are lost, refused, executed without an answer, or late.
    StoreErrors,
    /// The store takes seconds.
    SlowStore,
}

impl Fault {
    /// All kinds except those without an operator, which are drawn last: a loss is accepted, a member is impersonated,
    /// and the Lease is lost.
    pub const ALL: [Fault; 22] = [
        Fault::KillPostgres,
        Fault::KillAgent,
        Fault::Reboot,
        Fault::CutNode,
        Fault::CutApi,
        Fault::DeafToApi,
        Fault::CutPair,
        Fault::FreezeAgent,
        Fault::FreezePostgres,
        Fault::HangDisk,
        Fault::FillDisk,
        Fault::SlowDisk,
        Fault::ApiOutage,
        Fault::ApiErrors,
        Fault::LagWatch,
        Fault::KillWatch,
        Fault::SlowNetwork,
        Fault::EditDurability,
        Fault::EditPrimary,
        Fault::EditFenced,
        Fault::LoseVolume,
        Fault::Terminate,
    ];

    /// Faults that only exist where an operator runs.
    pub const OPERATED: [Fault; 12] = [
        Fault::EditTemplate,
        Fault::EditParameter,
        Fault::RequestSwitchover,
        Fault::EditReplicas,
        Fault::EditHibernated,
        Fault::DeletePod,
        Fault::DrainNode,
        Fault::KillOperator,
        Fault::FreezeOperator,
        Fault::LagOperator,
        Fault::BlindOperator,
        Fault::ReplaceOperator,
    ];

    /// Faults that only exist where no operator runs.
    pub const OF_AGENTS: [Fault; 4] = [
        Fault::AcceptLoss,
        Fault::Impersonate,
        Fault::DeleteLease,
        Fault::ScribbleLease,
    ];

    /// Faults of the store of archived WAL, which no agent notices.
    pub const OF_STORE: [Fault; 3] = [Fault::StoreOutage, Fault::StoreErrors, Fault::SlowStore];

    /// The fault with this name.
    pub fn named(name: &str) -> Option<Fault> {
        let all = Fault::ALL.into_iter().chain(Fault::OPERATED).chain(Fault::OF_AGENTS);
        let mut all = all.chain(Fault::OF_STORE);
        all.find(|fault| format!("{fault:?}") == name)
    }

    /// Its shortest and longest duration, in milliseconds.
    fn lasts(self) -> (u64, u64) {
        match self {
            Fault::KillPostgres | Fault::EditDurability | Fault::LoseVolume => (0, 0),
            Fault::EditTemplate | Fault::EditParameter | Fault::RequestSwitchover | Fault::AcceptLoss => (0, 0),
            Fault::EditReplicas | Fault::DeletePod | Fault::DeleteLease | Fault::ScribbleLease => (0, 0),
            Fault::EditHibernated | Fault::DrainNode => (5_000, 60_000),
            Fault::ReplaceOperator => (16_000, 40_000),
            Fault::KillAgent | Fault::Terminate => (500, 4_000),
            Fault::Reboot => (3_000, 40_000),
            Fault::KillWatch => (5_000, 65_000),
            Fault::EditPrimary => (10_000, 40_000),
            Fault::SlowDisk | Fault::SlowNetwork | Fault::LagWatch | Fault::ApiErrors => (5_000, 40_000),
            Fault::LagOperator | Fault::BlindOperator => (5_000, 40_000),
            Fault::StoreOutage | Fault::StoreErrors | Fault::SlowStore => (5_000, 60_000),
            _ => (500, 25_000),
        }
    }
}

/// The target of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The member that is primary at that time.
    Primary,
    /// This one.
    Node(usize),
}

/// One fault of a run.
#[derive(Clone, Copy, Debug)]
pub struct Injection {
    /// The kind.
    pub fault: Fault,
    /// When it begins.
    pub at: u64,
    /// How long it lasts.
    pub lasts: u64,
    /// Its target.
    pub target: Target,
    /// Another member, if two are struck; or a number for other choices.
    pub other: usize,
}

/// A run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// Nodes; each is the place of one member.
    pub members: usize,
    /// `spec.replicas` at the beginning: as many as there are nodes, or fewer where an operator runs.
    pub replicas: usize,
    /// `spec.durability` at the beginning.
    pub durability: WantedDurability,
    /// `spec.failover`.
    pub timing: Timing,
    /// How long faults happen, in milliseconds.
    pub length: u64,
    /// All faults, in the order in which they are drawn.
    pub faults: Vec<Injection>,
    /// How much faster each member's clock runs than the world's, in millionths.
    pub rates: Vec<i64>,
    /// Milliseconds between two writes of one application.
    pub pace: u64,
    /// Bytes of WAL of a write.
    pub size: u64,
    /// A node that is never switched on again.
    pub gone: Option<usize>,
    /// An operator runs, with the decisions of `machine::cluster`.
    pub whole: bool,
    /// The rule that is broken on purpose.
    pub bug: Option<Bug>,
    /// The archive of WAL, if there is one.
    pub archive: Option<Archive>,
}

/// How much faster or slower than the world's a clock runs at most, in millionths: any two are within 5 %.
const RATE: u64 = 24_000;

impl Plan {
    /// The plan of a seed.
    pub fn of(seed: u64) -> Self {
        let mut random = Random::of(seed, "plan");
        let members = random.one(&[1, 2, 3, 3, 3, 3, 3, 4, 5]);
        let durability = durability(random.below(10), members);
        let timing = random.one(&[Timing::DEFAULT, Timing::DEFAULT, Timing::FAST]);
        let length = random.between(20_000, 90_000);
        let skewed = random.chance(500);
        let rates = (0..members)
            .map(|_| {
                if skewed {
                    random.between(0, 2 * RATE) as i64 - RATE as i64
                } else {
                    0
                }
            })
            .collect();
        let pace = random.one(&[50, 200, 200, 500]);
        let size = random.one(&[200, 8_000, 8_000, 8_000, 3_000_000]);
        let gone = (members > 1 && random.chance(150)).then(|| random.below(members as u64) as usize);
        let mut kinds: BTreeSet<Fault> = Fault::ALL.into_iter().filter(|_| random.chance(250)).collect();
        if random.chance(250) {
            kinds.insert(Fault::AcceptLoss);
        }
        if random.chance(150) {
            kinds.insert(Fault::Impersonate);
        }
        for lost in [Fault::DeleteLease, Fault::ScribbleLease] {
            if random.chance(100) {
                kinds.insert(lost);
            }
        }
        let mut random = Random::of(seed, "faults of the store");
        let archive = random.chance(800).then(|| archive(seed, size, pace));
        if archive.is_some() {
            kinds.extend(Fault::OF_STORE.into_iter().filter(|_| random.chance(400)));
        }
        Self {
            seed,
            members,
            replicas: members,
            durability,
            timing,
            length,
            faults: draw(seed, members, length, &kinds),
            rates,
            pace,
            size,
            gone,
            whole: false,
            bug: None,
            archive,
        }
    }

    /// The plan of a seed about the archive: three members, a store that fails, and primaries that are lost.
    pub fn archived(seed: u64) -> Self {
        let mut random = Random::of(seed, "archived");
        let plain = Self::of(seed);
        let length = random.between(30_000, 90_000);
        let kinds = [
            Fault::KillPostgres,
            Fault::Reboot,
            Fault::CutNode,
            Fault::CutApi,
            Fault::FreezeAgent,
            Fault::SlowNetwork,
            Fault::LoseVolume,
            Fault::Terminate,
        ];
        let kinds = kinds.into_iter().filter(|_| random.chance(400));
        let kinds: BTreeSet<Fault> = kinds.chain(Fault::OF_STORE).collect();
        Self {
            members: 3,
            replicas: 3,
            durability: durability(random.below(10), 3),
            length,
            faults: draw(seed, 3, length, &kinds),
            rates: vec![0; 3],
            gone: None,
            archive: Some(archive(seed, plain.size, plain.pace)),
            ..plain
        }
    }

    /// The plan of a seed with an operator: fewer faults of each kind, and the user's edits.
    pub fn whole(seed: u64) -> Self {
        let mut random = Random::of(seed, "whole");
        let replicas = random.one(&[1, 2, 3, 3, 3, 3, 3, 4]);
        let members = random.between(replicas as u64, 4) as usize;
        let plain = Self::of(seed);
        let length = random.between(40_000, 120_000);
        let mut kinds: BTreeSet<Fault> = Fault::ALL.into_iter().filter(|_| random.chance(120)).collect();
        kinds.extend(Fault::OPERATED.into_iter().filter(|_| random.chance(350)));
        Self {
            members,
            replicas,
            durability: durability(random.below(10), replicas),
            length,
            faults: draw(seed, members, length, &kinds),
            rates: (0..members)
                .map(|node| plain.rates.get(node).copied().unwrap_or(0))
                .collect(),
            size: random.one(&[200, 8_000, 8_000, 3_000_000]),
            pace: random.one(&[200, 500]),
            gone: (replicas > 1 && random.chance(60)).then(|| random.below(replicas as u64) as usize),
            whole: true,
            archive: None,
            ..plain
        }
    }

    /// The same plan without the faults of these numbers.
    pub fn without(mut self, left_out: &BTreeSet<usize>) -> Self {
        for index in left_out {
            if let Some(fault) = self.faults.get_mut(*index) {
                fault.at = u64::MAX;
            }
        }
        self
    }

    /// The faults that are not left out, with their numbers.
    pub fn chosen(&self) -> impl Iterator<Item = (usize, &Injection)> {
        self.faults.iter().enumerate().filter(|(_, fault)| fault.at < u64::MAX)
    }

    /// Only this fault, always against the primary, and each time after the previous one is over: to measure failovers.
    pub fn failovers(seed: u64, fault: Fault, count: u64) -> Self {
        let every = 15_000;
        let mut plan = Self::of(seed);
        plan.faults = (0..count)
            .map(|number| Injection {
                fault,
                at: 5_000 + number * every,
                lasts: 5_000,
                target: Target::Primary,
                other: 0,
            })
            .collect();
        Self {
            members: 3,
            replicas: 3,
            durability: required(1),
            timing: Timing::DEFAULT,
            length: 5_000 + count * every,
            rates: vec![0; 3],
            pace: 200,
            size: 8_000,
            gone: None,
            archive: None,
            ..plan
        }
    }
}

/// The archive of a seed. A volume has room for more segments than its faults let pile up, or for few.
fn archive(seed: u64, size: u64, pace: u64) -> Archive {
    let mut random = Random::of(seed, "archive");
    let segment = (size * (2_000 / pace)).next_power_of_two();
    let segments = random.one(&[20, 10_000, 10_000]);
    Archive {
        segment: Bytes(segment),
        room: Bytes(segment * segments),
    }
}

fn required(standbys: usize) -> WantedDurability {
    WantedDurability {
        mode: DurabilityMode::Required,
        standbys,
    }
}

/// One of the durabilities that a spec of this many members may have.
pub fn durability(number: u64, members: usize) -> WantedDurability {
    let asynchronous = WantedDurability {
        mode: DurabilityMode::Async,
        standbys: 0,
    };
    match number {
        _ if members == 1 => asynchronous,
        0 | 1 => asynchronous,
        2 | 3 => WantedDurability {
            mode: DurabilityMode::Preferred,
            standbys: 1,
        },
        4 if members > 3 => required(2),
        _ => required(1),
    }
}

fn draw(seed: u64, members: usize, length: u64, kinds: &BTreeSet<Fault>) -> Vec<Injection> {
    let mut faults = Vec::new();
    for fault in kinds {
        let mut random = Random::of(seed, &format!("{fault:?}"));
        let distance = random.between(6_000, 60_000);
        let (least, most) = fault.lasts();
        let mut at = random.between(2_000, 2_000 + distance);
        while at < length {
            let node = random.below(members as u64) as usize;
            let primary = random.chance(500);
            faults.push(Injection {
                fault: *fault,
                at,
                lasts: random.between(least, most),
                target: if primary { Target::Primary } else { Target::Node(node) },
                other: random.below(1_000) as usize,
            });
            at += random.between(distance / 2, distance * 3 / 2);
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaving_a_fault_out_changes_no_other() {
        let (whole, left) = (Plan::of(3), Plan::of(3).without(&[0].into()));
        assert!(whole.faults.len() > 1);
        let times = |plan: &Plan| plan.faults[1..].iter().map(|fault| fault.at).collect::<Vec<_>>();
        assert_eq!(times(&whole), times(&left));
        assert_eq!(left.chosen().count(), whole.faults.len() - 1);
    }

    #[test]
    fn names_are_found() {
        assert_eq!(Fault::named("CutApi"), Some(Fault::CutApi));
        assert_eq!(Fault::named("cutapi"), None);
    }
}
