//! The agent against the real thing: libvirt with guests, systemd, and an API server.

// Helpers of tests may fail loudly, as tests do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod chart;
mod facts;
mod faults;
mod ha;
mod host;
mod metrics;
mod migrations;
mod report;
mod rig;
mod rights;
mod status;
mod support;
mod tls;
