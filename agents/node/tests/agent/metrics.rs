//! /metrics on real hypervisors.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use cobalt_lab::control::Fault;
use cobalt_lab::guests::MicroDomain;
use cobalt_lab::plan::Flavour;
use cobalt_lab::{Lab, LabConfig, node};
use cobalt_libvirt::{Connection, CreateFlags, Options};
use cobalt_node_agent::context::{Conditions, Context, Domains};
use cobalt_node_agent::metrics::Metrics;
use cobalt_node_agent::scrape;
use cobalt_runtime::{Health, Observed, Recorder};
use prometheus_client::registry::Registry;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, watch};

use crate::support::{Hosts, PATIENCE};

/// A server of /metrics, and the switch between it and libvirt.
struct Server {
    address: SocketAddr,
    libvirt: watch::Sender<Option<Connection>>,
    _domains: watch::Sender<Arc<Domains>>,
}

impl Server {
    async fn start() -> Self {
        let config = kube::Config::new("http://127.0.0.1:9".parse().unwrap());
        let client = kube::Client::try_from(config).unwrap();
        let (libvirt, connection) = watch::channel(None);
        let (domains, known) = watch::channel(Arc::default());
        let (recorder, _) = Recorder::new(client.clone(), "cobalt-node-agent", "test");
        let ctx = Context {
            node: "hv1".into(),
            node_label: "hv1".into(),
            namespace: "default".into(),
            client,
            libvirt: connection,
            events: broadcast::channel(1).0,
            hypervisor: watch::channel(Observed::Absent).1,
            domains: known,
            conditions: Conditions::default(),
            operating_system: Arc::default(),
            update_status: Arc::default(),
            recorder,
            health: Health::default(),
        };
        let mut registry = Registry::default();
        Metrics::default().register(&mut registry);
        let routes = scrape::routes(ctx, Arc::new(registry));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self {
            address,
            libvirt,
            _domains: domains,
        }
    }

    /// Every sample by its series.
    async fn scrape(&self) -> BTreeMap<String, f64> {
        let answer = tokio::time::timeout(PATIENCE, get(self.address)).await;
        let answer = answer.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.0 200"), "{head}");
        assert!(
            head.contains("content-type: text/plain; version=0.0.4"),
            "{head}"
        );
        body.lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| {
                let (series, value) = line.rsplit_once(' ').unwrap();
                (series.to_owned(), value.parse().unwrap())
            })
            .collect()
    }
}

async fn get(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = "GET /metrics HTTP/1.0\r\nHost: agent\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

async fn connect(lab: &Lab, uri: &str) -> Connection {
    let status = lab.status().await.unwrap();
    let pid = node::pid_one("hv1", &status.nodes[0].observed).unwrap();
    let uri = format!("{uri}?socket=/proc/{pid}/root/run/libvirt/libvirt-sock");
    let uri = uri.parse().unwrap();
    Connection::open(&uri, &Options::default()).await.unwrap()
}

/// The agent's own metrics are there, whatever libvirt does.
fn assert_own(samples: &BTreeMap<String, f64>) {
    let own = "cobalt_node_agent_status_writes_total";
    assert!(samples.contains_key(own), "{samples:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_of_real_guests_grow_and_a_mute_libvirt_is_told() {
    let config = LabConfig::with_hypervisors("metrics", &[Flavour::Bookworm]);
    let lab = Hosts::with(config).await;
    let server = Server::start().await;
    let away = server.scrape().await;
    assert_eq!(away["libvirt_up"], 0.0);
    assert_own(&away);

    let libvirt = connect(&lab, "qemu+unix:///system").await;
    server.libvirt.send_replace(Some(libvirt.clone()));
    let none = server.scrape().await;
    assert_eq!((none["libvirt_up"], none["libvirt_domains"]), (1.0, 0.0));
    assert!(none["libvirt_node_memory_total_bytes"] > 0.0);

    let uuid = node::new_uuid().unwrap();
    let names = ["plain", "odd \"name\" 😀"];
    for (number, name) in names.into_iter().enumerate() {
        let guest = MicroDomain {
            name,
            uuid: &format!("{}{number}", &uuid[..35]),
            memory_mib: 16,
            kernel: Path::new("/opt/guests/micro.elf"),
            command_line: "",
            machine: "pc",
            extra_devices: "",
        };
        // A name with quotes is no good file name for a console.
        let xml = guest.xml().replace("-serial.log", "");
        let domain = libvirt.define_xml(&xml).await.unwrap();
        if number == 0 {
            libvirt.create(&domain, CreateFlags::NONE).await.unwrap();
        }
    }
    let labels = |number: usize, name: &str| {
        format!("{{domain=\"{name}\",uuid=\"{}{number}\"}}", &uuid[..35])
    };
    let plain = labels(0, "plain");
    let odd = labels(1, "odd \\\"name\\\" 😀");
    let time = format!("libvirt_domain_info_cpu_time_seconds_total{plain}");
    let first = server.scrape().await;
    assert_eq!((first["libvirt_up"], first["libvirt_domains"]), (1.0, 2.0));
    assert_eq!(first[&format!("libvirt_domain_info_vstate{plain}")], 1.0);
    assert_eq!(first[&format!("libvirt_domain_info_vstate{odd}")], 5.0);
    // The guest is busy booting; it takes time from the host until it is seen.
    let grown = async { while server.scrape().await[&time] <= first[&time] {} };
    tokio::time::timeout(PATIENCE, grown).await.unwrap();

    lab.fault(Fault::Stop, "hv1/libvirtd").await.unwrap();
    let (one, two) = tokio::join!(server.scrape(), server.scrape());
    for mute in [one, two] {
        assert_eq!(mute["libvirt_up"], 0.0);
        assert!(!mute.contains_key("libvirt_domains"), "{mute:?}");
        assert_own(&mute);
    }
    lab.fault(Fault::Cont, "hv1/libvirtd").await.unwrap();
    let back = async { while server.scrape().await["libvirt_up"] < 1.0 {} };
    tokio::time::timeout(PATIENCE, back).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_without_statistics_has_its_list_and_no_error() {
    let config = LabConfig::with_hypervisors("metrics-ch", &[Flavour::CloudHypervisor]);
    let lab = Hosts::with(config).await;
    let server = Server::start().await;
    let libvirt = connect(&lab, "ch+unix:///system").await;
    let xml = "<domain type='kvm'><name>cloud</name>\
               <uuid>6f1c6a3e-7d0f-4c39-9a6c-1f7c0c7f0001</uuid><memory unit='MiB'>64</memory>\
               <vcpu>1</vcpu><os><type arch='x86_64'>hvm</type>\
               <kernel>/opt/guests/vmlinuz</kernel></os></domain>";
    libvirt.define_xml(xml).await.unwrap();
    server.libvirt.send_replace(Some(libvirt));
    let samples = server.scrape().await;
    assert_own(&samples);
    assert_eq!(
        (samples["libvirt_up"], samples["libvirt_domains"]),
        (1.0, 1.0)
    );
    let labels = "{domain=\"cloud\",uuid=\"6f1c6a3e-7d0f-4c39-9a6c-1f7c0c7f0001\"}";
    assert_eq!(samples[&format!("libvirt_domain_info_meta{labels}")], 1.0);
    assert_eq!(samples[&format!("libvirt_domain_info_vstate{labels}")], 5.0);
}
