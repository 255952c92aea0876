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
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::access::Access;
use crate::cache;
use crate::command::{Run, run};
use crate::guests::{Guests, LINUX_COMMAND_LINE};
use crate::net::Block;
use crate::node::files::Layer;
use crate::node::ovn::{northbound, southbound};
use crate::paths::{Paths, make_dir, remove_tree};
use crate::report::Report;

/// Where things are in a region.
#[derive(Debug, Clone)]
pub struct Site {
    /// The control plane's machine.
    pub openstack: Ipv4Addr,
    /// The members of OVN's databases.
    pub ovn: Vec<Ipv4Addr>,
}

/// How to log in to the region at a site.
pub fn access(site: &Site) -> Access {
    Access::admin(format!("http://{}:5000/v3", site.openstack))
}

/// The availability zone, and the aggregate that makes it. It has no hosts at the start: who takes
/// hypervisors into service adds them.
pub const ZONE: &str = "lab-a";

/// The program in a control plane's machine that makes the tenant networks and waits until the
/// given number of hypervisors can take servers.
pub fn ready_command(hypervisors: usize, block: Block, deadline: Duration) -> Vec<String> {
    let (count, seconds) = (hypervisors.to_string(), deadline.as_secs().to_string());
    let networks = [block.tenant(), block.test_tenant()];
    let [tenant, test] = &networks;
    python("ready.py", &[&count, tenant, test, &seconds])
}

/// The program in a control plane's machine that boots servers `vm1`, `vm2` and so on, in turns on
/// all hypervisors that are enabled, and waits until their guests have addresses.
pub fn boot_command(servers: u8, deadline: Duration) -> Vec<String> {
    let count = servers.to_string();
    python("boot.py", &[&count, &deadline.as_secs().to_string()])
}

/// The program in a control plane's machine that waits until so many hypervisors are enabled in
/// [`ZONE`] and take anybody's servers.
pub fn in_service_command(hypervisors: usize, deadline: Duration) -> Vec<String> {
    let count = hypervisors.to_string();
    let seconds = deadline.as_secs().to_string();
    python("in_service.py", &[&count, ZONE, &seconds])
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
    file!("etc/systemd/system/nova-cell-database.service"),
    file!("etc/systemd/system/mariadb.service.d/lab.conf"),
    file!("etc/systemd/system/rabbitmq-server.service.d/lab.conf"),
    file!("opt/cobalt/boot.py"),
    file!("opt/cobalt/in_service.py"),
    file!("opt/cobalt/ready.py"),
    file!("opt/cobalt/relay.py"),
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

/// Units that the control plane needs besides: Debian's, and the relay to the cell's database.
const CONTROL_UNITS: &[&str] = &[
    "mariadb.service",
    "nova-cell-database.service",
    "rabbitmq-server.service",
];

/// Where MariaDB listens, and the relay through which Nova reaches the database of its cell.
const DATABASE_PORT: u16 = 3306;
const CELL_DATABASE_PORT: u16 = 3307;

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
    layer: &Layer,
    var: &Path,
    template: &Path,
    site: &Site,
) -> Result<()> {
    control_plane_configuration(layer, site, CELL_DATABASE_PORT)?;
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

fn control_plane_configuration(layer: &Layer, site: &Site, cell_port: u16) -> Result<()> {
    let database = |port: u16| format!("mysql+pymysql://openstack:openstack@127.0.0.1:{port}");
    let values = [
        ("openstack", site.openstack.to_string()),
        ("ovn_nb", northbound(&site.ovn)),
        ("ovn_sb", southbound(&site.ovn)),
        ("database", database(DATABASE_PORT)),
        ("cell_database", database(cell_port)),
        ("glance_account", account("glance", site)),
        ("neutron_account", account("neutron", site)),
        ("nova_account", account("nova", site)),
        ("placement_account", account("placement", site)),
    ];
    write_files(layer, COMMON, &values)?;
    write_files(layer, SERVICES, &values)?;
    write_files(layer, CONTROL_PLANE, &values)?;
    // Nova looks for it beside its configuration only.
    layer.link(
        "/opt/openstack/etc/nova/api-paste.ini",
        "etc/nova/api-paste.ini",
    )?;
    write_services(layer, CONTROL_SERVICES)?;
    layer.enable(CONTROL_UNITS)
}

/// Writes nova-compute into a hypervisor. `bandwidth` is what a live migration may send each
/// second, in MiB; 0 for no limit.
pub fn compute_files(
    layer: &Layer,
    var: &Path,
    host: &str,
    address: Ipv4Addr,
    site: &Site,
    bandwidth: u32,
) -> Result<()> {
    let values = [
        ("openstack", site.openstack.to_string()),
        ("nova_account", account("nova", site)),
        ("host", host.to_owned()),
        ("address", address.to_string()),
        ("bandwidth", bandwidth.to_string()),
    ];
    write_files(layer, COMMON, &values)?;
    write_files(layer, COMPUTE, &values)?;
    write_services(layer, COMPUTE_SERVICES)?;
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
    let dir = cache::once(
        location(paths, tree, packages, guests),
        report,
        async |partial| {
            let step = report.long_step("make OpenStack's databases", Duration::from_secs(25));
            bake(partial, tree, packages, guests).await?;
            for scratch in SCRATCH {
                remove_tree(&partial.join(scratch))?;
            }
            step.done();
            Ok(())
        },
    )
    .await?;
    Ok(dir.join(BAKED))
}

/// The template within its place in the cache, and what is there only while it is made.
const BAKED: &str = "state";
const SCRATCH: [&str; 3] = ["upper", "work", "root"];

async fn bake(work: &Path, tree: &Path, packages: &Path, guests: &Guests) -> Result<()> {
    make_dirs(work, &SCRATCH)?;
    make_dirs(work, &[BAKED])?;
    let layer = Layer::at(work.join("upper"));
    let here = Site {
        openstack: Ipv4Addr::LOCALHOST,
        ovn: vec![Ipv4Addr::LOCALHOST],
    };
    // Nothing but MariaDB runs there.
    control_plane_configuration(&layer, &here, DATABASE_PORT)?;
    write_files(&layer, BAKE, &[])?;
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
fn location(paths: &Paths, tree: &Path, packages: &Path, guests: &Guests) -> PathBuf {
    let name = |path: &Path| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    };
    // These have keys of their own in their names.
    let guests = guests.micro.parent().map(name).unwrap_or_default();
    let mut parts = vec![name(tree), name(packages), guests];
    parts.extend([BAKE_SCRIPT, LINUX_COMMAND_LINE].map(ToOwned::to_owned));
    for (name, content) in COMMON.iter().chain(SERVICES).chain(BAKE) {
        parts.push(format!("{name} {content}"));
    }
    paths
        .cache
        .join(format!("openstack-{}", cache::key(&parts)))
}

/// How a service logs in; wanted in each section that names another service.
fn account(user: &str, site: &Site) -> String {
    let url = access(site).auth_url;
    format!(
        "auth_type = password\nauth_url = {url}\nusername = {user}\npassword = service\n\
         project_name = service\nproject_domain_name = Default\nuser_domain_name = Default"
    )
}

fn write_files(layer: &Layer, files: &[File], values: &[(&str, String)]) -> Result<()> {
    for (name, content) in files {
        if name.starts_with("etc/") {
            let filled =
                render(content, values).with_context(|| format!("failed to fill in {name}"))?;
            layer.put(name, &filled)?;
        } else {
            layer.put(name, content)?;
        }
    }
    Ok(())
}

fn write_services(layer: &Layer, services: &[Service]) -> Result<()> {
    for (name, description, after) in services {
        let values = [
            ("name", (*name).to_owned()),
            ("description", (*description).to_owned()),
            ("after", (*after).to_owned()),
        ];
        let unit = format!("{name}.service");
        let content = render(SERVICE_UNIT, &values)?;
        layer.put(&format!("etc/systemd/system/{unit}"), &content)?;
        layer.enable(&[&unit])?;
    }
    Ok(())
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

fn make_dirs(parent: &Path, names: &[&str]) -> Result<()> {
    for name in names {
        make_dir(&parent.join(name))?;
    }
    Ok(())
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
        let layer = Layer::at(dir.path().into());
        control_plane_configuration(&layer, &site(), CELL_DATABASE_PORT).unwrap();
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        let neutron = read("etc/neutron/plugins/ml2/ml2_conf.ini");
        assert!(
            neutron.contains("ovn_nb_connection = tcp:10.0.0.6:6641,tcp:10.0.0.7:6641\n"),
            "{neutron}"
        );
        let nova = read("etc/nova/nova.conf.d/control.conf");
        assert!(nova.contains("127.0.0.1:3307/nova?"), "{nova}");
        assert!(nova.contains("127.0.0.1:3306/nova_api?"), "{nova}");
        assert!(read("etc/mysql/lab.sql").contains("'http://10.0.0.5'"));
        let unit = read("etc/systemd/system/multi-user.target.wants/../nova-api.service");
        assert!(unit.contains("service.py nova-api\n"), "{unit}");
    }

    #[test]
    fn hypervisors_get_their_own_address_and_no_database() {
        let dir = tempfile::tempdir().unwrap();
        let (upper, var) = (dir.path().join("upper"), dir.path().join("var"));
        let address = Ipv4Addr::new(10, 0, 0, 11);
        let layer = Layer::at(upper.clone());
        compute_files(&layer, &var, "hv1", address, &site(), 3).unwrap();
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
