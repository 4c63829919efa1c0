use super::super::fixtures::*;
use super::super::*;
use super::*;
use crate::quorum::SyncRule;

fn sender(role: &str, name: &str) -> WalSender {
    WalSender {
        pid: 7,
        role: role.to_owned(),
        name: name.to_owned(),
        streaming: true,
        flushed: Some(Lsn(0x100)),
    }
}

#[test]
fn only_the_role_decides_which_wal_sender_counts_as_a_member() {
    let member = third();
    let own = sender(member.as_str(), member.as_str());
    assert_eq!(
        standbys(std::slice::from_ref(&own)),
        BTreeMap::from([(member.clone(), Lsn(0x100))])
    );
    assert_eq!(own.impostor(), None);
    let loud = member.as_str().to_ascii_uppercase();
    let other = other_holder().incarnation.member;
    let impostors = [
        sender("cdc", member.as_str()),
        sender("cdc", &loud),
        sender(other.as_str(), member.as_str()),
        // PostgreSQL would count that sender twice.
        sender(member.as_str(), &loud),
    ];
    for impostor in impostors {
        let name = impostor.name.clone();
        assert_eq!(impostor.impostor().map(|found| found.name), Some(name), "{impostor:?}");
        let senders = [impostor];
        assert!(
            standbys(&senders).is_empty() && receiving(&senders).is_empty(),
            "{senders:?}"
        );
    }
    let tool = format!("clone-{member}");
    let harmless = [
        ("cdc", "debezium"),
        (member.as_str(), &tool),
        ("cdc", &tool),
        ("cdc", "*"),
        ("cdc", ""),
    ];
    for (role, name) in harmless {
        let sender = sender(role, name);
        assert_eq!((sender.impostor(), sender.member()), (None, None), "{role} as {name}");
    }
}

#[test]
fn a_wal_sender_without_a_flushed_position_receives_but_does_not_count() {
    let mut senders = [sender(third().as_str(), third().as_str())];
    (senders[0].streaming, senders[0].flushed) = (false, None);
    assert!(standbys(&senders).is_empty());
    assert_eq!(receiving(&senders), BTreeMap::from([(third(), Lsn(0))]));
}

/// A primary that was asked at 1 s, and showed an impostor.
fn impersonated() -> Observed {
    let mut observed = primary();
    observed.tasks.lease.running = Some(Work::WriteLease);
    observed.postgres.sync.proven = SyncRule::any(1, [third()]);
    let senders = [sender("cdc", third().as_str())];
    observed
        .postgres
        .take_senders(&senders, Some(Lsn(0x200)), BootTime(1_000));
    observed
}

#[test]
fn an_impostor_is_ended_at_once_and_again_if_it_is_there_again() {
    let mut observed = impersonated();
    let first = decide(&observed, &settled(), BootTime(1_100));
    let impostors = observed.postgres.impostors.clone();
    assert_eq!(impostors.len(), 1);
    assert_eq!(first.action, Action::EndImpostors { impostors });
    let words = format!(
        "role \"cdc\" replicates under the name of {}, but is not that member",
        third()
    );
    assert_eq!(first.because, words);
    let again = |observed: &Observed| decide(observed, &first.memo, BootTime(1_300)).rule == "end-impostors";
    assert!(!again(&observed), "that answer is from before it was ended");
    observed.postgres.answer.as_mut().unwrap().asked = BootTime(1_200);
    assert!(again(&observed));
    observed.postgres.impostors.clear();
    assert!(!again(&observed));
}

#[test]
fn a_standby_ends_impostors_too() {
    let mut observed = standby();
    let senders = [sender("cdc", third().as_str())];
    observed.postgres.take_senders(&senders, None, BootTime(1_000));
    assert_eq!(
        decide(&observed, &Memo::default(), BootTime(1_100)).rule,
        "end-impostors"
    );
    assert_eq!(observed.postgres.doubt, None, "no commit waits for it");
}

#[test]
fn what_an_impostor_acknowledged_is_in_doubt_until_members_have_flushed_it_and_it_was_reported_long_enough() {
    let doubts = |flushed: u64, after: u64| {
        let mut observed = impersonated();
        let mut own = sender(third().as_str(), third().as_str());
        own.flushed = Some(Lsn(flushed));
        observed
            .postgres
            .take_senders(&[own], Some(Lsn(0x300)), BootTime(1_000 + after));
        let report = own::own(&Context::new(&observed, BootTime(1_000 + after))).unwrap();
        assert_eq!(observed.postgres.doubt.is_some(), !report.impostors.is_empty());
        !report.impostors.is_empty()
    };
    assert!(doubts(0x200, 100), "it was just seen");
    assert!(doubts(0x1ff, REPORTED.0), "no member has all");
    assert!(!doubts(0x200, REPORTED.0));
    let observed = impersonated();
    let own = own::own(&Context::new(&observed, BootTime(1_100))).unwrap();
    assert_eq!(own.impostors, BTreeSet::from(["cdc".to_owned()]));
}

#[test]
fn the_number_of_reported_roles_is_limited() {
    let mut observed = impersonated();
    let many: Vec<WalSender> = (0..100)
        .map(|number| sender(&format!("ä\n{number}"), third().as_str()))
        .collect();
    observed.postgres.take_senders(&many, Some(Lsn(1)), BootTime(1_000));
    assert_eq!(observed.postgres.doubt.as_ref().unwrap().roles.len(), ROLES);
    let own = own::own(&Context::new(&observed, BootTime(1_100))).unwrap();
    assert_eq!(own.check(), Ok(()), "a role's name may contain anything");
}
