//! What every binary of CobaltCore shares: start-up and logs, the Kubernetes client, supervised
//! tasks, health and metrics, watches of one object and of all of a kind, a queue of work, leader
//! election, server-side apply and Kubernetes Events.
//!
//! It knows Kubernetes and nothing of our kinds: those are in `cobalt-api`.

mod apply;
mod backoff;
mod chain;
mod client;
mod deadline;
pub mod flags;
mod health;
mod http;
mod leader;
pub mod logging;
pub mod metrics;
mod pace;
mod queue;
mod recorder;
mod reflect;
mod server;
mod tasks;
mod watch;

pub use apply::{ApplyError, apply, apply_status};
pub use backoff::{Backoff, jitter};
pub use chain::chain;
pub use client::{
    ClientError, client, client_and_address, client_from_config, client_from_file,
    client_with_token, led,
};
pub use deadline::within;
pub use health::{Health, Pulse};
pub use http::serve;
pub use leader::{LeaderConfig, LeaderError, Leadership, Term, lead};
pub use pace::Pace;
pub use queue::{Key, Queue, Work, work};
pub use recorder::{Note, Recorder, Severity};
pub use reflect::{Change, ObjectKey, Presence, Reflection, Store, reflect};
pub use server::{Limits, Socket, serve_on};
pub use tasks::{Tasks, shutdown_signal};
pub use watch::{Observed, watch_object};
