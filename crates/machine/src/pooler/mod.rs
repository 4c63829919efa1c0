//! The machines of `Pooler`: PgBouncer in front of a cluster.
//!
//! - The operator's ([`Pooler`]) declares the role that looks passwords up ([`crate::declaration`]), makes the objects, and tells how many
//!   pods serve.
//! - A pod's ([`pod`]) has PgBouncer run with the configuration that follows from the spec and from where the primary is ([`settings`]).

pub mod pause;
pub mod pod;
pub mod settings;

use api::declared::{DeclaredPhase, DeclaredStatus};
use api::pooler::{PoolerSizing, PoolerSpec, PoolerStatus, refusal};

use crate::access::{Declared, DeclaredPooler, PoolerProgram};
use crate::cluster::OWNED;
use crate::declaration::{
    Action, Cluster, Declares, Facts, Instances, Observed, Parts, Proposal, Rule, Wanted, cluster, failed, finalizer,
    foreign, invalid, pending, publish, release, reports, rule, told, withdraw,
};

/// The kind `Pooler`.
#[derive(Clone, Copy, Debug)]
pub struct Pooler;

/// All rules, the most important first. The last one always proposes something.
pub const RULES: [Rule<Pooler>; 12] = [
    release(),
    withdraw(),
    invalid(),
    finalizer(),
    cluster(),
    rule(
        "fits",
        "A pooler fails whose name its cluster needs for a Service, or that may open more connections than an instance has.",
        |facts| too_much(facts).map(failed),
    ),
    foreign(),
    reports(),
    publish(),
    rule(
        "foreign-part",
        "An object of the pooler's name that is not the pooler's is named, and left alone.",
        |facts| match &facts.observed.parts {
            Parts::Foreign(object) => Some(failed(format!(
                "there is a {object} that is not of this Pooler: remove it, or make a Pooler of another name"
            ))),
            Parts::None | Parts::Unknown | Parts::Differ | Parts::Current => None,
        },
    ),
    rule(
        "parts",
        "The pooler's objects are made, and brought back to what they should be.",
        |facts| match facts.observed.parts {
            Parts::Differ => Some(facts.act(Action::MakeParts, "its objects are being made")),
            Parts::Unknown => Some(pending("waiting for its objects to be read".to_owned())),
            Parts::None | Parts::Current | Parts::Foreign(_) => None,
        },
    ),
    rule(
        "serve",
        "It is ready while PostgreSQL has its role, and as many pods as are wanted take clients.",
        |facts| Some(serve(facts)),
    ),
];

fn too_much(facts: &Facts<'_, Pooler>) -> Option<String> {
    let (spec, name) = (facts.wanted.spec, facts.wanted.name);
    let of = &spec.cluster_ref.name;
    let suffix = name.strip_prefix(&**of);
    // By the last one agents know each other: no certificate of a pooler may have it.
    let is_taken = |suffix: &str| ["", "-agent"].contains(&suffix) || OWNED.iter().any(|owned| owned.suffix == suffix);
    if suffix.is_some_and(is_taken) {
        return Some(format!(
            "ClusteredDatabase {of} has objects of the name {name}: make a Pooler of another name"
        ));
    }
    let available = facts.observed.cluster.get()?.as_ref()?.connections?;
    let possible = spec.limits.max_server_connections;
    (possible > available).then(|| {
        format!(
            "limits.maxServerConnections is {possible}, and an instance of {of} has {available} connections for applications: lower it, or \
             raise max_connections of the cluster"
        )
    })
}

fn serve(facts: &Facts<'_, Pooler>) -> Proposal {
    let told = told(facts);
    if told.phase != DeclaredPhase::Ready {
        return told;
    }
    let idle = facts
        .observed
        .cluster
        .get()
        .and_then(Option::as_ref)
        .and_then(|cluster| cluster.idle.as_ref());
    if let Some(why) = idle {
        return pending(format!(
            "it has no pods while {} serves nobody: {why}",
            facts.cluster_name()
        ));
    }
    let wanted = facts.wanted.spec.replicas;
    match facts.observed.instances {
        None => pending("waiting for its Deployment".to_owned()),
        Some(Instances { ready, .. }) if ready < wanted => pending(format!(
            "{ready} of {wanted} pods take clients: see those of its Deployment"
        )),
        Some(Instances { updated, .. }) if updated < wanted => {
            pending(format!("{updated} of {wanted} pods are as the spec wants them"))
        }
        Some(_) => Proposal {
            message: format!("{wanted} pods take clients"),
            ..told
        },
    }
}

/// How many pods there are to be: none while the cluster has none.
pub fn replicas(spec: &PoolerSpec, cluster: Option<&Cluster>) -> i32 {
    let is_idle = cluster.is_some_and(|cluster| cluster.idle.is_some());
    if is_idle { 0 } else { spec.replicas }
}

impl Declares for Pooler {
    type Spec = PoolerSpec;
    type Status = PoolerStatus;

    const KIND: &'static str = "Pooler";
    const OBJECT: &'static str = "role of poolers";

    fn rules() -> &'static [Rule<Self>] {
        &RULES
    }

    fn refusal(spec: &PoolerSpec, resource: &str) -> Option<String> {
        refusal(spec, resource)
    }

    fn cluster(spec: &PoolerSpec) -> &str {
        &spec.cluster_ref.name
    }

    fn object<'a>(_spec: &'a PoolerSpec, resource: &'a str) -> &'a str {
        resource
    }

    fn going(_wanted: &Wanted<'_, PoolerSpec>, _oid: u32, _owner: Option<&str>) -> Option<Declared> {
        None
    }

    fn declared(wanted: &Wanted<'_, PoolerSpec>) -> Declared {
        Declared::Pooler(DeclaredPooler {
            uid: wanted.uid.to_owned(),
            pooler: PoolerProgram::PgBouncer,
        })
    }

    fn common(status: &PoolerStatus) -> &DeclaredStatus {
        &status.declared
    }

    fn common_mut(status: &mut PoolerStatus) -> &mut DeclaredStatus {
        &mut status.declared
    }

    fn complete(wanted: &Wanted<'_, PoolerSpec>, observed: &Observed, status: &mut PoolerStatus) {
        status.replicas = observed.instances.map(|instances| instances.all);
        status.ready_replicas = observed.instances.map(|instances| instances.ready);
        if observed.certificate.is_some() {
            status.certificate.clone_from(&observed.certificate);
        }
        status.selector = Some(format!("{}={}", api::names::LABEL_POOLER, wanted.name));
        let cluster = observed.cluster.get().and_then(Option::as_ref);
        status.sizing = Some(PoolerSizing {
            possible_server_connections: wanted.spec.limits.max_server_connections,
            available: cluster.and_then(|cluster| cluster.connections),
        });
    }
}

#[cfg(test)]
mod tests;
