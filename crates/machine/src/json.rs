//! Reading JSON from outside: an error says which field is wrong.

use serde::de::DeserializeOwned;

/// Why JSON from outside is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{reason}", if field == "." { String::new() } else { format!("{field}: ") })]
pub struct InvalidJson {
    /// Path of the field, such as `report.position`; `.` for the whole.
    pub field: String,
    /// What is wrong with it.
    pub reason: String,
}

/// Reads a value, and nothing after it.
///
/// # Errors
/// Names the field that is not as it should be.
pub fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, InvalidJson> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| InvalidJson {
        field: error.path().to_string(),
        reason: error.inner().to_string(),
    })?;
    json.end().map_err(|error| InvalidJson {
        field: ".".to_owned(),
        reason: error.to_string(),
    })?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::protocol::Position;

    #[test]
    fn an_error_names_the_field() {
        let read = |text: &str| parse::<BTreeMap<String, Position>>(text.as_bytes());
        assert!(read(r#"{"orders-0": {"timeline": 1, "lsn": "0/1"}}"#).is_ok());
        for (text, field, reason) in [
            (
                r#"{"orders-0": {"timeline": -1, "lsn": "0/1"}}"#,
                "orders-0.timeline",
                "-1",
            ),
            (
                r#"{"orders-0": {"timeline": 4294967296, "lsn": "0/1"}}"#,
                "orders-0.timeline",
                "4294967296",
            ),
            (r#"{"orders-0": {"timeline": 1, "lsn": 7}}"#, "orders-0.lsn", "7"),
            (r#"{"orders-0": {"timeline": 1, "lsn": "0/1"}} {}"#, ".", "trailing"),
        ] {
            let error = read(text).unwrap_err();
            assert_eq!(error.field, field, "{text}");
            assert!(error.reason.contains(reason), "{error}");
        }
    }
}
