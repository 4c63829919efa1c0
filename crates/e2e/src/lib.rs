//! Code that the end-to-end tests, the demo and the measurements share: a namespace on a real Kubernetes, the operator
//! installed as a user would, and a client pod that sends SQL through the Services.

#[cfg(feature = "harness")]
pub mod audit;
pub mod availability;
#[cfg(feature = "harness")]
pub mod client;
#[cfg(feature = "harness")]
mod connect;
#[cfg(feature = "harness")]
pub mod flood;
#[cfg(feature = "harness")]
pub mod install;
#[cfg(feature = "harness")]
pub mod load;
#[cfg(feature = "harness")]
pub mod manifest;
#[cfg(feature = "harness")]
pub mod namespace;
#[cfg(feature = "harness")]
pub mod processes;
pub mod soak;
#[cfg(feature = "harness")]
pub mod store;
#[cfg(feature = "harness")]
pub mod wait;
#[cfg(feature = "harness")]
mod writing;

#[cfg(feature = "harness")]
pub use client::SqlClient;
#[cfg(feature = "harness")]
pub use connect::{
    KUBECONFIG_VARIABLE, LONG_VARIABLE, OPERATOR_BINARY_VARIABLE, OPERATOR_IMAGE_VARIABLE, WRITER_IMAGE_VARIABLE,
    connect, connect_for_test, connect_for_test_as, is_long,
};
#[cfg(feature = "harness")]
pub use install::Images;
#[cfg(feature = "harness")]
pub use namespace::Namespace;
#[cfg(feature = "harness")]
pub use writing::writing;
