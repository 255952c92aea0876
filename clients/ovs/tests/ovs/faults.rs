//! A switch that is stopped, a database that is stopped or killed.

use std::time::Duration;

use cobalt_lab::control::Fault;
use cobalt_ovs::openflow::{self, FlowFilter};
use cobalt_ovs::ovsdb::Connection;
use cobalt_ovs::{Closed, Error, Keepalive, Options, Unixctl};

use crate::switch::{interface, monitor};
use crate::{Host, PATIENCE, TestLab, patient};

const SHORT: Duration = Duration::from_millis(500);

pub async fn a_stopped_switch_is_noticed(lab: &TestLab, host: &Host) {
    let unit = format!("{}/ovs-vswitchd", host.name);
    let hasty = Options {
        call_timeout: SHORT,
        connect_timeout: SHORT,
        ..Options::default()
    };
    let vswitchd = Unixctl::of(&host.run(), "ovs-vswitchd", &patient())
        .await
        .unwrap();
    let opened = openflow::Connection::of(&host.run(), "br-int", &hasty).await;
    let mut bridge = opened.unwrap();

    lab.fault(Fault::Stop, &unit).await.unwrap();
    let late = vswitchd
        .with_call_timeout(SHORT)
        .version()
        .await
        .unwrap_err();
    assert!(late.is_timeout(), "{late}");
    let late = bridge.aggregate(FlowFilter::ALL).await.unwrap_err();
    assert!(late.is_timeout(), "{late}");
    // Connecting works, the system does it; greeting does not.
    let late = openflow::Connection::of(&host.run(), "br-int", &hasty)
        .await
        .unwrap_err();
    assert!(late.is_timeout(), "{late}");
    let late = Unixctl::of(&host.run(), "ovs-vswitchd", &hasty)
        .await
        .unwrap();
    assert!(late.version().await.unwrap_err().is_timeout());
    // The database knows nothing of it.
    let ovsdb = Connection::open(&host.database(), &patient())
        .await
        .unwrap();
    ovsdb.ping().await.unwrap();

    // It goes on, and what it says too late is of no interest any more.
    lab.fault(Fault::Cont, &unit).await.unwrap();
    vswitchd.version().await.unwrap();
    let answered = async {
        loop {
            match bridge.aggregate(FlowFilter::ALL).await {
                Ok(sum) => return sum,
                Err(late) => assert!(late.is_timeout(), "{late}"),
            }
        }
    };
    let sum = tokio::time::timeout(PATIENCE, answered).await.unwrap();
    assert!(sum.flows > 0);

    // It dies while it is asked.
    lab.fault(Fault::Stop, &unit).await.unwrap();
    let asked = tokio::spawn({
        let vswitchd = vswitchd.clone();
        async move { vswitchd.version().await }
    });
    lab.fault(Fault::Kill, &unit).await.unwrap();
    let dead = asked.await.unwrap().unwrap_err();
    assert!(matches!(dead, Error::Closed(Closed::Peer)), "{dead}");
    assert_eq!(vswitchd.closed().await, Closed::Peer);
    let dead = bridge.ping().await.unwrap_err();
    assert!(dead.is_closed(), "{dead}");
    // systemd starts another, which has another socket.
    let started = "timeout 60 sh -c 'until ovs-appctl version; do sleep 0.1; done'";
    lab.sh(&host.name, started).await;
    let next = Unixctl::of(&host.run(), "ovs-vswitchd", &patient())
        .await
        .unwrap();
    assert_ne!(next.socket(), vswitchd.socket());
    next.version().await.unwrap();
}

pub async fn a_database_that_is_killed_is_followed_again(lab: &TestLab, host: &Host) {
    let unit = format!("{}/ovsdb-server", host.name);
    let options = Options {
        call_timeout: Duration::from_secs(5),
        keepalive: Some(Keepalive {
            interval: SHORT,
            count: 2,
        }),
        ..Options::default()
    };
    let mut watcher = monitor(host.database(), options);
    watcher.synced().await;

    // It is silent: that is noticed, and the rows stay.
    lab.fault(Fault::Stop, &unit).await.unwrap();
    let silent = watcher.down(|_| true).await;
    assert!(
        matches!(silent, Error::Closed(Closed::Keepalive { .. })),
        "{silent}"
    );
    assert!(watcher.monitor.connection().is_none());
    assert!(interface(&watcher.monitor, "eno1").is_some());
    lab.fault(Fault::Cont, &unit).await.unwrap();
    let (resumed, changes) = watcher.synced().await;
    // A standalone database knows no history, and what is the same is no change.
    assert!(!resumed);
    let names = |changes: &[cobalt_ovs::ovsdb::Change]| {
        changes
            .iter()
            .filter(|change| change.touches("name"))
            .count()
    };
    assert_eq!(names(&changes), 0, "{changes:?}");

    // It is killed, and while it is away nobody can change anything; a change right after it is
    // back is seen.
    lab.fault(Fault::Kill, &unit).await.unwrap();
    let lost = watcher.down(|_| true).await;
    let expected = matches!(lost, Error::Closed(Closed::Peer | Closed::PeerMidMessage));
    assert!(expected, "{lost}");
    let add = "timeout 60 ovs-vsctl --no-wait --retry add-port br-int late";
    let ((), (_, changes)) = tokio::join!(
        async { drop(lab.sh(&host.name, add).await) },
        watcher.synced()
    );
    assert!(changes.len() < 20, "{changes:?}");
    watcher
        .until("the port", |monitor| interface(monitor, "late").is_some())
        .await;
    lab.sh(&host.name, "ovs-vsctl --no-wait del-port late")
        .await;
    watcher
        .until("the port", |monitor| interface(monitor, "late").is_none())
        .await;
}
