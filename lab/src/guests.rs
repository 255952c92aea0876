//! The guests that run on the lab's hypervisors, made once and kept in the cache.
//!
//! | guest | for | made from |
//! |---|---|---|
//! | micro | many at once, migrations, failures on command | `lab/guests/micro.c`, a few KB |
//! | Linux | what needs a network or a shell | Debian's cloud kernel, busybox, `lab/guests/init` |
//!
//! The heads of `micro.c` and `init` say what the guests do and which words on the kernel command
//! line change it. No package of them is installed on the machine.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use flate2::{Compression, GzBuilder};
use serde::{Deserialize, Serialize};

use crate::cache;
use crate::command::Run;
use crate::paths::{Paths, make_dir, remove_tree};
use crate::report::Report;

const SUITE: &str = "bookworm";
const PACKAGES: &str = "linux-image-cloud-amd64,busybox-static";

/// The kernel's modules that the guest loads; what they need in turn differs between kernels and is
/// asked of the modules themselves. `evdev` and `button` are for the power button.
const MODULES: &[&str] = &["virtio_pci", "virtio_net", "virtio_blk", "evdev", "button"];

const INIT: &str = include_str!("../guests/init");
const DHCP: &str = include_str!("../guests/dhcp");

const MICRO_SOURCES: [(&str, &str); 2] = [
    ("micro.c", include_str!("../guests/micro.c")),
    ("micro.ld", include_str!("../guests/micro.ld")),
];

/// 32 bit without any library, so that the 64-bit compiler suffices; and nothing that needs more
/// of the processor than it has set up.
const MICRO_FLAGS: [&str; 18] = [
    "-m32",
    "-std=gnu11",
    "-Wall",
    "-Wextra",
    "-Os",
    "-ffreestanding",
    "-fno-pic",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-fno-tree-loop-distribute-patterns",
    "-fcf-protection=none",
    "-mgeneral-regs-only",
    "-nostdlib",
    "-static",
    "-no-pie",
    "-s",
    "-Wl,--build-id=none",
    "-Wl,-T,micro.ld",
];

/// What the command line of the Linux guest begins with. It keeps the kernel's messages out of the
/// ticks. Where a machine is emulated and its host busy, the kernel may take its timer for broken
/// and give up: it must not check. The rest saves a sixth of the time to boot.
pub const LINUX_COMMAND_LINE: &str = "console=ttyS0 quiet no_timer_check mitigations=off nokaslr";

/// The files that virtual machines start from.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Guests {
    /// The micro guest, a multiboot kernel for QEMU.
    pub micro: PathBuf,
    /// The kernel of the Linux guest (bzImage), to be started with [`LINUX_COMMAND_LINE`].
    pub kernel: PathBuf,
    /// The initial RAM disk of the Linux guest, which is all of it.
    pub initrd: PathBuf,
}

impl Guests {
    fn of(dir: &Path) -> Self {
        Self {
            micro: dir.join("micro.elf"),
            kernel: dir.join("vmlinuz"),
            initrd: dir.join("initrd.gz"),
        }
    }
}

/// The guests; made when they are not there (about 15 seconds).
pub async fn ensure(paths: &Paths, report: &Report) -> Result<Guests> {
    let dir = cache::once(location(paths), report, async |partial| {
        let step = report.long_step("make the guests of hypervisors", Duration::from_secs(15));
        make_dir(partial)?;
        let guests = Guests::of(partial);
        compile_micro(partial, &guests.micro).await?;
        let tree = partial.join("tree");
        unpack_packages(&tree).await?;
        tokio::task::spawn_blocking(move || {
            make_linux(&tree, &guests)?;
            remove_tree(&tree)
        })
        .await??;
        step.done();
        Ok(())
    })
    .await?;
    Ok(Guests::of(&dir))
}

/// Whether the guests exist already.
pub fn is_ready(paths: &Paths) -> bool {
    location(paths).is_dir()
}

/// Keyed by everything that makes them, so that a changed guest is a new one.
fn location(paths: &Paths) -> PathBuf {
    let sources = MICRO_SOURCES.iter().flat_map(|&(name, text)| [name, text]);
    let parts = [SUITE, PACKAGES, INIT, DHCP]
        .into_iter()
        .chain(sources)
        .chain(MICRO_FLAGS)
        .chain(MODULES.iter().copied());
    paths.cache.join(format!("guests-{}", cache::key(parts)))
}

async fn compile_micro(dir: &Path, target: &Path) -> Result<()> {
    for (name, content) in MICRO_SOURCES {
        write(&dir.join(name), content.as_bytes())?;
    }
    // With relative names no path of this machine gets into the program.
    Run::new("gcc", MICRO_FLAGS)
        .arguments(["micro.c", "-o"])
        .arguments([target])
        .dir(dir)
        .output()
        .await
        .context("failed to compile the micro guest: it needs gcc for x86")
        .map(drop)
}

/// Packages and what they depend on, unpacked only: nothing in them is run.
async fn unpack_packages(tree: &Path) -> Result<()> {
    let include = format!("--include={PACKAGES}");
    Run::new(
        "mmdebstrap",
        [
            "--quiet",
            "--variant=extract",
            "--architectures=amd64",
            &include,
            "--aptopt=APT::Install-Recommends \"false\"",
            "--aptopt=Acquire::Languages \"none\"",
            "--aptopt=Acquire::Retries \"3\"",
            SUITE,
        ],
    )
    .arguments([tree])
    .deadline(Duration::from_secs(10 * 60))
    .output()
    .await
    .context("failed to fetch the kernel and the busybox of the Linux guest")
    .map(drop)
}

fn make_linux(tree: &Path, guests: &Guests) -> Result<()> {
    let kernel = only_entry(&tree.join("boot"), "vmlinuz-")?;
    std::fs::copy(&kernel, &guests.kernel)
        .with_context(|| format!("failed to copy {}", kernel.display()))?;
    let modules = only_entry(&tree.join("lib/modules"), "")?.join("kernel");
    let mut files = vec![
        File::directory("bin"),
        File::program("bin/busybox", read(&tree.join("bin/busybox"))?),
        File::program("init", INIT),
        File::program("dhcp", DHCP),
        File::directory("modules"),
    ];
    let mut order = String::new();
    for (name, content) in in_order(&modules, MODULES)? {
        files.push(File::data(&format!("modules/{name}.ko"), content));
        order.push_str(&name);
        order.push('\n');
    }
    files.push(File::data("modules/order", order));
    // No time and no name in the head: the same files give the same archive.
    let mut gzip = GzBuilder::new().write(Vec::new(), Compression::default());
    let packed = gzip
        .write_all(&cpio(&files)?)
        .and_then(|()| gzip.finish())
        .context("failed to compress the initial RAM disk")?;
    write(&guests.initrd, &packed)
}

/// Modules and all that they need, by name, in the order in which they can be loaded.
fn in_order(dir: &Path, wanted: &[&str]) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = BTreeMap::new();
    find_modules(dir, &mut files)?;
    let mut order = Vec::new();
    for name in wanted {
        append(name, &files, &mut Vec::new(), &mut order)?;
    }
    Ok(order)
}

/// Appends a module after what it needs. `waiting` are those that need it.
fn append(
    name: &str,
    files: &BTreeMap<String, PathBuf>,
    waiting: &mut Vec<String>,
    order: &mut Vec<(String, Vec<u8>)>,
) -> Result<()> {
    if order.iter().any(|(there, _)| there == name) {
        return Ok(());
    }
    if waiting.iter().any(|other| other == name) {
        bail!("the kernel's modules need each other in a circle: {name}");
    }
    let path = files
        .get(name)
        .with_context(|| format!("the kernel has no module {name}"))?;
    let content = read(path)?;
    waiting.push(name.to_owned());
    for needed in needs(&content) {
        append(&needed, files, waiting, order)?;
    }
    waiting.pop();
    order.push((name.to_owned(), content));
    Ok(())
}

/// Every module below a directory, by its name as the kernel spells it.
fn find_modules(dir: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    let entries =
        std::fs::read_dir(dir).with_context(|| format!("failed to read {}", dir.display()))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            find_modules(&path, files)?;
        } else if path.extension().is_some_and(|kind| kind == "ko") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            files.insert(name.replace('-', "_"), path);
        }
    }
    Ok(())
}

/// What a module says that it needs: `depends=a,b`, among the words of its description.
fn needs(module: &[u8]) -> Vec<String> {
    let words = module.split(|&byte| byte == 0);
    let depends = words.filter_map(|word| word.strip_prefix(b"depends="));
    depends
        .flat_map(|names| names.split(|&byte| byte == b','))
        .filter(|name| !name.is_empty())
        .map(|name| String::from_utf8_lossy(name).replace('-', "_"))
        .collect()
}

/// The one entry of a directory whose name begins so: its version is not known beforehand.
fn only_entry(dir: &Path, prefix: &str) -> Result<PathBuf> {
    let entries =
        std::fs::read_dir(dir).with_context(|| format!("failed to read {}", dir.display()))?;
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    match (found.pop(), found.is_empty()) {
        (Some(path), true) => Ok(path),
        _ => bail!(
            "{} has no or several entries \"{prefix}...\"",
            dir.display()
        ),
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("failed to read {}", path.display()))
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    std::fs::write(path, content).with_context(|| format!("failed to write {}", path.display()))
}

/// A file of the initial RAM disk.
#[derive(Debug)]
struct File {
    name: String,
    /// Type and permissions, as stat(2) shows them.
    mode: u32,
    content: Vec<u8>,
}

impl File {
    fn directory(name: &str) -> Self {
        Self::new(name, 0o040_755, "")
    }

    fn program(name: &str, content: impl Into<Vec<u8>>) -> Self {
        Self::new(name, 0o100_755, content)
    }

    fn data(name: &str, content: impl Into<Vec<u8>>) -> Self {
        Self::new(name, 0o100_644, content)
    }

    fn new(name: &str, mode: u32, content: impl Into<Vec<u8>>) -> Self {
        Self {
            name: name.to_owned(),
            mode,
            content: content.into(),
        }
    }
}

/// An archive in the format "newc", the only one that the kernel unpacks. A directory must come
/// before its files.
fn cpio(files: &[File]) -> Result<Vec<u8>> {
    let mut archive = Vec::new();
    for (number, file) in (1..).zip(files) {
        cpio_entry(&mut archive, number, file)?;
    }
    cpio_entry(&mut archive, 0, &File::new("TRAILER!!!", 0, ""))?;
    Ok(archive)
}

fn cpio_entry(archive: &mut Vec<u8>, number: u32, file: &File) -> Result<()> {
    let size = |length: usize| {
        u32::try_from(length).with_context(|| format!("\"{}\" is too large", file.name))
    };
    let links = 1;
    // The name ends with a NUL, which counts.
    let name_size = size(file.name.len() + 1)?;
    archive.extend_from_slice(b"070701");
    // inode, mode, owner, group, links, time, size, device (2), special device (2), name, checksum
    for field in [
        number,
        file.mode,
        0,
        0,
        links,
        0,
        size(file.content.len())?,
        0,
        0,
        0,
        0,
        name_size,
        0,
    ] {
        archive.extend_from_slice(format!("{field:08X}").as_bytes());
    }
    for part in [file.name.as_bytes(), b"\0"] {
        archive.extend_from_slice(part);
    }
    pad(archive);
    archive.extend_from_slice(&file.content);
    pad(archive);
    Ok(())
}

/// Everything begins at a multiple of four.
fn pad(archive: &mut Vec<u8>) {
    archive.resize(archive.len().next_multiple_of(4), 0);
}

/// A libvirt domain that runs the micro guest in QEMU without KVM.
#[derive(Debug, Clone, Copy)]
pub struct MicroDomain<'a> {
    /// The domain's name.
    pub name: &'a str,
    /// Its UUID.
    pub uuid: &'a str,
    /// 16 suffices unless the guest dirties more.
    pub memory_mib: u32,
    /// [`Guests::micro`], as the hypervisor sees it: through a read-only mount, since libvirt
    /// makes itself the owner of what it can.
    pub kernel: &'a Path,
    /// What the guest does; see the head of `lab/guests/micro.c`.
    pub command_line: &'a str,
    /// `pc` or `q35`.
    pub machine: &'a str,
    /// Device elements in XML, taken as they are: a watchdog, a disk, an interface.
    pub extra_devices: &'a str,
}

impl MicroDomain<'_> {
    /// The file on the hypervisor that gets what the guest prints. Each start empties it.
    pub fn console_log(&self) -> PathBuf {
        PathBuf::from(format!("/var/log/libvirt/qemu/{}-serial.log", self.name))
    }

    /// The domain in libvirt's XML.
    pub fn xml(&self) -> String {
        // USB and a balloon would only take memory and time. The panic device is there for
        // `panic=S`, the ACPI feature for the power button and for unplugging.
        format!(
            "<domain type='qemu'>
  <name>{name}</name>
  <uuid>{uuid}</uuid>
  <memory unit='MiB'>{memory}</memory>
  <vcpu>1</vcpu>
  <os>
    <type arch='x86_64' machine='{machine}'>hvm</type>
    <kernel>{kernel}</kernel>
    <cmdline>{command_line}</cmdline>
  </os>
  <features><acpi/></features>
  <on_poweroff>destroy</on_poweroff>
  <on_reboot>restart</on_reboot>
  <on_crash>destroy</on_crash>
  <devices>
    <controller type='usb' model='none'/>
    <serial type='file'>
      <source path='{console}'/>
      <target port='0'/>
    </serial>
    <memballoon model='none'/>
    <panic model='isa'/>
    {extra_devices}
  </devices>
</domain>
",
            name = escape(self.name),
            uuid = escape(self.uuid),
            memory = self.memory_mib,
            machine = escape(self.machine),
            kernel = escape(&self.kernel.to_string_lossy()),
            command_line = escape(self.command_line),
            console = escape(&self.console_log().to_string_lossy()),
            extra_devices = self.extra_devices,
        )
    }
}

/// A text as XML has it, inside an element or an attribute.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\'' => escaped.push_str("&apos;"),
            '"' => escaped.push_str("&quot;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain() -> MicroDomain<'static> {
        MicroDomain {
            name: "g1",
            uuid: "6f1c6a3e-7d0f-4c39-9a6c-1f7c0c7f0001",
            memory_mib: 16,
            kernel: Path::new("/guests/micro.elf"),
            command_line: "dirty=8 ws=4",
            machine: "q35",
            extra_devices: "<watchdog model='i6300esb' action='reset'/>",
        }
    }

    #[test]
    fn an_archive_has_a_header_of_110_digits_and_aligned_parts() {
        let archive = cpio(&[File::directory("d"), File::program("d/f", "hello")]).unwrap();
        let text = String::from_utf8(archive).unwrap();
        let directory = "070701\
            00000001000041ED0000000000000000000000010000000000000000\
            0000000000000000000000000000000000000002\
            00000000d\0";
        let file = "070701\
            00000002000081ED0000000000000000000000010000000000000005\
            0000000000000000000000000000000000000004\
            00000000d/f\0\0\0hello\0\0\0";
        let trailer = "070701\
            00000000000000000000000000000000000000010000000000000000\
            000000000000000000000000000000000000000B\
            00000000TRAILER!!!\0\0\0\0";
        assert_eq!(text, [directory, file, trailer].concat());
    }

    #[test]
    fn a_domain_shows_its_words_and_takes_devices_as_they_are() {
        let xml = domain().xml();
        for part in [
            "<name>g1</name>",
            "<memory unit='MiB'>16</memory>",
            "machine='q35'",
            "<kernel>/guests/micro.elf</kernel>",
            "<cmdline>dirty=8 ws=4</cmdline>",
            "<source path='/var/log/libvirt/qemu/g1-serial.log'/>",
            "<watchdog model='i6300esb' action='reset'/>",
        ] {
            assert!(xml.contains(part), "{part} is missing in {xml}");
        }
    }

    #[test]
    fn no_text_can_leave_its_element_or_attribute() {
        let xml = MicroDomain {
            name: "a'/><b",
            command_line: "</cmdline> & \"more\"",
            ..domain()
        }
        .xml();
        for part in [
            "<name>a&apos;/&gt;&lt;b</name>",
            "<source path='/var/log/libvirt/qemu/a&apos;/&gt;&lt;b-serial.log'/>",
            "<cmdline>&lt;/cmdline&gt; &amp; &quot;more&quot;</cmdline>",
        ] {
            assert!(xml.contains(part), "{part} is missing in {xml}");
        }
    }

    #[test]
    fn modules_come_after_what_they_need() {
        let dir = tempfile::tempdir().unwrap();
        let module = |path: &str, needs: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("code\0license=GPL\0depends={needs}\0")).unwrap();
        };
        module("net/virtio_net.ko", "net-failover,virtio,virtio_ring");
        module("net/net-failover.ko", "");
        module("virtio/virtio.ko", "virtio_ring");
        module("virtio/virtio_ring.ko", "");
        let names = |wanted| -> Vec<String> {
            let order = in_order(dir.path(), wanted).unwrap();
            order.into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(names(&["virtio"]), ["virtio_ring", "virtio"]);
        let all = ["net_failover", "virtio_ring", "virtio", "virtio_net"];
        assert_eq!(names(&["virtio_net", "virtio"]), all);
        module("virtio/virtio_ring.ko", "virtio");
        let circle = in_order(dir.path(), &["virtio_net"]).unwrap_err();
        assert!(circle.to_string().contains("in a circle"), "{circle}");
        let missing = in_order(dir.path(), &["vsock"]).unwrap_err();
        assert!(missing.to_string().contains("no module vsock"), "{missing}");
    }

    #[test]
    fn the_kernel_is_found_whatever_its_version() {
        let dir = tempfile::tempdir().unwrap();
        assert!(only_entry(dir.path(), "vmlinuz-").is_err());
        std::fs::write(dir.path().join("config-6.1"), "").unwrap();
        std::fs::write(dir.path().join("vmlinuz-6.1"), "").unwrap();
        let found = only_entry(dir.path(), "vmlinuz-").unwrap();
        assert_eq!(found, dir.path().join("vmlinuz-6.1"));
        std::fs::write(dir.path().join("vmlinuz-6.2"), "").unwrap();
        assert!(only_entry(dir.path(), "vmlinuz-").is_err());
    }
}
