//! OVSDB: RFC 7047, with the extensions of Open vSwitch.

mod cache;
mod connection;
mod field;
mod monitor;
mod operation;
mod rotation;
mod row;
mod schema;
mod server;
pub mod southbound;
mod table;
mod value;
pub mod vswitch;

pub use cache::{Select, Tables};
pub use connection::Connection;
pub use field::{Field, Kind};
pub use monitor::{Event, Monitor};
pub use operation::{Condition, Function, Mutation, Mutator, Operation, Outcome, Until};
pub use row::Row;
pub use schema::Schema;
pub use table::{Change, ChangeKind, Columns, Names, Table};
pub use value::{Atom, FromAtom, Value};
