//! The testbed: a real three-node Kubernetes on this machine.
