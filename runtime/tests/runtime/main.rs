//! What all binaries share, against a real API server.

// Helpers of tests may fail loudly, as tests do.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod leader;
mod recorder;
mod reflect;
mod support;
