//! Copies labels of a Node to the Pods that run on it: when a Pod is bound, when the Node's labels
//! change, and away again when the Node loses them.
//!
//! It watches Nodes and bound Pods and writes only what differs. There is no webhook, so it can
//! neither delay nor block scheduling; a Pod has its labels some milliseconds after it was bound.
//!
//! - `pods`: what is kept of a Pod and of a Node, and which Pods run on which Node.
//! - `decide`: which labels to set and to remove (pure).
//! - `injector`: the controller.

pub mod config;
pub mod decide;
pub mod injector;
pub mod pods;
