//! SCRAM-SHA-256 verifiers: a password never reaches PostgreSQL, its log or its statistics.

/// A SCRAM-SHA-256 verifier, as PostgreSQL stores it. Not shown by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Verifier {}

/// A password that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifierError {
    /// Empty.
    #[error("the password is empty")]
    Empty,
    /// Holds a NUL character.
    #[error("the password holds a NUL character")]
    Nul,
    /// No randomness.
    #[error("the kernel gives no random numbers")]
    Random,
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Verifier(…)")
    }
}

impl Verifier {
    /// A verifier with a fresh salt. Text that already is a SCRAM-SHA-256 verifier is taken as it is.
    pub fn of(_password: &str) -> Result<Self, VerifierError> {
        todo!()
    }
    /// Reads a stored one.
    pub fn parse(_text: &str) -> Option<Self> {
        todo!()
    }
    /// It is one of `password`.
    pub fn matches(&self, _password: &str) -> bool {
        todo!()
    }
    /// As PostgreSQL stores it.
    pub fn as_str(&self) -> &str {
        todo!()
    }
}
