//! A real CobaltCore region on one machine: for people (`cobalt lab`) and for tests
//! ([`testing`]).
//!
//! ```text
//!  cobalt lab up ──prepare (binaries, tree, images)──> supervisor, one per lab
//!  tests ─────────┘                                      │ control.sock
//!                                   ┌────────────────────┼──────────────────┐
//!                              control planes      image registry     power supplies
//!                        (etcd, API server, ...)                     (nodes in namespaces)
//! ```
//!
//! The supervisor owns everything that runs and takes it down when it ends. When it dies it can
//! take nothing down: then [`sweep`] removes what carries its id.

pub mod access;
pub mod binaries;
pub mod bmc;
pub mod cache;
pub mod cgroup;
pub mod charts;
pub mod cli;
pub mod cloud_hypervisor;
pub mod cluster;
pub mod command;
pub mod config;
pub mod control;
pub mod dns;
pub mod firewall;
pub mod guests;
pub mod handle;
pub mod images;
pub mod light;
pub mod net;
pub mod node;
pub mod oci;
pub mod openstack;
pub mod paths;
pub mod pki;
pub mod plan;
pub mod played;
pub mod process;
pub mod promtool;
pub mod python;
pub mod registry;
pub mod report;
pub mod setup;
pub mod supervisor;
pub mod sweep;
pub mod testing;
pub mod tree;

pub use config::LabConfig;
pub use handle::Lab;
