//! A libvirtd that is stopped, and one that is killed.

use std::time::Duration;

use cobalt_lab::Lab;
use cobalt_lab::control::Fault;
use cobalt_libvirt::{Closed, Connection, Error, EventKind, Keepalive, Options};
use futures::StreamExt;

use crate::{Host, PATIENCE};

pub async fn silence_and_death_are_noticed(lab: &Lab, host: &Host) {
    let unit = format!("{}/libvirtd", host.name);
    let short = Duration::from_millis(500);
    let options = Options {
        call_timeout: short,
        connect_timeout: short,
        keepalive: None,
        ..Options::default()
    };
    let watched = Options {
        call_timeout: PATIENCE,
        keepalive: Some(Keepalive {
            interval: short,
            count: 2,
        }),
        ..Options::default()
    };
    let patient = Options {
        call_timeout: PATIENCE,
        connect_timeout: PATIENCE,
        keepalive: None,
        ..Options::default()
    };
    let uri = host.tcp();
    let plain = Connection::open(&uri, &patient)
        .await
        .unwrap()
        .with_call_timeout(short);
    let alive = Connection::open(&uri, &watched).await.unwrap();
    let mut events = alive.subscribe(&[EventKind::Lifecycle]).await.unwrap();

    lab.fault(Fault::Stop, &unit).await.unwrap();
    let late = plain.ping().await.unwrap_err();
    assert!(late.is_timeout() && !late.is_closed(), "{late}");
    let late = Connection::open(&uri, &options).await.unwrap_err();
    assert!(late.is_timeout(), "{late}");
    let silent = alive.ping().await.unwrap_err();
    assert!(
        matches!(silent, Error::Closed(Closed::Keepalive { .. })),
        "{silent}"
    );
    assert_eq!(events.next().await, None);

    // It goes on, and what it says too late is of no interest any more.
    lab.fault(Fault::Cont, &unit).await.unwrap();
    plain.with_call_timeout(PATIENCE).ping().await.unwrap();

    // It dies while it is asked.
    lab.fault(Fault::Stop, &unit).await.unwrap();
    let asked = tokio::spawn({
        let libvirt = plain.with_call_timeout(PATIENCE);
        async move { libvirt.ping().await }
    });
    lab.fault(Fault::Kill, &unit).await.unwrap();
    let dead = asked.await.unwrap().unwrap_err();
    assert!(matches!(dead, Error::Closed(Closed::Peer)), "{dead}");
    assert_eq!(plain.closed().await, Closed::Peer);
    assert!(!plain.is_alive());
    // systemd has started another.
    Connection::open(&uri, &patient)
        .await
        .unwrap()
        .ping()
        .await
        .unwrap();
}
