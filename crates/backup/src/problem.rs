//! What can go wrong with a store, in the user's terms.

use std::error::Error;
use std::io;

use crate::transport::{Answer, Unanswered};

/// Why the store did not do what was asked. The text is the store's own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The bucket, container or directory does not exist.
    #[error("the bucket does not exist: {0}")]
    NoBucket(String),
    /// The credentials are wrong, have expired or do not allow the request.
    #[error("the store denies access: {0}")]
    Denied(String),
    /// The store refuses signatures because the clocks differ.
    #[error("the clocks of the store and of this machine differ: {0}")]
    ClockSkew(String),
    /// The store's certificate is not trusted, has expired or is for another name.
    #[error("the store's certificate is not accepted: {0}")]
    WrongCertificate(String),
    /// The store is full, or its quota is used up.
    #[error("the store has no room left: {0}")]
    Quota(String),
    /// The store asks for fewer requests.
    #[error("the store asks for fewer requests: {0}")]
    Throttled(String),
    /// The store cannot be reached, does not answer in time or has failed.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// The name is taken by other content. Nothing was written.
    #[error("the store already holds other content under this name: {0}")]
    Conflict(String),
    /// The store says that there is no such object.
    #[error("the store has no such object: {0}")]
    NotFound(String),
    /// A key of the encryption is none, is missing, or does not open an object. The words say what to change.
    #[error("{0}")]
    Key(String),
    /// The place or the credentials cannot be right: no later attempt will succeed.
    #[error("the place or the credentials are unusable: {0}")]
    Unusable(String),
}

/// A clock that differs by this many seconds explains a refusal. S3 and Azure allow 15 min; a difference of 5 min is
/// never by chance.
const SKEW: i64 = 300;

impl Problem {
    /// True if a later attempt may succeed though nobody changes anything.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Throttled(_) | Self::Unavailable(_))
    }

    fn of_answer(answer: &Answer) -> Self {
        let words = answer.to_string();
        let code = answer.code();
        let is_skewed = answer.clock_ahead.is_some_and(|seconds| seconds.abs() > SKEW);
        match (answer.status.as_u16(), code) {
            (_, "NoSuchBucket" | "ContainerNotFound" | "ContainerBeingDeleted") => Self::NoBucket(words),
            (404, "NoSuchKey" | "BlobNotFound") => Self::NotFound(words),
            (_, "RequestTimeTooSkewed") => Self::ClockSkew(words + &skew(answer)),
            (401 | 403, _) if is_skewed => Self::ClockSkew(words + &skew(answer)),
            (507, _) => Self::Quota(words),
            (429, _) | (_, "SlowDown" | "ServerBusy" | "TooManyRequests" | "RequestLimitExceeded") => {
                Self::Throttled(words)
            }
            _ if code.contains("Throttl") => Self::Throttled(words),
            _ if code.contains("Quota") || code.contains("StorageFull") => Self::Quota(words),
            (401 | 403, _) | (400, "ExpiredToken" | "InvalidToken" | "InvalidAccessKeyId") => Self::Denied(words),
            (400, _) if words.contains("invalid_grant") => Self::Denied(words),
            // 304 and 412: the condition does not hold. 409: another request for the name is under way.
            (304 | 409 | 412, _) => Self::Conflict(words),
            (200, "AccessDenied") => Self::Denied(words),
            (501, _) => Self::Unusable(words),
            // 200: it failed after the store had answered.
            (200 | 408 | 500.., _) => Self::Unavailable(words),
            // Also 404 without a store's words: it must not count as proof that an object is absent.
            _ => Self::Unusable(words),
        }
    }

    fn of_tls(error: &rustls::Error, words: String) -> Self {
        match error {
            rustls::Error::InvalidCertificate(_) => Self::WrongCertificate(words),
            rustls::Error::InvalidMessage(_) => Self::Unusable(format!("{words}: is this an http:// endpoint?")),
            _ => Self::Unavailable(words),
        }
    }

    fn of_file(error: &io::Error, words: String) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Quota(words),
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Self::Denied(words),
            io::ErrorKind::NotFound => Self::NotFound(words),
            io::ErrorKind::AlreadyExists => Self::Conflict(words),
            _ => Self::Unavailable(words),
        }
    }
}

fn skew(answer: &Answer) -> String {
    match answer.clock_ahead {
        Some(seconds) if seconds >= 0 => format!(" (the store's clock is {seconds} s ahead)"),
        Some(seconds) => format!(" (the store's clock is {} s behind)", -seconds),
        None => String::new(),
    }
}

impl From<object_store::Error> for Problem {
    fn from(error: object_store::Error) -> Self {
        if let Some(answer) = find::<Answer>(&error) {
            return Self::of_answer(answer);
        }
        let unanswered = find::<Unanswered>(&error).map(ToString::to_string);
        let words = unanswered.clone().unwrap_or_else(|| error.to_string());
        if let Some(error) = find::<rustls::Error>(&error) {
            return Self::of_tls(error, words);
        }
        if unanswered.is_some() {
            return Self::Unavailable(words);
        }
        match (&error, find::<io::Error>(&error)) {
            (object_store::Error::NotFound { .. }, _) => Self::NotFound(words),
            (object_store::Error::AlreadyExists { .. }, _) => Self::Conflict(words),
            (_, Some(error)) => Self::of_file(error, words),
            // A volume that answers without an I/O error was asked for the impossible, such as a range after the end.
            (object_store::Error::Generic { store, .. }, _) if *store != "LocalFileSystem" => Self::Unavailable(words),
            _ => Self::Unusable(words),
        }
    }
}

/// The first cause of this type.
pub(crate) fn find<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<T>() {
            return Some(found);
        }
        // `source` of an I/O error skips the error that it wraps.
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match wrapped {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        };
    }
    None
}
