//! The hypervisor operator: from a Node to a host that takes workload, and to one that has left.
//!
//! ```text
//!  caches, fleet (Nova) -> Host -> controllers (pure) -> Pass -> one status write -> actions
//! ```

pub mod act;
pub mod action;
pub mod cache;
pub mod clock;
pub mod config;
pub mod consumers;
pub mod controllers;
pub mod eviction;
pub mod fleet;
pub mod heartbeat;
pub mod host;
pub mod kept;
pub mod metrics;
pub mod mirror;
pub mod node_objects;
pub mod objects;
pub mod operator;
pub mod pass;
pub mod reconcile;
pub mod record;
pub mod release;
pub mod surplus;
pub mod sync;
pub mod testbed;
