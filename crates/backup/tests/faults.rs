//! What a store does when the server or the network fails.

mod support;

use std::time::{Duration, Instant};

use backup::{Access, Addressing, Compare, Created, Fence, Place, Problem, S3, Store, Volume};
use bytes::Bytes;
use futures::future::join_all;
use test_store::{Effect, Fault};

use support::{BUCKET, Directory, LIMIT, Server, access, access_with_authority, bytes, s3, two_pieces};

/// A server, and its store as one that refuses to overwrite.
async fn start() -> (Server, Store) {
    let server = Server::start(false).await;
    let store = server.open().with_fence(Fence::Enforced);
    (server, store)
}

async fn create(store: &Store, content: &'static str) -> Result<Created, Problem> {
    store.create("a", bytes(content), Compare::Bytes, LIMIT).await
}

#[tokio::test]
async fn a_reply_that_is_lost_is_no_conflict() {
    let (server, store) = start().await;
    server
        .store
        .inject(Fault::new(Effect::LoseReply).method("PUT").times(1));
    assert_eq!(create(&store, "content").await, Ok(Created::Same));
    assert_eq!(server.store.count_requests("PUT", ""), 1, "it is not written again");
    assert_eq!(std::fs::read(server.file("a")).expect("a file"), b"content");
    assert!(matches!(create(&store, "other").await, Err(Problem::Conflict(_))));
    assert_eq!(std::fs::read(server.file("a")).expect("a file"), b"content");
}

#[tokio::test]
async fn a_write_that_failed_is_tried_again() {
    for (status, code) in [
        (409, "ConditionalRequestConflict"),
        (503, "SlowDown"),
        (503, "ServiceUnavailable"),
        (500, "InternalError"),
        (429, "TooManyRequests"),
    ] {
        let (server, store) = start().await;
        server.store.inject(Fault::refuse(status, code).method("PUT").times(2));
        assert_eq!(create(&store, "content").await, Ok(Created::New), "{code}");
        assert_eq!(server.store.count_requests("PUT", ""), 3, "{code}");
        assert_eq!(std::fs::read(server.file("a")).expect("a file"), b"content", "{code}");
    }
}

#[tokio::test]
async fn a_lost_race_is_a_conflict_whatever_the_status() {
    let (server, store) = start().await;
    create(&store, "first").await.expect("created");
    server
        .store
        .inject(Fault::refuse(409, "ConditionalRequestConflict").method("PUT").times(1));
    assert!(matches!(create(&store, "other").await, Err(Problem::Conflict(_))));
    server
        .store
        .inject(Fault::refuse(500, "InternalError").method("PUT").times(1));
    assert!(matches!(create(&store, "other").await, Err(Problem::Conflict(_))));
    server
        .store
        .inject(Fault::refuse(500, "InternalError").method("PUT").times(1));
    assert_eq!(create(&store, "first").await, Ok(Created::Same));
}

/// A read that fails must neither be taken for an absent object nor for a conflict.
#[tokio::test]
async fn reading_back_is_tried_again() {
    let (server, store) = start().await;
    create(&store, "first").await.expect("created");
    for (content, expected) in [
        ("first", Ok(Created::Same)),
        ("other", Err(Problem::Conflict("a".to_owned()))),
    ] {
        server
            .store
            .inject(Fault::refuse(503, "SlowDown").method("GET").times(1));
        assert_eq!(create(&store, content).await, expected);
    }
    server.store.inject(Fault::new(Effect::CutBody).method("GET").times(1));
    assert_eq!(create(&store, "first").await, Ok(Created::Same));
}

#[tokio::test]
async fn two_writers_with_lost_replies_have_one_winner() {
    let (server, store) = start().await;
    server
        .store
        .inject(Fault::new(Effect::LoseReply).method("PUT").times(2));
    let written = join_all(["one", "two"].map(|content| create(&store, content))).await;
    assert_eq!(
        written.iter().filter(|written| written.is_ok()).count(),
        1,
        "{written:?}"
    );
    let winner = if written[0].is_ok() { "one" } else { "two" };
    assert_eq!(std::fs::read(server.file("a")).expect("a file"), winner.as_bytes());
    assert!(
        written
            .iter()
            .any(|written| matches!(written, Err(Problem::Conflict(_)))),
        "{written:?}"
    );
}

#[tokio::test]
async fn a_body_that_is_cut_off_is_read_again() {
    let (server, store) = start().await;
    create(&store, "content").await.expect("created");
    server.store.inject(Fault::new(Effect::CutBody).times(2));
    assert_eq!(store.read("a", LIMIT).await, Ok(bytes("content")));
    server.store.inject(Fault::new(Effect::CutBody));
    let read = store.read("a", Duration::from_secs(1)).await;
    assert!(matches!(read, Err(Problem::Unavailable(_))), "{read:?}");
}

/// Sends an object in two pieces. `before_end` comes before the request that makes it appear.
async fn send_in_pieces(store: &Store, limit: Duration, before_end: impl FnOnce()) -> Result<u64, Problem> {
    let mut upload = store.upload("a", limit);
    for piece in two_pieces() {
        upload.write(piece).await?;
    }
    before_end();
    upload.finish().await
}

/// How many requests have asked to make an object of its pieces.
fn count_ends(server: &Server) -> usize {
    let requests = server.store.requests();
    let ends = requests
        .iter()
        .filter(|seen| seen.method == "POST" && seen.query.contains("uploadId="));
    ends.count()
}

/// S3 says 200 before it puts the pieces together.
#[tokio::test]
async fn an_error_inside_a_success_is_no_success() {
    type Check = fn(&Problem) -> bool;
    let whole = two_pieces().concat();
    for code in ["InternalError", "SlowDown", "ServiceUnavailable"] {
        let (server, store) = start().await;
        let fault = || Fault::error_in_success(code).method("POST");
        let sent = send_in_pieces(&store, LIMIT, || server.store.inject(fault().times(2))).await;
        assert_eq!(sent, Ok(whole.len() as u64), "{code}");
        assert_eq!(count_ends(&server), 3, "{code} passes");
        assert!(std::fs::read(server.file("a")).expect("a file") == whole, "{code}");
    }
    let cases: [(&str, Check); 4] = [
        ("InternalError", |problem| matches!(problem, Problem::Unavailable(_))),
        ("SlowDown", |problem| matches!(problem, Problem::Throttled(_))),
        ("NotKnown", |problem| matches!(problem, Problem::Unavailable(_))),
        ("AccessDenied", |problem| matches!(problem, Problem::Denied(_))),
    ];
    for (code, is_expected) in cases {
        let (server, store) = start().await;
        let fault = Fault::error_in_success(code).method("POST");
        let sent = send_in_pieces(&store, Duration::from_secs(2), || server.store.inject(fault)).await;
        let problem = sent.expect_err(code);
        assert!(is_expected(&problem), "{code}: {problem:?}");
        let words = format!("127.0.0.1 answers 200 {code}: a fault by script");
        assert!(problem.to_string().contains(&words), "{problem}");
        assert_eq!(
            count_ends(&server) == 1,
            !problem.is_transient(),
            "{code}: only what may pass is tried again"
        );
        assert!(!server.file("a").exists(), "{code}");
    }
}

#[tokio::test]
async fn an_upload_that_is_cut_off_is_sent_again() {
    let content = Bytes::from(vec![7; 1 << 20]);
    let create = async |store: &Store, limit| store.create("a", content.clone(), Compare::Bytes, limit).await;
    let fault = || Fault::new(Effect::CutUpload).method("PUT");
    for fence in [Fence::Enforced, Fence::BestEffort] {
        let (server, store) = start().await;
        let store = store.with_fence(fence);
        server.store.inject(fault().times(2));
        assert_eq!(create(&store, LIMIT).await, Ok(Created::New), "{fence:?}");
        assert_eq!(server.store.count_requests("PUT", ""), 3, "{fence:?}");
        assert!(std::fs::read(server.file("a")).expect("a file") == content, "{fence:?}");
    }
    let (server, store) = start().await;
    server.store.inject(fault());
    let problem = create(&store, Duration::from_secs(2)).await.expect_err("cut off");
    assert!(matches!(problem, Problem::Unavailable(_)), "{problem:?}");
    assert!(!server.file("a").exists());
}

#[tokio::test]
async fn a_piece_that_is_cut_off_is_sent_again() {
    let whole = two_pieces().concat();
    let fault = || Fault::new(Effect::CutUpload).method("PUT");
    let (server, store) = start().await;
    server.store.inject(fault().times(2));
    assert_eq!(send_in_pieces(&store, LIMIT, || ()).await, Ok(whole.len() as u64));
    assert_eq!(
        server.store.count_requests("PUT", ""),
        4,
        "two pieces, and two that were cut off"
    );
    assert!(std::fs::read(server.file("a")).expect("a file") == whole);

    let (server, store) = start().await;
    server.store.inject(fault());
    let problem = send_in_pieces(&store, Duration::from_secs(2), || ()).await;
    let problem = problem.expect_err("cut off");
    assert!(matches!(problem, Problem::Unavailable(_)), "{problem:?}");
    assert_eq!(count_ends(&server), 0, "nothing is made of what did not arrive");
    assert!(!server.file("a").exists());
}

#[tokio::test]
async fn a_problem_that_lasts_has_its_own_class() {
    for (status, code, is_expected) in [
        (
            403,
            "QuotaExceeded",
            (|problem| matches!(problem, Problem::Quota(_))) as fn(&Problem) -> bool,
        ),
        (507, "XMinioStorageFull", |problem| matches!(problem, Problem::Quota(_))),
        (403, "AccessDenied", |problem| matches!(problem, Problem::Denied(_))),
        (400, "ExpiredToken", |problem| matches!(problem, Problem::Denied(_))),
        (403, "RequestTimeTooSkewed", |problem| {
            matches!(problem, Problem::ClockSkew(_))
        }),
        (404, "NoSuchBucket", |problem| matches!(problem, Problem::NoBucket(_))),
        (404, "NotHere", |problem| matches!(problem, Problem::Unusable(_))),
        (301, "PermanentRedirect", |problem| {
            matches!(problem, Problem::Unusable(_))
        }),
        (400, "EntityTooLarge", |problem| matches!(problem, Problem::Unusable(_))),
    ] {
        let (server, store) = start().await;
        server.store.inject(Fault::refuse(status, code));
        for problem in [
            create(&store, "content").await.expect_err(code),
            store.read("a", LIMIT).await.expect_err(code),
            store.list("", LIMIT).await.expect_err(code),
        ] {
            assert!(is_expected(&problem) && !problem.is_transient(), "{code}: {problem:?}");
            let words = format!("127.0.0.1 answers {status} {code}: a fault by script");
            assert!(problem.to_string().contains(&words), "{problem}");
        }
        assert_eq!(server.store.count_requests("PUT", ""), 1, "{code} is not tried again");
    }
}

#[tokio::test]
async fn a_store_that_throttles_for_long_says_so() {
    let (server, store) = start().await;
    server.store.inject(Fault::refuse(503, "SlowDown"));
    let limit = Duration::from_secs(1);
    let begin = Instant::now();
    let problem = store.read("a", limit).await.expect_err("it is throttled");
    assert!(
        matches!(problem, Problem::Throttled(_)) && problem.is_transient(),
        "{problem:?}"
    );
    assert!(begin.elapsed() < limit * 2, "{:?}", begin.elapsed());
    let requests = server.store.count_requests("GET", "");
    assert!((2..12).contains(&requests), "{requests} attempts, with growing pauses");
}

#[tokio::test]
async fn a_server_that_stalls_is_not_waited_for() {
    let (server, store) = start().await;
    server.store.inject(Fault::new(Effect::Stall));
    let limit = Duration::from_secs(1);
    let begin = Instant::now();
    let (created, read, listed) = tokio::join!(
        store.create("a", bytes("content"), Compare::Bytes, limit),
        store.read("a", limit),
        store.list("", limit),
    );
    assert!(begin.elapsed() < limit * 2, "{:?}", begin.elapsed());
    let problems = [
        created.expect_err("stalled"),
        read.expect_err("stalled"),
        listed.expect_err("stalled"),
    ];
    assert!(
        problems
            .iter()
            .all(|problem| matches!(problem, Problem::Unavailable(_))),
        "{problems:?}"
    );
    server.store.heal();
    assert_eq!(create(&store, "content").await, Ok(Created::New));
}

/// The answer to the write comes too late, but there is time to read back.
#[tokio::test]
async fn a_write_that_stalls_is_read_back_within_the_limit() {
    let (server, store) = start().await;
    create(&store, "content").await.expect("created");
    server.store.inject(Fault::new(Effect::Stall).method("PUT"));
    let created = store
        .create("a", bytes("content"), Compare::Bytes, Duration::from_secs(2))
        .await;
    assert_eq!(created, Ok(Created::Same));
}

#[tokio::test]
async fn a_slow_server_is_waited_for() {
    let (server, store) = start().await;
    server.store.inject(Fault::new(Effect::Delay(300)).times(1));
    assert_eq!(create(&store, "content").await, Ok(Created::New));
    assert_eq!(server.store.count_requests("PUT", ""), 1);
}

#[tokio::test]
async fn a_server_that_is_down_is_unavailable() {
    let (server, store) = start().await;
    let url = server.store.url().to_owned();
    drop(server);
    let problem = store.read("a", Duration::from_secs(1)).await.expect_err("no server");
    assert!(matches!(problem, Problem::Unavailable(_)), "{url}: {problem:?}");
    assert!(problem.to_string().contains("127.0.0.1"), "{problem}");
}

#[tokio::test]
async fn a_server_whose_clock_differs_is_named() {
    let (server, store) = start().await;
    server.store.inject(Fault::new(Effect::ClockBehind(3_600)));
    let problem = create(&store, "content").await.expect_err("a refusal");
    assert!(matches!(problem, Problem::ClockSkew(_)), "{problem:?}");
    assert!(problem.to_string().contains("s behind"), "{problem}");
}

#[tokio::test]
async fn a_list_is_whole_or_fails() {
    let (server, store) = start().await;
    std::fs::create_dir_all(server.file("many")).expect("a directory");
    for number in 0..1_100 {
        std::fs::write(server.file(&format!("many/{number:04}")), "").expect("written");
    }
    let all = store.list("many", LIMIT).await.expect("a list");
    assert_eq!(all.len(), 1_100);
    assert_eq!(
        (all[0].name.as_str(), all[1_099].name.as_str()),
        ("many/0000", "many/1099")
    );
    // The first page comes, the second does not.
    server.store.inject(Fault::new(Effect::Delay(0)).times(1));
    server.store.inject(Fault::refuse(403, "AccessDenied").times(1));
    let list = store.list("many", LIMIT).await;
    assert!(matches!(list, Err(Problem::Denied(_))), "{list:?}");
}

#[tokio::test]
async fn a_store_that_ignores_conditions_is_found_out() {
    let (server, store) = start().await;
    server.store.inject(Fault::new(Effect::Overwrite).method("PUT"));
    let fence = store.probe("probe", LIMIT).await;
    assert_eq!(fence, Ok(Fence::BestEffort));
    let store = store.with_fence(Fence::BestEffort);
    assert_eq!(create(&store, "first").await, Ok(Created::New));
    assert_eq!(create(&store, "first").await, Ok(Created::Same));
    assert!(matches!(create(&store, "other").await, Err(Problem::Conflict(_))));
    assert_eq!(std::fs::read(server.file("a")).expect("a file"), b"first");
}

/// Another writer comes between the look before the write and the look after it.
#[tokio::test]
async fn a_writer_that_was_overtaken_sees_it() {
    let (server, store) = start().await;
    let store = store.with_fence(Fence::BestEffort);
    server.store.inject(Fault::new(Effect::Delay(0)).method("GET").times(1));
    server
        .store
        .inject(Fault::new(Effect::Delay(500)).method("GET").times(1));
    let overtake = async {
        while server.store.count_requests("GET", "") < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        std::fs::write(server.file("a"), "other").expect("written");
    };
    let overtake = tokio::time::timeout(LIMIT, overtake);
    let (created, overtaken) = tokio::join!(create(&store, "content"), overtake);
    overtaken.expect("it looks before and after the write");
    assert!(matches!(created, Err(Problem::Conflict(_))), "{created:?}");
}

#[tokio::test]
async fn a_store_that_knows_no_conditions_is_used() {
    let (server, store) = start().await;
    server.store.inject(Fault::new(Effect::NoConditions));
    assert_eq!(store.probe("probe", LIMIT).await, Ok(Fence::BestEffort));
    let store = store.with_fence(Fence::BestEffort);
    assert_eq!(create(&store, "first").await, Ok(Created::New));
    assert!(matches!(create(&store, "other").await, Err(Problem::Conflict(_))));
    assert_eq!(std::fs::read(server.file("a")).expect("a file"), b"first");
}

/// One object is created twice, one after the other, and the other by several writers at once. Each alone is proof.
#[tokio::test]
async fn a_store_that_ignores_only_some_conditions_is_found_out() {
    for object in ["-1", "-2"] {
        let (server, store) = start().await;
        let mut fault = Fault::new(Effect::Overwrite).method("PUT").times(2);
        object.clone_into(&mut fault.path);
        server.store.inject(fault);
        assert_eq!(store.probe("probe", LIMIT).await, Ok(Fence::BestEffort), "{object}");
    }
}

#[tokio::test]
async fn the_bucket_can_be_named_in_the_host() {
    let server = Server::start(false).await;
    let place = Place::S3(S3 {
        bucket: BUCKET.to_owned(),
        endpoint: Some(server.store.url().replace("127.0.0.1", "localhost")),
        addressing: Some(Addressing::VirtualHost),
        ..S3::default()
    });
    let store = Store::open(&place, &access()).expect("a store");
    // Our server looks for the bucket in the path, so it refuses, but the words name the host.
    let problem = store.read("folder/a", LIMIT).await.expect_err("another bucket");
    assert!(
        problem.to_string().contains("backups.localhost answers 404"),
        "{problem}"
    );
}

#[tokio::test]
async fn a_probe_that_cannot_decide_fails() {
    let (server, store) = start().await;
    server
        .store
        .inject(Fault::refuse(503, "SlowDown").method("PUT").times(1));
    let problem = store.probe("probe", LIMIT).await.expect_err("no verdict");
    assert!(matches!(problem, Problem::Throttled(_)), "{problem:?}");
    server.store.inject(Fault::refuse(403, "AccessDenied").method("GET"));
    let problem = store.probe("probe", LIMIT).await.expect_err("no verdict");
    assert!(matches!(problem, Problem::Denied(_)), "{problem:?}");
}

#[tokio::test]
async fn wrong_credentials_are_denied() {
    let server = Server::start(false).await;
    for (key, secret) in [("unknown", test_store::SECRET), (test_store::KEY, "wrong")] {
        let access = Access::of([("AWS_ACCESS_KEY_ID", key), ("AWS_SECRET_ACCESS_KEY", secret)]).expect("credentials");
        let store = Store::open(&s3(server.store.url()), &access).expect("a store");
        let problem = create(&store, "content").await.expect_err("a refusal");
        assert!(matches!(problem, Problem::Denied(_)), "{problem:?}");
        assert!(
            !format!("{store:?}{problem:?}{access:?}").contains(secret),
            "a secret is shown"
        );
    }
}

#[tokio::test]
async fn a_missing_bucket_is_named() {
    let server = Server::start(false).await;
    let place = Place::S3(S3 {
        bucket: "missing".to_owned(),
        endpoint: Some(server.store.url().to_owned()),
        ..S3::default()
    });
    let store = Store::open(&place, &access()).expect("a store");
    let problem = create(&store, "content").await.expect_err("no bucket");
    assert!(matches!(problem, Problem::NoBucket(_)), "{problem:?}");
    let problem = store.read("a", LIMIT).await.expect_err("no bucket");
    assert!(matches!(problem, Problem::NoBucket(_)), "{problem:?}");
}

#[tokio::test]
async fn only_the_right_authority_is_trusted() {
    let (server, other) = (Server::start(true).await, Server::start(true).await);
    let authority = |server: &Server| access_with_authority(server.store.authority().expect("an authority"));
    let trusted = authority(&server);
    let store = Store::open(&s3(server.store.url()), &trusted).expect("a store");
    assert_eq!(create(&store, "content").await, Ok(Created::New));
    for access in [access(), authority(&other)] {
        let store = Store::open(&s3(server.store.url()), &access).expect("a store");
        let problem = store
            .read("a", LIMIT)
            .await
            .expect_err("a certificate that is not trusted");
        assert!(matches!(problem, Problem::WrongCertificate(_)), "{problem:?}");
    }
    // By its name, which our own resolver looks up.
    let named = server.store.url().replace("127.0.0.1", "localhost");
    let store = Store::open(&s3(&named), &trusted).expect("a store");
    assert_eq!(store.read("a", LIMIT).await, Ok(bytes("content")));
}

#[tokio::test]
async fn tls_to_a_server_without_it_is_unusable() {
    let server = Server::start(false).await;
    let store = Store::open(&s3(&server.store.url().replace("http:", "https:")), &access()).expect("a store");
    let problem = store.read("a", LIMIT).await.expect_err("no TLS");
    assert!(matches!(problem, Problem::Unusable(_)), "{problem:?}");
}

#[tokio::test]
async fn malformed_places_and_credentials_are_refused_at_once() {
    let place = s3("http://127.0.0.1:1");
    let unusable = |place: &Place, access: &Access| match Store::open(place, access) {
        Err(Problem::Unusable(words)) => words,
        other => panic!("{other:?}"),
    };
    unusable(&place, &Access::of([("AWS_ACCESS_KEY_ID", "x")]).expect("credentials"));
    unusable(&place, &access_with_authority("no certificate"));
    let path = |path: &str| {
        Place::S3(S3 {
            bucket: BUCKET.to_owned(),
            path: path.to_owned(),
            ..S3::default()
        })
    };
    unusable(&path("a//b"), &access());
    let azure = "azure://container".parse().expect("a place");
    assert!(unusable(&azure, &Access::default()).contains("Account"));
    let google = "gs://bucket".parse().expect("a place");
    let key = Access::of([("GOOGLE_SERVICE_ACCOUNT_KEY", "{\"private_key\": \"hidden\"}")]).expect("credentials");
    assert!(!unusable(&google, &key).contains("hidden"));
}

#[tokio::test]
async fn a_volume_that_is_gone_is_no_empty_store() {
    let directory = Directory::new();
    let place = Place::Volume(Volume {
        directory: directory.path().to_owned(),
    });
    let store = Store::open(&place, &Access::default()).expect("a store");
    create(&store, "content").await.expect("created");
    std::fs::remove_dir_all(directory.path()).expect("removed");
    let problems = [
        create(&store, "content").await.expect_err("no volume"),
        store.read("a", LIMIT).await.expect_err("no volume"),
        store.list("", LIMIT).await.expect_err("no volume"),
        Store::open(&place, &Access::default()).expect_err("no volume"),
    ];
    assert!(
        problems.iter().all(|problem| matches!(problem, Problem::NoBucket(_))),
        "{problems:?}"
    );
    assert!(
        !directory.path().exists(),
        "nothing is written where the volume should be"
    );
}
