//! What requests to a store bear: how it is to encrypt, and the identity of the pod.

mod support;

use std::env;
use std::process::Command;

use backup::{Azure, Compare, Fence, Place, S3, ServerSideEncryption, Store};
use test_store::Seen;

use support::scripted::{Server, answer, stored};
use support::{BUCKET, Directory, LIMIT, access, bytes, s3, two_pieces};

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

/// Where a test tells its child process the store's URL.
const URL: &str = "BACKUP_TEST_STORE_URL";
/// The file with the pod's token, which the child process replaces.
const TOKEN: &str = "BACKUP_TEST_TOKEN";

/// Kubernetes tells a pod its identity by variables of the environment. So the test of this name runs again, in a process
/// that has these, and in whose environment `token` names a file with the token `first-token`.
fn run_in_a_pod(name: &str, store: &Server, token: &str, variables: &[(&str, &str)]) {
    let directory = Directory::new();
    let file = directory.path().join("token");
    std::fs::write(&file, "first-token").expect("written");
    let child = Command::new(env::current_exe().expect("this program"))
        .args(["--exact", name])
        .env_clear()
        .envs(variables.iter().copied())
        .env(URL, store.url())
        .env(token, &file)
        .env(TOKEN, &file)
        .output()
        .expect("a child");
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && said.contains("1 passed"), "{said}");
}

/// In the pod: reads, and reads again after the kubelet has written another token.
async fn read_twice(place: &Place) {
    let store = Store::open(place, &backup::Access::default()).expect("a store");
    assert_eq!(store.read("a", LIMIT).await, Ok(bytes("content")));
    std::fs::write(env::var(TOKEN).expect("a file"), "second-token").expect("written");
    assert_eq!(store.read("a", LIMIT).await, Ok(bytes("content")));
}

fn s3_at(url: String) -> Place {
    Place::S3(S3 {
        bucket: BUCKET.to_owned(),
        endpoint: Some(url),
        ..S3::default()
    })
}

/// All requests have this header, in small letters.
fn all_have(requests: &[String], count: usize, header: &str) {
    assert_eq!(requests.len(), count, "{requests:?}");
    assert!(
        requests.iter().all(|head| head.contains(header)),
        "{header}: {requests:?}"
    );
}

#[tokio::test]
async fn a_role_of_aws_is_assumed_with_the_token_of_the_pod() {
    if let Ok(url) = env::var(URL) {
        let place = s3_at(url);
        read_twice(&place).await;
        // A Secret is preferred: the identity is not asked for any more.
        let store = Store::open(&place, &access()).expect("a store");
        assert_eq!(store.read("a", LIMIT).await, Ok(bytes("content")));
        return;
    }
    // It has expired already, so each read asks for another.
    let credentials = answer(
        200,
        "",
        "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>\
         <AccessKeyId>role-key</AccessKeyId><SecretAccessKey>role-secret</SecretAccessKey>\
         <SessionToken>role-session</SessionToken><Expiration>2020-01-01T00:00:00Z</Expiration>\
         </Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>",
    );
    let (sts, store) = (Server::start(vec![credentials]), Server::start(vec![stored("content")]));
    run_in_a_pod(
        "a_role_of_aws_is_assumed_with_the_token_of_the_pod",
        &store,
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        &[
            ("AWS_ROLE_ARN", "arn:aws:iam::111122223333:role/wal"),
            ("AWS_ROLE_SESSION_NAME", "shop-0"),
            ("AWS_ENDPOINT_URL_STS", &sts.url()),
        ],
    );
    let asked = sts.requests();
    assert_eq!(asked.len(), 2, "{asked:?}");
    for (head, token) in asked.iter().zip(["first-token", "second-token"]) {
        for part in [
            "post /?".to_owned(),
            "action=assumerolewithwebidentity&".to_owned(),
            "rolearn=arn%3aaws%3aiam%3a%3a111122223333%3arole%2fwal&".to_owned(),
            "rolesessionname=shop-0&".to_owned(),
            format!("webidentitytoken={token} http/1.1"),
        ] {
            assert!(head.contains(&part), "{part}: {head}");
        }
    }
    let reads = store.requests();
    assert_eq!(reads.len(), 3, "{reads:?}");
    all_have(&reads[..2], 2, "credential=role-key/");
    all_have(&reads[..2], 2, "x-amz-security-token: role-session\r\n");
    all_have(&reads[2..], 1, "credential=test-key/");
}

#[tokio::test]
async fn an_agent_of_aws_on_the_node_is_asked_with_the_token_of_the_pod() {
    if let Ok(url) = env::var(URL) {
        return read_twice(&s3_at(url)).await;
    }
    let credentials = r#"{"AccessKeyId": "pod-key", "SecretAccessKey": "pod-secret", "Token": "pod-session",
        "Expiration": "2020-01-01T00:00:00Z"}"#;
    let (node, store) = (
        Server::start(vec![answer(200, "", credentials)]),
        Server::start(vec![stored("content")]),
    );
    run_in_a_pod(
        "an_agent_of_aws_on_the_node_is_asked_with_the_token_of_the_pod",
        &store,
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        &[(
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            &format!("{}/v1/credentials", node.url()),
        )],
    );
    let asked = node.requests();
    all_have(&asked, 2, "get /v1/credentials http/1.1");
    all_have(&asked[..1], 1, "authorization: first-token\r\n");
    all_have(&asked[1..], 1, "authorization: second-token\r\n");
    let reads = store.requests();
    all_have(&reads, 2, "credential=pod-key/");
    all_have(&reads, 2, "x-amz-security-token: pod-session\r\n");
}

#[tokio::test]
async fn azure_gives_a_token_for_the_token_of_the_pod() {
    if let Ok(url) = env::var(URL) {
        let place = Place::Azure(Azure {
            account: Some("shop".to_owned()),
            container: BUCKET.to_owned(),
            endpoint: Some(url),
            ..Azure::default()
        });
        return read_twice(&place).await;
    }
    let token = r#"{"token_type": "Bearer", "expires_in": 0, "access_token": "azure-token"}"#;
    let (authority, store) = (
        Server::start(vec![answer(200, "", token)]),
        Server::start(vec![stored("content")]),
    );
    run_in_a_pod(
        "azure_gives_a_token_for_the_token_of_the_pod",
        &store,
        "AZURE_FEDERATED_TOKEN_FILE",
        &[
            ("AZURE_CLIENT_ID", "shop-client"),
            ("AZURE_TENANT_ID", "shop-tenant"),
            // As the webhook of Azure writes it, with a slash at the end.
            ("AZURE_AUTHORITY_HOST", &format!("{}/", authority.url())),
        ],
    );
    all_have(
        &authority.requests(),
        2,
        "post /shop-tenant/oauth2/v2.0/token http/1.1\r\n",
    );
    for (body, token) in authority.bodies().iter().zip(["first-token", "second-token"]) {
        for part in [
            "client_id=shop-client&".to_owned(),
            format!("client_assertion={token}&"),
            "grant_type=client_credentials".to_owned(),
        ] {
            assert!(body.contains(&part), "{part}: {body}");
        }
    }
    all_have(&store.requests(), 2, "authorization: bearer azure-token\r\n");
}
