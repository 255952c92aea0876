//! Empties hosts: each Eviction to its end, with a verdict per instance.
//!
//! - [`seen`]: everything that a decision is made from;
//! - [`verdict`]: whether one instance can be moved, and how;
//! - [`witness`]: who says what of what is left on a host;
//! - [`decide`]: from what is seen to what is said and done, without a clock or a socket;
//! - [`signs`]: when something last happened to a migration;
//! - [`survey`]: which hosts could take an instance, and why the others do not;
//! - [`transfer`]: how far one is, and whether it gets anywhere;
//! - [`budget`]: how many may move at the same time, over all hosts;
//! - [`hands`]: reads and calls, each in a task of its own, so that a slow one holds up nobody;
//! - [`engine`]: turns for hosts: observe, decide, write, act.
//!
//! What is to be done to an instance is written to its row before Nova is asked. After a crash the
//! row says what may have been asked, Nova says what came of it, and the two are brought together;
//! Nova itself refuses a second migration of a server that is on its way.

pub mod budget;
pub mod decide;
pub mod engine;
pub mod hands;
pub mod seen;
pub mod signs;
pub mod survey;
pub mod transfer;
pub mod verdict;
pub mod witness;

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
