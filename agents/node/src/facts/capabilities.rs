//! The host, from the XML of its capabilities.
//!
//! Totals are sums over the NUMA cells, so that the host and its cells always agree. libvirt's node
//! information counts in another way (processors that are offline, memory that the kernel keeps for
//! itself) and only stands in where there are no cells.

use crate::facts::set::Set;
use crate::facts::xml::{self, Error};
use crate::facts::{Warnings, units};

/// What the host has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Host {
    /// The architecture of its processors.
    pub arch: Option<String>,
    /// The memory of all cells.
    pub memory_bytes: u64,
    /// The processors of all cells.
    pub cpus: u32,
    /// The NUMA cells by their number.
    pub cells: Vec<HostCell>,
    /// What was odd.
    pub warnings: Vec<String>,
}

/// A NUMA cell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostCell {
    /// Its number on the host.
    pub id: u32,
    /// Its memory.
    pub memory_bytes: u64,
    /// The numbers of its processors.
    pub cpus: Set,
}

impl Host {
    /// Takes libvirt's node information where the capabilities name no cells. Such a host is one
    /// cell, as libvirt itself has it where there is no NUMA.
    pub fn complete(&mut self, memory_bytes: u64, cpus: u32) {
        if self.cells.is_empty() {
            self.cells.push(HostCell {
                id: 0,
                memory_bytes,
                cpus: Set::up_to(cpus),
            });
            self.sum();
        }
    }

    fn sum(&mut self) {
        let memory = self.cells.iter().map(|cell| cell.memory_bytes);
        self.memory_bytes = memory.fold(0, u64::saturating_add);
        let cpus = self.cells.iter().map(|cell| cell.cpus.len());
        self.cpus = u32::try_from(cpus.fold(0, u64::saturating_add)).unwrap_or(u32::MAX);
    }
}

/// Reads the capabilities.
///
/// # Errors
///
/// When the text is not the XML of a host's capabilities.
pub fn parse(text: &str) -> Result<Host, Error> {
    let document = xml::document(text, "capabilities")?;
    let host = xml::child(document.root_element(), "host").ok_or(Error::Missing("host"))?;
    let mut warnings = Warnings::default();
    let mut cells: Vec<HostCell> = Vec::new();
    let all = xml::at(host, &["topology", "cells"]);
    for cell in all.iter().flat_map(|all| xml::children(*all, "cell")) {
        let id = cell.attribute("id").unwrap_or_default();
        let Ok(id) = units::number(id) else {
            warnings.add(|| format!("a NUMA cell has the number \"{id}\" and is left out"));
            continue;
        };
        if cells.iter().any(|cell| cell.id == id) {
            warnings.add(|| format!("NUMA cell {id} is there twice; the first one counts"));
            continue;
        }
        let memory = xml::child(cell, "memory");
        let memory = memory.map(|memory| units::bytes(xml::text(memory), memory.attribute("unit")));
        let memory_bytes = match memory {
            Some(Ok(bytes)) => bytes,
            Some(Err(error)) => {
                warnings.add(|| format!("NUMA cell {id}: memory: {error}"));
                0
            }
            None => {
                warnings.add(|| format!("NUMA cell {id} has no memory"));
                0
            }
        };
        let cpus = xml::child(cell, "cpus");
        let cpus = cpus.iter().flat_map(|cpus| xml::children(*cpus, "cpu"));
        let cpus = cpus.filter_map(|cpu| units::number(cpu.attribute("id")?).ok());
        cells.push(HostCell {
            id,
            memory_bytes,
            cpus: cpus.collect(),
        });
    }
    cells.sort_by_key(|cell| cell.id);
    let mut host = Host {
        arch: xml::value(xml::at(host, &["cpu", "arch"])),
        cells,
        warnings: warnings.0,
        ..Host::default()
    };
    host.sum();
    Ok(host)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const QEMU_9: &str = include_str!("../../tests/samples/libvirt/capabilities.xml");
    const QEMU_11: &str = include_str!("../../tests/samples/libvirt/capabilities-11.3.xml");
    const CH_11: &str = include_str!("../../tests/samples/libvirt/capabilities-ch-11.3.xml");
    const TEST: &str = include_str!("../../tests/samples/libvirt/test-driver-capabilities.xml");

    fn cell(id: u32, memory_kib: u64, cpus: &str) -> HostCell {
        HostCell {
            id,
            memory_bytes: memory_kib << 10,
            cpus: cpus.parse().unwrap_or_default(),
        }
    }

    fn with_cells(cells: &str) -> Host {
        let text = format!(
            "<capabilities><host><topology><cells>{cells}</cells></topology></host></capabilities>"
        );
        parse(&text).unwrap()
    }

    #[test]
    fn real_hosts_are_read() {
        let two = vec![cell(0, 2_097_152, "0-7"), cell(1, 4_194_304, "8-15")];
        let cases = [
            (QEMU_9, "x86_64", vec![cell(0, 6_906_436, "0-1")]),
            (QEMU_11, "x86_64", vec![cell(0, 10_183_236, "0-1")]),
            (CH_11, "x86_64", vec![cell(0, 24_682_416, "0-1")]),
            (TEST, "i686", two),
        ];
        for (text, arch, cells) in cases {
            let host = parse(text).unwrap();
            assert_eq!(host.arch.as_deref(), Some(arch));
            assert_eq!(host.cells, cells);
            assert_eq!(host.warnings, Vec::<String>::new());
        }
        let host = parse(TEST).unwrap();
        assert_eq!((host.memory_bytes, host.cpus), (6_291_456 << 10, 16));
    }

    #[test]
    fn cells_are_in_the_order_of_their_numbers() {
        let host = with_cells(
            "<cell id='1'><memory unit='MiB'>2</memory><cpus num='1'><cpu id='3'/></cpus></cell>\
             <cell id='0'><memory>1024</memory><cpus num='2'><cpu id='2'/><cpu id='0'/></cpus></cell>",
        );
        assert_eq!(host.cells, [cell(0, 1024, "0,2"), cell(1, 2048, "3")]);
        assert_eq!((host.memory_bytes, host.cpus), (3 << 20, 3));
    }

    #[test]
    fn an_odd_cell_does_not_hide_the_others() {
        let host = with_cells(
            "<cell id='0'><memory unit='pages'>1</memory></cell><cell id='x'/><cell/>\
             <cell id='2'/><cell id='2'><memory>9</memory></cell>\
             <cell id='3'><memory>4</memory><cpus><cpu id='0'/><cpu id='no'/><cpu/></cpus></cell>",
        );
        assert_eq!(
            host.cells,
            [cell(0, 0, ""), cell(2, 0, ""), cell(3, 4, "0")]
        );
        assert_eq!(
            host.warnings,
            [
                "NUMA cell 0: memory: \"pages\" is not a unit",
                "a NUMA cell has the number \"x\" and is left out",
                "a NUMA cell has the number \"\" and is left out",
                "NUMA cell 2 has no memory",
                "NUMA cell 2 is there twice; the first one counts",
            ]
        );
    }

    #[test]
    fn a_host_without_cells_is_one_cell_made_of_the_node_information() {
        let mut host = parse("<capabilities><host/></capabilities>").unwrap();
        assert_eq!(host, Host::default());
        host.complete(5 << 20, 4);
        assert_eq!(host.cells, [cell(0, 5120, "0-3")]);
        assert_eq!((host.memory_bytes, host.cpus), (5 << 20, 4));
        // Where there are cells, they are right.
        let mut host = parse(TEST).unwrap();
        host.complete(1, 1);
        assert_eq!(host, parse(TEST).unwrap());
    }

    #[test]
    fn sums_do_not_overflow() {
        let huge = "<memory unit='b'>18446744073709551615</memory>";
        let host = with_cells(&format!(
            "<cell id='0'>{huge}</cell><cell id='1'>{huge}</cell>"
        ));
        assert_eq!(host.memory_bytes, u64::MAX);
    }

    #[test]
    fn what_is_no_capabilities_is_an_error_that_says_so() {
        let cases = [
            ("", "failed to parse the XML"),
            ("libvirt", "failed to parse the XML"),
            ("<capabilities><host>", "failed to parse the XML"),
            (
                "<domain/>",
                "the XML is about \"domain\" and not about \"capabilities\"",
            ),
            ("<capabilities/>", "the XML has no \"host\""),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text).unwrap_err().to_string(), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_cut_text_is_an_error_and_nothing_worse(cut in 0_usize..QEMU_9.trim_end().len() - 1) {
            prop_assert!(parse(&QEMU_9[..cut]).is_err());
        }
    }
}
