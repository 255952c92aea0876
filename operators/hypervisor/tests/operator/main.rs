//! The operator as a process, against a real API server and real Nova and Placement.

// Helpers of tests may fail loudly, as tests do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod chart;
mod cloud;
mod crash;
mod door;
mod eviction_faults;
mod evictions;
mod faults;
mod leader;
mod life;
mod metrics;
mod mirror;
mod nodes;
mod objects;
mod region;
mod rights;
mod support;
mod takeover;
mod witness;
mod writes;
