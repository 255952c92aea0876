//! unixctl: the commands of `ovs-appctl`, without a process for each.
//!
//! Every daemon of Open vSwitch and OVN listens on a socket of this machine. A command is a
//! JSON-RPC call with texts as arguments, and its answer is the text that the tool would print.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Closed, Error};
use crate::options::Options;
use crate::remote::Remote;
use crate::rpc::Rpc;
use crate::transport;

/// A daemon that takes commands. Clones share the connection.
///
/// ```no_run
/// use cobalt_ovs::{Options, Unixctl};
///
/// # async fn example() -> Result<(), cobalt_ovs::Error> {
/// let directory = "/run/openvswitch".as_ref();
/// let vswitchd = Unixctl::of(directory, "ovs-vswitchd", &Options::default()).await?;
/// println!("{}", vswitchd.call("bond/show", &["bond0"]).await?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Unixctl {
    rpc: Rpc,
    socket: PathBuf,
}

impl Unixctl {
    /// Connects to a socket.
    pub async fn open(socket: &Path, options: &Options) -> Result<Self, Error> {
        let remote = Remote::Unix(socket.to_owned());
        let (input, output) = transport::connect(&remote, options).await?;
        // It answers an echo with "not a valid command": only calls tell whether it is there.
        let (rpc, _notifications) = Rpc::start(input, output, options, None);
        let socket = socket.to_owned();
        Ok(Self { rpc, socket })
    }

    /// Connects to a daemon whose files are in a directory: `NAME.pid` says which socket is its.
    pub async fn of(directory: &Path, program: &str, options: &Options) -> Result<Self, Error> {
        let not_running = |problem: String| Error::NotRunning {
            program: program.to_owned(),
            problem,
        };
        let pidfile = directory.join(format!("{program}.pid"));
        let text = tokio::fs::read_to_string(&pidfile).await;
        let text = text.map_err(|error| {
            not_running(format!("failed to read {}: {error}", pidfile.display()))
        })?;
        let pid: u32 = text
            .trim()
            .parse()
            .map_err(|_| not_running(format!("{} has no process id in it", pidfile.display())))?;
        Self::open(&directory.join(format!("{program}.{pid}.ctl")), options).await
    }

    /// The socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The same connection with another deadline for each call.
    #[must_use]
    pub fn with_call_timeout(&self, call_timeout: Duration) -> Self {
        Self {
            rpc: self.rpc.with_call_timeout(call_timeout),
            socket: self.socket.clone(),
        }
    }

    /// Gives a command, and returns what `ovs-appctl` would print. What the daemon refuses is
    /// [`Error::Unixctl`].
    pub async fn call(&self, command: &str, arguments: &[&str]) -> Result<String, Error> {
        let unreadable = |error| Error::protocol(command, error);
        match self.rpc.call(command, command, &arguments).await? {
            Ok(result) => {
                let text: Option<String> = serde_json::from_slice(&result).map_err(unreadable)?;
                Ok(text.unwrap_or_default())
            }
            Err(refusal) => {
                let text: String = serde_json::from_slice(&refusal).map_err(unreadable)?;
                Err(Error::Unixctl {
                    command: command.to_owned(),
                    text: text.trim_end().to_owned(),
                })
            }
        }
    }

    /// The version of the daemon, as it says it: `ovs-vswitchd (Open vSwitch) 3.1.0`.
    pub async fn version(&self) -> Result<String, Error> {
        let text = self.call("version", &[]).await?;
        Ok(text.lines().next().unwrap_or_default().trim().to_owned())
    }

    /// Waits until the connection is over, and says why.
    pub async fn closed(&self) -> Closed {
        self.rpc.closed().await
    }
}
