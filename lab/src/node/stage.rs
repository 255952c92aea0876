//! The stages of a boot: each enters one more kind of namespace and executes the next.
//!
//! ```text
//! enter   (v2: moves itself into the leaf "supply")  -> nsenter --net, unshare pid, uts, ipc
//! join    pid 1 of the new namespace joins the node's control groups -> unshare cgroup, mount
//! boot    builds the root file system, pivots into it -> systemd
//! ```
//!
//! Joining comes before the cgroup namespace, because that is rooted where its maker is.

use std::ffi::CString;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change,
    mount_remount, unmount,
};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};

use super::NodeSpec;
use crate::cgroup::{Layout, join, make, own_group, pass_controllers_on};
use crate::paths::make_dir;
use crate::plan::Bind;

/// One stage.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum Stage {
    /// The machine's side.
    Enter,
    /// Control groups.
    Join,
    /// The root file system.
    Boot,
}

/// Runs a stage; returns only when it failed.
pub fn run(stage: Stage, file: &Path) -> Result<()> {
    let text = std::fs::read(file).with_context(|| format!("failed to read {}", file.display()))?;
    let spec: NodeSpec = serde_json::from_slice(&text)
        .with_context(|| format!("{} is not a node", file.display()))?;
    match stage {
        Stage::Enter => enter(&spec, file),
        Stage::Join => joined(&spec, file),
        Stage::Boot => boot(&spec),
    }
}

fn enter(spec: &NodeSpec, file: &Path) -> Result<()> {
    if let Layout::V2 { root, systemd } = &spec.layout {
        let group = if *systemd {
            own_group(root)?
        } else {
            root.join(&spec.group)
        };
        make(&group.join("supply"))?;
        join(&group.join("supply"))?;
        pass_controllers_on(&group)?;
        make(&group.join("node"))?;
        std::fs::write(
            spec.dir.join("group"),
            group.join("node").as_os_str().as_encoded_bytes(),
        )
        .context("failed to record the node's control group")?;
    }
    let mut command = Command::new("nsenter");
    command
        .arg(format!("--net=/run/netns/{}", spec.link.netns))
        .args([
            "unshare",
            "--uts",
            "--ipc",
            "--pid",
            "--fork",
            "--kill-child",
        ]);
    next(command, spec, "join", file)
}

fn joined(spec: &NodeSpec, file: &Path) -> Result<()> {
    match &spec.layout {
        Layout::V1 { hierarchies } => {
            for hierarchy in hierarchies {
                join(&hierarchy.path.join(&spec.group))?;
            }
        }
        Layout::V2 { .. } => {
            let group = std::fs::read_to_string(spec.dir.join("group"))
                .context("failed to read the node's control group")?;
            join(Path::new(&group))?;
        }
    }
    let mut command = Command::new("unshare");
    command.args(["--cgroup", "--mount", "--propagation", "private"]);
    next(command, spec, "boot", file)
}

fn next(mut command: Command, spec: &NodeSpec, stage: &str, file: &Path) -> Result<()> {
    command
        .arg(&spec.exe)
        .args(["lab", "node-stage", stage])
        .arg(file);
    Err(command.exec()).with_context(|| format!("failed to enter the stage {stage}"))
}

/// Kernel settings that the kubelet wants. The node shows it these values; the machine's own
/// stay as they are.
const SHOWN_SETTINGS: &[(&str, &str)] = &[
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// The devices of a node: name, mode.
const DEVICES: &[(&str, u32)] = &[
    ("null", 0o666),
    ("zero", 0o666),
    ("full", 0o666),
    ("random", 0o666),
    ("urandom", 0o666),
    ("tty", 0o666),
    ("net/tun", 0o666),
    // The kubelet reads OOM kills from it.
    ("kmsg", 0o644),
    ("kvm", 0o666),
    ("fuse", 0o666),
];

fn boot(spec: &NodeSpec) -> Result<()> {
    if std::process::id() != 1 {
        bail!("this stage must be pid 1 of a node's own namespace");
    }
    let root = spec.dir.join("root");
    rustix::system::sethostname(spec.name.as_bytes()).context("failed to set the host name")?;
    root_file_system(spec, &root)?;
    proc(spec, &root.join("proc"))?;
    sys(spec, &root.join("sys"))?;
    dev(spec, &root.join("dev"))?;

    std::env::set_current_dir(&root).context("failed to enter the root")?;
    make_dir(Path::new(".old"))?;
    rustix::process::pivot_root(".", ".old").context("failed to pivot")?;
    unmount("/.old", UnmountFlags::DETACH).context("failed to leave the machine's root")?;
    std::fs::remove_dir("/.old").context("failed to remove /.old")?;
    mount_change(
        "/",
        MountPropagationFlags::SHARED | MountPropagationFlags::REC,
    )
    .context("failed to share mounts within the node")?;

    // The kernel has one clock, that of the machine below.
    remove_capability_from_bounding_set(CapabilitySet::SYS_TIME)
        .context("failed to give up the right to set the clock")?;
    let console = std::fs::OpenOptions::new()
        .append(true)
        .open("/dev/console")
        .context("no /dev/console")?;
    let failure = Command::new("/lib/systemd/systemd")
        .args(["--system", "--unit=multi-user.target"])
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin")
        .env("LANG", "C.UTF-8")
        .env("container", "lab")
        .env("container_uuid", &spec.uuid)
        .env("SYSTEMD_PROC_CMDLINE", "systemd.show_status=0")
        .env("NOTIFY_SOCKET", "/run/host/notify")
        .stdin(Stdio::null())
        .stdout(console.try_clone().context("failed to share the console")?)
        .stderr(console)
        .exec();
    Err(failure).context("failed to execute systemd")
}

fn root_file_system(spec: &NodeSpec, root: &Path) -> Result<()> {
    let layers: Vec<String> = spec
        .layers
        .iter()
        .map(|layer| layer.display().to_string())
        .collect();
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        layers.join(":"),
        spec.dir.join("upper").display(),
        spec.dir.join("work").display()
    );
    mounted("overlay", root, "overlay", MountFlags::empty(), &options)?;
    bind(&spec.dir.join("var"), &root.join("var"))?;
    mounted(
        "tmpfs",
        &root.join("run"),
        "tmpfs",
        MountFlags::empty(),
        "mode=755,size=20%",
    )?;
    make_dir(&root.join("run/lock"))?;
    mounted(
        "tmpfs",
        &root.join("tmp"),
        "tmpfs",
        MountFlags::empty(),
        "mode=1777",
    )?;
    for Bind {
        from,
        to,
        read_only,
    } in &spec.binds
    {
        let to = root.join(to);
        make_dir(&to)?;
        bind(from, &to)?;
        if *read_only {
            mount_remount(&to, MountFlags::BIND | MountFlags::RDONLY, "")
                .with_context(|| format!("failed to protect {}", to.display()))?;
        }
    }
    let socket = root.join("run/host/notify");
    make_dir(&root.join("run/host"))?;
    std::fs::write(&socket, "").context("failed to make /run/host/notify")?;
    bind(&spec.notify_socket(), &socket)
}

/// Machine-wide settings are read-only; those of the network namespace are the node's own.
fn proc(spec: &NodeSpec, proc: &Path) -> Result<()> {
    mounted("proc", proc, "proc", MountFlags::empty(), "")?;
    let (sys, net) = (proc.join("sys"), proc.join("sys/net"));
    read_only(&sys)?;
    bind(&net, &net)?;
    mount_remount(&net, MountFlags::BIND, "").context("failed to open /proc/sys/net")?;
    let sysrq = proc.join("sysrq-trigger");
    if sysrq.exists() {
        read_only(&sysrq)?;
    }
    std::fs::write(net.join("ipv4/ip_forward"), "1").context("failed to let the node forward")?;
    std::fs::write(net.join("ipv4/conf/all/rp_filter"), "0")
        .context("failed to set rp_filter of the node")?;
    let show = |name: &str, value: &str| -> Result<()> {
        let file = spec.dir.join(format!("shown.{}", name.replace('/', ".")));
        std::fs::write(&file, format!("{value}\n"))
            .with_context(|| format!("failed to write {}", file.display()))?;
        bind(&file, &sys.join(name))
    };
    show("kernel/random/boot_id", &spec.boot_id)?;
    for (name, value) in SHOWN_SETTINGS {
        if sys.join(name).exists() {
            show(name, value)?;
        }
    }
    Ok(())
}

/// Read-only, so that udev stays away from the machine's devices; the control groups in it are
/// the node's own.
fn sys(spec: &NodeSpec, sys: &Path) -> Result<()> {
    mounted("sysfs", sys, "sysfs", MountFlags::RDONLY, "")?;
    if spec.numa_cells > 0 {
        numa(spec, &sys.join("devices/system/node"))?;
    }
    let groups = sys.join("fs/cgroup");
    match &spec.layout {
        Layout::V2 { .. } => {
            mounted("cgroup2", &groups, "cgroup2", MountFlags::empty(), "")?;
        }
        Layout::V1 { hierarchies } => {
            mounted("tmpfs", &groups, "tmpfs", MountFlags::empty(), "mode=755")?;
            for hierarchy in hierarchies {
                let name = hierarchy
                    .path
                    .file_name()
                    .context("a hierarchy without a name")?;
                let here = groups.join(name);
                make_dir(&here)?;
                match &hierarchy.options {
                    None => mounted("cgroup2", &here, "cgroup2", MountFlags::empty(), "")?,
                    Some(options) => {
                        mounted("cgroup", &here, "cgroup", MountFlags::empty(), options)?;
                        // As on a real machine: cpu and cpuacct lead to cpu,cpuacct.
                        let name = name.to_string_lossy();
                        for alias in name.split(',').filter(|alias| *alias != name) {
                            symlink(&*name, groups.join(alias))
                                .with_context(|| format!("failed to link {alias}"))?;
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// Shows the machine's CPUs and memory as several NUMA cells, evenly: libvirt reads them here.
fn numa(spec: &NodeSpec, at: &Path) -> Result<()> {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online")
        .context("failed to read which CPUs are online")?;
    let memory =
        std::fs::read_to_string("/proc/meminfo").context("failed to read /proc/meminfo")?;
    let shown = spec.dir.join("numa");
    if shown.exists() {
        std::fs::remove_dir_all(&shown).context("failed to remove an earlier boot's cells")?;
    }
    for (name, file) in numa_files(spec.numa_cells, &cpus(&online), &memory) {
        let path = shown.join(name);
        if let Some(parent) = path.parent() {
            make_dir(parent)?;
        }
        match file {
            NumaFile::Text(content) => std::fs::write(&path, content),
            NumaFile::Link(target) => symlink(target, &path),
        }
        .with_context(|| format!("failed to write {}", path.display()))?;
    }
    bind(&shown, at)
}

#[derive(Debug, PartialEq)]
enum NumaFile {
    Text(String),
    Link(String),
}

/// The CPUs of a list as the kernel writes it: `0-3,8`.
fn cpus(list: &str) -> Vec<u32> {
    list.trim()
        .split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
        })
        .flatten()
        .collect()
}

/// The files of /sys/devices/system/node that libnuma, libvirt and the kubelet read.
fn numa_files(cells: u8, cpus: &[u32], meminfo: &str) -> Vec<(String, NumaFile)> {
    let text = NumaFile::Text;
    let share = cpus.len().div_ceil(usize::from(cells.max(1))).max(1);
    let value = |key: &str| {
        let line = meminfo.lines().find(|line| line.starts_with(key));
        let word = line.and_then(|line| line.split_whitespace().nth(1));
        word.and_then(|word| word.parse::<u64>().ok()).unwrap_or(0) / u64::from(cells.max(1))
    };
    let last = cells.saturating_sub(1);
    let all = if last == 0 {
        "0\n".to_owned()
    } else {
        format!("0-{last}\n")
    };
    let mut files: Vec<(String, NumaFile)> = Vec::new();
    for name in [
        "has_cpu",
        "has_memory",
        "has_normal_memory",
        "online",
        "possible",
    ] {
        files.push((name.to_owned(), text(all.clone())));
    }
    for cell in 0..cells {
        let own: Vec<u32> = cpus
            .iter()
            .skip(usize::from(cell) * share)
            .take(share)
            .copied()
            .collect();
        let list: Vec<String> = own.iter().map(ToString::to_string).collect();
        let words = cpus.iter().max().map_or(1, |max| max / 32 + 1);
        let mask: Vec<String> = (0..words)
            .rev()
            .map(|word| {
                let bits = own.iter().filter(|&&cpu| cpu / 32 == word);
                format!(
                    "{:08x}",
                    bits.fold(0u32, |mask, cpu| mask | 1 << (cpu % 32))
                )
            })
            .collect();
        let distances: Vec<&str> = (0..cells)
            .map(|other| if other == cell { "10" } else { "20" })
            .collect();
        let dir = format!("node{cell}");
        let (total, free) = (value("MemTotal:"), value("MemFree:"));
        for (name, content) in [
            ("cpulist", list.join(",") + "\n"),
            ("cpumap", mask.join(",") + "\n"),
            ("distance", distances.join(" ") + "\n"),
            (
                "meminfo",
                format!("Node {cell} MemTotal: {total} kB\nNode {cell} MemFree: {free} kB\n"),
            ),
        ] {
            files.push((format!("{dir}/{name}"), text(content)));
        }
        for cpu in own {
            let target = NumaFile::Link(format!("../../cpu/cpu{cpu}"));
            files.push((format!("{dir}/cpu{cpu}"), target));
        }
    }
    files
}

fn dev(spec: &NodeSpec, dev: &Path) -> Result<()> {
    mounted(
        "tmpfs",
        dev,
        "tmpfs",
        MountFlags::empty(),
        "mode=755,size=1m",
    )?;
    for name in ["pts", "shm", "mqueue", "net"] {
        make_dir(&dev.join(name))?;
    }
    for (name, mode) in DEVICES {
        // What the machine does not have the node does not have either.
        let Ok(device) = std::fs::metadata(Path::new("/dev").join(name)) else {
            continue;
        };
        if !device.file_type().is_char_device() {
            continue;
        }
        let number = makedev(
            rustix::fs::major(device.rdev()),
            rustix::fs::minor(device.rdev()),
        );
        let path = dev.join(name);
        mknodat(
            CWD,
            &path,
            FileType::CharacterDevice,
            Mode::from_raw_mode(*mode),
            number,
        )
        .and_then(|()| rustix::fs::chmod(&path, Mode::from_raw_mode(*mode)))
        .with_context(|| format!("failed to make the device {name}"))?;
    }
    let options = "newinstance,ptmxmode=0666,mode=620,gid=5";
    mounted(
        "devpts",
        &dev.join("pts"),
        "devpts",
        MountFlags::empty(),
        options,
    )?;
    mounted(
        "tmpfs",
        &dev.join("shm"),
        "tmpfs",
        MountFlags::empty(),
        "mode=1777",
    )?;
    mounted(
        "mqueue",
        &dev.join("mqueue"),
        "mqueue",
        MountFlags::empty(),
        "",
    )?;
    for (name, target) in [
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        symlink(target, dev.join(name)).with_context(|| format!("failed to link /dev/{name}"))?;
    }
    // What pid 1 has to say ends up in the node's console log.
    let console = dev.join("console");
    std::fs::write(&console, "").context("failed to make /dev/console")?;
    bind(&spec.dir.join("console.log"), &console)
}

fn mounted(source: &str, at: &Path, kind: &str, flags: MountFlags, options: &str) -> Result<()> {
    let options = CString::new(options).context("mount options with a zero byte")?;
    mount(source, at, kind, flags, options.as_c_str())
        .with_context(|| format!("failed to mount {kind} at {}", at.display()))
}

fn bind(from: &Path, to: &Path) -> Result<()> {
    mount_bind(from, to)
        .with_context(|| format!("failed to bind {} to {}", from.display(), to.display()))
}

fn read_only(path: &PathBuf) -> Result<()> {
    bind(path, path)?;
    mount_remount(path, MountFlags::BIND | MountFlags::RDONLY, "")
        .with_context(|| format!("failed to protect {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_and_memory_are_shared_between_the_cells() {
        assert_eq!(cpus("0-2,8\n"), [0, 1, 2, 8]);
        let files = numa_files(2, &[0, 1, 2, 33], "MemTotal: 1000 kB\nMemFree: 300 kB\n");
        let file = |name: &str| match files.iter().find(|(path, _)| path == name) {
            Some((_, NumaFile::Text(content) | NumaFile::Link(content))) => content.as_str(),
            None => "none",
        };
        assert_eq!(file("online"), "0-1\n");
        assert_eq!(file("node0/cpulist"), "0,1\n");
        assert_eq!(file("node1/cpulist"), "2,33\n");
        assert_eq!(file("node1/cpumap"), "00000002,00000004\n");
        assert_eq!(file("node1/distance"), "20 10\n");
        assert_eq!(file("node1/cpu33"), "../../cpu/cpu33");
        assert!(file("node1/meminfo").contains("MemTotal: 500 kB"));
    }
}
