use machine::protocol::ReportReply;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn report(change: impl FnOnce(&mut Value)) -> Result<ReportRequest, String> {
    let mut value = json!({
        "epoch": 3, "pod": "orders-1",
        "report": {"podUid": "u", "member": "cdb_1_1a2b3c4d_00000007", "address": "10.0.0.2", "state": "Waiting",
                   "settings": "s", "agentVersion": "0"},
    });
    change(&mut value);
    let request = serde_json::from_value(value).map_err(|error| error.to_string())?;
    check_report(request, &Names::new("orders"))
}

#[test]
fn only_pods_and_members_of_the_cluster_report() {
    assert!(report(|_| {}).is_ok());
    for pod in [
        "others-1",
        "orders",
        "orders-",
        "orders-x",
        "orders-1-1",
        "orders-01",
        "orders-9",
        "orders-4294967295",
    ] {
        assert!(report(|value| value["pod"] = pod.into()).is_err(), "{pod}");
    }
    for member in [
        "postgres",
        "cdb_1\"; DROP ROLE",
        "",
        "cdb_2_1a2b3c4d_00000007",
        "cdb_9_1a2b3c4d_00000007",
    ] {
        assert!(
            report(|value| value["report"]["member"] = member.into()).is_err(),
            "{member}"
        );
    }
    assert!(report(|value| value["report"]["address"] = "orders-1".into()).is_err());
}

#[test]
fn long_words_are_cut_and_other_long_fields_refused() {
    let long = "ä".repeat(2_000);
    let cut = report(|value| value["report"]["fault"] = long.as_str().into()).expect("a report");
    let fault = cut.report.fault.expect("a fault");
    assert!(fault.len() <= 1_024 && fault.ends_with('…'));
    for field in ["podUid", "publicKey", "settings"] {
        let refused = report(|value| value["report"][field] = long.as_str().into()).expect_err(field);
        assert!(refused.starts_with(&format!("report.{field}: ")), "{refused}");
    }
    assert!(report(|value| value["report"]["kept"] = [long.as_str()].as_slice().into()).is_err());
    let many = report(|value| value["report"]["kept"] = ["1", "2", "3", "4", "5"].as_slice().into());
    assert_eq!(many.expect("a report").report.kept.len(), 4);
}

/// What stands in the place of a field: numbers at the ends of their ranges and beyond, and what is no number.
fn extreme() -> impl Strategy<Value = Value> {
    let numbers = ["0", "1", "-1", "2147483647", "2147483648", "4294967295", "4294967296"];
    let beyond = ["18446744073709551615", "-9223372036854775808", "1e300", "0.5"];
    let others = [
        r#""""#,
        r#""x""#,
        r#""-1""#,
        r#""FFFFFFFF/FFFFFFFF""#,
        r#""100000000/0""#,
        "null",
        "[]",
        "{}",
        "true",
    ];
    let all = numbers.into_iter().chain(beyond).chain(others);
    let parsed: Vec<Value> = all.map(|text| serde_json::from_str(text).expect("JSON")).collect();
    let long = prop::sample::select(vec![1_000, 70_000]).prop_map(|length| "\u{0}".repeat(length).into());
    prop_oneof![20 => prop::sample::select(parsed), 1 => long, 2 => "\\PC*".prop_map(Value::from)]
}

/// Paths of all fields of an object.
fn fields(value: &Value, path: &str, found: &mut Vec<String>) {
    for (name, value) in value.as_object().into_iter().flatten() {
        let path = format!("{path}/{name}");
        fields(value, &path, found);
        found.push(path);
    }
}

/// One field of a message replaced; `true` if it is taken as it is, else the refusal names it.
fn replaced<T: DeserializeOwned + serde::Serialize>(
    message: &Value,
    at: usize,
    by: &Value,
    check: impl Fn(T) -> Result<T, String>,
) -> Result<(), TestCaseError> {
    let mut paths = Vec::new();
    fields(message, "", &mut paths);
    let path = &paths[at % paths.len()];
    let mut message = message.clone();
    *message.pointer_mut(path).expect("a field") = by.clone();
    match read::<T>(message.to_string().as_bytes()).and_then(check) {
        Ok(taken) => {
            let taken = serde_json::to_value(taken).expect("JSON");
            let kept = taken.pointer(path).unwrap_or(&Value::Null);
            let same = kept == by || path.ends_with("fault") || path.ends_with("settingsError");
            // What is left out is what it is by default.
            let absent =
                taken.pointer(path).is_none() && (by.is_null() || by == &Value::Bool(false) || by == &json!([]));
            prop_assert!(same || absent, "{path}: {by} became {kept}");
        }
        Err(refused) => {
            let field = path.rsplit('/').next().unwrap_or_default();
            prop_assert!(refused.contains(field), "{path} = {by}: {refused}");
            prop_assert!(
                refused.len() < 1_000 || by.as_str().is_some_and(|by| by.len() > 500),
                "{refused}"
            );
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn extremes_are_refused_by_name_or_taken_as_they_are(at: usize, by in extreme()) {
        let names = Names::new("orders");
        let position = json!({"timeline": 3, "lsn": "0/7"});
        let member = "cdb_1_1a2b3c4d_00000007";
        let told = json!({
            "epoch": 3, "pod": "orders-1", "position": position, "replayed": "0/7", "promised": 4,
            "report": {"podUid": "u", "member": member, "address": "10.0.0.2", "state": "Waiting", "settings": "s",
                       "pendingRestart": true, "lowersLimits": true, "settingsError": "e", "publicKey": "k",
                       "serverVersion": "17.6", "agentVersion": "0", "fault": "f", "kept": ["1"]},
        });
        replaced(&told, at, &by, |report| check_report(report, &names))?;
        let request = json!({"epoch": 3, "pod": "orders-1", "lease": "u"});
        replaced(&request, at, &by, |asked| check_request(asked, &names))?;
        replaced(&request, at, &by, |asked| check_failsafe_request(asked, &names))?;
        let promise = json!({"member": member, "promised": 4, "suspects": true, "position": position});
        replaced(&promise, at, &by, check_reply)?;
        replaced(&json!({"member": member, "epoch": 3}), at, &by, check_failsafe_reply)?;
        let reply = json!({"epoch": 3, "admitted": true, "stepsDown": true, "oldest": "0/7", "awaits": true});
        replaced::<ReportReply>(&reply, at, &by, Ok)?;
    }
}
