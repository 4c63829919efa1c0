//! The `ClusteredDatabase` resource (`clustereddatabase.io/v1alpha2`, short name `cdb`): its fields, the rules that
//! they must obey, the phases, and what the operator and the agents exchange through the API server.
//!
//! No Kubernetes client and no clock live here.

pub mod backup;
pub mod crd;
pub mod database;
pub mod declared;
pub mod durability;
pub mod guarded;
pub mod moment;
pub mod names;
pub mod operation;
pub mod phase;
pub mod pooler;
pub mod quantity;
pub mod reference;
pub mod rules;
pub mod spec;
pub mod status;
pub mod store;
pub mod user;
mod values;
pub mod waiting;

pub use backup::DatabaseBackup;
pub use crd::{crd, crd_yaml};
pub use database::Database;
pub use durability::WantedDurability;
pub use guarded::{Guarded, Unreadable};
pub use names::GROUP;
pub use operation::ClusteredDatabaseOperation;
pub use phase::Phase;
pub use pooler::Pooler;
pub use reference::reference;
pub use rules::{Violation, validate, validate_update};
pub use spec::{ClusteredDatabase, ClusteredDatabaseSpec};
pub use status::ClusteredDatabaseStatus;
pub use user::DatabaseUser;
