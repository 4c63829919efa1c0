//! The messages between agents: HTTP over TLS 1.3, both sides with the cluster's certificate.

mod client;
mod dns;
mod message;
mod server;
mod signature;
mod tls;

pub use client::{Client, PeerError, UNKNOWN};
pub use dns::Resolver;
pub use server::{KnownMembers, Request, serve};
pub use signature::{MemberKey, Signed, Signer};
pub use tls::{Tls, TlsError};
