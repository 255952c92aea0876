//! What the machine below looks like, as far as a lab could change it.

use std::collections::BTreeSet;
use std::process::Command;

/// Everything that a lab could leave behind.
#[derive(Debug, PartialEq, Eq)]
pub struct Machine {
    processes: BTreeSet<String>,
    links: BTreeSet<String>,
    namespaces: BTreeSet<String>,
    mounts: BTreeSet<String>,
    groups: BTreeSet<String>,
    settings: BTreeSet<String>,
}

impl Machine {
    /// What belongs to the lab with this id, and the machine's own settings.
    pub fn of(id: &str) -> Self {
        let only = |lines: BTreeSet<String>| -> BTreeSet<String> {
            lines.into_iter().filter(|line| line.contains(id)).collect()
        };
        let groups = Command::new("find")
            .args(["/sys/fs/cgroup", "-maxdepth", "3", "-type", "d", "-name"])
            .arg(format!("cobalt-{id}-*"))
            .output()
            .unwrap();
        Self {
            processes: cobalt_lab::process::marked()
                .into_iter()
                .filter(|(_, lab)| lab == id)
                .map(|(pid, _)| pid.to_string())
                .collect(),
            links: only(output("ip", &["-o", "link"])),
            namespaces: only(output("ip", &["netns", "list"])),
            mounts: only(lines(&std::fs::read("/proc/self/mountinfo").unwrap())),
            groups: lines(&groups.stdout),
            settings: settings(),
        }
    }

    /// The guard routes of an address range.
    pub fn guards(range: &str) -> BTreeSet<String> {
        output("ip", &["route", "show", "type", "unreachable"])
            .into_iter()
            .filter(|line| line.contains(range))
            .collect()
    }

    /// Whether nothing of the lab is there.
    pub fn is_clean(&self) -> bool {
        [
            &self.processes,
            &self.links,
            &self.namespaces,
            &self.mounts,
            &self.groups,
        ]
        .iter()
        .all(|set| set.is_empty())
    }

    /// Whether the lab has really been there.
    pub fn is_inhabited(&self) -> bool {
        [&self.processes, &self.links, &self.namespaces, &self.groups]
            .iter()
            .all(|set| !set.is_empty())
    }
}

/// Kernel settings that a node's kubelet or kube-proxy would like to change.
pub fn settings() -> BTreeSet<String> {
    [
        "kernel/panic",
        "kernel/panic_on_oops",
        "kernel/hostname",
        "net/ipv4/ip_forward",
        "net/netfilter/nf_conntrack_max",
        "vm/overcommit_memory",
        "vm/panic_on_oom",
    ]
    .iter()
    .filter_map(|name| {
        let value = std::fs::read_to_string(format!("/proc/sys/{name}")).ok()?;
        Some(format!("{name}={}", value.trim()))
    })
    .collect()
}

fn output(program: &str, arguments: &[&str]) -> BTreeSet<String> {
    lines(
        &Command::new(program)
            .args(arguments)
            .output()
            .unwrap()
            .stdout,
    )
}

fn lines(bytes: &[u8]) -> BTreeSet<String> {
    String::from_utf8_lossy(bytes)
        .lines()
        .map(ToOwned::to_owned)
        .collect()
}
