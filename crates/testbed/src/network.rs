//! The bridge, the nodes' network namespaces and the routes between them.

use std::fmt::Write;
use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::command::Tool;
use crate::paths::Paths;
use crate::plan::{Plan, node_name};

/// Makes the network. All ports exist before the first kubelet starts: a port
/// that is added later was seen to disturb connections of the others.
///
/// # Errors
/// When a link or an address is taken, with what to do about it.
pub async fn create(plan: &Plan, paths: &Paths) -> Result<()> {
    for n in plan.node_numbers() {
        create_netns(&paths.netns(&node_name(n))).await?;
    }
    Tool::new("ip")
        .words("-batch -")
        .input(host_side(plan, paths))
        .run()
        .await
        .context("set up the bridge")?;
    for n in plan.node_numbers() {
        let netns = paths.netns(&node_name(n));
        let batch = node_side(plan, n);
        Tool::inside(&netns, "ip")
            .words("-batch -")
            .input(batch)
            .run()
            .await
            .context("set up a node's network")?;
        let forward = "echo 1 > /proc/sys/net/ipv4/ip_forward";
        Tool::inside(&netns, "sh")
            .arg("-c")
            .arg(forward)
            .run()
            .await
            .context("let a node forward")?;
    }
    Tool::new("ip")
        .words("-batch -")
        .input(host_routes(plan))
        .run()
        .await
        .context("set up the routes to the pods")?;
    Ok(())
}

/// Fails if a link or an address that the plan needs is used by others.
///
/// # Errors
/// Says which link it is and what to do.
pub async fn check_free(plan: &Plan) -> Result<()> {
    let bridge = plan.bridge();
    let advice = "remove it, or choose another testbed instance with --instance";
    if let Ok(mac) = fs::read_to_string(format!("/sys/class/net/{bridge}/address")) {
        ensure!(
            mac.trim() == plan.bridge_mac(),
            "there is a network link {bridge} that is not the testbed's (address {}): {advice}",
            mac.trim()
        );
    }
    let routes = Tool::new("ip").words("-4 -o route show table all").run().await?;
    if let Some(route) = routes.lines().find(|line| route_is_foreign(line, plan)) {
        anyhow::bail!("the route `{}` uses addresses of the testbed: {advice}", route.trim());
    }
    Ok(())
}

/// Removes what [`create`] made; missing things are no error. The namespaces end with their mounts.
///
/// # Errors
/// When a link cannot be removed.
pub async fn remove(plan: &Plan) -> Result<()> {
    let (bridge, cable) = (plan.bridge(), format!("{}v", plan.bridge()));
    let mut links = Vec::new();
    for entry in fs::read_dir("/sys/class/net").context("list network links")?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let ours = fs::read_to_string(entry.path().join("address")).is_ok_and(|mac| mac.trim() == plan.bridge_mac());
        if (name == bridge && ours) || name.strip_prefix(&cable).is_some_and(is_number) {
            links.push(name);
        }
    }
    for link in links {
        let removed = Tool::new("ip").words("link del").arg(&link).run().await;
        // A cable is removed together with the namespace at its other end.
        if Path::new("/sys/class/net").join(&link).exists() {
            removed?;
        }
    }
    Ok(())
}

/// Cuts node `n` off, or mends it. The cable is pulled at the host's end, so
/// the node sees no carrier and the others see silence.
///
/// # Errors
/// When the link is not there.
pub async fn set_cable(plan: &Plan, paths: &Paths, n: u8, up: bool) -> Result<()> {
    let state = if up { "up" } else { "down" };
    Tool::new("ip")
        .words("link set")
        .arg(plan.cable(n))
        .arg(state)
        .run()
        .await?;
    if up {
        let netns = paths.netns(&node_name(n));
        Tool::inside(&netns, "ip")
            .words("-batch -")
            .input(node_routes(plan, n))
            .run()
            .await?;
        Tool::new("ip").words("-batch -").input(host_routes(plan)).run().await?;
    }
    Ok(())
}

async fn create_netns(path: &Path) -> Result<()> {
    File::create(path).with_context(|| format!("make {}", path.display()))?;
    // Not `ip netns add`, which leaves a mount on /run/netns.
    Tool::new("unshare")
        .arg(format!("--net={}", path.display()))
        .arg("true")
        .run()
        .await?;
    Ok(())
}

fn host_side(plan: &Plan, paths: &Paths) -> String {
    let (bridge, mac, host) = (plan.bridge(), plan.bridge_mac(), plan.host());
    let mut batch = format!(
        "link add {bridge} address {mac} type bridge\naddress add {host}/24 dev {bridge}\nlink set {bridge} up\n"
    );
    for n in plan.node_numbers() {
        let (cable, netns) = (plan.cable(n), paths.netns(&node_name(n)));
        let _ = writeln!(
            batch,
            "link add {cable} type veth peer name eth0 netns {}",
            netns.display()
        );
        let _ = writeln!(batch, "link set {cable} master {bridge} up");
    }
    batch
}

fn node_side(plan: &Plan, n: u8) -> String {
    let address = plan.node(n);
    format!(
        "link set lo up\naddress add {address}/24 dev eth0\nlink set eth0 up\n{}",
        node_routes(plan, n)
    )
}

fn node_routes(plan: &Plan, n: u8) -> String {
    let mut batch = format!("route replace default via {}\n", plan.host());
    for other in plan.node_numbers().filter(|other| *other != n) {
        let _ = writeln!(batch, "route replace {} via {}", plan.pods(other), plan.node(other));
    }
    batch
}

fn host_routes(plan: &Plan) -> String {
    plan.node_numbers().fold(String::new(), |mut batch, n| {
        let _ = writeln!(batch, "route replace {} via {}", plan.pods(n), plan.node(n));
        batch
    })
}

fn is_number(text: &str) -> bool {
    text.parse::<u8>().is_ok()
}

/// True if a line of `ip route` covers addresses of the plan through a link that is not the plan's. The default route
/// covers everything and does not count.
fn route_is_foreign(line: &str, plan: &Plan) -> bool {
    let mut words = line
        .split_whitespace()
        .skip_while(|w| matches!(*w, "local" | "broadcast" | "unreachable"));
    let Some((address, _)) = words.next().map(|w| w.split_once('/').unwrap_or((w, "32"))) else {
        return false;
    };
    let device = line.split_whitespace().skip_while(|w| *w != "dev").nth(1);
    let prefixes = [format!("198.19.{}.", plan.host().octets()[2])];
    let pods = plan
        .node_numbers()
        .map(|n| plan.pods(n).trim_end_matches("0/24").to_owned());
    device != Some(plan.bridge().as_str()) && prefixes.into_iter().chain(pods).any(|p| address.starts_with(&p))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_of_another_network_is_found() {
        let plan = Plan::new(0, 3).unwrap();
        assert!(route_is_foreign(
            "198.19.240.0/24 dev tun0 proto kernel scope link",
            &plan
        ));
        assert!(route_is_foreign("local 198.19.240.1 dev eth1 table local", &plan));
        assert!(route_is_foreign("198.18.12.0/24 via 10.0.0.1 dev eth0", &plan));
    }

    #[test]
    fn own_default_and_unrelated_routes_are_fine() {
        let plan = Plan::new(0, 3).unwrap();
        assert!(!route_is_foreign("198.19.240.0/24 dev cdbtb0 proto kernel", &plan));
        assert!(!route_is_foreign("default via 10.0.0.1 dev eth0", &plan));
        assert!(!route_is_foreign("198.19.241.0/24 dev cdbtb1 proto kernel", &plan));
        assert!(!route_is_foreign("", &plan));
    }

    #[test]
    fn a_node_routes_to_all_others() {
        let plan = Plan::new(0, 3).unwrap();
        assert_eq!(
            node_routes(&plan, 2),
            "route replace default via 198.19.240.1\n\
             route replace 198.18.11.0/24 via 198.19.240.11\n\
             route replace 198.18.13.0/24 via 198.19.240.13\n"
        );
    }
}
