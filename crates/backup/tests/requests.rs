//! What requests to a store bear.

mod support;

use backup::{Compare, Fence, Place, S3, ServerSideEncryption, Store};
use test_store::Seen;

use support::{LIMIT, access, bytes, s3, two_pieces};

const ALGORITHM: &str = "x-amz-server-side-encryption";
const KEY_ID: &str = "x-amz-server-side-encryption-aws-kms-key-id";
const KEY: &str = "arn:aws:kms:eu-central-1:111122223333:key/1234abcd";

/// Requests that make objects, which S3 encrypts as they ask.
fn makes_an_object(seen: &Seen) -> bool {
    match seen.method.as_str() {
        "PUT" => !seen.query.contains("partNumber="),
        "POST" => seen.query == "uploads" || seen.query == "uploads=",
        _ => false,
    }
}

/// Writes and reads objects of all sizes with this setting. Returns the requests.
async fn requests_with(encryption: Option<ServerSideEncryption>) -> Vec<Seen> {
    let server = support::Server::start(false).await;
    let Place::S3(place) = s3(server.store.url()) else {
        panic!("S3")
    };
    let place = Place::S3(S3 {
        server_side_encryption: encryption,
        ..place
    });
    let store = Store::open(&place, &access()).expect("a store");
    assert_eq!(store.probe("probe", LIMIT).await, Ok(Fence::Enforced));
    for fence in [Fence::Enforced, Fence::BestEffort] {
        let name = |kind: &str| format!("{kind}-{fence:?}");
        let store = store.clone().with_fence(fence);
        let small = name("small");
        let created = store.create(&small, bytes("content"), Compare::Bytes, LIMIT);
        created.await.expect("created");
        let pieces = two_pieces();
        for count in [1, 2] {
            let pieces = &pieces[2 - count..];
            let mut upload = store.upload(&name(&format!("pieces-{count}")), LIMIT);
            for piece in pieces {
                upload.write(piece.clone()).await.expect("a piece");
            }
            assert_eq!(upload.finish().await, Ok(pieces.concat().len() as u64));
        }
        assert_eq!(store.read(&name("pieces-1"), LIMIT).await, Ok(bytes("end")));
    }
    server.store.requests()
}

#[tokio::test]
async fn the_store_is_asked_to_encrypt_each_object_and_nothing_else() {
    let cases = [
        (None, None, None),
        (Some(ServerSideEncryption::Aes256), Some("AES256"), None),
        (
            Some(ServerSideEncryption::AwsKms { key_id: None }),
            Some("aws:kms"),
            None,
        ),
        (
            Some(ServerSideEncryption::AwsKms {
                key_id: Some(KEY.to_owned()),
            }),
            Some("aws:kms"),
            Some(KEY),
        ),
    ];
    for (encryption, algorithm, key) in cases {
        let requests = requests_with(encryption).await;
        let (making, others): (Vec<_>, Vec<_>) = requests.iter().partition(|seen| makes_an_object(seen));
        let starts = making.iter().filter(|seen| seen.method == "POST").count();
        assert_eq!(starts, 2, "uploads in pieces: {making:?}");
        assert!(making.len() > 4 + starts, "the probe's, too: {making:?}");
        let parts = others.iter().filter(|seen| seen.query.contains("partNumber=")).count();
        assert_eq!(parts, 4, "{others:?}");
        let header = |seen: &Seen, name: &str| {
            seen.headers
                .get(name)
                .map(|value| value.to_str().expect("text").to_owned())
        };
        for seen in making {
            assert_eq!(header(seen, ALGORITHM).as_deref(), algorithm, "{seen:?}");
            assert_eq!(header(seen, KEY_ID).as_deref(), key, "{seen:?}");
        }
        // S3 refuses these headers with a piece and with a read.
        for seen in others {
            assert_eq!(
                (header(seen, ALGORITHM), header(seen, KEY_ID)),
                (None, None),
                "{seen:?}"
            );
        }
    }
}
