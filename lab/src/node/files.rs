//! A machine's own layer: what differs between machines, written before the first boot.

use std::net::Ipv4Addr;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::{NodeSpec, hypervisor};
use crate::command::run;
use crate::paths::make_dir;
use crate::pki::write_private;
use crate::plan::Kind;

/// The upper layer of a machine's root file system.
#[derive(Debug)]
pub struct Layer {
    upper: PathBuf,
}

/// Makes the layer with what every machine has; `hosts` are all machines of the lab.
pub async fn base(spec: &NodeSpec, hosts: &[(String, Ipv4Addr)]) -> Result<Layer> {
    for dir in ["upper", "work", "root"] {
        make_dir(&spec.dir.join(dir))?;
    }
    let tree = spec.layers.last().context("a machine without a tree")?;
    let (from, to) = (tree.join("var"), spec.dir.join("var"));
    run("cp", ["-a".as_ref(), from.as_os_str(), to.as_os_str()]).await?;
    let layer = Layer::at(spec.dir.join("upper"));
    layer.put("etc/hostname", &format!("{}\n", spec.name))?;
    layer.put(
        "etc/machine-id",
        &format!("{}\n", spec.uuid.replace('-', "")),
    )?;
    let mut table = "127.0.0.1 localhost\n".to_owned();
    for (name, address) in hosts {
        table.push_str(&format!("{address} {name}\n"));
    }
    layer.put("etc/hosts", &table)?;
    if spec.kind == Kind::Hypervisor {
        hypervisor::give_probe(spec).await?;
    }
    if !matches!(spec.kind, Kind::Node | Kind::Hypervisor) {
        // Nobody logs in there; without them it is smaller and boots sooner.
        layer.mask(&["dbus.service", "dbus.socket", "systemd-logind.service"])?;
    }
    Ok(layer)
}

impl Layer {
    /// The layer in a directory.
    pub fn at(upper: PathBuf) -> Self {
        Self { upper }
    }

    /// Writes a file.
    pub fn put(&self, name: &str, content: &str) -> Result<()> {
        let path = self.prepare(name)?;
        std::fs::write(&path, content)
            .with_context(|| format!("failed to write {}", path.display()))
    }

    /// Writes a file that only root may read.
    pub fn secret(&self, name: &str, content: &str) -> Result<()> {
        write_private(&self.prepare(name)?, content)
    }

    /// Writes a program.
    pub fn program(&self, name: &str, content: &str) -> Result<()> {
        self.put(name, content)?;
        let path = self.upper.join(name);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
            .with_context(|| format!("failed to make {} executable", path.display()))
    }

    /// Makes a symbolic link; what is there already gives way.
    pub fn link(&self, target: &str, name: &str) -> Result<()> {
        let path = self.prepare(name)?;
        // Usually there is none.
        drop(std::fs::remove_file(&path));
        symlink(target, &path).with_context(|| format!("failed to link {}", path.display()))
    }

    /// Lets units start at boot: the machine's own, else those of its tree.
    pub fn enable(&self, units: &[&str]) -> Result<()> {
        for unit in units {
            let target = match unit.rsplit('.').next() {
                Some("socket") => "sockets.target.wants",
                _ => "multi-user.target.wants",
            };
            let own = format!("etc/systemd/system/{unit}");
            let from = if self.upper.join(&own).exists() {
                format!("/{own}")
            } else {
                format!("/lib/systemd/system/{unit}")
            };
            self.link(&from, &format!("etc/systemd/system/{target}/{unit}"))?;
        }
        Ok(())
    }

    /// Keeps units of the tree from ever starting.
    fn mask(&self, units: &[&str]) -> Result<()> {
        for unit in units {
            self.link("/dev/null", &format!("etc/systemd/system/{unit}"))?;
        }
        Ok(())
    }

    fn prepare(&self, name: &str) -> Result<PathBuf> {
        let path = self.upper.join(name);
        if let Some(parent) = path.parent() {
            make_dir(parent)?;
        }
        Ok(path)
    }
}
