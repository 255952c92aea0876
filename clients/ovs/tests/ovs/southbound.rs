//! The southbound database as a cluster: its leader is killed, two of three are killed, and nobody
//! who follows it misses anything.

use std::collections::BTreeSet;
use std::time::Duration;

use cobalt_lab::LabConfig;
use cobalt_lab::node::Power;
use cobalt_lab::report::Report;
use cobalt_ovs::ovsdb::southbound::{self, ChassisPrivate, SbGlobal};
use cobalt_ovs::ovsdb::{Connection, Monitor, Operation, Row, Tables};
use cobalt_ovs::{Error, Keepalive, Options, Remote, Unfit};

use crate::{PATIENCE, TestLab, Watcher};

fn options() -> Options {
    Options {
        connect_timeout: Duration::from_secs(2),
        call_timeout: Duration::from_secs(5),
        keepalive: Some(Keepalive {
            interval: Duration::from_secs(1),
            count: 2,
        }),
        ..Options::default()
    }
}

fn follow(remotes: Vec<Remote>) -> Monitor {
    let tables = Tables::new().table::<SbGlobal>().table::<ChassisPrivate>();
    Monitor::new(southbound::DATABASE, remotes, tables, options())
}

fn names(monitor: &Monitor) -> BTreeSet<String> {
    let rows = monitor.rows::<ChassisPrivate>();
    rows.map(|(_, row)| row.name.clone()).collect()
}

/// Who writes rows through any of the members, again and again until one takes it.
struct Writer {
    members: Vec<Remote>,
    turn: usize,
    connection: Option<Connection>,
    written: BTreeSet<String>,
}

impl Writer {
    fn new(members: Vec<Remote>) -> Self {
        Self {
            members,
            turn: 0,
            connection: None,
            written: BTreeSet::new(),
        }
    }

    async fn write(&mut self, name: String) {
        let begin = tokio::time::Instant::now();
        while let Err(error) = self.attempt(&name).await {
            assert!(
                begin.elapsed() < PATIENCE,
                "{name} cannot be written: {error}"
            );
            // The connection may be lost after it was done: then the name is taken already.
            if error.to_string().contains("constraint violation") {
                break;
            }
            self.connection = None;
            self.turn = (self.turn + 1) % self.members.len();
        }
        self.written.insert(name);
    }

    async fn attempt(&mut self, name: &str) -> Result<(), Error> {
        let connection = match &self.connection {
            Some(connection) => connection.clone(),
            None => Connection::open(&self.members[self.turn], &options()).await?,
        };
        let insert = Operation::Insert {
            table: "Chassis_Private".to_owned(),
            row: Row::new().with("name", name),
            uuid_name: None,
        };
        connection.transact(southbound::DATABASE, &[insert]).await?;
        self.connection = Some(connection);
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_misses_anything_when_the_leader_is_killed() {
    let mut config = LabConfig::empty("southbound");
    config.ovn = true;
    let lab = TestLab::up(config).await;
    let members = lab.members(6642).await;
    let remotes: Vec<Remote> = members.iter().map(|(_, remote)| remote.clone()).collect();
    // A cluster bears a loss only when all three have joined it, and one knows when it has.
    for remote in &remotes {
        Watcher::new(follow(vec![remote.clone()])).synced().await;
    }

    let mut of_leader = Watcher::new(follow(remotes.clone()).leader_only());
    assert!(!of_leader.synced().await.0);
    let leader = of_leader.monitor.connection().unwrap().remote();
    let first = remotes.iter().position(|remote| remote == leader).unwrap();
    let mut of_any = Watcher::new(follow(remotes.clone()));
    let mut of_killed = Watcher::new(follow(vec![remotes[first].clone()]));
    for watcher in [&mut of_any, &mut of_killed] {
        assert!(!watcher.synced().await.0);
    }

    let mut others = remotes.clone();
    others.remove(first);
    let mut writer = Writer::new(others);
    for number in 0..20 {
        writer.write(format!("before-{number}")).await;
    }
    for watcher in [&mut of_leader, &mut of_any, &mut of_killed] {
        watcher
            .until("every row", |monitor| names(monitor) == writer.written)
            .await;
    }

    // The leader's machine loses its power while rows are written; who followed the leader goes on
    // with the next one, and reads no more than what it missed.
    let silent = Report::silent();
    let (killed, _) = &members[first];
    let writing = async {
        for number in 0..20 {
            writer.write(format!("meanwhile-{number}")).await;
        }
    };
    let following = async {
        of_leader.down(|_| true).await;
        of_leader.synced().await
    };
    let killing = lab.power(killed, Power::Loss, &silent);
    let ((), (resumed, _), killing) = tokio::join!(writing, following, killing);
    killing.unwrap();
    assert!(resumed, "{:#?}", of_leader.seen);
    for watcher in [&mut of_leader, &mut of_any] {
        watcher
            .until("every row", |monitor| names(monitor) == writer.written)
            .await;
    }
    let connected = of_leader.monitor.connection().unwrap().remote().clone();
    assert_ne!(connected, remotes[first]);
    // What was there is still known where there is no connection.
    of_killed.down(|_| true).await;
    assert!(names(&of_killed.monitor).len() >= 20);

    // It is back as a member, has caught up, and its follower went on as well.
    lab.power(killed, Power::On, &silent).await.unwrap();
    of_killed
        .until("every row", |monitor| names(monitor) == writer.written)
        .await;

    // One of three that is left alone knows that it is, and is not believed.
    for (number, (name, _)) in members.iter().enumerate() {
        if number != first {
            lab.power(name, Power::Loss, &silent).await.unwrap();
        }
    }
    let alone = |error: &Error| {
        matches!(
            error,
            Error::Unfit {
                why: Unfit::Disconnected,
                ..
            }
        )
    };
    of_killed.down(alone).await;
    for (name, _) in &members {
        lab.power(name, Power::On, &silent).await.unwrap();
    }
    writer.write("after".to_owned()).await;
    for watcher in [&mut of_leader, &mut of_any, &mut of_killed] {
        watcher
            .until("every row", |monitor| names(monitor) == writer.written)
            .await;
    }
    lab.down().await.unwrap();
}
