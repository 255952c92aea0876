//! What a virtual machine can have on this host, as the flat lists that the fleet reads.
//!
//! Only what is supported is listed, in libvirt's order and each entry once: `video` and
//! `video/virtio` for `<video supported='yes'>` with the value `virtio` in any of its enums,
//! `mode/maximum` and `mode/maximum/on` for processors, and the names of features.

use cobalt_api::hypervisor::DomainCapabilities;
use roxmltree::Node;

use crate::facts::xml::{self, Error};

/// Reads the domain capabilities.
///
/// # Errors
///
/// When the text is not the XML of domain capabilities.
pub fn parse(text: &str) -> Result<DomainCapabilities, Error> {
    let document = xml::document(text, "domainCapabilities")?;
    let root = document.root_element();
    let mut devices = Vec::new();
    for device in supported(xml::child(root, "devices")) {
        with_values(&mut devices, device.tag_name().name(), device);
    }
    let mut modes = Vec::new();
    for mode in supported(xml::child(root, "cpu")) {
        let name = mode.attribute("name").unwrap_or_default();
        if mode.tag_name().name() == "mode" && !name.is_empty() {
            with_values(&mut modes, &format!("mode/{name}"), mode);
        }
    }
    let mut features = Vec::new();
    for feature in supported(xml::child(root, "features")) {
        add(&mut features, feature.tag_name().name().to_owned());
    }
    Ok(DomainCapabilities {
        arch: xml::value(xml::child(root, "arch")),
        hypervisor_type: xml::value(xml::child(root, "domain")),
        supported_devices: Some(devices),
        supported_cpu_modes: Some(modes),
        supported_features: Some(features),
    })
}

fn supported<'a, 'x: 'a>(parent: Option<Node<'a, 'x>>) -> impl Iterator<Item = Node<'a, 'x>> {
    parent
        .into_iter()
        .flat_map(|parent| parent.children())
        .filter(|node| node.is_element() && node.attribute("supported") == Some("yes"))
}

fn with_values(list: &mut Vec<String>, name: &str, node: Node<'_, '_>) {
    add(list, name.to_owned());
    let values = xml::children(node, "enum").flat_map(|list| xml::children(list, "value"));
    for value in values.map(xml::text).filter(|value| !value.is_empty()) {
        add(list, format!("{name}/{value}"));
    }
}

/// The lists have some tens of entries.
fn add(list: &mut Vec<String>, entry: String) {
    if !list.contains(&entry) {
        list.push(entry);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KVM_9: &str = include_str!("../../tests/samples/libvirt/domcapabilities-kvm.xml");
    const QEMU_9: &str = include_str!("../../tests/samples/libvirt/domcapabilities-qemu.xml");
    const Q35_9: &str = include_str!("../../tests/samples/libvirt/domcapabilities-qemu-q35.xml");
    const QEMU_11: &str = include_str!("../../tests/samples/libvirt/domcapabilities-qemu-11.3.xml");

    fn words(list: Option<&Vec<String>>) -> String {
        list.unwrap().join(" ")
    }

    #[test]
    fn kvm_of_libvirt_9_is_read_as_it_is() {
        let found = parse(KVM_9).unwrap();
        assert_eq!(found.arch.as_deref(), Some("x86_64"));
        assert_eq!(found.hypervisor_type.as_deref(), Some("kvm"));
        assert_eq!(
            words(found.supported_devices.as_ref()),
            "disk disk/disk disk/cdrom disk/floppy disk/lun disk/ide disk/fdc disk/scsi \
             disk/virtio disk/usb disk/sata disk/virtio-transitional disk/virtio-non-transitional \
             graphics graphics/sdl graphics/vnc graphics/spice graphics/egl-headless graphics/dbus \
             video video/vga video/cirrus video/vmvga video/qxl video/virtio video/none \
             video/bochs video/ramfb \
             hostdev hostdev/subsystem hostdev/default hostdev/mandatory hostdev/requisite \
             hostdev/optional hostdev/usb hostdev/pci hostdev/scsi \
             rng rng/virtio rng/virtio-transitional rng/virtio-non-transitional rng/random rng/egd \
             rng/builtin filesystem filesystem/path filesystem/handle filesystem/virtiofs \
             tpm tpm/tpm-tis tpm/tpm-crb tpm/passthrough redirdev redirdev/usb \
             channel channel/pty channel/unix channel/spicevmc"
        );
        assert_eq!(
            words(found.supported_cpu_modes.as_ref()),
            "mode/host-passthrough mode/host-passthrough/on mode/host-passthrough/off \
             mode/maximum mode/maximum/on mode/maximum/off mode/host-model mode/custom"
        );
        assert_eq!(
            words(found.supported_features.as_ref()),
            "vmcoreinfo genid backingStoreInput backup hyperv"
        );
    }

    #[test]
    fn emulation_on_both_releases_is_read_as_it_is() {
        for (text, features) in [
            (QEMU_9, "vmcoreinfo genid backingStoreInput backup hyperv"),
            (Q35_9, "vmcoreinfo genid backingStoreInput backup hyperv"),
            (
                QEMU_11,
                "vmcoreinfo genid backingStoreInput backup async-teardown ps2 hyperv",
            ),
        ] {
            let found = parse(text).unwrap();
            assert_eq!(found.hypervisor_type.as_deref(), Some("qemu"));
            assert_eq!(
                words(found.supported_cpu_modes.as_ref()),
                "mode/maximum mode/maximum/on mode/maximum/off mode/host-model mode/custom"
            );
            assert_eq!(words(found.supported_features.as_ref()), features);
        }
        let devices = parse(QEMU_11).unwrap().supported_devices.unwrap();
        assert!(devices.contains(&"panic/pvpanic".to_owned()));
        assert!(devices.contains(&"interface/passt".to_owned()));
    }

    #[test]
    fn a_capability_that_is_not_supported_or_does_not_say_is_left_out() {
        let found = parse(
            "<domainCapabilities><cpu><mode name='a' supported='no'/><mode supported='yes'/>\
             <mode name='b' supported='yes'><enum name='x'><value/><value> v </value></enum></mode>\
             <other name='c' supported='yes'/></cpu><devices><disk supported='no'><enum name='x'>\
             <value>d</value></enum></disk><video/><rng supported='yes'/><rng supported='yes'/>\
             </devices><features><sev supported='yes'/><sgx/></features></domainCapabilities>",
        )
        .unwrap();
        assert_eq!(words(found.supported_devices.as_ref()), "rng");
        assert_eq!(words(found.supported_cpu_modes.as_ref()), "mode/b mode/b/v");
        assert_eq!(words(found.supported_features.as_ref()), "sev");
    }

    #[test]
    fn an_empty_answer_has_empty_lists() {
        let found = parse("<domainCapabilities/>").unwrap();
        assert_eq!(found.arch, None);
        assert_eq!(found.supported_devices, Some(Vec::new()));
        assert!(parse("<capabilities/>").is_err());
        assert!(parse("no").is_err());
    }

    proptest! {
        #[test]
        fn a_cut_text_is_an_error_and_nothing_worse(cut in 0_usize..KVM_9.trim_end().len() - 1) {
            prop_assert!(parse(&KVM_9[..cut]).is_err());
        }
    }
}
