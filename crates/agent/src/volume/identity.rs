//! The member's identity: its name, its key, its certificate. Stored beside PGDATA, because `pg_basebackup` and
//! `pg_rewind` overwrite files inside PGDATA.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use machine::protocol::MemberId;
use rcgen::{KeyPair, PublicKeyData};
use serde::{Deserialize, Serialize};

use super::files::{damaged, exists, failed, read_if_there, read_store, write_atomically};
use super::{Volume, VolumeError};
use crate::peer::MemberKey;

/// The identity of the data on the volume, as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The identity.
    pub id: MemberId,
    /// UID of the claim that the identity was made on.
    pub claim_uid: String,
    /// Public part of its replication key (SubjectPublicKeyInfo, DER, base64).
    pub public_key: String,
}

/// `agent/member.json`.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    version: u32,
    member: String,
    claim_uid: String,
    /// The store of promises was made before this file. Agents of earlier versions made that store with the first
    /// promise.
    #[serde(default)]
    promises: bool,
}

const STORE_VERSION: u32 = 1;

impl Volume {
    /// The stored identity; `None` only if none was ever made.
    ///
    /// # Errors
    /// Fails with [`VolumeError::File`] if a file cannot be read, with [`VolumeError::Damaged`] if it is not
    /// understood, and with [`VolumeError::Key`] if the key is damaged.
    pub fn member(&self) -> Result<Option<Member>, VolumeError> {
        let path = self.member_file();
        let Some(stored) = read_store(&path, STORE_VERSION, |stored: &Stored| stored.version)? else {
            return Ok(None);
        };
        let id = MemberId::parse(&stored.member)
            .ok_or_else(|| damaged(&path, format!("{:?} is no member", stored.member)))?;
        let public_key = STANDARD.encode(self.key()?.subject_public_key_info());
        Ok(Some(Member {
            id,
            claim_uid: stored.claim_uid,
            public_key,
        }))
    }

    /// Makes the identity, its key and its store of promises, and stores them durably.
    ///
    /// # Errors
    /// Fails with [`VolumeError::Damaged`] if there is an identity already, with [`VolumeError::Key`] if no key can be
    /// made, and with [`VolumeError::File`] if a file cannot be written.
    pub fn make_member(&self, id: &MemberId, claim_uid: &str) -> Result<Member, VolumeError> {
        let path = self.member_file();
        if exists(&path)? {
            return Err(VolumeError::Damaged {
                path,
                reason: "it exists already".to_owned(),
            });
        }
        // The key is written first: as long as the file with the name is missing, nobody has seen the key.
        let key = KeyPair::generate().map_err(|error| VolumeError::Key(error.to_string()))?;
        self.write(&self.key_file(), key.serialize_pem().as_bytes())?;
        self.begin_promises()?;
        let stored = Stored {
            version: STORE_VERSION,
            member: id.to_string(),
            claim_uid: claim_uid.to_owned(),
            promises: true,
        };
        let content = serde_json::to_vec(&stored).map_err(|error| VolumeError::Key(error.to_string()))?;
        self.write(&path, &content)?;
        let public_key = STANDARD.encode(key.subject_public_key_info());
        Ok(Member {
            id: id.clone(),
            claim_uid: claim_uid.to_owned(),
            public_key,
        })
    }

    /// True if the store of promises was made before the identity.
    pub(super) fn began_promises(&self) -> Result<bool, VolumeError> {
        let stored = read_store(&self.member_file(), STORE_VERSION, |stored: &Stored| stored.version)?;
        Ok(stored.is_some_and(|stored| stored.promises))
    }

    /// The key with which this member signs its messages to other members; `None` before it has an identity.
    ///
    /// # Errors
    /// Fails with [`VolumeError::File`] if the key cannot be read, and with [`VolumeError::Key`] if it is damaged.
    pub fn signing_key(&self) -> Result<Option<MemberKey>, VolumeError> {
        match exists(&self.member_file())? {
            true => Ok(Some(self.key()?.into())),
            false => Ok(None),
        }
    }

    /// The stored certificate (PEM), if there is one.
    ///
    /// # Errors
    /// Fails if the file exists and cannot be read.
    pub fn certificate(&self) -> Result<Option<String>, VolumeError> {
        let path = self.certificate_file();
        read_if_there(&path).map_err(failed("read", &path))
    }

    /// Stores the member's certificate (PEM). Returns `true` if it was not stored before.
    ///
    /// # Errors
    /// Fails with [`VolumeError::Certificate`] if the volume has no identity yet, or the certificate is for another key
    /// or name. Fails with [`VolumeError::File`] if it cannot be written.
    pub fn write_certificate(&self, pem: &str) -> Result<bool, VolumeError> {
        let member = self
            .member()?
            .ok_or_else(|| VolumeError::Certificate("this volume has no identity yet".to_owned()))?;
        check_certificate(pem, &self.key()?.subject_public_key_info(), member.id.as_str())
            .map_err(VolumeError::Certificate)?;
        if self.certificate()?.as_deref() == Some(pem) {
            return Ok(false);
        }
        self.write(&self.certificate_file(), pem.as_bytes())?;
        Ok(true)
    }

    fn key(&self) -> Result<KeyPair, VolumeError> {
        let path = self.key_file();
        let pem = std::fs::read_to_string(&path).map_err(failed("read", &path))?;
        KeyPair::from_pem(&pem).map_err(|error| VolumeError::Key(error.to_string()))
    }

    fn write(&self, path: &Path, content: &[u8]) -> Result<(), VolumeError> {
        write_atomically(path, content, 0o600).map_err(failed("write", path))
    }
}

/// Checks that a certificate is for this key (SubjectPublicKeyInfo) and this common name.
fn check_certificate(pem: &str, public_key: &[u8], name: &str) -> Result<(), String> {
    let (_, block) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).map_err(|error| error.to_string())?;
    let certificate = block.parse_x509().map_err(|error| error.to_string())?;
    if certificate.public_key().raw != public_key {
        return Err("it is for another key".to_owned());
    }
    let mut names = certificate
        .subject()
        .iter_common_name()
        .map(|name| name.as_str().unwrap_or_default());
    match (names.next(), names.next()) {
        (Some(found), None) if found == name => Ok(()),
        (found, _) => Err(format!("it is for {found:?}, not for {name:?}")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use rcgen::{CertificateParams, DnType};

    use super::*;
    use crate::volume::tests::Scratch;

    fn id() -> MemberId {
        MemberId::new(0, "1a2b3c4d-0000", 7)
    }

    fn certificate(key: &KeyPair, name: &str) -> String {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.distinguished_name.push(DnType::CommonName, name);
        params.self_signed(key).expect("a certificate").pem()
    }

    #[test]
    fn an_identity_is_found_again() {
        let scratch = Scratch::new();
        let volume = scratch.volume();
        assert_eq!(volume.member().expect("readable"), None);
        let made = volume.make_member(&id(), "1a2b3c4d-0000").expect("an identity");
        assert_eq!(volume.member().expect("readable"), Some(made));
        assert!(
            volume.make_member(&id(), "1a2b3c4d-0000").is_err(),
            "it is never made twice"
        );
        let mode = fs::metadata(volume.key_file()).expect("the key").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn an_unreadable_identity_is_not_an_absent_one() {
        let scratch = Scratch::new();
        let volume = scratch.volume();
        volume.make_member(&id(), "1a2b3c4d-0000").expect("an identity");
        fs::remove_file(volume.key_file()).expect("the key existed");
        assert!(volume.member().is_err());
        fs::write(volume.member_file(), "{").expect("written");
        assert!(volume.member().is_err());
    }

    #[test]
    fn only_a_certificate_for_key_and_name_is_taken() {
        let scratch = Scratch::new();
        let volume = scratch.volume();
        volume.make_member(&id(), "1a2b3c4d-0000").expect("an identity");
        let own = volume.key().expect("the key");
        let other = KeyPair::generate().expect("a key");
        assert!(volume.write_certificate(&certificate(&other, id().as_str())).is_err());
        assert!(volume.write_certificate(&certificate(&own, "postgres")).is_err());
        assert!(volume.write_certificate("no certificate").is_err());
        assert_eq!(volume.certificate().expect("readable"), None);
        let fitting = certificate(&own, id().as_str());
        assert!(volume.write_certificate(&fitting).expect("it fits"));
        assert!(!volume.write_certificate(&fitting).expect("it fits"), "nothing new");
    }
}
