//! The kit that operators are built with: an [`App`] that starts, elects a leader, serves health and
//! metrics and ends in order, and [`Controller`]s that observe, decide and act on one key at a time.
//!
//! An operator declares its watches and its controllers; `docs/writing-an-operator.md` shows how.

mod app;
mod controller;
mod kube_error;

pub use app::{App, AppArgs, AppError, Watch, main};
pub use controller::{Controller, Next};
pub use kube_error::{KubeError, call};
