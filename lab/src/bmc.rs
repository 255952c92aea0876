//! A BMC per node: a Redfish service that switches the node's power through the lab's supervisor.
//!
//! All of them are one process, with a port per node. It is sushy-tools' emulator with a driver of
//! ours (`bmc.py`), so it speaks the Redfish that OpenStack's own tests are made with. Power is
//! real; boot device, boot mode and virtual media are only remembered, and only in memory.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::command::patience;
use crate::control;
use crate::pki::write_private;
use crate::process::{Process, Recipe};
use crate::python::Readiness;

/// Who may log in. It guards nothing: BMCs listen inside the lab only.
pub const USER: &str = "admin";
/// And how.
pub const PASSWORD: &str = "password";

/// The port of the first node's BMC.
pub const FIRST_PORT: u16 = 8001;

const CODE: &str = include_str!("../openstack/bmc.py");

/// A node and where its BMC listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BmcNode {
    /// The node's name, also the Id of its System.
    pub name: String,
    /// The System's UUID.
    pub uuid: String,
    /// The port of its BMC.
    pub port: u16,
}

/// Who may use a BMC, and from where to where.
#[derive(Debug, Clone)]
pub struct BmcSite<'a> {
    /// The lab's id.
    pub lab_id: &'a str,
    /// The lab's directory, with the supervisor's control socket.
    pub lab_dir: &'a Path,
    /// The BMCs' own directory.
    pub dir: &'a Path,
    /// The logs' directory.
    pub logs: &'a Path,
    /// The Python program.
    pub python: &'a Path,
    /// Its packages.
    pub packages: &'a Path,
    /// Where all BMCs listen.
    pub address: Ipv4Addr,
    /// The user of HTTP basic authentication.
    pub user: &'a str,
    /// Its password.
    pub password: &'a str,
}

/// Writes what the process needs into the BMCs' directory, and returns how it is started.
pub fn recipe(site: &BmcSite<'_>, nodes: &[BmcNode]) -> Result<Recipe> {
    let dir = site.dir;
    std::fs::create_dir_all(dir).with_context(|| format!("failed to make {}", dir.display()))?;
    let code = dir.join("bmc.py");
    std::fs::write(&code, CODE).with_context(|| format!("failed to write {}", code.display()))?;
    let settings = dir.join("settings.json");
    let content = json!({
        "dir": dir,
        "packages": site.packages,
        "supervisor": control::socket(site.lab_dir),
        "ready": dir.join("ready"),
        "address": site.address,
        "nodes": nodes,
        "user": site.user,
        "password": site.password,
    });
    write_private(&settings, &content.to_string())?;
    Ok(Recipe {
        name: "lab/bmc".to_owned(),
        command: vec![
            site.python.into(),
            // Isolated from the user's own Python packages and settings.
            "-s".into(),
            "-E".into(),
            code.into(),
            settings.into(),
        ],
        log: site.logs.join("bmc.log"),
        lab: site.lab_id.to_owned(),
    })
}

/// Starts the BMCs and waits until they listen.
pub async fn start(site: &BmcSite<'_>, nodes: &[BmcNode]) -> Result<Process> {
    let recipe = recipe(site, nodes)?;
    let mut ready = Readiness::new(&site.dir.join("ready"))?;
    let mut process = recipe.start()?;
    ready
        .wait(
            std::slice::from_mut(&mut process),
            patience(Duration::from_secs(60)),
        )
        .await?;
    Ok(process)
}

/// The URL of a node's BMC.
pub fn url(address: Ipv4Addr, node: &BmcNode) -> String {
    format!(
        "http://{address}:{}/redfish/v1/Systems/{}",
        node.port, node.name
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_is_for_nobody_else_to_read() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let site = BmcSite {
            lab_id: "none",
            lab_dir: Path::new("/lab"),
            dir: dir.path(),
            logs: dir.path(),
            python: Path::new("python3"),
            packages: Path::new("/packages"),
            address: Ipv4Addr::LOCALHOST,
            user: "admin",
            password: "secret",
        };
        let node = BmcNode {
            name: "n1".into(),
            uuid: "0".into(),
            port: 8001,
        };
        let recipe = recipe(&site, &[node]).unwrap();
        let settings = Path::new(recipe.command.last().unwrap());
        let mode = settings.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let text = std::fs::read_to_string(settings).unwrap();
        assert!(
            text.contains(r#""supervisor":"/lab/control.sock""#),
            "{text}"
        );
    }
}
