//! Places as short texts: `s3://bucket/path`, `gs://bucket/path`, `azure://container/path`, `file:///directory`.

use std::path::PathBuf;
use std::str::FromStr;

use crate::place::{Azure, Gcs, Place, S3, Volume};

/// Why a text is no place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UriError {
    /// No known scheme.
    #[error("{0:?} is no place: write s3://, gs://, azure:// or file://")]
    Scheme(String),
    /// No bucket or container.
    #[error("{0:?} names no bucket")]
    Bucket(String),
    /// The name of the bucket, container or account has a character that such names cannot have.
    #[error("{name:?} is no name of a bucket, container or account: {character:?} is not allowed")]
    Name {
        /// The name.
        name: String,
        /// The first character that is not allowed.
        character: char,
    },
    /// The path cannot be part of an object's name.
    #[error("{0:?} is no path of a store: no empty part, \".\", \"..\", \"?\" or \"#\"")]
    Path(String),
    /// A directory that is not absolute.
    #[error("{0:?} is no absolute directory: write file:///directory")]
    Directory(String),
}

/// `s3://bucket/path`, `gs://bucket/path`, `azure://container/path`, `azure://container@account/path` or
/// `file:///directory`. A slash at the end is ignored.
impl FromStr for Place {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| UriError::Scheme(text.to_owned()))?;
        if scheme == "file" {
            return directory(rest);
        }
        let (name, path) = rest.split_once('/').unwrap_or((rest, ""));
        let path = parse_path(path)?;
        match scheme {
            "s3" => Ok(Self::S3(S3 {
                bucket: parse_name(name, text)?,
                path,
                ..S3::default()
            })),
            "gs" => Ok(Self::Gcs(Gcs {
                bucket: parse_name(name, text)?,
                path,
                endpoint: None,
            })),
            "azure" => {
                let (container, account) = name
                    .split_once('@')
                    .map_or((name, None), |(container, account)| (container, Some(account)));
                Ok(Self::Azure(Azure {
                    account: account.map(|account| parse_name(account, text)).transpose()?,
                    container: parse_name(container, text)?,
                    path,
                    endpoint: None,
                }))
            }
            _ => Err(UriError::Scheme(text.to_owned())),
        }
    }
}

fn directory(text: &str) -> Result<Place, UriError> {
    if !text.starts_with('/') {
        return Err(UriError::Directory(text.to_owned()));
    }
    let parts = parse_path(text.trim_start_matches('/'))?;
    Ok(Place::Volume(Volume {
        directory: PathBuf::from("/").join(parts),
    }))
}

fn parse_name(name: &str, text: &str) -> Result<String, UriError> {
    if name.is_empty() {
        return Err(UriError::Bucket(text.to_owned()));
    }
    match name.chars().find(|c| !c.is_ascii_alphanumeric() && !"-._".contains(*c)) {
        None => Ok(name.to_owned()),
        Some(character) => Err(UriError::Name {
            name: name.to_owned(),
            character,
        }),
    }
}

fn parse_path(path: &str) -> Result<String, UriError> {
    let path = path.strip_suffix('/').unwrap_or(path);
    let is_wrong = |part: &str| matches!(part, "" | "." | "..") || part.contains(['?', '#', '%', '\\']);
    if !path.is_empty() && path.split('/').any(is_wrong) {
        return Err(UriError::Path(path.to_owned()));
    }
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read() {
        for (text, json) in [
            ("s3://b", r#"{"s3":{"bucket":"b","path":""}}"#),
            ("s3://my.bucket/a/b/", r#"{"s3":{"bucket":"my.bucket","path":"a/b"}}"#),
            ("gs://b_1/a", r#"{"gcs":{"bucket":"b_1","path":"a"}}"#),
            ("azure://c/a", r#"{"azure":{"container":"c","path":"a"}}"#),
            (
                "azure://c@acc",
                r#"{"azure":{"account":"acc","container":"c","path":""}}"#,
            ),
            ("file:///mnt/backups/", r#"{"volume":{"directory":"/mnt/backups"}}"#),
            ("file:///", r#"{"volume":{"directory":"/"}}"#),
        ] {
            let place: Place = text.parse().expect(text);
            assert_eq!(serde_json::to_string(&place).expect("JSON"), json);
        }
    }

    #[test]
    fn an_error_says_what_is_wrong() {
        let error = |text: &str| text.parse::<Place>().expect_err(text);
        assert_eq!(error("b/a"), UriError::Scheme("b/a".to_owned()));
        assert_eq!(error("https://b/a"), UriError::Scheme("https://b/a".to_owned()));
        assert_eq!(error("s3:///a"), UriError::Bucket("s3:///a".to_owned()));
        assert_eq!(error("azure://c@/a"), UriError::Bucket("azure://c@/a".to_owned()));
        let name = UriError::Name {
            name: "key:secret@b".to_owned(),
            character: ':',
        };
        assert_eq!(error("s3://key:secret@b/a"), name);
        for path in ["a//b", "a/../b", ".", "/a", "a?region=x", "a#b"] {
            assert!(matches!(error(&format!("s3://b/{path}")), UriError::Path(_)), "{path}");
        }
        assert_eq!(error("file://mnt"), UriError::Directory("mnt".to_owned()));
    }
}
