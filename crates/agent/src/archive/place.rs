//! The store of a spec, as crate `backup` names it.

use std::path::Path;

use api::store::{S3Addressing, S3Encryption, S3EncryptionAlgorithm, StoreSpec};
use backup::{Addressing, Azure, Gcs, Place, S3, ServerSideEncryption, Volume};

/// The store of the spec, of which a volume is mounted at `mount`; `None` if the spec names none.
pub(crate) fn place(store: &StoreSpec, mount: &Path) -> Option<Place> {
    if store.volume.is_some() {
        let directory = mount.to_owned();
        return Some(Place::Volume(Volume { directory }));
    }
    let folder = |path: &str| path.trim_end_matches('/').to_owned();
    if let Some(azure) = &store.azure {
        return Some(Place::Azure(Azure {
            account: azure.account.clone(),
            container: azure.container.clone(),
            path: folder(azure.path.as_deref().unwrap_or_default()),
            endpoint: azure.endpoint.clone(),
        }));
    }
    if let Some(gcs) = &store.gcs {
        return Some(Place::Gcs(Gcs {
            bucket: gcs.bucket.clone(),
            path: folder(gcs.path.as_deref().unwrap_or_default()),
            endpoint: gcs.endpoint.clone(),
        }));
    }
    let s3 = store.s3.as_ref()?;
    let (bucket, path) = s3.location();
    Some(Place::S3(S3 {
        bucket: bucket.to_owned(),
        path: folder(path),
        region: s3.region.clone(),
        endpoint: s3.endpoint.clone(),
        addressing: Some(match s3.addressing() {
            S3Addressing::Path => Addressing::Path,
            S3Addressing::VirtualHost => Addressing::VirtualHost,
        }),
        server_side_encryption: s3.server_side_encryption.as_ref().map(encryption),
    }))
}

fn encryption(encryption: &S3Encryption) -> ServerSideEncryption {
    match encryption.algorithm {
        S3EncryptionAlgorithm::Aes256 => ServerSideEncryption::Aes256,
        S3EncryptionAlgorithm::AwsKms => ServerSideEncryption::AwsKms {
            key_id: encryption.kms_key_id.clone(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_write_a_place_are_one_place() {
        let mount = Path::new("/mnt/backups");
        let store = |json| place(&serde_json::from_value::<StoreSpec>(json).expect("a store"), mount);
        let whole = store(serde_json::json!({"s3": {"s3Path": "s3://wal/shop/a/"}}));
        let parts = store(serde_json::json!({"s3": {"bucket": "wal", "path": "shop/a"}}));
        assert!(whole.is_some());
        assert_eq!(whole, parts);
        let top = store(serde_json::json!({"s3": {"s3Path": "s3://wal", "endpoint": "http://store:9000"}}));
        let Some(Place::S3(top)) = top else { panic!("S3") };
        assert_eq!((top.path.as_str(), top.addressing), ("", Some(Addressing::Path)));
        assert_eq!(top.server_side_encryption, None);
        for (algorithm, expected) in [
            (serde_json::json!({"algorithm": "AES256"}), ServerSideEncryption::Aes256),
            (
                serde_json::json!({"algorithm": "aws:kms"}),
                ServerSideEncryption::AwsKms { key_id: None },
            ),
            (
                serde_json::json!({"algorithm": "aws:kms", "kmsKeyId": "alias/wal"}),
                ServerSideEncryption::AwsKms {
                    key_id: Some("alias/wal".to_owned()),
                },
            ),
        ] {
            let encrypted = store(serde_json::json!({"s3": {"bucket": "wal", "serverSideEncryption": algorithm}}));
            let Some(Place::S3(encrypted)) = encrypted else {
                panic!("S3")
            };
            assert_eq!(encrypted.server_side_encryption, Some(expected));
        }
        assert_eq!(store(serde_json::json!({})), None);
        let gcs = store(serde_json::json!({"gcs": {"bucket": "wal", "path": "a/"}}));
        let Some(Place::Gcs(gcs)) = gcs else { panic!("Google") };
        assert_eq!((gcs.bucket.as_str(), gcs.path.as_str()), ("wal", "a"));
        let azure = store(serde_json::json!({"azure": {"container": "wal", "account": "shop", "path": "a/"}}));
        let Some(Place::Azure(azure)) = azure else {
            panic!("Azure")
        };
        assert_eq!((azure.container.as_str(), azure.path.as_str()), ("wal", "a"));
        let volume = store(serde_json::json!({"volume": {"claimName": "wal"}}));
        let directory = mount.to_owned();
        assert_eq!(
            volume,
            Some(Place::Volume(Volume { directory })),
            "wherever it is mounted"
        );
    }
}
