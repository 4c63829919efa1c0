//! Faults by script.

use serde::{Deserialize, Serialize};

/// What happens to some requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fault {
    /// Only requests with this method; absent for all.
    #[serde(default)]
    pub method: Option<String>,
    /// Only requests for a path that contains this.
    #[serde(default)]
    pub path: String,
    /// How many requests; absent for all that come.
    #[serde(default)]
    pub times: Option<u32>,
    /// What happens.
    pub effect: Effect,
}

/// What happens to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Effect {
    /// The server does nothing and answers with this error.
    Refuse {
        /// The HTTP status.
        status: u16,
        /// S3's name for the error, as `SlowDown`.
        code: String,
    },
    /// The server's clock is behind by so many seconds, and it refuses the signature.
    ClockBehind(i64),
    /// The server does what is asked and closes the connection without an answer.
    LoseReply,
    /// The server does nothing and answers 200 with this error in the body, as S3 may after the end of a long write.
    ErrorInSuccess {
        /// S3's name for the error, as `InternalError`.
        code: String,
    },
    /// The server sends half of the answer's body and closes the connection.
    CutBody,
    /// The server reads half of the request's body, stores nothing and closes the connection.
    CutUpload,
    /// The server does nothing and never answers.
    Stall,
    /// The server waits for so many milliseconds, then does what is asked.
    Delay(u64),
    /// The server overwrites, whatever conditions there are.
    Overwrite,
    /// The server refuses requests with a condition, as one that knows none.
    NoConditions,
}

impl Fault {
    /// A fault of every request.
    pub fn new(effect: Effect) -> Self {
        Self {
            method: None,
            path: String::new(),
            times: None,
            effect,
        }
    }

    /// The same fault, only of requests with this method.
    #[must_use]
    pub fn method(self, method: &str) -> Self {
        Self {
            method: Some(method.to_owned()),
            ..self
        }
    }

    /// The same fault, only of the next `times` requests.
    #[must_use]
    pub fn times(self, times: u32) -> Self {
        Self {
            times: Some(times),
            ..self
        }
    }

    /// A refusal with this status and S3's name for it.
    pub fn refuse(status: u16, code: &str) -> Self {
        Self::new(Effect::Refuse {
            status,
            code: code.to_owned(),
        })
    }

    /// An answer that says 200 and has an error of this name in its body.
    pub fn error_in_success(code: &str) -> Self {
        Self::new(Effect::ErrorInSuccess { code: code.to_owned() })
    }

    fn fits(&self, method: &str, path: &str) -> bool {
        let is_method = self.method.as_deref().is_none_or(|wanted| wanted == method);
        is_method && path.contains(&self.path) && self.times != Some(0)
    }
}

/// The effect of the first fault that fits; it is used once.
pub(crate) fn take(faults: &mut [Fault], method: &str, path: &str) -> Option<Effect> {
    let fault = faults.iter_mut().find(|fault| fault.fits(method, path))?;
    fault.times = fault.times.map(|times| times - 1);
    Some(fault.effect.clone())
}
