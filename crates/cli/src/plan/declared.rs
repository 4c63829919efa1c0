//! `plan` of a DatabaseUser or a Database: the statements that PostgreSQL lacks of it, from its status.

use anyhow::{Context, Result, bail};
use api::declared::{DeclaredPhase, DeclaredStatus, Drift, ManagementPolicy, PlannedStatement};
use api::{Database, DatabaseUser};
use kube::core::ApiResource;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{CHANGES, NOTHING, REFUSED};
use crate::snapshot::{self, Snapshot};
use crate::text::{Page, Style, Tone, instant};

/// A DatabaseUser or a Database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    kind: Kind,
    /// Its name.
    pub name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    User,
    Database,
}

impl Target {
    /// The target that this argument names, such as `dbu/orders-rw`; `None` for the name of a ClusteredDatabase.
    ///
    /// # Errors
    /// If it names another kind.
    pub fn of(argument: &str) -> Result<Option<Self>> {
        let Some((kind, name)) = argument.split_once('/') else {
            return Ok(None);
        };
        let kind = match kind.to_lowercase().as_str() {
            "dbu" | "databaseuser" | "databaseusers" => Kind::User,
            "dbd" | "database" | "databases" => Kind::Database,
            _ => bail!("there is no plan of {argument:?}: name a ClusteredDatabase, dbu/NAME or dbd/NAME"),
        };
        let name = name.to_owned();
        Ok(Some(Self { kind, name }))
    }

    /// Its kind, for the API server.
    pub fn resource(&self) -> ApiResource {
        match self.kind {
            Kind::User => ApiResource::erase::<DatabaseUser>(&()),
            Kind::Database => ApiResource::erase::<Database>(&()),
        }
    }

    /// The object in a file, in `namespace` if that is given.
    ///
    /// # Errors
    /// If there is none, or there are several.
    pub fn find(&self, snapshot: &Snapshot, namespace: Option<&str>) -> Result<Value> {
        let kind = self.resource().kind;
        let is_there = |object: &&Value| {
            let there = object["metadata"]["namespace"].as_str();
            namespace.is_none_or(|namespace| there == Some(namespace))
        };
        let named = snapshot.of(&kind).filter(|object| snapshot::name(object) == self.name);
        let found: Vec<&Value> = named.filter(is_there).collect();
        match found[..] {
            [object] => Ok(object.clone()),
            [] => bail!("there is no {kind} {:?} in the file", self.name),
            _ => bail!(
                "there are several {kind}s called {:?}: choose one with --namespace",
                self.name
            ),
        }
    }

    /// The page of the object.
    ///
    /// # Errors
    /// If it does not fit its kind.
    pub fn page(&self, object: Value) -> Result<StatementsPage> {
        fn read<K: DeserializeOwned>(object: Value) -> Result<K> {
            serde_json::from_value(object)
                .context("the resource cannot be read: is this program older than the operator?")
        }
        let kind = self.resource().kind;
        let (metadata, cluster, policy, status) = match self.kind {
            Kind::User => {
                let user: DatabaseUser = read(object)?;
                let status = user.status.unwrap_or_default().declared;
                (
                    user.metadata,
                    user.spec.cluster_ref.name,
                    user.spec.management_policy,
                    status,
                )
            }
            Kind::Database => {
                let database: Database = read(object)?;
                let status = database.status.unwrap_or_default().declared;
                let spec = database.spec;
                (database.metadata, spec.cluster_ref.name, spec.management_policy, status)
            }
        };
        let is_of_this_spec = status.observed_generation == metadata.generation;
        let DeclaredStatus {
            phase,
            message,
            plan,
            more_statements,
            drift,
            ..
        } = status;
        let waits = "waiting for the operator to look at this spec".to_owned();
        Ok(StatementsPage {
            kind,
            name: metadata.name.unwrap_or_default(),
            namespace: metadata.namespace.unwrap_or_default(),
            cluster,
            policy,
            phase: phase.filter(|_| is_of_this_spec),
            message: message.filter(|_| is_of_this_spec).unwrap_or(waits),
            statements: plan,
            more: more_statements.unwrap_or_default(),
            drift,
        })
    }
}

/// The page.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StatementsPage {
    /// `DatabaseUser` or `Database`.
    pub kind: String,
    /// The resource's name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its ClusteredDatabase.
    pub cluster: String,
    /// How much of the plan is run.
    pub policy: ManagementPolicy,
    /// How far it is; absent while the status is of an earlier spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<DeclaredPhase>,
    /// Why.
    pub message: String,
    /// The statements that are missing.
    pub statements: Vec<PlannedStatement>,
    /// How many are missing beyond these.
    pub more: u32,
    /// What was mended last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drift: Option<Drift>,
}

impl StatementsPage {
    /// The program's exit code.
    pub fn exit(&self) -> u8 {
        match self.phase {
            Some(DeclaredPhase::Ready) => NOTHING,
            Some(DeclaredPhase::Failed) => REFUSED,
            Some(DeclaredPhase::Pending | DeclaredPhase::Planned | DeclaredPhase::Deleting) | None => CHANGES,
        }
    }
}

/// The page for people.
pub fn text(page: &StatementsPage, style: Style) -> String {
    let mut out = Page::default();
    let title = format!("{} {}/{}", page.kind, page.namespace, page.name);
    out.line(format!("{}  (in {})", style.paint(Tone::Strong, &title), page.cluster));
    let phase = match page.phase {
        None => style.paint(Tone::Busy, "not known yet"),
        Some(DeclaredPhase::Ready) => style.paint(Tone::Good, "Ready"),
        Some(phase @ DeclaredPhase::Failed) => style.paint(Tone::Bad, &format!("{phase:?}")),
        Some(phase) => style.paint(Tone::Busy, &format!("{phase:?}")),
    };
    out.field("Phase", format!("{phase}: {}", page.message));
    let policy = match page.policy {
        ManagementPolicy::Full => "Full: the primary runs what is missing as soon as it finds it",
        ManagementPolicy::Additive => "Additive: the primary runs what gives something, as soon as it finds it",
        ManagementPolicy::Observe => "Observe: nothing is run",
    };
    out.field("Policy", policy);
    out.line("");
    out.line("Missing");
    match (page.statements.is_empty() && page.more == 0, page.phase) {
        (true, Some(DeclaredPhase::Ready)) => out.line("  nothing"),
        (true, _) => out.line("  no statement is known"),
        (false, _) => list(&mut out, &page.statements, page.more),
    }
    if let Some(drift) = &page.drift {
        out.line("");
        out.line(format!(
            "Mended at {}, though the spec had not changed",
            instant(drift.at)
        ));
        list(&mut out, &drift.statements, drift.more.unwrap_or_default());
    }
    out.finish()
}

fn list(out: &mut Page, statements: &[PlannedStatement], more: u32) {
    for (index, step) in statements.iter().enumerate() {
        out.line(format!("  {:>2}. {}", index + 1, step.sql));
        if let Some(database) = &step.database {
            out.line(format!("      in database {database}"));
        }
        if step.takes {
            out.line("      takes something away");
        }
        if let Some(locks) = &step.locks {
            out.line(format!("      locks: {locks}"));
        }
    }
    if more > 0 {
        out.line(format!("      and {more} more"));
    }
}
