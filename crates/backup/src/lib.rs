//! The store of WAL and backups: create-only objects in S3, GCS, Azure Blob Storage or on a volume.
//!
//! - [`Place`] says where the store is, [`Access`] holds the credentials, and [`Store`] reads and creates objects. Only
//!   a [`Remover`] can delete.
//! - [`Store::probe`] finds out if the store refuses to overwrite ([`Fence`]).
//! - [`layout`] writes and reads the names of the objects, and [`segment`] the objects of WAL segments.
//! - [`Recipients`] encrypts objects, and [`Identities`] opens them.
//!
//! - [`base`] writes base backups, lists them, and unpacks them.
//!
//! No PostgreSQL process is run here.

mod access;
mod account;
pub mod base;
mod crypt;
mod dns;
pub mod layout;
mod open;
mod place;
mod probe;
mod problem;
pub mod segment;
mod store;
mod transport;
mod upload;
mod uri;

pub use access::Access;
pub use crypt::{IDENTITY, Identities, Recipients};
pub use place::{Addressing, Azure, Gcs, Place, S3, ServerSideEncryption, Volume};
pub use probe::Fence;
pub use problem::Problem;
pub use store::{Compare, Created, Folder, HEADER, Listed, PIECE, Remover, Store};
pub use upload::Upload;
pub use uri::UriError;
