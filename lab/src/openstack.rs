//! The real OpenStack of a region: Keystone, Placement, Glance, Neutron (ML2/OVN) and Nova with
//! RabbitMQ and MariaDB on one machine, nova-compute on each hypervisor; all of them systemd units.
//!
//! ```text
//!  template (once, about 25 s)          machine `openstack`            machines `hv1`..`hvN`
//!  databases, keys, images, flavors --> /var/lib/{mysql,keystone,glance}
//!  lab/openstack/region/etc ----------> /etc ------------------------> /etc/nova
//!  lab/openstack/region/opt ----------> /opt/cobalt -----------------> /opt/cobalt
//!  Python packages -------------------> /opt/openstack --------------> /opt/openstack
//! ```
//!
//! The template has no address in it: MariaDB corrects the catalogue at each start, and Nova's
//! cells take their URLs from the configuration.

use std::net::Ipv4Addr;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::access::Access;
use crate::command::{Run, run};
use crate::guests::{Guests, LINUX_COMMAND_LINE};
use crate::paths::{Paths, lock, remove_tree};
use crate::report::Report;

/// Where things are in a region.
#[derive(Debug, Clone)]
pub struct Site {
    /// The control plane's machine.
    pub openstack: Ipv4Addr,
    /// The members of OVN's databases.
    pub ovn: Vec<Ipv4Addr>,
}

/// What a person may want different in a region.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Options {
    /// How much a live migration may send each second; 0: no limit. 2 to 4 makes migrations slow
    /// enough to watch and to abort.
    pub live_migration_bandwidth_mib: u32,
}

/// How to log in to the region at a site.
pub fn access(site: &Site) -> Access {
    Access::admin(format!("http://{}:5000/v3", site.openstack))
}

/// The program in a control plane's machine that makes the tenant network and waits until the
/// given number of hypervisors can take servers.
pub fn ready_command(hypervisors: usize, tenant: &str, deadline: Duration) -> Vec<String> {
    let count = hypervisors.to_string();
    python(
        "ready.py",
        &[&count, tenant, &deadline.as_secs().to_string()],
    )
}

/// The program in a control plane's machine that boots servers `vm1`, `vm2` and so on, in turns on
/// all hypervisors, and waits until their guests have addresses.
pub fn boot_command(servers: u8, deadline: Duration) -> Vec<String> {
    let count = servers.to_string();
    python("boot.py", &[&count, &deadline.as_secs().to_string()])
}

fn python(program: &str, arguments: &[&str]) -> Vec<String> {
    let program = format!("/opt/cobalt/{program}");
    ["/usr/bin/python3", &program]
        .iter()
        .chain(arguments)
        .map(|&word| word.to_owned())
        .collect()
}

/// A file of `lab/openstack/region`, by its place in the machine.
macro_rules! file {
    ($path:literal) => {
        ($path, include_str!(concat!("../openstack/region/", $path)))
    };
}

type File = (&'static str, &'static str);

/// In the control plane and on hypervisors.
const COMMON: &[File] = &[
    file!("etc/nova/nova.conf"),
    file!("opt/cobalt/notify.py"),
    file!("opt/cobalt/patches.py"),
    file!("opt/cobalt/service.py"),
];

/// In the control plane and where the template is made: a change makes a new template.
const SERVICES: &[File] = &[
    file!("etc/glance/glance-api.conf"),
    file!("etc/keystone/keystone.conf"),
    file!("etc/mysql/mariadb.conf.d/90-lab.cnf"),
    file!("etc/neutron/neutron.conf"),
    file!("etc/neutron/plugins/ml2/ml2_conf.ini"),
    file!("etc/nova/nova.conf.d/control.conf"),
    file!("etc/placement/placement.conf"),
    file!("opt/cobalt/api.py"),
];

/// In the control plane only.
const CONTROL_PLANE: &[File] = &[
    file!("etc/mysql/lab.sql"),
    file!("etc/rabbitmq/enabled_plugins"),
    file!("etc/rabbitmq/rabbitmq-env.conf"),
    file!("etc/rabbitmq/rabbitmq.config"),
    file!("etc/systemd/system/mariadb.service.d/lab.conf"),
    file!("etc/systemd/system/rabbitmq-server.service.d/lab.conf"),
    file!("opt/cobalt/boot.py"),
    file!("opt/cobalt/ready.py"),
];

const COMPUTE: &[File] = &[file!("etc/nova/nova.conf.d/compute.conf")];

/// Only where the template is made.
const BAKE: &[File] = &[file!("opt/cobalt/bake.py")];
const BAKE_SCRIPT: &str = include_str!("../openstack/region/bake.sh");

/// A service of our own: name, description, what starts before it when both start.
type Service = (&'static str, &'static str, &'static str);
const SERVICE_UNIT: &str = include_str!("../openstack/region/service.unit");

const CONTROL_SERVICES: &[Service] = &[
    ("keystone", "OpenStack Identity", ""),
    ("placement", "OpenStack Placement", ""),
    ("glance-api", "OpenStack Image", ""),
    ("neutron-api", "OpenStack Networking", ""),
    ("nova-api", "OpenStack Compute API", ""),
    ("nova-conductor", "OpenStack Compute conductor", ""),
    ("nova-scheduler", "OpenStack Compute scheduler", ""),
];

/// Debian's units that the control plane needs besides.
const CONTROL_PACKAGES: &[&str] = &["mariadb.service", "rabbitmq-server.service"];

const COMPUTE_SERVICES: &[Service] = &[(
    "nova-compute",
    "OpenStack Compute of this hypervisor",
    "libvirtd.service openvswitch-switch.service",
)];

/// What of the machine's `/var/lib` the template has.
const STATE: &[&str] = &["mysql", "keystone", "glance"];

/// Writes the control plane into a machine: configuration and units into its own layer, the
/// template's state into its `/var`.
pub async fn control_plane_files(
    upper: &Path,
    var: &Path,
    template: &Path,
    site: &Site,
    _options: &Options,
) -> Result<()> {
    control_plane_configuration(upper, site)?;
    let lib = var.join("lib");
    make_dirs(&lib, &["neutron", "nova"])?;
    for part in STATE {
        remove_tree(&lib.join(part))?;
        let from = template.join(part);
        run(
            "cp",
            [
                "-a".as_ref(),
                "--reflink=auto".as_ref(),
                "--sparse=always".as_ref(),
                from.as_os_str(),
                lib.as_os_str(),
            ],
        )
        .await?;
    }
    Ok(())
}

fn control_plane_configuration(upper: &Path, site: &Site) -> Result<()> {
    let ovn = |port: u16| {
        let members: Vec<String> = site
            .ovn
            .iter()
            .map(|address| format!("tcp:{address}:{port}"))
            .collect();
        members.join(",")
    };
    let values = [
        ("openstack", site.openstack.to_string()),
        ("ovn_nb", ovn(6641)),
        ("ovn_sb", ovn(6642)),
        (
            "database",
            "mysql+pymysql://openstack:openstack@127.0.0.1:3306".to_owned(),
        ),
        ("glance_account", account("glance", site)),
        ("neutron_account", account("neutron", site)),
        ("nova_account", account("nova", site)),
        ("placement_account", account("placement", site)),
    ];
    write_files(upper, COMMON, &values)?;
    write_files(upper, SERVICES, &values)?;
    write_files(upper, CONTROL_PLANE, &values)?;
    // Nova looks for it beside its configuration only.
    link(
        "/opt/openstack/etc/nova/api-paste.ini",
        &upper.join("etc/nova/api-paste.ini"),
    )?;
    write_services(upper, CONTROL_SERVICES)?;
    for unit in CONTROL_PACKAGES {
        enable(upper, unit, "/lib/systemd/system")?;
    }
    Ok(())
}

/// Writes nova-compute into a hypervisor.
pub fn compute_files(
    upper: &Path,
    var: &Path,
    host: &str,
    address: Ipv4Addr,
    site: &Site,
    options: &Options,
) -> Result<()> {
    let values = [
        ("openstack", site.openstack.to_string()),
        ("nova_account", account("nova", site)),
        ("host", host.to_owned()),
        ("address", address.to_string()),
        (
            "bandwidth",
            options.live_migration_bandwidth_mib.to_string(),
        ),
    ];
    write_files(upper, COMMON, &values)?;
    write_files(upper, COMPUTE, &values)?;
    write_services(upper, COMPUTE_SERVICES)?;
    make_dirs(&var.join("lib"), &["nova/instances"])
}

/// Databases, users, keys, catalogue, images and flavors; made once (15 to 40 s).
pub async fn template(
    paths: &Paths,
    tree: &Path,
    packages: &Path,
    guests: &Guests,
    report: &Report,
) -> Result<PathBuf> {
    let template = location(paths, tree, packages, guests)?;
    if template.is_dir() {
        return Ok(template);
    }
    std::fs::create_dir_all(&paths.cache)
        .with_context(|| format!("failed to make {}", paths.cache.display()))?;
    let _lock = lock(template.with_extension("lock"), report).await?;
    if template.is_dir() {
        return Ok(template);
    }
    let step = report.long_step("make OpenStack's databases", Duration::from_secs(25));
    // What an interrupted run left. The lock is ours, so nobody is writing it.
    let partial = template.with_extension("partial");
    remove_tree(&partial)?;
    bake(&partial, tree, packages, guests).await?;
    std::fs::rename(partial.join("state"), &template)
        .with_context(|| format!("failed to install {}", template.display()))?;
    remove_tree(&partial)?;
    step.done();
    Ok(template)
}

/// Whether the template exists already.
pub fn template_is_ready(paths: &Paths, tree: &Path, packages: &Path, guests: &Guests) -> bool {
    location(paths, tree, packages, guests).is_ok_and(|template| template.is_dir())
}

async fn bake(work: &Path, tree: &Path, packages: &Path, guests: &Guests) -> Result<()> {
    make_dirs(work, &["upper", "work", "root", "state"])?;
    let upper = work.join("upper");
    let here = Site {
        openstack: Ipv4Addr::LOCALHOST,
        ovn: vec![Ipv4Addr::LOCALHOST],
    };
    control_plane_configuration(&upper, &here)?;
    write_files(&upper, BAKE, &[])?;
    // When this program is interrupted, unshare ends, and with it everything inside.
    Run::new(
        "unshare",
        [
            "--mount",
            "--propagation=private",
            "--pid",
            "--fork",
            "--kill-child",
            "--net",
            "--uts",
            "--ipc",
            "sh",
            "-c",
            BAKE_SCRIPT,
            "bake.sh",
        ],
    )
    .arguments([tree, work, packages])
    .arguments([&guests.micro, &guests.kernel, &guests.initrd])
    .arguments([LINUX_COMMAND_LINE])
    .deadline(Duration::from_secs(10 * 60))
    .output()
    .await
    .context("failed to make OpenStack's databases")
    .map(drop)
}

/// Keyed by everything that makes it, so that a changed recipe gives a new template. The tree and
/// the packages have keys of their own in their names.
fn location(paths: &Paths, tree: &Path, packages: &Path, guests: &Guests) -> Result<PathBuf> {
    let mut hasher = Sha256::new();
    for (name, content) in COMMON.iter().chain(SERVICES).chain(BAKE) {
        hasher.update(name);
        hasher.update(content);
    }
    hasher.update(BAKE_SCRIPT);
    hasher.update(LINUX_COMMAND_LINE);
    for path in [tree, packages] {
        hasher.update(path.as_os_str().as_encoded_bytes());
    }
    for path in [&guests.micro, &guests.kernel, &guests.initrd] {
        let file = path
            .metadata()
            .with_context(|| format!("no guest at {}", path.display()))?;
        hasher.update(path.as_os_str().as_encoded_bytes());
        hasher.update(file.size().to_le_bytes());
        hasher.update(file.mtime().to_le_bytes());
    }
    let hash: String = hasher
        .finalize()
        .iter()
        .take(6)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Ok(paths.cache.join(format!("openstack-{hash}")))
}

/// How a service logs in; wanted in each section that names another service.
fn account(user: &str, site: &Site) -> String {
    let url = access(site).auth_url;
    format!(
        "auth_type = password\nauth_url = {url}\nusername = {user}\npassword = service\n\
         project_name = service\nproject_domain_name = Default\nuser_domain_name = Default"
    )
}

fn write_files(root: &Path, files: &[File], values: &[(&str, String)]) -> Result<()> {
    for (name, content) in files {
        let content = if name.starts_with("etc/") {
            render(content, values).with_context(|| format!("failed to fill in {name}"))?
        } else {
            (*content).to_owned()
        };
        write(&root.join(name), &content)?;
    }
    Ok(())
}

fn write_services(root: &Path, services: &[Service]) -> Result<()> {
    for (name, description, after) in services {
        let values = [
            ("name", (*name).to_owned()),
            ("description", (*description).to_owned()),
            ("after", (*after).to_owned()),
        ];
        let unit = format!("{name}.service");
        let path = root.join("etc/systemd/system").join(&unit);
        write(&path, &render(SERVICE_UNIT, &values)?)?;
        enable(root, &unit, "/etc/systemd/system")?;
    }
    Ok(())
}

fn enable(root: &Path, unit: &str, from: &str) -> Result<()> {
    let wants = root.join("etc/systemd/system/multi-user.target.wants");
    link(&format!("{from}/{unit}"), &wants.join(unit))
}

/// Fills in `{{name}}`; a name without a value is a mistake of ours.
fn render(text: &str, values: &[(&str, String)]) -> Result<String> {
    let mut parts = text.split("{{");
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part
            .split_once("}}")
            .context("a placeholder without an end")?;
        let Some((_, value)) = values.iter().find(|(known, _)| *known == name) else {
            bail!("no value for {name}");
        };
        filled.push_str(value);
        filled.push_str(rest);
    }
    Ok(filled)
}

fn write(path: &Path, content: &str) -> Result<()> {
    make_parent(path)?;
    std::fs::write(path, content).with_context(|| format!("failed to write {}", path.display()))
}

/// A symbolic link; one that is there is fine.
fn link(target: &str, path: &Path) -> Result<()> {
    make_parent(path)?;
    match symlink(target, path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(error).with_context(|| format!("failed to link {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn make_parent(path: &Path) -> Result<()> {
    path.parent().map_or(Ok(()), make_dir)
}

fn make_dirs(parent: &Path, names: &[&str]) -> Result<()> {
    names
        .iter()
        .try_for_each(|name| make_dir(&parent.join(name)))
}

fn make_dir(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).with_context(|| format!("failed to make {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site() -> Site {
        Site {
            openstack: Ipv4Addr::new(10, 0, 0, 5),
            ovn: [6, 7].map(|host| Ipv4Addr::new(10, 0, 0, host)).to_vec(),
        }
    }

    #[test]
    fn every_placeholder_has_a_value() {
        let dir = tempfile::tempdir().unwrap();
        control_plane_configuration(dir.path(), &site()).unwrap();
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        let neutron = read("etc/neutron/plugins/ml2/ml2_conf.ini");
        assert!(
            neutron.contains("ovn_nb_connection = tcp:10.0.0.6:6641,tcp:10.0.0.7:6641\n"),
            "{neutron}"
        );
        assert!(read("etc/mysql/lab.sql").contains("'http://10.0.0.5'"));
        let unit = read("etc/systemd/system/multi-user.target.wants/../nova-api.service");
        assert!(unit.contains("service.py nova-api\n"), "{unit}");
    }

    #[test]
    fn hypervisors_get_their_own_address_and_no_database() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            live_migration_bandwidth_mib: 3,
        };
        let (upper, var) = (dir.path().join("upper"), dir.path().join("var"));
        let address = Ipv4Addr::new(10, 0, 0, 11);
        compute_files(&upper, &var, "hv1", address, &site(), &options).unwrap();
        let etc = upper.join("etc/nova");
        let own = std::fs::read_to_string(etc.join("nova.conf.d/compute.conf")).unwrap();
        assert!(own.contains("host = hv1\nmy_ip = 10.0.0.11\n"), "{own}");
        assert!(own.contains("live_migration_bandwidth = 3\n"), "{own}");
        let common = std::fs::read_to_string(etc.join("nova.conf")).unwrap();
        assert!(!common.contains("mysql"), "{common}");
    }

    #[test]
    fn an_unknown_placeholder_is_an_error() {
        assert!(render("a {{b}} c", &[]).is_err());
        assert!(render("a {{b", &[("b", String::new())]).is_err());
        let values = [("b", "x".to_owned())];
        assert_eq!(render("a {{b}} {{b}} c", &values).unwrap(), "a x x c");
    }
}
