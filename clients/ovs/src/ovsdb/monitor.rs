//! A monitor: the rows of some tables, kept up to date for as long as it lives.
//!
//! ```text
//!             +-------------------- wait -------------------+
//!             v                                             |
//!  reach: connect, ask _Server, read the schema  --failed-->+
//!             v                                             |
//!  ask: monitor_cond_since, or what the server knows ------>+
//!             v                                             |
//!  live: updates are applied ----- lost, or of no use ----->+
//! ```
//!
//! It goes round its remotes until one is good, leaves one that is cut off from its cluster, behind
//! it, or no longer its leader, and goes on from the last transaction it has seen: a clustered
//! database sends only what changed since. A standalone one sends everything again, and what is the
//! same is no change. The rows stay while there is no connection.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

use super::cache::{Requests, Select, Tables};
use super::connection::Connection;
use super::operation::Condition;
use super::rotation::Rotation;
use super::schema::Schema;
use super::server::{self, Database, Progress};
use super::table::{Change, Table};
use crate::error::{Closed, Error, Unfit};
use crate::options::Options;
use crate::remote::Remote;
use crate::rpc::Notification;

/// What our two monitors are called on the wire.
const DATA: &str = "data";
const SERVER: &str = "server";
/// How long to wait after all remotes have failed.
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_secs(8);

/// What is new.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// The rows are those of the server, from now on.
    Synced {
        /// The server.
        remote: Remote,
        /// Only what changed since the last connection had to be read.
        resumed: bool,
        /// What is not as it was.
        changes: Vec<Change>,
    },
    /// A transaction has changed rows.
    Changed(Vec<Change>),
    /// There is no connection, or no longer. The rows are those of the last one.
    Down {
        /// The server that was lost or tried; none if there is none to try.
        remote: Option<Remote>,
        /// Why.
        error: Error,
        /// When the next one is tried.
        retry_in: Duration,
    },
}

/// The rows of some tables, kept up to date.
///
/// All of it happens in [`Self::next`], apart from reading and answering the server, which a task
/// does. Who does not ask for events gets none, and holds up the server.
///
/// ```no_run
/// use cobalt_ovs::{Options, Remote};
/// use cobalt_ovs::ovsdb::vswitch::{self, Bridge, Interface};
/// use cobalt_ovs::ovsdb::{Monitor, Select, Tables};
///
/// # async fn example() {
/// let remote = Remote::Unix("/run/openvswitch/db.sock".into());
/// let tables = Tables::new()
///     .table::<Bridge>()
///     .select(Select::<Interface>::all().without(&["statistics"]));
/// let mut monitor = Monitor::new(vswitch::DATABASE, vec![remote], tables, Options::default());
/// loop {
///     println!("{:?}", monitor.next().await);
///     for (_, interface) in monitor.rows::<Interface>() {
///         println!("{} is {:?}", interface.name, interface.link_state);
///     }
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Monitor {
    database: String,
    remotes: Vec<Remote>,
    options: Options,
    leader_only: bool,
    tables: Tables,
    /// Changes that have been applied and not been told.
    changes: Vec<Change>,
    /// The last transaction that has been applied; zero for none.
    last: Uuid,
    /// How far the cluster is known to be.
    seen: Option<Progress>,
    rotation: Rotation,
    state: State,
}

#[derive(Debug)]
enum State {
    Waiting(Instant),
    Reaching(JoinSet<Result<(Link, Schema), Error>>),
    Asking(JoinSet<Result<(Link, Answer), Error>>),
    Live(Link),
}

/// A connection with its notifications.
#[derive(Debug)]
struct Link {
    /// When it was opened.
    since: Instant,
    connection: Connection,
    notifications: mpsc::Receiver<Notification>,
    /// Those that came while an answer was waited for.
    early: VecDeque<Notification>,
    /// What the server says of itself; nothing where it is too old for that.
    server: Option<Tables>,
}

/// How the server answered.
#[derive(Debug)]
enum Answer {
    /// `[found, last transaction, updates]`
    Since(Bytes),
    /// All rows.
    Whole(Bytes),
}

impl Monitor {
    /// A monitor of these tables. It connects when it is asked for the first event.
    pub fn new(database: &str, remotes: Vec<Remote>, tables: Tables, options: Options) -> Self {
        Self {
            database: database.to_owned(),
            rotation: Rotation::new(remotes.len(), FIRST_WAIT, LONGEST_WAIT),
            remotes,
            options,
            leader_only: false,
            tables,
            changes: Vec::new(),
            last: Uuid::nil(),
            seen: None,
            state: State::Waiting(Instant::now()),
        }
    }

    /// Stays with the leader of the cluster only. Who writes wants that; who reads spreads the load
    /// over all members, and is told by the same log.
    #[must_use]
    pub fn leader_only(mut self) -> Self {
        self.leader_only = true;
        self
    }

    /// The rows of a table; none if it is not monitored.
    pub fn rows<T: Table>(&self) -> impl Iterator<Item = (Uuid, &T)> {
        self.tables.rows()
    }

    /// A row.
    pub fn get<T: Table>(&self, uuid: Uuid) -> Option<&T> {
        self.tables.get(uuid)
    }

    /// All tables.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The connection, while the rows are those of the server.
    pub fn connection(&self) -> Option<&Connection> {
        match &self.state {
            State::Live(link) => Some(&link.connection),
            _ => None,
        }
    }

    /// Goes to other remotes from now on. The connection to one that is still among them stays.
    pub fn set_remotes(&mut self, remotes: Vec<Remote>) {
        if remotes == self.remotes {
            return;
        }
        let stays = self
            .connection()
            .is_some_and(|connection| remotes.contains(connection.remote()));
        self.rotation = Rotation::new(remotes.len(), FIRST_WAIT, LONGEST_WAIT);
        self.remotes = remotes;
        if !stays {
            self.state = State::Waiting(Instant::now());
        }
    }

    /// The next event. It may be dropped at any time, and nothing is lost.
    pub async fn next(&mut self) -> Event {
        loop {
            let step = match &mut self.state {
                State::Waiting(until) => {
                    tokio::time::sleep_until(*until).await;
                    self.reach().map(|()| None)
                }
                State::Reaching(task) => match joined(task.join_next().await) {
                    Ok((link, schema)) => {
                        self.ask(link, &schema);
                        Ok(None)
                    }
                    Err(error) => Err(error),
                },
                State::Asking(task) => match joined(task.join_next().await) {
                    Ok((link, answer)) => self.begin(link, &answer).map(Some),
                    Err(error) => Err(error),
                },
                State::Live(link) => match link.next().await {
                    Some(notification) => self.take(&notification),
                    None => Err(Error::Closed(link.connection.why_closed())),
                },
            };
            match step {
                Ok(None) => {}
                Ok(Some(event)) => return event,
                Err(error) => return self.down(error),
            }
        }
    }

    fn remote(&self) -> Option<&Remote> {
        self.remotes.get(self.rotation.current())
    }

    fn reach(&mut self) -> Result<(), Error> {
        let remote = self.remote().cloned();
        let remote = remote.ok_or_else(|| Error::BadArgument("no remote is named".to_owned()))?;
        let (options, database) = (self.options.clone(), self.database.clone());
        let (leader_only, seen) = (self.leader_only, self.seen);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let link = Link::open(&remote, &options, &database).await?;
            link.judge(&database, leader_only, seen)?;
            let schema = link.connection.schema(&database).await?;
            Ok((link, schema))
        });
        self.state = State::Reaching(task);
        Ok(())
    }

    fn ask(&mut self, mut link: Link, schema: &Schema) {
        let requests = self.tables.requests(schema);
        if self.tables.learn(schema) {
            // Other columns than before: what changed since is not enough.
            self.last = Uuid::nil();
        }
        let (database, last) = (self.database.clone(), self.last);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let answer = link.monitor(&database, requests, last).await?;
            Ok((link, answer))
        });
        self.state = State::Asking(task);
    }

    /// The first answer: everything, or what has changed.
    fn begin(&mut self, link: Link, answer: &Answer) -> Result<Event, Error> {
        let (found, last, updates) = match answer {
            Answer::Since(json) => serde_json::from_slice::<(bool, Uuid, &RawValue)>(json)
                .map_err(|error| Error::protocol("monitor_cond_since", error))
                .map(|(found, last, updates)| (found, last, updates.get().as_bytes()))?,
            Answer::Whole(json) => (false, Uuid::nil(), json.as_ref()),
        };
        let applied = if found {
            self.tables.apply(updates, &mut self.changes)
        } else {
            self.tables.replace(updates, &mut self.changes)
        };
        self.applied(applied)?;
        self.last = last;
        self.note_progress(&link);
        let remote = link.connection.remote().clone();
        self.state = State::Live(link);
        Ok(Event::Synced {
            remote,
            resumed: found,
            changes: std::mem::take(&mut self.changes),
        })
    }

    fn take(&mut self, notification: &Notification) -> Result<Option<Event>, Error> {
        let method = notification.method.as_str();
        let unreadable = |error| Error::protocol(method, error);
        let (id, last, updates) = match method {
            "update3" => {
                let (id, last, updates) =
                    serde_json::from_slice::<(&str, Uuid, &RawValue)>(&notification.params)
                        .map_err(unreadable)?;
                (id, last, updates)
            }
            "update2" | "update" => {
                let (id, updates) =
                    serde_json::from_slice::<(&str, &RawValue)>(&notification.params)
                        .map_err(unreadable)?;
                (id, Uuid::nil(), updates)
            }
            _ => {
                tracing::debug!(method, "a notification of no interest");
                return Ok(None);
            }
        };
        let updates = updates.get().as_bytes();
        match id {
            DATA => {}
            SERVER => return self.server_changed(updates).map(|()| None),
            _ => return Ok(None),
        }
        let applied = self.tables.apply(updates, &mut self.changes);
        self.applied(applied)?;
        self.last = last;
        if self.changes.is_empty() {
            return Ok(None);
        }
        Ok(Some(Event::Changed(std::mem::take(&mut self.changes))))
    }

    fn server_changed(&mut self, updates: &[u8]) -> Result<(), Error> {
        let State::Live(link) = &mut self.state else {
            return Ok(());
        };
        if let Some(server) = &mut link.server {
            let applied = server.apply(updates, &mut Vec::new());
            applied.map_err(|error| Error::protocol("_Server", error))?;
            link.judge(&self.database, self.leader_only, None)?;
            self.seen = link.database().map_or(self.seen, |row| row.seen(self.seen));
        }
        Ok(())
    }

    fn note_progress(&mut self, link: &Link) {
        if let Some(row) = link.database() {
            self.seen = row.seen(self.seen);
        }
    }

    /// What cannot be applied leaves us with rows of which little is known: read all of them again.
    fn applied(&mut self, applied: Result<(), serde_json::Error>) -> Result<(), Error> {
        applied.map_err(|error| {
            self.last = Uuid::nil();
            Error::protocol("update", error)
        })
    }

    fn down(&mut self, error: Error) -> Event {
        let (remote, retry_in) = match &self.state {
            State::Live(link) => {
                let remote = link.connection.remote().clone();
                (Some(remote), self.rotation.lost(link.since.elapsed()))
            }
            _ => (self.remote().cloned(), self.rotation.failed()),
        };
        self.state = State::Waiting(Instant::now() + retry_in);
        tracing::debug!(?remote, %error, ?retry_in, "no monitor");
        Event::Down {
            remote,
            error,
            retry_in,
        }
    }
}

/// What came of a task. One that was taken away with the runtime has no more to say.
fn joined<T>(task: Option<Result<Result<T, Error>, tokio::task::JoinError>>) -> Result<T, Error> {
    match task {
        Some(Ok(done)) => done,
        Some(Err(_)) | None => Err(Error::Closed(Closed::Local)),
    }
}

impl Link {
    async fn open(remote: &Remote, options: &Options, database: &str) -> Result<Self, Error> {
        let (connection, notifications) = Connection::open_to_listen(remote, options).await?;
        let mut link = Self {
            since: Instant::now(),
            connection,
            notifications,
            early: VecDeque::new(),
            server: None,
        };
        link.meet(database).await?;
        Ok(link)
    }

    /// Asks the server what it says of itself, now and whenever that changes.
    async fn meet(&mut self, database: &str) -> Result<(), Error> {
        let schema = match self.connection.schema(server::DATABASE).await {
            Ok(schema) => schema,
            // A server that is older than clusters has none.
            Err(error) if error.ovsdb().is_some() => return Ok(()),
            Err(error) => return Err(error),
        };
        let select = Select::<Database>::all().when(Condition::equal("name", database));
        let mut tables = Tables::new().select(select);
        tables.learn(&schema);
        let params = (server::DATABASE, SERVER, tables.requests(&schema));
        let answer = self
            .connection
            .call("monitor_cond", "monitor the server", &params);
        let answer = match answer.await {
            Err(error) if error.ovsdb().is_some() => return Ok(()),
            answer => answer?,
        };
        tables
            .replace(&answer, &mut Vec::new())
            .map_err(|error| Error::protocol("monitor the server", error))?;
        self.server = Some(tables);
        Ok(())
    }

    fn database(&self) -> Option<&Database> {
        let server = self.server.as_ref()?;
        server.rows::<Database>().map(|(_, row)| row).next()
    }

    fn judge(
        &self,
        database: &str,
        leader_only: bool,
        seen: Option<Progress>,
    ) -> Result<(), Error> {
        if self.server.is_none() {
            return Ok(());
        }
        let verdict = server::judge(database, self.database(), leader_only, seen);
        verdict.map_err(|why: Unfit| Error::Unfit {
            remote: self.connection.remote().to_string(),
            why,
        })
    }

    /// Asks for the rows in the newest way that the server knows.
    async fn monitor(
        &mut self,
        database: &str,
        requests: Requests,
        last: Uuid,
    ) -> Result<Answer, Error> {
        let since = (database, DATA, &requests, last);
        match self.listening("monitor_cond_since", &since).await {
            Err(error) if is_unknown_method(&error) => {}
            answer => return answer.map(Answer::Since),
        }
        match self
            .listening("monitor_cond", &(database, DATA, &requests))
            .await
        {
            Err(error) if is_unknown_method(&error) => {}
            answer => return answer.map(Answer::Whole),
        }
        // It knows no conditions: more rows come than were asked for.
        let plain: Requests = requests
            .into_iter()
            .map(|(table, [request])| (table, [request.unconditional()]))
            .collect();
        let answer = self.listening("monitor", &(database, DATA, &plain)).await;
        answer.map(Answer::Whole)
    }

    /// Calls, and takes the notifications meanwhile: the answer is behind those that came before it.
    async fn listening(
        &mut self,
        method: &str,
        params: &impl serde::Serialize,
    ) -> Result<Bytes, Error> {
        let call = self.connection.call(method, method, params);
        let mut call = std::pin::pin!(call);
        loop {
            tokio::select! {
                biased;
                answer = &mut call => return answer,
                Some(notification) = self.notifications.recv() => {
                    self.early.push_back(notification);
                }
            }
        }
    }

    async fn next(&mut self) -> Option<Notification> {
        match self.early.pop_front() {
            Some(notification) => Some(notification),
            None => self.notifications.recv().await,
        }
    }
}

fn is_unknown_method(error: &Error) -> bool {
    error.ovsdb().is_some_and(|error| error.is_unknown_method())
}
