//! The agent against the real thing: switches of two releases, OVN as a cluster, an API server, and
//! every fault that is known to happen to them.

// Helpers of tests may fail loudly, as tests do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod alone;
mod chart;
mod diagnostics;
mod faults;
mod inside;
mod secure;
mod support;
mod switch;
