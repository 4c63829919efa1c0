//! Names of members, and their numbers.

use machine::protocol::MemberId;

pub const SYSTEM_ID: &str = "7411111111111111111";
pub const SETTINGS: &str = "cbf29ce484222325";
pub const LEASE: &str = "lease";
pub const CLUSTER: &str = "c0ffee";

pub fn pod(node: usize) -> String {
    format!("orders-{node}")
}
pub fn pod_uid(node: usize) -> String {
    format!("uid-{node}")
}
pub fn address(node: usize) -> String {
    format!("10.0.0.{node}")
}
/// The number at the end of a pod's name or an address.
pub fn number(name: &str) -> usize {
    name.rsplit(['-', '.'])
        .next()
        .and_then(|end| end.parse().ok())
        .unwrap_or(usize::MAX)
}
/// UID of the claim of a node's volume; a lost volume has another claim.
pub fn claim(node: usize, volume: u32) -> String {
    format!("{volume:04x}{node:04x}-1111")
}
pub fn member(node: usize, volume: u32) -> MemberId {
    MemberId::new(node as u32, &claim(node, volume), volume)
}
/// The key with which a member signs.
pub fn key(member: &MemberId) -> String {
    format!("key of {member}")
}
/// True if the member was made on this claim.
pub fn made_on(member: &MemberId, claim: &str) -> bool {
    let here = MemberId::new(owner(member) as u32, claim, 0);
    let place = |member: &MemberId| member.as_str().rsplit_once('_').map(|(place, _)| place.to_owned());
    place(member) == place(&here)
}
/// The number of the member's pod.
pub fn owner(member: &MemberId) -> usize {
    member
        .as_str()
        .split('_')
        .nth(1)
        .and_then(|node| node.parse().ok())
        .unwrap_or(usize::MAX)
}
