//! Reading the volume.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use machine::instance::{Data, Database, Member, Promise, VolumeView, observer};
use machine::protocol::settings_hash;

use crate::deadman::boot_time;
use crate::peer::MemberKey;
use crate::tools::Tools;
use crate::volume::{ClusterState, DataState, EnforcedSettings, Volume, VolumeError};

/// A reading of the volume at one time.
#[derive(Clone, Debug)]
pub struct Scan {
    /// The part for the machine.
    pub view: VolumeView,
    /// Settings that the control file demands.
    pub limits: Option<EnforcedSettings>,
    /// The user's settings that PostgreSQL last ran well with.
    pub good_settings: Option<BTreeMap<String, String>>,
    /// The member's key.
    pub key: Option<MemberKey>,
}

impl Scan {
    /// The part that the observer takes.
    pub(super) fn seen(&self) -> observer::Scan {
        observer::Scan {
            view: self.view.clone(),
            enforced: self.limits,
            good_settings: self.good_settings.as_ref().map(settings_hash),
        }
    }
}

/// Reads the volume: identity, data, promise and records.
///
/// # Errors
/// Fails if the volume cannot be read. An unreadable promise is no error: it is then unknown.
pub async fn scan(volume: &Volume, tools: &Tools) -> Result<Scan, VolumeError> {
    let read = boot_time();
    let data = volume.data_state(tools).await?;
    let files = volume.clone();
    let files = tokio::task::spawn_blocking(move || read_files(&files));
    let (member, made_for, good_settings, promise, rewinding, was_primary, key) = files
        .await
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))?;
    let (data, limits) = match data {
        DataState::Empty => (Data::Empty, None),
        DataState::Unfinished { .. } => (Data::Unfinished, None),
        DataState::Ready(control) => {
            let written = volume.end_of_wal(control.redo, control.wal_sizes).await?;
            let database = Database {
                timeline: control.newest_timeline(),
                checkpoint: control.end(),
                redo: control.redo,
                written,
                clean: control.state == ClusterState::ShutDown,
                primary: control.is_primarys(),
                system_id: control.system_id,
            };
            (Data::Present(database), Some(control.enforced))
        }
    };
    Ok(Scan {
        view: VolumeView {
            member,
            made_for,
            data,
            promise,
            rewinding,
            was_primary,
            read,
        },
        limits,
        good_settings,
        key,
    })
}

type Files = (
    Option<Member>,
    Option<String>,
    Option<BTreeMap<String, String>>,
    Option<Promise>,
    bool,
    bool,
    Option<MemberKey>,
);

fn read_files(volume: &Volume) -> Result<Files, VolumeError> {
    let certificate = volume.certificate()?;
    let member = volume.member()?.map(|member| Member {
        id: member.id,
        claim_uid: member.claim_uid,
        public_key: member.public_key,
        certificate,
    });
    // An unreadable promise is logged, so that the rest of the volume is still known.
    let promise = volume
        .promise()
        .inspect_err(|error| tracing::error!("read what this member has promised: {error}"));
    Ok((
        member,
        volume.made_for()?,
        volume.good_settings()?,
        promise.ok(),
        volume.is_rewinding()?,
        volume.was_primary()?,
        volume.signing_key()?,
    ))
}

/// The pause between two measurements of the volumes' room: an election may come at any time.
const MEASURE: Duration = Duration::from_secs(1);

/// Measures the volumes' room for ever, and calls `tell` when other volumes are full than before.
pub async fn watch_room(volume: Volume, tell: impl Fn(BTreeSet<machine::protocol::Volume>)) {
    let mut known = BTreeSet::new();
    loop {
        let measured = volume.clone();
        // If the volume hangs, only this task waits.
        match tokio::task::spawn_blocking(move || measured.full()).await {
            Ok(Ok(full)) if full != known => {
                tracing::warn!("volumes without room for another segment of WAL, or for files: {full:?}");
                known.clone_from(&full);
                tell(full);
            }
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!("measure the volumes: {error}"),
            Err(error) => tracing::debug!("measure the volumes: {error}"),
        }
        tokio::time::sleep(MEASURE).await;
    }
}

/// The pause between two lists of the kept data.
const LIST: Duration = Duration::from_secs(15);

/// Lists the kept data for ever, and calls `tell` with the list. People may remove kept data by hand.
pub async fn watch_kept(volume: Volume, tell: impl Fn(BTreeSet<String>)) {
    loop {
        let looking = volume.clone();
        // If the volume hangs, only this task waits.
        match tokio::task::spawn_blocking(move || looking.kept()).await {
            Ok(Ok(kept)) => tell(kept),
            Ok(Err(error)) => tracing::debug!("list the kept data: {error}"),
            Err(error) => tracing::debug!("list the kept data: {error}"),
        }
        tokio::time::sleep(LIST).await;
    }
}
