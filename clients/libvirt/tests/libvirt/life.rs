//! The life of domains, and how guests fail.

use cobalt_lab::Lab;
use cobalt_libvirt::{
    Affect, Connection, CreateFlags, DestroyFlags, Domain, DomainState, Event, IoErrorAction,
    JobStatsFlags, JobType, Lifecycle, ListDomains, Metadata, StatsFlags, StatsGroups,
    UndefineFlags, WatchdogAction, XmlFlags, lifecycle_detail as detail,
};
use futures::future::join_all;

use crate::{Host, Watcher, booted, guest, sh, start};

/// Waits for a lifecycle event.
async fn lifecycle(watcher: &mut Watcher, name: &str, wanted: Lifecycle, wanted_detail: i32) {
    let is = |event: &Event| {
        matches!(event, Event::Lifecycle { event, detail, .. }
            if *event == wanted && *detail == wanted_detail)
    };
    watcher
        .wait(name, &format!("{wanted:?} ({wanted_detail})"), is)
        .await;
}

pub async fn a_domain_lives(lab: &Lab, host: &Host, libvirt: &Connection, watcher: &mut Watcher) {
    let name = "lives";
    let xml = guest(name, "", "q35", "");
    let defined = libvirt.define_xml(&xml).await.unwrap();
    lifecycle(watcher, name, Lifecycle::Defined, detail::DEFINED_ADDED).await;
    let state = async |domain: &Domain| {
        let status = libvirt.state(domain).await.unwrap();
        (status.state, status.reason_name())
    };
    assert_eq!(state(&defined).await, (DomainState::Shutoff, None));
    let not_running = libvirt.suspend(&defined).await.unwrap_err();
    assert!(not_running.is_operation_invalid(), "{not_running}");

    let domain = libvirt.create(&defined, CreateFlags::PAUSED).await.unwrap();
    lifecycle(watcher, name, Lifecycle::Started, detail::STARTED_BOOTED).await;
    assert_eq!(state(&domain).await, (DomainState::Paused, Some("user")));
    libvirt.resume(&domain).await.unwrap();
    lifecycle(watcher, name, Lifecycle::Resumed, detail::RESUMED_UNPAUSED).await;
    assert_eq!(state(&domain).await.0, DomainState::Running);
    libvirt.suspend(&domain).await.unwrap();
    lifecycle(
        watcher,
        name,
        Lifecycle::Suspended,
        detail::SUSPENDED_PAUSED,
    )
    .await;
    libvirt.resume(&domain).await.unwrap();

    let found = libvirt.lookup_by_name(name).await.unwrap();
    assert_eq!(found, domain);
    assert_eq!(libvirt.lookup_by_uuid(domain.uuid).await.unwrap(), domain);
    let running = libvirt.domains(ListDomains::ACTIVE).await.unwrap();
    assert!(running.contains(&domain), "{running:?}");
    let xml = libvirt.xml(&domain, XmlFlags::NONE).await.unwrap();
    assert!(xml.contains(&format!("<domain type='qemu' id='{}'>", domain.id.unwrap())));
    let xml = libvirt.xml(&domain, XmlFlags::INACTIVE).await.unwrap();
    assert!(xml.starts_with("<domain type='qemu'>"), "{xml}");

    let title = Metadata::Title;
    assert_eq!(
        libvirt
            .metadata(&domain, title, Affect::CURRENT)
            .await
            .unwrap(),
        None
    );
    let set = libvirt.set_metadata(&domain, title, Some("a title"), None, Affect::LIVE);
    set.await.unwrap();
    let is = |event: &Event| matches!(event, Event::MetadataChange { kind: 1, .. });
    watcher.wait(name, "change of metadata", is).await;
    let read = libvirt
        .metadata(&domain, title, Affect::LIVE)
        .await
        .unwrap();
    assert_eq!(read.as_deref(), Some("a title"));
    let element = Metadata::Element("urn:cobalt:test");
    let policy = Some("<policy>restart</policy>");
    let set = libvirt.set_metadata(&domain, element, policy, Some("t"), Affect::LIVE);
    set.await.unwrap();
    let read = libvirt
        .metadata(&domain, element, Affect::LIVE)
        .await
        .unwrap();
    assert!(read.unwrap().contains("restart"));

    let stats = libvirt
        .all_stats_with(StatsGroups::ALL, StatsFlags::NOWAIT)
        .await
        .unwrap();
    let mine = stats
        .iter()
        .find(|stats| stats.domain.uuid == domain.uuid)
        .unwrap();
    assert_eq!(mine.status().unwrap().state, DomainState::Running);
    assert_eq!(mine.params.get_u64("vcpu.current"), Some(1), "{mine:?}");
    let one = std::slice::from_ref(&domain);
    let stats = libvirt
        .domain_stats(one, StatsGroups::STATE | StatsGroups::CPU)
        .await
        .unwrap();
    assert!(stats[0].params.get_u64("cpu.time").unwrap() > 0);
    let job = libvirt
        .job_stats(&domain, JobStatsFlags::NONE)
        .await
        .unwrap();
    assert_eq!(job.job_type, JobType::None);
    assert!(
        libvirt
            .abort_job(&domain)
            .await
            .unwrap_err()
            .is_operation_invalid()
    );
    libvirt.inject_nmi(&domain).await.unwrap();

    // The power button is obeyed, by a guest that has booted.
    booted(lab, &host.name, name, 1).await;
    libvirt.reboot(&domain).await.unwrap();
    let is = |event: &Event| matches!(event, Event::Reboot { .. });
    watcher.wait(name, "reboot", is).await;
    booted(lab, &host.name, name, 2).await;
    libvirt.shutdown(&domain).await.unwrap();
    lifecycle(watcher, name, Lifecycle::Stopped, detail::STOPPED_SHUTDOWN).await;
    assert_eq!(state(&domain).await, (DomainState::Shutoff, None));
    watcher.forget(name);

    let domain = libvirt.create(&domain, CreateFlags::NONE).await.unwrap();
    libvirt.reset(&domain).await.unwrap();
    watcher.wait(name, "reboot", is).await;
    libvirt.destroy(&domain, DestroyFlags::NONE).await.unwrap();
    lifecycle(watcher, name, Lifecycle::Stopped, detail::STOPPED_DESTROYED).await;
    assert_eq!(
        state(&domain).await,
        (DomainState::Shutoff, Some("destroyed"))
    );
    libvirt
        .undefine(&domain, UndefineFlags::NVRAM)
        .await
        .unwrap();
    lifecycle(
        watcher,
        name,
        Lifecycle::Undefined,
        detail::UNDEFINED_REMOVED,
    )
    .await;
    assert!(libvirt.state(&domain).await.unwrap_err().is_no_domain());

    let transient = guest("passes", "off=1", "q35", "");
    libvirt
        .create_xml(&transient, CreateFlags::NONE)
        .await
        .unwrap();
    lifecycle(
        watcher,
        "passes",
        Lifecycle::Stopped,
        detail::STOPPED_SHUTDOWN,
    )
    .await;
    assert!(
        libvirt
            .lookup_by_name("passes")
            .await
            .unwrap_err()
            .is_no_domain()
    );
}

/// A disk whose file system is full: the guest's writes end in an I/O error.
const FULL_DISK: &str = "<disk type='file' device='disk'>\
    <driver name='qemu' type='qcow2' error_policy='stop'/><source file='/mnt/full/disk.qcow2'/>\
    <target dev='hda' bus='ide'/></disk>";

pub async fn guests_fail_on_command(
    lab: &Lab,
    host: &Host,
    libvirt: &Connection,
    watcher: &mut Watcher,
) {
    let make_disk = "mkdir -p /mnt/full && mount -t tmpfs -o size=256k,mode=777 none /mnt/full && \
        qemu-img create -q -f qcow2 /mnt/full/disk.qcow2 16M";
    sh(lab, &host.name, make_disk).await;
    let dog = "<watchdog model='i6300esb' action='pause'/>";
    let guests = [
        guest("hangs", "wdt=1 hang=1", "q35", dog),
        guest("panics", "panic=1", "q35", ""),
        guest("writes", "ioerr=1", "pc", FULL_DISK),
        guest("plugs", "", "pc", ""),
    ];
    let starting = guests.iter().map(|xml| start(libvirt, xml));
    let domains = join_all(starting).await;

    let is = |event: &Event| {
        matches!(
            event,
            Event::Watchdog {
                action: WatchdogAction::Pause,
                ..
            }
        )
    };
    watcher.wait("hangs", "watchdog", is).await;
    lifecycle(
        watcher,
        "hangs",
        Lifecycle::Suspended,
        detail::SUSPENDED_WATCHDOG,
    )
    .await;
    lifecycle(
        watcher,
        "panics",
        Lifecycle::Crashed,
        detail::CRASHED_PANICKED,
    )
    .await;
    let is = |event: &Event| {
        matches!(
            event,
            Event::IoError {
                action: IoErrorAction::Pause,
                ..
            }
        )
    };
    let error = watcher.wait("writes", "I/O error", is).await;
    let Event::IoError { source, reason, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(
        (source.as_str(), reason.as_str()),
        ("/mnt/full/disk.qcow2", "enospc")
    );
    lifecycle(
        watcher,
        "writes",
        Lifecycle::Suspended,
        detail::SUSPENDED_IOERROR,
    )
    .await;
    for (domain, expected) in domains.iter().zip([
        (DomainState::Paused, Some("watchdog")),
        (DomainState::Crashed, Some("panicked")),
        (DomainState::Paused, Some("io-error")),
        (DomainState::Running, None),
    ]) {
        let status = libvirt.state(domain).await.unwrap();
        assert_eq!(
            (status.state, status.reason_name()),
            expected,
            "{}",
            domain.name
        );
    }

    // The guest gives a device away when it is asked.
    let device = "<rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>";
    let plugs = &domains[3];
    libvirt
        .attach_device(plugs, device, Affect::LIVE)
        .await
        .unwrap();
    let is = |event: &Event| matches!(event, Event::DeviceAdded { .. });
    watcher.wait("plugs", "new device", is).await;
    libvirt
        .detach_device(plugs, device, Affect::LIVE)
        .await
        .unwrap();
    let is =
        |event: &Event| matches!(event, Event::DeviceRemoved { device, .. } if device == "rng0");
    watcher.wait("plugs", "removed device", is).await;

    for domain in &domains {
        libvirt.destroy(domain, DestroyFlags::NONE).await.unwrap();
        libvirt.undefine(domain, UndefineFlags::NONE).await.unwrap();
    }
    sh(lab, &host.name, "umount /mnt/full").await;
}
