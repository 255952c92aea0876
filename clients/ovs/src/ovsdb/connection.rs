//! A connection to an OVSDB server: calls with deadlines, any number of them at the same time.

use std::time::Duration;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::ser::SerializeSeq;
use serde::{Deserialize, Serialize, Serializer};
use tokio::sync::mpsc;

use super::operation::{Operation, Outcome};
use super::row::Row;
use super::schema::Schema;
use super::value::{Atom, FromAtom};
use crate::error::{Closed, Error, OvsdbError};
use crate::options::Options;
use crate::remote::Remote;
use crate::rpc::{Notification, Rpc};
use crate::transport;

/// A connection to an OVSDB server. Clones share it; it is closed when the last of them is gone.
///
/// Each call ends at the latest after [`Options::call_timeout`]. A server that is silent is asked
/// whether it is there ([`Options::keepalive`]), and its own questions are answered.
///
/// ```no_run
/// use cobalt_ovs::Options;
/// use cobalt_ovs::ovsdb::{Connection, Operation, vswitch};
///
/// # async fn example() -> Result<(), cobalt_ovs::Error> {
/// let remote = cobalt_ovs::Remote::Unix("/run/openvswitch/db.sock".into());
/// let ovsdb = Connection::open(&remote, &Options::default()).await?;
/// let bridges = Operation::select::<vswitch::Bridge>(Vec::new());
/// for outcome in ovsdb.transact(vswitch::DATABASE, &[bridges]).await? {
///     for row in outcome.rows {
///         println!("{}", row.read::<vswitch::Bridge>().name);
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Connection {
    rpc: Rpc,
    remote: Remote,
}

impl Connection {
    /// Connects.
    pub async fn open(remote: &Remote, options: &Options) -> Result<Self, Error> {
        let (connection, _notifications) = Self::open_to_listen(remote, options).await?;
        Ok(connection)
    }

    /// Connects, and takes notifications.
    pub(crate) async fn open_to_listen(
        remote: &Remote,
        options: &Options,
    ) -> Result<(Self, mpsc::Receiver<Notification>), Error> {
        let (input, output) = transport::connect(remote, options).await?;
        let (rpc, notifications) = Rpc::start(input, output, options, options.keepalive);
        let remote = remote.clone();
        Ok((Self { rpc, remote }, notifications))
    }

    /// The server.
    pub fn remote(&self) -> &Remote {
        &self.remote
    }

    /// The same connection with another deadline for each call.
    #[must_use]
    pub fn with_call_timeout(&self, call_timeout: Duration) -> Self {
        Self {
            rpc: self.rpc.with_call_timeout(call_timeout),
            remote: self.remote.clone(),
        }
    }

    /// The databases of the server.
    pub async fn databases(&self) -> Result<Vec<String>, Error> {
        self.read("list_dbs", "list databases", &[(); 0]).await
    }

    /// The schema of a database.
    pub async fn schema(&self, database: &str) -> Result<Schema, Error> {
        let what = format!("get the schema of {database}");
        self.read("get_schema", &what, &[database]).await
    }

    /// Whether the server answers.
    pub async fn ping(&self) -> Result<(), Error> {
        self.call("echo", "echo", &[(); 0]).await.map(drop)
    }

    /// Carries out a transaction: all of it, or nothing.
    ///
    /// When the connection is lost or the time is up meanwhile, it may have been carried out or
    /// not: look before you repeat it.
    pub async fn transact(
        &self,
        database: &str,
        operations: &[Operation],
    ) -> Result<Vec<Outcome>, Error> {
        let what = format!("change {database}");
        let params = TransactParams {
            database,
            operations,
        };
        let steps: Vec<Option<Step>> = self.read("transact", &what, &params).await?;
        let mut outcomes = Vec::new();
        for step in steps {
            match step {
                Some(Step {
                    error: Some(error),
                    details,
                    ..
                }) => {
                    return Err(Error::Ovsdb {
                        call: what,
                        error: OvsdbError { error, details },
                    });
                }
                Some(step) => outcomes.push(step.outcome()),
                // Not tried, because of an error that follows.
                None => outcomes.push(Outcome::default()),
            }
        }
        outcomes.truncate(operations.len());
        Ok(outcomes)
    }

    /// Waits until the connection is over, and says why.
    pub async fn closed(&self) -> Closed {
        self.rpc.closed().await
    }

    /// Whether the connection is still there, as far as anybody has noticed; [`Self::ping`] asks.
    pub fn is_alive(&self) -> bool {
        self.rpc.why_closed().is_none()
    }

    pub(crate) fn why_closed(&self) -> Closed {
        self.rpc.why_closed().unwrap_or(Closed::Local)
    }

    /// Asks, and gives the answer as JSON.
    pub(crate) async fn call(
        &self,
        method: &str,
        what: &str,
        params: &impl Serialize,
    ) -> Result<Bytes, Error> {
        match self.rpc.call(method, what, params).await? {
            Ok(result) => Ok(result),
            Err(refusal) => Err(Error::Ovsdb {
                call: what.to_owned(),
                error: read_refusal(&refusal),
            }),
        }
    }

    async fn read<T: DeserializeOwned>(
        &self,
        method: &str,
        what: &str,
        params: &impl Serialize,
    ) -> Result<T, Error> {
        let answer = self.call(method, what, params).await?;
        serde_json::from_slice(&answer).map_err(|error| Error::protocol(what, error))
    }
}

/// An error is an object, or a text where the server is in a hurry.
pub(crate) fn read_refusal(json: &[u8]) -> OvsdbError {
    let text = || String::from_utf8_lossy(json).into_owned();
    serde_json::from_slice(json).unwrap_or_else(|_| OvsdbError {
        error: serde_json::from_slice(json).unwrap_or_else(|_| text()),
        details: None,
    })
}

/// `[database, operation, ...]`
struct TransactParams<'a> {
    database: &'a str,
    operations: &'a [Operation],
}

impl Serialize for TransactParams<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut params = serializer.serialize_seq(Some(self.operations.len() + 1))?;
        params.serialize_element(self.database)?;
        for operation in self.operations {
            params.serialize_element(operation)?;
        }
        params.end()
    }
}

/// What came of a step, or why nothing came of it.
#[derive(Deserialize)]
struct Step {
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    details: Option<String>,
    #[serde(default)]
    count: u64,
    #[serde(default)]
    uuid: Option<Atom>,
    #[serde(default)]
    rows: Vec<Row>,
}

impl Step {
    fn outcome(self) -> Outcome {
        Outcome {
            count: self.count,
            uuid: self.uuid.as_ref().and_then(FromAtom::from_atom),
            rows: self.rows,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_read_in_every_form() {
        let object = br#"{"error":"unknown database","details":"no X","syntax":"[]"}"#;
        let refusal = read_refusal(object);
        assert!(refusal.is_unknown_database());
        assert_eq!(refusal.to_string(), "unknown database: no X");
        assert!(read_refusal(b"{\"error\":\"unknown method\"}").is_unknown_method());
        assert_eq!(read_refusal(b"\"canceled\"").to_string(), "canceled");
        assert_eq!(read_refusal(b"17").to_string(), "17");
    }
}
