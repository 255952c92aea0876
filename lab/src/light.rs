//! The light OpenStack, for tests: real Keystone, Placement and Nova (API, conductor, scheduler,
//! a compute service per host) in two processes on loopback, without root.
//!
//! ```text
//!  openstack/identity   Keystone, Placement, a stub for the network and image services
//!  openstack/nova       Nova on an in-process bus, fake hypervisors, the control port
//! ```
//!
//! Both keep their state in SQLite databases in the lab's directory, so a process that was killed
//! goes on where it was when its recipe is started again: servers, migrations, hosts, and which
//! host is stopped. What is only in memory is lost: the knobs are back at their defaults, a
//! request that was under way is not ended by anybody (Nova cleans up most of it at its start),
//! and guests come back in the state that Nova's database has for them.
//!
//! Hypervisors, network and images are not real: servers have no ports, and a guest is a name.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::access::Access;
use crate::cache;
use crate::command::{Run, patience};
use crate::paths::{Paths, remove_tree};
use crate::pki::write_private;
use crate::process::{Process, Recipe};
use crate::python::Readiness;
use crate::report::Report;

const CODE: [(&str, &str); 10] = [
    ("bus.py", include_str!("../openstack/light/bus.py")),
    ("common.py", include_str!("../openstack/light/common.py")),
    (
        "configuration.py",
        include_str!("../openstack/light/configuration.py"),
    ),
    ("control.py", include_str!("../openstack/light/control.py")),
    ("faults.py", include_str!("../openstack/light/faults.py")),
    (
        "hypervisor.py",
        include_str!("../openstack/light/hypervisor.py"),
    ),
    (
        "identity.py",
        include_str!("../openstack/light/identity.py"),
    ),
    (
        "nova_all.py",
        include_str!("../openstack/light/nova_all.py"),
    ),
    ("stub.py", include_str!("../openstack/light/stub.py")),
    (
        "template.py",
        include_str!("../openstack/light/template.py"),
    ),
];

const DATABASES: [&str; 5] = [
    "keystone.db",
    "nova.db",
    "nova_api.db",
    "nova_cell0.db",
    "placement.db",
];

/// Directories of the template: keys, and what the packages offer.
const DIRECTORIES: [&str; 3] = ["keys/fernet", "keys/credential", "entry-points"];

/// They guard nothing: everything listens on loopback and ends with the lab.
const PASSWORD: &str = "lab";
const USERNAME: &str = "admin";
const PROJECT: &str = "admin";
const REGION: &str = "lab";

/// What a light OpenStack shall have.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LightConfig {
    /// The compute hosts, by name.
    pub hosts: Vec<String>,
    /// How often each service reports that it is alive. Each report costs some 5 ms, so many hosts
    /// report less often: 50 of them every 5 s.
    pub report_seconds: u32,
    /// After how much silence a stopped service counts as down.
    pub down_seconds: u32,
    /// How many live migrations a host does at the same time; Nova's default is one.
    pub concurrent_live_migrations: u32,
    /// How long a token is good for.
    pub token_seconds: u32,
}

impl Default for LightConfig {
    fn default() -> Self {
        Self {
            hosts: ["hv1", "hv2", "hv3"].map(Into::into).to_vec(),
            report_seconds: 2,
            down_seconds: 8,
            concurrent_live_migrations: 1,
            token_seconds: 3600,
        }
    }
}

/// A light OpenStack under way.
#[derive(Debug)]
pub struct Light {
    /// Its processes.
    pub processes: Vec<Process>,
    /// How to use it.
    pub access: Access,
}

impl LightConfig {
    /// Hosts named hv1, hv2, ...
    pub fn hosts(count: u16) -> Self {
        Self {
            hosts: (1..=count).map(|number| format!("hv{number}")).collect(),
            // Many report less often, or reporting is all that they do.
            report_seconds: 2 + u32::from(count) / 15,
            down_seconds: 8 + u32::from(count) / 5,
            ..Self::default()
        }
    }
}

/// The loopback ports of one light OpenStack.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Ports {
    identity: u16,
    placement: u16,
    compute: u16,
    stub: u16,
    control: u16,
}

/// Empty databases and keys; made when they are not there (about 5 s).
pub async fn template(
    paths: &Paths,
    python: &Path,
    packages: &Path,
    report: &Report,
) -> Result<PathBuf> {
    let dir = paths.cache.join(format!("light-{}", hash(packages)));
    cache::once(dir, report, async |partial| {
        let step = report.long_step(
            "make the databases of the light OpenStack",
            Duration::from_secs(5),
        );
        let work = partial.join("work");
        write_code(&work)?;
        let settings = write_settings(&LightConfig::default(), &work, packages, Ports::default())?;
        let half = |name: &'static str| {
            let arguments = script(&work, "template.py", &settings);
            Run::new(&python.to_string_lossy(), arguments)
                .arguments([name])
                .deadline(patience(Duration::from_secs(180)))
                .output()
        };
        tokio::try_join!(half("identity"), half("nova"))
            .context("failed to make the databases of the light OpenStack")?;
        copy_state(&work, partial)?;
        remove_tree(&work)?;
        step.done();
        Ok(())
    })
    .await
}

/// Starts a light OpenStack in `dir` and waits until every host is up.
pub async fn start(
    config: &LightConfig,
    lab_id: &str,
    dir: &Path,
    logs: &Path,
    python: &Path,
    packages: &Path,
    template: &Path,
) -> Result<Light> {
    // Ports are chosen here and used a moment later; in between somebody else may take one.
    let mut attempt = 1;
    loop {
        match start_once(config, lab_id, dir, logs, python, packages, template).await {
            Err(error)
                if attempt < 3 && format!("{error:#}").contains("Address already in use") =>
            {
                attempt += 1;
            }
            result => return result,
        }
    }
}

async fn start_once(
    config: &LightConfig,
    lab_id: &str,
    dir: &Path,
    logs: &Path,
    python: &Path,
    packages: &Path,
    template: &Path,
) -> Result<Light> {
    remove_tree(dir)?;
    write_code(dir)?;
    copy_state(template, dir)?;
    let ports = free_ports()?;
    let settings = write_settings(config, dir, packages, ports)?;
    let mut ready = Readiness::new(&dir.join("ready"))?;
    let start = |name: &str, file: &str| {
        let mut command = vec![python.as_os_str().to_owned()];
        command.extend(script(dir, file, &settings).map(Into::into));
        Recipe {
            name: format!("openstack/{name}"),
            command,
            log: logs.join(format!("openstack-{name}.log")),
            lab: lab_id.to_owned(),
        }
        .start()
    };
    let mut processes = vec![
        start("identity", "identity.py")?,
        start("nova", "nova_all.py")?,
    ];
    // Half a second per host, and more when the machine has much else to do.
    let hosts = u32::try_from(config.hosts.len()).unwrap_or(u32::MAX);
    let deadline = Duration::from_secs(120) + Duration::from_secs(5).saturating_mul(hosts);
    ready.wait(&mut processes, patience(deadline)).await?;
    Ok(Light {
        processes,
        access: Access {
            auth_url: format!("http://127.0.0.1:{}/v3", ports.identity),
            username: USERNAME.to_owned(),
            password: PASSWORD.to_owned(),
            project: PROJECT.to_owned(),
            domain: "Default".to_owned(),
            region: REGION.to_owned(),
            control_url: Some(format!("http://127.0.0.1:{}", ports.control)),
        },
    })
}

/// Isolated from the user's own Python packages and settings.
fn script(dir: &Path, file: &str, settings: &Path) -> [PathBuf; 4] {
    [
        "-s".into(),
        "-E".into(),
        dir.join("code").join(file),
        settings.to_owned(),
    ]
}

fn write_code(dir: &Path) -> Result<()> {
    let code = dir.join("code");
    std::fs::create_dir_all(&code).with_context(|| format!("failed to make {}", code.display()))?;
    for (name, content) in CODE {
        let path = code.join(name);
        std::fs::write(&path, content)
            .with_context(|| format!("failed to write {}", path.display()))?;
    }
    Ok(())
}

fn write_settings(
    config: &LightConfig,
    dir: &Path,
    packages: &Path,
    ports: Ports,
) -> Result<PathBuf> {
    let hosts = u32::try_from(config.hosts.len()).unwrap_or(u32::MAX);
    let settings = json!({
        "dir": dir,
        "packages": packages,
        "ports": ports,
        "ready": dir.join("ready"),
        "username": USERNAME,
        "password": PASSWORD,
        "servicePassword": PASSWORD,
        "project": PROJECT,
        "region": REGION,
        "hosts": config.hosts,
        "reportSeconds": config.report_seconds.max(hosts / 10),
        "downSeconds": config.down_seconds,
        "concurrentLiveMigrations": config.concurrent_live_migrations,
        "tokenSeconds": config.token_seconds,
    });
    let path = dir.join("settings.json");
    write_private(&path, &settings.to_string())?;
    Ok(path)
}

/// Copies what the template is made of, and nothing that belongs to one run.
fn copy_state(from: &Path, to: &Path) -> Result<()> {
    let copy = |name: &Path| {
        std::fs::copy(from.join(name), to.join(name))
            .with_context(|| format!("failed to copy {}", from.join(name).display()))
    };
    for name in DATABASES {
        copy(Path::new(name))?;
    }
    for name in DIRECTORIES {
        std::fs::create_dir_all(to.join(name)).with_context(|| format!("failed to make {name}"))?;
        let entries = std::fs::read_dir(from.join(name))
            .with_context(|| format!("failed to read {}", from.join(name).display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("failed to list {name}"))?;
            copy(&Path::new(name).join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// Keyed by what makes the databases; the directory of the packages is named by its content.
fn hash(packages: &Path) -> String {
    let packages = packages.file_name().unwrap_or_default().to_string_lossy();
    let code = CODE
        .iter()
        .filter(|(name, _)| ["common.py", "configuration.py", "template.py"].contains(name))
        .map(|&(_, content)| content);
    cache::key(
        [&packages, USERNAME, PASSWORD, PROJECT, REGION]
            .into_iter()
            .chain(code),
    )
}

fn free_ports() -> Result<Ports> {
    // All are held until the last one is found, so they differ.
    let mut listeners = Vec::new();
    let mut port = || -> Result<u16> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .context("failed to find a free port")?;
        let port = listener.local_addr().context("failed to read a port")?;
        listeners.push(listener);
        Ok(port.port())
    };
    Ok(Ports {
        identity: port()?,
        placement: port()?,
        compute: port()?,
        stub: port()?,
        control: port()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_may_name_its_hosts_alone() {
        let config: LightConfig = serde_json::from_str(r#"{"hosts": ["a"]}"#).unwrap();
        assert_eq!(config.hosts, ["a"]);
        assert_eq!(config.report_seconds, 2);
    }

    #[test]
    fn the_code_is_complete() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("openstack/light");
        let mut files: Vec<String> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.ends_with(".py"))
            .collect();
        files.sort();
        assert_eq!(files, CODE.map(|(name, _)| name));
    }
}
