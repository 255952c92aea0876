//! Cloud Hypervisor's driver: what it can do, and what it says it cannot.

use cobalt_lab::node;
use cobalt_lab::plan::Flavour;
use cobalt_libvirt::{
    Connection, CreateFlags, DestroyFlags, DomainCapabilitiesQuery, DomainState, Event,
    JobStatsFlags, Lifecycle, ListDomains, Options, StatsGroups, Supported, UndefineFlags, Uri,
    XmlFlags,
};

use crate::{Host, Watcher, lab};

#[tokio::test(flavor = "multi_thread")]
async fn what_cloud_hypervisor_cannot_do_is_a_value_and_the_rest_works() {
    let lab = lab("libvirt-ch", &[Flavour::CloudHypervisor]).await;
    let host = Host::find(&lab, "hv1").await;
    let uri: Uri = format!("ch+tcp://{}/system", host.address).parse().unwrap();
    let libvirt = Connection::open(&uri, &Options::default()).await.unwrap();
    assert!(
        libvirt
            .capabilities()
            .await
            .unwrap()
            .starts_with("<capabilities>")
    );
    assert!(libvirt.node_info().await.unwrap().cpus > 0);
    let mut watcher = Watcher::new(&libvirt).await;

    let uuid = node::new_uuid().unwrap();
    // The driver insists on a kernel; its VMM is a stand-in that boots none.
    let xml = format!(
        "<domain type='kvm'><name>cloud</name><uuid>{uuid}</uuid><memory unit='MiB'>64</memory>\
         <vcpu>1</vcpu><os><type arch='x86_64'>hvm</type><kernel>/opt/guests/vmlinuz</kernel></os>\
         </domain>"
    );
    let domain = libvirt.define_xml(&xml).await.unwrap();
    let domain = libvirt.create(&domain, CreateFlags::NONE).await.unwrap();
    let state = async || libvirt.state(&domain).await.unwrap().state;
    assert_eq!(state().await, DomainState::Running);
    libvirt.suspend(&domain).await.unwrap();
    assert_eq!(state().await, DomainState::Paused);
    libvirt.resume(&domain).await.unwrap();
    assert_eq!(state().await, DomainState::Running);
    // This driver does not tell the id when it starts a domain, only when it is asked.
    let running = libvirt.domains(ListDomains::ACTIVE).await.unwrap();
    assert!(
        running.len() == 1 && running[0].uuid == domain.uuid,
        "{running:?}"
    );
    assert!(running[0].id.is_some(), "{running:?}");
    let xml = libvirt.xml(&domain, XmlFlags::NONE).await.unwrap();
    assert!(xml.contains("<name>cloud</name>"), "{xml}");

    // What it cannot do is absent, item by item.
    assert!(
        libvirt
            .all_stats(StatsGroups::ALL)
            .await
            .supported()
            .unwrap()
            .is_none()
    );
    let query = DomainCapabilitiesQuery::default();
    assert!(
        libvirt
            .domain_capabilities(&query)
            .await
            .supported()
            .unwrap()
            .is_none()
    );
    let job = libvirt.job_stats(&domain, JobStatsFlags::NONE).await;
    assert!(job.supported().unwrap().is_none());
    assert!(libvirt.reset(&domain).await.supported().unwrap().is_none());

    libvirt.destroy(&domain, DestroyFlags::NONE).await.unwrap();
    assert_eq!(state().await, DomainState::Shutoff);
    libvirt
        .undefine(&domain, UndefineFlags::NONE)
        .await
        .unwrap();
    // It tells nobody when a domain is paused and runs on.
    for wanted in [
        Lifecycle::Defined,
        Lifecycle::Started,
        Lifecycle::Stopped,
        Lifecycle::Undefined,
    ] {
        let is =
            |event: &Event| matches!(event, Event::Lifecycle { event, .. } if *event == wanted);
        watcher.wait("cloud", wanted.name(), is).await;
    }
    lab.down().await.unwrap();
}
