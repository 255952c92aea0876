//! The API against a real API server.
//!
//! The attribute on each module tells clippy that all of it is test code.

#[cfg(test)]
mod apply;
#[cfg(test)]
mod columns;
#[cfg(test)]
mod compatibility;
#[cfg(test)]
mod fresh;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod schema;
#[cfg(test)]
mod support;
