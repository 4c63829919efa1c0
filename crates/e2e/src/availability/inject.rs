//! Injects faults, and undoes them.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams};
use serde_json::json;
use testbed::{POSTGRES_IMAGE, Testbed};
use tokio::process::Command;

use crate::availability::load::Busy;
use crate::availability::pod::wall_clock;
use crate::availability::scenario::{Fault, Signal};
use crate::availability::subject::{Member, Subject};
use crate::availability::table::Leads;
use crate::client::exec;
use crate::processes::Container;

/// A second name of the same image.
const OTHER_IMAGE: &str = "localhost/cdb/postgres:17-again";
/// What is left on a full disk: less than PostgreSQL's smallest write of WAL.
const LEFT: u64 = 4096;
/// The file that fills it.
const FILLER: &str = "availability-filler";

/// What a fault needs to know.
pub struct Scene<'a> {
    /// The database.
    pub subject: &'a Subject,
    /// Its primary.
    pub primary: &'a Member,
    /// A standby whose node is neither the primary's nor the writer's.
    pub standby: Option<&'a Member>,
    /// All its pods.
    pub members: &'a [Member],
    /// When the fault began, in nanoseconds since the epoch; set by [`Scene::inject`], after all preparation.
    pub begun: OnceLock<u64>,
}

/// How a fault is undone.
#[derive(Debug)]
pub enum Remedy {
    /// It needs no remedy.
    Nothing,
    /// An instance is preferred as primary.
    Preferred,
    /// The node is cut off.
    Cut(String),
    /// The node is cut off from the API server.
    CutApi(String),
    /// The API server is stopped (SIGSTOP).
    StoppedApi,
    /// The volume hangs.
    Hung(String),
    /// The file fills a volume.
    Filled(PathBuf),
    /// The pod is frozen.
    Frozen(String),
    /// The process of that container is stopped.
    Stopped(Container, i32),
    /// The CPUs are busy.
    Busy(Busy),
    /// A command of the user's.
    Command(String),
}

impl Scene<'_> {
    /// Injects the fault, and returns how it is undone.
    ///
    /// # Errors
    /// When it cannot be done; then nothing is done.
    pub async fn inject(&self, fault: &Fault) -> Result<Remedy> {
        match fault {
            Fault::Switchover => self.switch_over().await,
            Fault::DeletePod(grace) => self.delete_pod(*grace).await,
            Fault::Postmaster(signal) => self.signal(*signal, true).await,
            Fault::FirstProcess(signal) => self.signal(*signal, false).await,
            Fault::CutNode => self.cut(self.primary).await,
            Fault::CutStandby => {
                self.cut(self.standby.context("no standby is on a node of its own")?)
                    .await
            }
            Fault::CutApi => {
                self.begin();
                self.testbed()?.cut_api(&self.primary.node).await?;
                Ok(Remedy::CutApi(self.primary.node.clone()))
            }
            Fault::StopApi => {
                self.begin();
                self.testbed()?.stop_api()?;
                Ok(Remedy::StoppedApi)
            }
            Fault::HangDisk => {
                let volume = self.volume().await?;
                self.begin();
                self.testbed()?.hang_volume(&volume).await?;
                Ok(Remedy::Hung(volume))
            }
            Fault::FillDisk => self.fill_disk().await,
            Fault::Freeze => {
                self.begin();
                self.testbed()?
                    .freeze(&self.subject.namespace.name, &self.primary.pod)
                    .await?;
                Ok(Remedy::Frozen(self.primary.pod.clone()))
            }
            Fault::Parameter => self.change_parameter().await,
            Fault::Image => self.change_image().await,
            Fault::Resources => self.change_resources().await,
            Fault::Load => {
                self.begin();
                Ok(Remedy::Busy(Busy::start(self.lease().await?)?))
            }
            Fault::Command { inject, heal } => {
                self.begin();
                self.command(inject).await?;
                Ok(heal.clone().map_or(Remedy::Nothing, Remedy::Command))
            }
        }
    }

    /// Undoes the fault.
    ///
    /// # Errors
    /// When it cannot be undone.
    pub async fn heal(&self, remedy: &Remedy) -> Result<()> {
        match remedy {
            Remedy::Nothing => Ok(()),
            Remedy::Preferred => {
                let change = json!({"primary": {"prefer": null}});
                self.subject.namespace.change(self.own()?, change).await.map(|_| ())
            }
            Remedy::Cut(node) => self.testbed()?.heal(node).await,
            Remedy::CutApi(node) => self.testbed()?.heal_api(node).await,
            Remedy::StoppedApi => self.testbed()?.cont_api(),
            Remedy::Hung(volume) => self.testbed()?.unhang_volume(volume).await,
            Remedy::Filled(path) => std::fs::remove_file(path).context("remove the file that fills the disk"),
            Remedy::Frozen(pod) => self.testbed()?.thaw(&self.subject.namespace.name, pod).await,
            Remedy::Stopped(container, pid) => {
                // The process may have been killed meanwhile, and its pid reused.
                let lives = *pid == container.agent || container.postgres().contains(pid);
                if lives {
                    self.testbed()?.signal(*pid, testbed::Signal::CONT)?;
                }
                Ok(())
            }
            Remedy::Busy(busy) => busy.end(),
            Remedy::Command(command) => self.command(command).await,
        }
    }

    /// Kills the operator's pods, without grace.
    ///
    /// # Errors
    /// When their nodes are unknown, or there are none.
    pub async fn kill_operator(&self) -> Result<()> {
        let operator = self.subject.operator.as_ref();
        let (namespace, selector) = operator.context("where the operator's pods are is not known")?;
        let pods: Api<Pod> = Api::namespaced(self.subject.namespace.client.clone(), namespace);
        let found = pods
            .list(&ListParams::default().labels(selector))
            .await
            .context("list the operator's pods")?;
        ensure!(
            !found.items.is_empty(),
            "no pod of the operator in {namespace} by {selector}"
        );
        for pod in found {
            pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0))
                .await
                .context("kill the operator's pod")?;
        }
        Ok(())
    }

    /// Notes that the next step is the fault.
    fn begin(&self) {
        self.begun.get_or_init(wall_clock);
    }

    /// The present content of the database's Lease.
    ///
    /// # Errors
    /// When it is not a `ClusteredDatabase`, or cannot be read.
    pub async fn lease(&self) -> Result<Leads> {
        let leases = self.subject.namespace.api::<Lease>();
        let lease = leases.get(self.own()?).await.context("read the Lease")?;
        let spec = lease.spec.context("a Lease has a spec")?;
        Ok(Leads {
            holder: spec.holder_identity.unwrap_or_default(),
            transitions: spec.lease_transitions.unwrap_or(0),
        })
    }

    fn testbed(&self) -> Result<&Testbed> {
        self.subject.testbed.as_deref().context("this fault needs the testbed")
    }

    fn own(&self) -> Result<&str> {
        self.subject
            .own
            .as_deref()
            .context("this change needs a ClusteredDatabase")
    }

    async fn switch_over(&self) -> Result<Remedy> {
        let target = self
            .standby
            .or_else(|| self.members.iter().find(|member| member.pod != self.primary.pod));
        let target = target.context("no standby to switch over to")?;
        let change = json!({"primary": {"prefer": target.pod}});
        self.begin();
        let changed = self.subject.namespace.change(self.own()?, change).await?;
        // An older resource definition would drop the field, and nothing would happen.
        let written = serde_json::to_value(&changed.spec).context("read the changed spec")?;
        ensure!(
            written.pointer("/primary/prefer") == Some(&json!(target.pod)),
            "this version has no spec.primary.prefer"
        );
        Ok(Remedy::Preferred)
    }

    async fn delete_pod(&self, grace: Option<u32>) -> Result<Remedy> {
        let how = grace.map_or_else(DeleteParams::default, |grace| {
            DeleteParams::default().grace_period(grace)
        });
        self.begin();
        self.subject
            .namespace
            .api::<Pod>()
            .delete(&self.primary.pod, &how)
            .await
            .context("delete the primary's pod")?;
        Ok(Remedy::Nothing)
    }

    async fn signal(&self, signal: Signal, postmaster: bool) -> Result<Remedy> {
        let testbed = self.testbed()?;
        let subject = self.subject;
        let container = Container::named(testbed, &subject.namespace, &self.primary.pod, &subject.container).await?;
        let pid = if postmaster {
            container.postmaster()?
        } else {
            container.agent
        };
        self.begin();
        match signal {
            Signal::Kill => {
                testbed.signal(pid, testbed::Signal::KILL)?;
                Ok(Remedy::Nothing)
            }
            Signal::Stop => {
                testbed.signal(pid, testbed::Signal::STOP)?;
                Ok(Remedy::Stopped(container, pid))
            }
        }
    }

    async fn cut(&self, member: &Member) -> Result<Remedy> {
        let shared: Vec<&str> = self
            .members
            .iter()
            .filter(|other| other.node == member.node && other.pod != member.pod)
            .map(|other| other.pod.as_str())
            .collect();
        ensure!(
            shared.is_empty(),
            "{} shares node {} with {shared:?}",
            member.pod,
            member.node
        );
        self.begin();
        self.testbed()?.cut(&member.node).await?;
        Ok(Remedy::Cut(member.node.clone()))
    }

    /// The volume of the primary's data.
    async fn volume(&self) -> Result<String> {
        let namespace = &self.subject.namespace;
        let pod = namespace
            .api::<Pod>()
            .get(&self.primary.pod)
            .await
            .context("read the primary's pod")?;
        let claims = pod
            .spec
            .and_then(|spec| spec.volumes)
            .unwrap_or_default()
            .into_iter()
            .filter_map(|volume| volume.persistent_volume_claim);
        let names: Vec<String> = claims.map(|claim| claim.claim_name).collect();
        let [name] = names.as_slice() else {
            bail!("{} has {} claims, not one", self.primary.pod, names.len());
        };
        let claim = namespace
            .api::<PersistentVolumeClaim>()
            .get(name)
            .await
            .context("read the claim")?;
        claim
            .spec
            .and_then(|spec| spec.volume_name)
            .context("the claim has no volume")
    }

    async fn fill_disk(&self) -> Result<Remedy> {
        let folder = self.testbed()?.volume_dir(&self.volume().await?);
        let volume = std::fs::canonicalize(&folder).context("find the volume")?;
        let device = |path: &std::path::Path| -> Result<u64> {
            use std::os::unix::fs::MetadataExt;
            Ok(std::fs::metadata(path).context("look at the volume")?.dev())
        };
        let parent = volume.parent().context("a volume is in a folder")?;
        ensure!(
            device(&volume)? != device(parent)?,
            "the volume has no file system of its own: the whole machine would run out of space"
        );
        let path = volume.join(FILLER);
        let remedy = Remedy::Filled(path.clone());
        self.begin();
        let filled = tokio::task::spawn_blocking(move || fill(&path)).await;
        let felt = match filled.context("fill the disk") {
            Ok(Ok(())) => self.use_up_wal().await,
            Ok(Err(error)) | Err(error) => Err(error),
        };
        if felt.is_err() {
            self.heal(&remedy).await?;
        }
        felt.map(|()| remedy)
    }

    /// Writes WAL until the server fails: it keeps files for some of it ready, so that small rows would not notice a full
    /// disk for a long time.
    async fn use_up_wal(&self) -> Result<()> {
        let statement = "SELECT count(pg_logical_emit_message(false, 'availability', repeat('x', 1000000))) \
                         FROM generate_series(1, 1500)";
        let psql = ["psql", "-X", "-U", "postgres", "-d", "postgres", "-c", statement];
        let (namespace, container) = (&self.subject.namespace, &self.subject.container);
        match exec(namespace, &self.primary.pod, container, &psql).await {
            Ok(_) => bail!("the disk is not full: 1.5 GB of WAL could be written"),
            Err(error) => {
                // A process that could not start has filled nothing.
                let text = format!("{error:#}");
                ensure!(
                    !text.contains("connection to server") || text.contains("closed"),
                    "{text}"
                );
                Ok(())
            }
        }
    }

    async fn change_parameter(&self) -> Result<Remedy> {
        let name = self.own()?;
        let spec = self.subject.namespace.get(name).await?.spec;
        let old = spec.postgres.parameters.get("max_connections");
        // Only up, and by little: memory is not measured here.
        let new = old.and_then(|value| value.parse::<u32>().ok()).unwrap_or(100) + 1;
        self.begin();
        let change = json!({"postgres": {"parameters": {"max_connections": new.to_string()}}});
        self.subject.namespace.change(name, change).await?;
        Ok(Remedy::Nothing)
    }

    async fn change_image(&self) -> Result<Remedy> {
        let name = self.own()?;
        self.testbed()?.tag_image(POSTGRES_IMAGE, OTHER_IMAGE).await?;
        let spec = self.subject.namespace.get(name).await?.spec;
        let again = spec.postgres.image.as_deref() == Some(OTHER_IMAGE);
        self.begin();
        let new = if again { POSTGRES_IMAGE } else { OTHER_IMAGE };
        self.subject
            .namespace
            .change(name, json!({"postgres": {"image": new}}))
            .await?;
        Ok(Remedy::Nothing)
    }

    async fn change_resources(&self) -> Result<Remedy> {
        let name = self.own()?;
        let spec = self.subject.namespace.get(name).await?.spec;
        let requests = spec
            .resources
            .and_then(|resources| resources.requests)
            .unwrap_or_default();
        let new = if requests.get("cpu").is_some_and(|cpu| cpu.0 == "20m") {
            "30m"
        } else {
            "20m"
        };
        self.begin();
        let change = json!({"resources": {"requests": {"cpu": new}}});
        self.subject.namespace.change(name, change).await?;
        Ok(Remedy::Nothing)
    }

    async fn command(&self, command: &str) -> Result<()> {
        let standby = self
            .standby
            .or_else(|| self.members.iter().find(|member| member.pod != self.primary.pod));
        let output = Command::new("sh")
            .args(["-c", command])
            .env("NAMESPACE", &self.subject.namespace.name)
            .env("PRIMARY", &self.primary.pod)
            .env("PRIMARY_NODE", &self.primary.node)
            .env("STANDBY", standby.map_or("", |member| member.pod.as_str()))
            .env("STANDBY_NODE", standby.map_or("", |member| member.node.as_str()))
            .stdin(Stdio::null())
            .output()
            .await
            .context("run the command")?;
        ensure!(
            output.status.success(),
            "{command}: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(())
    }
}

/// Takes all of the space, also that reserved for root, down to less than a page.
fn fill(path: &std::path::Path) -> Result<()> {
    use rustix::fs::{FallocateFlags, fallocate, statvfs};
    let file = std::fs::File::create(path).context("make the file that fills the disk")?;
    let mut length = 0;
    loop {
        let space = statvfs(path).context("ask for the space that is left")?;
        let free = space.f_bfree * space.f_frsize;
        // Halves of what is left: the file system needs some of it itself.
        let part = (free / 2).max(LEFT);
        match fallocate(&file, FallocateFlags::empty(), length, part) {
            Ok(()) => length += part,
            Err(rustix::io::Errno::NOSPC) if part <= LEFT => return Ok(()),
            Err(rustix::io::Errno::NOSPC) => {
                // The remainder in the smallest parts.
                while fallocate(&file, FallocateFlags::empty(), length, LEFT).is_ok() {
                    length += LEFT;
                }
                return Ok(());
            }
            Err(error) => return Err(error).context("fill the disk"),
        }
    }
}
