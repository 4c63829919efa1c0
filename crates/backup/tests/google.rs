//! What Google's answers and accounts mean, against a server that answers as a test says.

mod support;

use std::process::Command;
use std::time::Duration;

use backup::{Access, Compare, Created, Fence, Gcs, Place, Problem, Store};

use support::gcs::FakeGcs;
use support::scripted::{Server, answer, stored};
use support::{BUCKET, LIMIT, bytes};

/// Where the test of the pod's identity tells its child process the store's URL.
const URL: &str = "BACKUP_TEST_GOOGLE_URL";

fn place(server: &Server) -> Place {
    Place::Gcs(Gcs {
        bucket: BUCKET.to_owned(),
        // A slash at the end does no harm.
        endpoint: Some(format!("{}/", server.url())),
        ..Gcs::default()
    })
}

/// An error as Google's XML interface writes it.
fn error(status: u16, code: &str) -> String {
    let xml = format!(
        "<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>Words.</Message>\
         <Details>More words.</Details></Error>"
    );
    answer(status, "Content-Type: application/xml; charset=UTF-8\r\n", &xml)
}

fn ranged(content: &str) -> String {
    let length = content.len();
    let range = format!("Content-Range: bytes 0-{}/{length}\r\n", length - 1);
    stored(content).replacen("200 -\r\n", &format!("206 -\r\n{range}"), 1)
}

fn open(server: &Server) -> Store {
    let store = Store::open(&place(server), &FakeGcs::access()).expect("a store");
    store.with_fence(Fence::Enforced)
}

async fn create(store: &Store) -> Result<Created, Problem> {
    store.create("a", bytes("content"), Compare::Bytes, LIMIT).await
}

#[tokio::test]
async fn an_error_that_lasts_has_its_own_class() {
    type Check = fn(&Problem) -> bool;
    let cases: [(u16, &str, Check); 9] = [
        (404, "NoSuchBucket", |problem| matches!(problem, Problem::NoBucket(_))),
        (403, "AccessDenied", |problem| matches!(problem, Problem::Denied(_))),
        (401, "AuthenticationRequired", |problem| {
            matches!(problem, Problem::Denied(_))
        }),
        (403, "AccountProblem", |problem| matches!(problem, Problem::Denied(_))),
        (403, "UserProjectAccountProblem", |problem| {
            matches!(problem, Problem::Denied(_))
        }),
        (403, "InsufficientQuota", |problem| matches!(problem, Problem::Quota(_))),
        (400, "InvalidBucketName", |problem| {
            matches!(problem, Problem::Unusable(_))
        }),
        (400, "UserProjectMissing", |problem| {
            matches!(problem, Problem::Unusable(_))
        }),
        (404, "NotKnown", |problem| matches!(problem, Problem::Unusable(_))),
    ];
    for (status, code, is_expected) in cases {
        let server = Server::start(vec![error(status, code)]);
        let store = open(&server);
        for problem in [
            create(&store).await.expect_err(code),
            store.read("a", LIMIT).await.expect_err(code),
            store.list("", LIMIT).await.expect_err(code),
        ] {
            assert!(is_expected(&problem) && !problem.is_transient(), "{code}: {problem:?}");
            let words = format!("127.0.0.1 answers {status} {code}: Words. More words.");
            assert!(problem.to_string().contains(&words), "{problem}");
        }
        assert_eq!(server.requests().len(), 3, "{code} is not tried again");
    }
}

#[tokio::test]
async fn only_google_itself_says_that_an_object_is_absent() {
    let absent = |answer: String| async {
        let server = Server::start(vec![answer]);
        open(&server).read("a", LIMIT).await.expect_err("an error")
    };
    assert!(matches!(absent(error(404, "NoSuchKey")).await, Problem::NotFound(_)));
    let page = answer(404, "", "<html>Not Found</html>");
    assert!(matches!(absent(page).await, Problem::Unusable(_)));
}

#[tokio::test]
async fn an_error_that_passes_is_tried_again() {
    for (status, code) in [
        (429, "SlowDown"),
        (503, "SlowDown"),
        (503, "ServiceUnavailable"),
        (500, "InternalError"),
        (502, ""),
        (408, "UploadBrokenConnection"),
    ] {
        let absent = error(404, "NoSuchKey");
        // After an error that is no refusal, the store is asked if the object was written.
        let answers = match code {
            "SlowDown" => vec![error(status, code), stored("")],
            _ => vec![error(status, code), absent, stored("")],
        };
        let server = Server::start(answers);
        assert_eq!(create(&open(&server)).await, Ok(Created::New), "{status} {code}");
        let writes = server.requests();
        let writes: Vec<&String> = writes
            .iter()
            .filter(|request| request.starts_with("put /backups/a "))
            .collect();
        assert_eq!(writes.len(), 2, "{status} {code}: {writes:?}");
        assert!(
            writes
                .iter()
                .all(|head| head.contains("x-goog-if-generation-match: 0\r\n")),
            "{writes:?}"
        );
    }
}

#[tokio::test]
async fn a_lost_race_is_told_from_a_lost_reply() {
    for (content, expected) in [
        ("content", Ok(Created::Same)),
        ("CONTENT", Err(Problem::Conflict("a".to_owned()))),
    ] {
        let server = Server::start(vec![error(412, "PreconditionFailed"), ranged(content)]);
        assert_eq!(create(&open(&server)).await, expected);
    }
}

#[tokio::test]
async fn a_token_is_refused_when_the_clocks_differ() {
    let date = "Date: Sat, 28 Nov 2020 12:00:00 GMT\r\nContent-Type";
    let server = Server::start(vec![error(401, "AuthenticationRequired").replacen(
        "Content-Type",
        date,
        1,
    )]);
    let problem = create(&open(&server)).await.expect_err("a refusal");
    assert!(matches!(problem, Problem::ClockSkew(_)), "{problem:?}");
}

/// The settings of the metadata server are variables of the environment, so another process reads them.
#[test]
fn without_credentials_the_pod_has_its_own_identity() {
    let token = r#"{"access_token": "hidden-token", "expires_in": 3599, "token_type": "Bearer"}"#;
    // The metadata server of GKE is not ready in the first seconds of a pod.
    let metadata = Server::start(vec![answer(503, "", ""), answer(503, "", ""), answer(200, "", token)]);
    let store = Server::start(vec![stored("content")]);
    let child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "child_that_reads_with_the_identity_of_the_pod", "--ignored"])
        .env("GCE_METADATA_HOST", metadata.address().to_string())
        .env("GCE_METADATA_IP", metadata.address().to_string())
        .env(URL, store.url())
        .env_remove("GOOGLE_APPLICATION_CREDENTIALS")
        .env("HOME", "/nonexistent")
        .output()
        .expect("a child");
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
    let asked = metadata.requests();
    assert_eq!(
        asked.len(),
        3,
        "the token is asked for until it comes, and kept: {asked:?}"
    );
    let path = "get /computemetadata/v1/instance/service-accounts/default/token?";
    assert!(
        asked
            .iter()
            .all(|head| head.starts_with(path) && head.contains("metadata-flavor: google\r\n")),
        "{asked:?}"
    );
    let reads = store.requests();
    assert_eq!(reads.len(), 2, "{reads:?}");
    assert!(
        reads
            .iter()
            .all(|head| head.contains("authorization: bearer hidden-token\r\n")),
        "{reads:?}"
    );
}

#[tokio::test]
#[ignore = "a part of another test, which starts it with its own environment"]
async fn child_that_reads_with_the_identity_of_the_pod() {
    // Absent if somebody runs all ignored tests.
    let Ok(url) = std::env::var(URL) else { return };
    let place = Place::Gcs(Gcs {
        bucket: BUCKET.to_owned(),
        endpoint: Some(url),
        ..Gcs::default()
    });
    let store = Store::open(&place, &Access::default()).expect("a store");
    for _ in 0..2 {
        assert_eq!(store.read("a", Duration::from_secs(5)).await, Ok(bytes("content")));
    }
}

#[tokio::test]
async fn an_endpoint_names_its_scheme() {
    for endpoint in ["localhost:1", "storage", "ftp://h", ""] {
        let place = Place::Gcs(Gcs {
            bucket: BUCKET.to_owned(),
            endpoint: Some(endpoint.to_owned()),
            ..Gcs::default()
        });
        let problem = Store::open(&place, &FakeGcs::access()).expect_err(endpoint);
        assert!(
            matches!(&problem, Problem::Unusable(words) if words.contains("https://")),
            "{problem:?}"
        );
    }
}
