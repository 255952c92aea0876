//! The controllers: each says and does its part of a [`Pass`], from nothing but what is in it.
//!
//! They run in this order, and a later one builds on what an earlier one said.

pub mod agent;
pub mod aggregates;
pub mod checks;
pub mod maintenance;
pub mod node;
pub mod offboarding;
pub mod onboarding;
pub mod ready;
pub mod traits;

#[cfg(test)]
mod tests;

use crate::pass::Pass;

/// All of them.
pub fn decide(pass: &mut Pass) {
    node::decide(pass);
    agent::decide(pass);
    onboarding::decide(pass);
    maintenance::decide(pass);
    traits::decide(pass);
    aggregates::decide(pass);
    offboarding::decide(pass);
    ready::decide(pass);
}
