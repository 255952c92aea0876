//! The Kubernetes API of CobaltCore: every custom resource, condition, label and name.
//!
//! Inputs: none. Outputs: Rust types that read and write the wire format, and the
//! CustomResourceDefinitions built from them ([`crds::all`]). Invariants:
//!
//! - The wire format is the one of the deployed fleet. What is added is optional, so that an older
//!   writer is never refused and never loses a field (`docs/decisions/0002`).
//! - An unset field is absent on the wire, so that a server-side apply claims only what is set.
//! - A value is validated by the schema and its CEL rules, not here.
//! - A string that has a meaning (condition, reason, label, finalizer, field manager) is spelled in
//!   this crate and nowhere else.

#![allow(
    clippy::duplicated_attributes,
    reason = "printer columns of a kind repeat their type and priority"
)]

mod strings;

pub mod conditions;
pub mod crds;
pub mod duration;
pub mod eviction;
pub mod hypervisor;
pub mod migration;
pub mod names;
pub mod ovsnode;
mod schema;
pub mod wait;

pub use eviction::{Eviction, EvictionSpec, EvictionStatus};
pub use hypervisor::{Hypervisor, HypervisorSpec, HypervisorStatus};
pub use migration::{Migration, MigrationSpec, MigrationStatus};
pub use ovsnode::{OvsNode, OvsNodeSpec, OvsNodeStatus};
pub use strings::UnknownName;
pub use wait::Wait;
