//! A pod without credentials that floods the ports of a database's agents.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use api::names::{PEER_PORT, PROBE_PORT};
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use serde_json::json;

use crate::Namespace;
use crate::client::exec;
use crate::wait::{Seen, until};

const NAME: &str = "flood";
/// Time for the pod to start and to make all connections.
const START: Duration = Duration::from_secs(120);
/// The pod ends by itself after so many seconds.
const LONGEST: u32 = 600;

/// `hold ADDRESS PORT COUNT PAUSE TEXT` keeps that many connections, opens them again one by one, and notes when it has
/// opened all.
const SCRIPT: &str = r#"
hold() {
    local open=() one number=0 place
    while :; do
        place=$((number % $3))
        [ -n "${open[place]}" ] && exec {open[place]}>&-
        open[place]=
        if { exec {one}<>"/dev/tcp/$1/$2"; } 2>/dev/null; then
            open[place]=$one
            printf "$5" 2>/dev/null >&"$one"
        fi
        number=$((number + 1))
        [ "$number" = "$3" ] && : >"/tmp/$1-$2"
        sleep "$4"
    done
}
port=$1 other=$2
shift 2
for address; do
    hold "$address" "$port" 24 0.2 'GET /readyz HTTP/1.1\r\nhost: a\r\n\r\n' &
    hold "$address" "$other" 500 0.005 '\x16\x03\x01\x02' &
done
wait
"#;

/// Starts a pod that keeps 24 busy connections to the probes' port and 500 unfinished handshakes at the peers' port of
/// each of these agents, until the namespace is removed or ten minutes are over. Returns when each agent has been
/// connected that often.
///
/// # Errors
/// When the pod does not start, or has not connected within two minutes.
pub async fn start(namespace: &Namespace, image: &str, agents: &[IpAddr]) -> Result<()> {
    let [probes, peers] = [PROBE_PORT, PEER_PORT].map(|port| port.to_string());
    let addresses: Vec<String> = agents.iter().map(IpAddr::to_string).collect();
    let command = ["bash", "-c", SCRIPT, "flood", &probes, &peers];
    let command: Vec<&str> = command
        .into_iter()
        .chain(addresses.iter().map(String::as_str))
        .collect();
    let pod: Pod = serde_json::from_value(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": NAME},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "activeDeadlineSeconds": LONGEST,
            "restartPolicy": "Never",
            "securityContext": {"runAsNonRoot": true, "runAsUser": 999, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": NAME,
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "command": command,
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}
            }]
        }
    }))
    .context("write the flood's pod")?;
    let pods = namespace.api::<Pod>();
    pods.create(&PostParams::default(), &pod)
        .await
        .context("make the flood's pod")?;
    until("the flood to have begun", START, || async {
        let done = exec(namespace, NAME, NAME, &["ls", "/tmp"]).await?;
        let missing = addresses
            .iter()
            .flat_map(|address| [format!("{address}-{probes}"), format!("{address}-{peers}")])
            .filter(|name| !done.lines().any(|line| line == name));
        let missing: Vec<String> = missing.collect();
        Ok(if missing.is_empty() {
            Seen::Yes(())
        } else {
            Seen::NotYet(format!("not through to {missing:?}"))
        })
    })
    .await?;
    Ok(())
}
