//! The testbed from `up` to `down`, beside any testbed that runs already, because it is an instance of its own. Needs
//! Linux and root.

mod snapshot;
mod volume_snapshots;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use snapshot::Snapshot;
use testbed::{Options, Outcome, POSTGRES_IMAGE, Signal, Status, Testbed};

/// The last instance: the least likely to be in use.
const INSTANCE: u8 = testbed::plan::MAX_INSTANCE;

/// The longest wait of this test.
const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_testbed_comes_up_bears_faults_and_leaves_nothing() {
    if !cfg!(target_os = "linux") || !rustix::process::geteuid().is_root() {
        println!("SKIPPED: the testbed needs Linux and root");
        return;
    }
    let options = Options::from_env().unwrap().with_instance(INSTANCE).with_nodes(2);
    // What is made once and outlives `down` must exist before the comparison.
    told(Testbed::up(options.clone()).await);
    told(Testbed::down(&options, false).await);
    let before = Snapshot::take(INSTANCE).unwrap();

    let mut stranger = start_stranger().unwrap();

    let lived = live(&options).await;

    assert!(Testbed::down(&options, false).await.unwrap());
    let strangers_end = stranger.try_wait().unwrap();
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    assert!(
        strangers_end.is_none(),
        "`down` ended a process that only looks like the testbed's"
    );
    told(lived);
    assert!(
        !Testbed::down(&options, false).await.unwrap(),
        "a second `down` finds nothing"
    );
    let left = before.what_is_new(&Snapshot::take(INSTANCE).unwrap());
    assert!(left.is_empty(), "`down` left:\n{}", left.join("\n"));
}

/// The error as text, without the stacks of async code.
fn told<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error:#}"))
}

/// A process with a name as the testbed's have, which the testbed did not start.
fn start_stranger() -> std::io::Result<std::process::Child> {
    let script = "exec -a 'containerd-shim-runc-v2 -namespace k8s.io' sleep 600";
    std::process::Command::new("bash").args(["-c", script]).spawn()
}

async fn live(options: &Options) -> Result<()> {
    let (testbed, _) = Testbed::up(options.clone()).await?;
    found_running(options).await?;
    let client = testbed.client().await?;
    load_image(&testbed, &client).await?;
    run_pod(&client).await?;
    grow_volume(&client).await?;
    volume_snapshots::take_and_restore(&testbed, &client).await?;
    freeze_and_thaw(&testbed).await?;
    cut_api_and_heal(&testbed, &client).await?;
    stop_and_continue_api(&testbed).await?;
    hang_volume(&testbed, &client).await?;
    restart_kubelet(&testbed).await?;
    killed_and_begun_again(&testbed, options).await?;
    // Left frozen and hanging on purpose: `down` must cope with that.
    let client = testbed.client().await?;
    run_pod(&client).await?;
    testbed.hang_volume(&volume_of(&client).await?).await?;
    testbed.freeze("default", "p").await?;
    testbed.stop_api()
}

/// `up` again is quick and changes nothing; another checkout is refused.
async fn found_running(options: &Options) -> Result<()> {
    let start = Instant::now();
    let (_, outcome) = Testbed::up(options.clone()).await?;
    ensure!(outcome == Outcome::AlreadyUp, "{outcome:?}");
    // Generous: the machine may be busy.
    ensure!(
        start.elapsed() < LIMIT / 4,
        "the second `up` took {:?}",
        start.elapsed()
    );
    let other = Options {
        checkout: std::env::temp_dir(),
        ..options.clone()
    };
    let holder = options.checkout.display().to_string();
    for refused in [
        Testbed::up(other.clone()).await.err(),
        Testbed::down(&other, false).await.err(),
    ] {
        let text = refused.context("another checkout was not refused")?.to_string();
        ensure!(text.contains(&holder), "{text}");
    }
    let status = Status::read(options.instance).await?.context("find the testbed")?;
    ensure!(status.is_healthy(), "{status}");
    let more = options.clone().with_nodes(options.nodes + 1);
    ensure!(
        Testbed::up(more).await.is_err(),
        "another number of nodes was not refused"
    );
    Ok(())
}

/// An image that is built here and that no registry has.
async fn load_image(testbed: &Testbed, client: &kube::Client) -> Result<()> {
    const IMAGE: &str = "localhost/cdb-testbed-test/image:1";
    let dir = testbed.state_dir().join("image");
    std::fs::create_dir_all(&dir)?;
    let containerfile = dir.join("Containerfile");
    std::fs::write(
        &containerfile,
        format!("FROM {}\nCOPY Containerfile /here\n", testbed::BASE_IMAGE),
    )?;
    Testbed::build_image(&containerfile, &dir, IMAGE).await?;
    testbed.load_image(IMAGE).await?;
    testbed.tag_image(IMAGE, "localhost/cdb-testbed-test/image:2").await?;
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let pod = serde_json::from_value(json!({
        "metadata": {"name": "image"},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{
                "name": "c",
                "image": "localhost/cdb-testbed-test/image:2",
                "command": ["test", "-f", "/here"],
            }],
        },
    }))?;
    pods.create(&PostParams::default(), &pod).await?;
    until("the pod of the loaded image to succeed", async || {
        let pod = pods.get("image").await?;
        Ok(pod.status.and_then(|s| s.phase).as_deref() == Some("Succeeded"))
    })
    .await
}

/// A pod with a volume of its own size, as a user that is not root.
async fn run_pod(client: &kube::Client) -> Result<()> {
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(client.clone());
    let claim = serde_json::from_value(json!({
        "metadata": {"name": "c"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": testbed::cluster::LOOP_CLASS,
            "resources": {"requests": {"storage": "64Mi"}},
        },
    }))?;
    claims.create(&PostParams::default(), &claim).await?;
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let script = "while date +%s%N > /data/tick.new && mv /data/tick.new /data/tick; do sleep 0.05; done";
    let pod = serde_json::from_value(json!({
        "metadata": {"name": "p"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsUser": 999, "runAsNonRoot": true, "fsGroup": 999},
            "containers": [{
                "name": "c",
                "image": POSTGRES_IMAGE,
                "command": ["sh", "-c", script],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}],
        },
    }))?;
    pods.create(&PostParams::default(), &pod).await?;
    until("the pod to run", async || {
        let pod = pods.get("p").await?;
        Ok(pod.status.and_then(|s| s.phase).as_deref() == Some("Running"))
    })
    .await
}

async fn grow_volume(client: &kube::Client) -> Result<()> {
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(client.clone());
    let size = json!({"spec": {"resources": {"requests": {"storage": "128Mi"}}}});
    claims.patch("c", &PatchParams::default(), &Patch::Merge(size)).await?;
    until("the volume to grow", async || {
        let status = claims.get("c").await?.status.unwrap_or_default();
        Ok(status
            .capacity
            .is_some_and(|c| c.get("storage").is_some_and(|q| q.0 == "128Mi")))
    })
    .await?;
    let dir = data_dir(client).await?;
    let stat = rustix::fs::statvfs(&dir)?;
    ensure!(
        stat.f_blocks * stat.f_frsize > 100 << 20,
        "the file system did not grow"
    );
    Ok(())
}

async fn freeze_and_thaw(testbed: &Testbed) -> Result<()> {
    let client = testbed.client().await?;
    let pid = testbed.container_pid("default", "p", "c").await?;
    ensure!(
        std::fs::read_to_string(format!("/proc/{pid}/cmdline"))?.contains("tick"),
        "{pid} is another process"
    );
    testbed.freeze("default", "p").await?;
    let tick = read_tick(&client).await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    ensure!(read_tick(&client).await? == tick, "a frozen pod ran");
    testbed.thaw("default", "p").await?;
    until("the pod to go on", async || Ok(read_tick(&client).await? != tick)).await
}

/// Without the API server the node's lease stops, and the pod's network works.
async fn cut_api_and_heal(testbed: &Testbed, client: &kube::Client) -> Result<()> {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let pod = pods.get("p").await?;
    let node = pod.spec.and_then(|s| s.node_name).context("find the pod's node")?;
    let pid = testbed.container_pid("default", "p", "c").await?;
    // On a busy machine one try may take too long.
    let reaches = async || reaches_api(testbed, pid).await;
    until("the pod to reach the API server", reaches).await?;
    testbed.cut_api(&node).await?;
    ensure!(
        !reaches_api(testbed, pid).await?,
        "the pod still reaches the API server"
    );
    let others = async || connects(pid, "198.19.247.1", 53).await;
    until("the other traffic of the pod", others).await?;
    testbed.heal_api(&node).await?;
    testbed.heal_api(&node).await.context("heal what is whole")?;
    until("the pod to reach the API server again", reaches).await?;
    testbed.cut(&node).await?;
    ensure!(
        !connects(pid, "198.19.247.1", 53).await?,
        "the pod of a cut node reaches the host"
    );
    testbed.heal(&node).await?;
    until("the network to heal", others).await?;
    testbed.wait_nodes_ready().await
}

async fn stop_and_continue_api(testbed: &Testbed) -> Result<()> {
    testbed.stop_api()?;
    ensure!(
        !testbed.api_is_ready(Duration::from_secs(1)).await,
        "a stopped API server answers"
    );
    testbed.cont_api()?;
    until("the API server to go on", async || {
        Ok(testbed.api_is_ready(Duration::from_secs(5)).await)
    })
    .await
}

async fn hang_volume(testbed: &Testbed, client: &kube::Client) -> Result<()> {
    let volume = volume_of(client).await?;
    testbed.hang_volume(&volume).await?;
    let tick = read_tick(client).await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    ensure!(
        read_tick(client).await? == tick,
        "a write to a hung volume came through"
    );
    testbed.unhang_volume(&volume).await?;
    until("writes to go on", async || Ok(read_tick(client).await? != tick)).await
}

async fn restart_kubelet(testbed: &Testbed) -> Result<()> {
    testbed.signal_process("kubelet-n1", Signal::KILL)?;
    until("the kubelet to end", async || {
        Ok(testbed.signal_process("kubelet-n1", Signal::CONT).is_err())
    })
    .await?;
    ensure!(
        Testbed::attach(testbed.instance()).is_err(),
        "a testbed without a kubelet counts as whole"
    );
    testbed.restart_process("kubelet-n1").await?;
    Testbed::attach(testbed.instance())?.wait_nodes_ready().await
}

/// All processes are killed: `up` must start again from nothing.
async fn killed_and_begun_again(testbed: &Testbed, options: &Options) -> Result<()> {
    for pid in Snapshot::processes_of(testbed.instance())? {
        testbed.signal(pid, Signal::KILL)?;
    }
    let (_, outcome) = Testbed::up(options.clone()).await?;
    ensure!(matches!(outcome, Outcome::Started(_)), "{outcome:?}");
    let client = testbed.client().await?;
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    ensure!(
        pods.get_opt("p").await?.is_none(),
        "the new testbed has the old one's pod"
    );
    run_pod(&client).await?;
    pods.delete("p", &DeleteParams::default()).await?;
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(client.clone());
    let dir = data_dir(&client).await?;
    claims.delete("c", &DeleteParams::default()).await?;
    until("the volume's data to go", async || Ok(!dir.exists())).await
}

async fn volume_of(client: &kube::Client) -> Result<String> {
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(client.clone());
    claims
        .get("c")
        .await?
        .spec
        .and_then(|s| s.volume_name)
        .context("find the claim's volume")
}

async fn data_dir(client: &kube::Client) -> Result<std::path::PathBuf> {
    Ok(Testbed::attach(INSTANCE)?.volume_dir(&volume_of(client).await?))
}

async fn read_tick(client: &kube::Client) -> Result<String> {
    Ok(std::fs::read_to_string(data_dir(client).await?.join("tick"))?)
}

/// Tells whether the network of process `pid` reaches the API server's service.
async fn reaches_api(testbed: &Testbed, pid: i32) -> Result<bool> {
    let service = testbed::plan::Plan::new(testbed.instance(), 1)?.api_service();
    connects(pid, &service.to_string(), 443).await
}

/// Tries a TCP connection from the network of process `pid`, for a second.
async fn connects(pid: i32, address: &str, port: u16) -> Result<bool> {
    let script = format!("exec timeout 1 bash -c '</dev/tcp/{address}/{port}'");
    let mut command = tokio::process::Command::new("nsenter");
    command
        .arg("-t")
        .arg(pid.to_string())
        .args(["-n", "sh", "-c", &script])
        .stderr(std::process::Stdio::null());
    Ok(command.status().await?.success())
}

async fn until(what: &str, check: impl AsyncFn() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    while !check().await.with_context(|| format!("wait for {what}"))? {
        ensure!(Instant::now() < deadline, "waited {} s for {what}", LIMIT.as_secs());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}
