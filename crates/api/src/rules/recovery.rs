//! Rules about `spec.bootstrap.recovery`, beside those about its store.

use super::bootstrap::{MAX_STATEMENTS, are_statements, is_statement};
use super::{Rule, text};
use crate::ClusteredDatabase;
use crate::spec::{RecoveryChecks, RecoverySpec, RecoveryTarget};

/// A name in the store: that of a cluster, and eight digits of its UID.
const FOLDER: &str = "^[a-z]([-a-z0-9]{0,52}[a-z0-9])?-[0-9a-f]{8}$";
pub(super) const BACKUP: &str = "^[0-9]{8}T[0-9]{6}Z-[FDS]-[0-9a-f]{4}$";
const LSN: &str = "^[0-9A-F]{1,8}/[0-9A-F]{1,8}$";
/// PostgreSQL's own bound of a restore point's name.
const MAX_NAME: usize = 63;

/// Obeyed by a resource without a recovery, and by one that obeys it.
fn of(check: fn(&RecoverySpec) -> bool) -> impl Fn(&ClusteredDatabase) -> bool + Send + Sync {
    move |resource| resource.spec.recovery().is_none_or(check)
}

/// The same of a recovery's target.
fn of_target(check: fn(&RecoveryTarget) -> bool) -> impl Fn(&ClusteredDatabase) -> bool + Send + Sync {
    move |resource| {
        let recovery = resource.spec.recovery();
        recovery.and_then(|recovery| recovery.target.as_ref()).is_none_or(check)
    }
}

/// The rule about the checks at this place of the spec, which `checks` finds.
fn of_checks(at: &'static str, checks: fn(&ClusteredDatabase) -> Option<&RecoveryChecks>) -> Rule {
    Rule::holds(
        format!("spec.{at}.queries"),
        format!("size(self) <= {MAX_STATEMENTS} && {}", are_statements()),
        format!(
            "{at}.queries must be at most {MAX_STATEMENTS} queries of 1 to 16384 characters without NUL: join, split or correct them"
        ),
        move |resource| {
            checks(resource).is_none_or(|checks| {
                checks.queries.len() <= MAX_STATEMENTS && checks.queries.iter().all(|query| is_statement(query))
            })
        },
    )
}

pub(super) fn rules() -> Vec<Rule> {
    vec![
        of_checks("bootstrap.recovery.checks", |resource| {
            resource.spec.recovery()?.checks.as_ref()
        }),
        of_checks("backup.drill.checks", |resource| {
            resource.spec.backup.as_ref()?.drill.as_ref()?.checks.as_ref()
        }),
        Rule::holds(
            "spec.bootstrap",
            "!(has(self.volumes) && has(self.recovery))",
            "a database comes from volumes or from a backup: remove bootstrap.volumes or bootstrap.recovery",
            |resource| {
                let bootstrap = resource.spec.bootstrap.as_ref();
                bootstrap.is_none_or(|bootstrap| bootstrap.volumes.is_none() || bootstrap.recovery.is_none())
            },
        ),
        Rule::holds(
            "spec.bootstrap.recovery.from",
            "has(self.clusterRef) ? !has(self.store) && !has(self.cluster) && !has(self.__namespace__) : has(self.store) && has(self.cluster)",
            "recovery.from needs either clusterRef, or store and cluster and, if wanted, namespace: set one of them",
            of(|recovery| {
                let from = &recovery.from;
                match from.cluster_ref {
                    Some(_) => from.store.is_none() && from.cluster.is_none() && from.namespace.is_none(),
                    None => from.store.is_some() && from.cluster.is_some(),
                }
            }),
        ),
        Rule::holds(
            "spec.bootstrap.recovery.from.clusterRef.name",
            "size(self) <= 63 && self.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            "recovery.from.clusterRef.name must be the name of a ClusteredDatabase: correct it",
            of(|recovery| {
                let named = recovery.from.cluster_ref.as_ref();
                named.is_none_or(|named| named.name.len() <= 63 && text::is_dns_label(&named.name))
            }),
        ),
        Rule::holds(
            "spec.bootstrap.recovery.from.cluster",
            format!("self.matches('{FOLDER}')"),
            "recovery.from.cluster must be a database's name in the store, such as orders-1a2b3c4d: its name and the first eight digits of its UID",
            of(|recovery| recovery.from.cluster.as_deref().is_none_or(is_folder)),
        ),
        Rule::holds(
            "spec.bootstrap.recovery.from.namespace",
            "size(self) <= 63 && self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
            "recovery.from.namespace must be the name of a namespace: correct it",
            of(|recovery| recovery.from.namespace.as_deref().is_none_or(is_namespace)),
        ),
        Rule::holds(
            "spec.bootstrap.recovery.backup",
            format!("self.matches('{BACKUP}')"),
            "recovery.backup must be the name of a backup in the store, such as 20261124T230501Z-F-7f3a: correct or remove it",
            of(|recovery| recovery.backup.as_deref().is_none_or(is_backup)),
        ),
        Rule::holds(
            "spec.bootstrap.recovery.target",
            "[has(self.time), has(self.lsn), has(self.xid), has(self.name), has(self.immediate) && self.immediate].filter(is, is).size() == 1",
            "recovery.target must be one of time, lsn, xid, name and immediate: set one of them, or remove target to recover all that is archived",
            of_target(|target| target.kinds() == 1),
        ),
        Rule::holds(
            "spec.bootstrap.recovery.target",
            "!(has(self.exclusive) && self.exclusive) || has(self.time) || has(self.lsn) || has(self.xid)",
            "recovery.target.exclusive needs time, lsn or xid: remove it",
            of_target(RecoveryTarget::may_be_exclusive),
        ),
        Rule::holds(
            "spec.bootstrap.recovery.target.lsn",
            format!("self.matches('{LSN}')"),
            "recovery.target.lsn must be a position in the WAL, such as 16/B3000028: correct it",
            of_target(|target| target.lsn.as_deref().is_none_or(is_lsn)),
        ),
        Rule::holds(
            "spec.bootstrap.recovery.target.name",
            format!(
                "size(self) >= 1 && size(self) <= {MAX_NAME} && self.matches('{}')",
                text::NO_CONTROL
            ),
            "recovery.target.name must be the name of a restore point: 1 to 63 characters without control characters",
            of_target(|target| target.name.as_deref().is_none_or(is_restore_point)),
        ),
    ]
}

fn is_folder(name: &str) -> bool {
    let is_digit = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    name.rsplit_once('-').is_some_and(|(cluster, uid)| {
        cluster.len() <= 54 && text::is_dns_label(cluster) && uid.len() == 8 && uid.bytes().all(is_digit)
    })
}

fn is_namespace(name: &str) -> bool {
    name.len() <= 63 && !name.contains('.') && text::is_dns_subdomain(name)
}

pub(crate) fn is_backup(name: &str) -> bool {
    let digits = |text: &str, count: usize| text.len() == count && text.bytes().all(|b| b.is_ascii_digit());
    let is_hex = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    let parts: Vec<&str> = name.split('-').collect();
    let [time, "F" | "D" | "S", end] = parts[..] else {
        return false;
    };
    let time = time.strip_suffix('Z').and_then(|time| time.split_once('T'));
    time.is_some_and(|(day, clock)| digits(day, 8) && digits(clock, 6)) && end.len() == 4 && end.bytes().all(is_hex)
}

pub(crate) fn is_lsn(text: &str) -> bool {
    let is_half =
        |half: &str| (1..=8).contains(&half.len()) && half.bytes().all(|b| matches!(b, b'0'..=b'9' | b'A'..=b'F'));
    text.split_once('/')
        .is_some_and(|(high, low)| is_half(high) && is_half(low))
}

pub(crate) fn is_restore_point(name: &str) -> bool {
    (1..=MAX_NAME).contains(&text::size(name)) && !name.chars().any(|c| c <= '\u{1f}' || c == '\u{7f}')
}
