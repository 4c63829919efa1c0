//! Answers.

use serde_json::{Value, json};

use crate::kinds::Kind;

/// An answer: an HTTP status code and a body.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// The HTTP status code.
    pub code: u16,
    /// An object, a list, or a `Status`.
    pub body: Value,
}

/// A request that is not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP status code.
    pub code: u16,
    /// Kubernetes' word for it; empty if it has none.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

impl Refusal {
    /// A refusal.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
        }
    }

    pub(crate) fn not_found(kind: &Kind, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} {name:?} not found", kind.qualified()))
    }

    pub(crate) fn exists(kind: &Kind, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", kind.qualified());
        Self::new(409, "AlreadyExists", message)
    }

    pub(crate) fn conflict(kind: &Kind, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", kind.qualified());
        Self::new(409, "Conflict", message)
    }

    pub(crate) fn modified(kind: &Kind, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(kind, name, why)
    }

    pub(crate) fn terminating(kind: &Kind, name: &str, namespace: &str) -> Self {
        let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
        let message = format!("{} {name:?} is forbidden: {why}", kind.qualified());
        Self::new(403, "Forbidden", message)
    }

    /// A forbidden value.
    pub fn invalid(kind: &Kind, name: &str, why: &str) -> Self {
        let message = format!("{}.{} {name:?} is invalid: {why}", kind.kind, kind.group);
        Self::new(422, "Invalid", message)
    }

    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// As a `Status`.
    pub fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = json!(self.reason);
        }
        status
    }
}

impl From<Refusal> for Reply {
    fn from(refusal: Refusal) -> Self {
        Self {
            code: refusal.code,
            body: refusal.status(),
        }
    }
}

impl Reply {
    pub(crate) fn ok(body: Value) -> Self {
        Self { code: 200, body }
    }

    pub(crate) fn created(body: Value) -> Self {
        Self { code: 201, body }
    }
}
