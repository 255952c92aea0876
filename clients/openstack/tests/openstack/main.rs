//! The client against recorded exchanges, against a fake peer that misbehaves as no real service
//! does on demand, and against the real services of the light OpenStack.

// Helpers of tests may fail loudly, as tests do.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod decoders;
mod fake;
mod faults;
mod gate;
mod identity;
mod lab;
mod lookups;
mod migrations;
mod nova;
mod placement;
mod replay;
mod samples;
mod samples_placement;
mod samples_servers;
mod tls;
mod tokens;
