use x509_parser::prelude::*;

use super::*;
use crate::builders::fixture::smallest;
use crate::config::Config;

fn now() -> DateTime<Utc> {
    "2027-02-28T12:00:00Z".parse().unwrap()
}

fn parse(pem: &str) -> (Vec<u8>, String) {
    let (_, pem) = parse_x509_pem(pem.as_bytes()).unwrap();
    (pem.contents, pem.label)
}

#[test]
fn the_agents_certificate_serves_every_name_and_is_signed_by_the_authority() {
    let (db, config) = (smallest(), Config::default());
    let subject = Subject::new(&db, &config).unwrap();
    let authority = authority(&subject, now()).unwrap();
    let agents = agents(&subject, &authority, now()).unwrap();
    let (ca_der, der) = (parse(&authority.certificate).0, parse(&agents.certificate).0);
    let (_, ca) = parse_x509_certificate(&ca_der).unwrap();
    let (_, leaf) = parse_x509_certificate(&der).unwrap();
    assert!(ca.is_ca());
    leaf.verify_signature(Some(ca.public_key())).unwrap();
    assert_eq!(leaf.issuer(), ca.subject());
    let san = leaf.subject_alternative_name().unwrap().unwrap();
    let names: Vec<_> = san.value.general_names.iter().map(ToString::to_string).collect();
    for wanted in [
        "*.db-pods.ns.svc.cluster.local",
        "*.db-pods.ns.svc",
        "db-rw.ns.svc.cluster.local",
        "db-ro",
        "db-r.ns",
        "db-agent",
    ] {
        assert!(
            names.iter().any(|name| name == &format!("DNSName({wanted})")),
            "{wanted}: {names:?}"
        );
    }
    let usage = leaf.extended_key_usage().unwrap().unwrap().value;
    assert!(usage.server_auth && usage.client_auth);
    assert_eq!(leaf.subject().to_string(), "CN=db-agent");
    assert!(leaf.validity().not_before.timestamp() < now().timestamp());
    let years = (leaf.validity().not_after.timestamp() - now().timestamp()) / (365 * 86_400 - 5 * 86_400);
    assert_eq!(years, 2);
}

#[test]
fn a_member_gets_a_certificate_for_its_own_key_and_its_own_name() {
    let (db, config) = (smallest(), Config::default());
    let authority = authority(&Subject::new(&db, &config).unwrap(), now()).unwrap();
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let public = STANDARD.encode(key.subject_public_key_info());
    let id = MemberId::new(1, "11112222-3333-4444-5555-666677778888", 7);
    let pem = member(&id, &public, &authority, now()).unwrap();
    let der = parse(&pem).0;
    let (_, certificate) = parse_x509_certificate(&der).unwrap();
    assert_eq!(certificate.subject().to_string(), format!("CN={id}"));
    assert_eq!(certificate.public_key().raw, key.subject_public_key_info());
    let usage = certificate.extended_key_usage().unwrap().unwrap().value;
    assert!(usage.client_auth && !usage.server_auth);
    assert!(!certificate.is_ca());
    let ca_der = parse(&authority.certificate).0;
    certificate
        .verify_signature(Some(parse_x509_certificate(&ca_der).unwrap().1.public_key()))
        .unwrap();
}

#[test]
fn what_was_made_is_read_back() {
    let (db, config) = (smallest(), Config::default());
    let subject = Subject::new(&db, &config).unwrap();
    let authority = authority(&subject, now()).unwrap();
    let agents = agents(&subject, &authority, now()).unwrap();
    let leaf = read(&agents.certificate).unwrap();
    let validity = leaf.validity;
    assert_eq!((validity.until - validity.from).num_days(), 731, "with the day before");
    let left = validity.until - validity.renewal();
    assert!((240..=245).contains(&left.num_days()), "eight months: {left}");
    assert!(belong_together(&agents) && belong_together(&authority));
    assert!(read("no certificate").is_none());
    let root = read(&authority.certificate).unwrap();
    assert_eq!((leaf.issuer.len(), &leaf.issuer), (40, &root.identifier));
    let both = format!("{}{}", authority.certificate, agents.certificate);
    assert_eq!(identifiers(&both), [root.identifier, leaf.identifier].into());
    let mixed = Pair {
        key: authority.key.clone(),
        ..agents
    };
    assert!(!belong_together(&mixed));
}

#[test]
fn other_keys_are_refused() {
    let (db, config) = (smallest(), Config::default());
    let authority = authority(&Subject::new(&db, &config).unwrap(), now()).unwrap();
    let id = MemberId::new(1, "11112222", 7);
    let other = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    for bad in ["not base64!", "AAAA", &STANDARD.encode(other.subject_public_key_info())] {
        assert!(
            matches!(
                member(&id, bad, &authority, now()),
                Err(CertificateError::PublicKey { .. })
            ),
            "{bad}"
        );
    }
}

#[test]
fn certificates_can_be_made_on_the_29th_of_february() {
    let (db, config) = (smallest(), Config::default());
    let leap = "2028-03-01T00:00:00Z".parse().unwrap();
    authority(&Subject::new(&db, &config).unwrap(), leap).unwrap();
}

#[test]
fn a_certificate_is_current_until_its_renewal_or_until_another_authority_issues() {
    let (db, config) = (smallest(), Config::default());
    let subject = Subject::new(&db, &config).unwrap();
    let issues = authority(&subject, now()).unwrap();
    let pair = client("app", &issues, now()).unwrap();
    let validity = read(&pair.certificate).unwrap().validity;
    assert_eq!((validity.until - validity.from).num_days(), 91, "with the day before");
    let renewal = validity.renewal();
    assert!(is_current(&pair, &issues, renewal - chrono::TimeDelta::seconds(1)));
    assert!(!is_current(&pair, &issues, renewal));
    let later = authority(&subject, now()).unwrap();
    assert!(!is_current(&pair, &later, now()));
    let mixed = Pair {
        key: client("app", &issues, now()).unwrap().key,
        ..pair
    };
    assert!(!is_current(&mixed, &issues, now()));
}
