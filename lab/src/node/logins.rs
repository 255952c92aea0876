//! Logins between hypervisors: nova-compute on one of them runs commands on another and copies disks
//! there over ssh when it migrates a server cold or resizes it.
//!
//! One key pair for all hosts of the lab and one for all who log in, both made with the lab. So
//! every host is known to every other before its first connection, and ssh checks it strictly.

use std::net::Ipv4Addr;

use anyhow::Result;

use super::files::Layer;
use crate::pki::SshKey;

/// The keys of one lab.
#[derive(Debug)]
pub struct Logins {
    host: SshKey,
    user: SshKey,
}

/// Debian's own unit and configuration differ between releases and make keys at the first boot.
const UNIT: &str = "[Unit]\nDescription=logins of other hypervisors\nAfter=network.target\n\
    [Service]\nExecStart=/usr/sbin/sshd -D -e -f /etc/ssh/lab_sshd_config\n\
    RuntimeDirectory=sshd\nRestart=always\nRestartSec=1\n";

impl Logins {
    /// Makes the keys.
    pub fn new() -> Result<Self> {
        Ok(Self {
            host: SshKey::new()?,
            user: SshKey::new()?,
        })
    }

    /// Lets a hypervisor log in to others, and others log in at its address. nova-compute is root
    /// in the lab.
    pub fn write(&self, layer: &Layer, address: Ipv4Addr) -> Result<()> {
        layer.secret("root/.ssh/id_ecdsa", &self.user.private)?;
        layer.put(
            "root/.ssh/authorized_keys",
            &format!("{}\n", self.user.public),
        )?;
        layer.put(
            "root/.ssh/known_hosts",
            &format!("* {}\n", self.host.public),
        )?;
        // A host that is off must not hold a migration for two minutes.
        layer.put("root/.ssh/config", "ConnectTimeout 10\n")?;
        layer.secret("etc/ssh/lab_host_key", &self.host.private)?;
        layer.put(
            "etc/ssh/lab_sshd_config",
            &format!(
                "ListenAddress {address}\nHostKey /etc/ssh/lab_host_key\n\
                 PermitRootLogin prohibit-password\nPasswordAuthentication no\n\
                 KbdInteractiveAuthentication no\nUsePAM no\nUseDNS no\nPidFile none\n\
                 Subsystem sftp internal-sftp\n"
            ),
        )?;
        layer.put("etc/systemd/system/ssh.service", UNIT)?;
        layer.enable(&["ssh.service"])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_knows_every_other_and_admits_only_the_key_of_the_lab() {
        let dir = tempfile::tempdir().unwrap();
        let logins = Logins::new().unwrap();
        let layer = Layer::at(dir.path().into());
        logins.write(&layer, Ipv4Addr::new(10, 0, 0, 11)).unwrap();
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        let (host, user) = (&logins.host.public, &logins.user.public);
        assert_ne!(host, user);
        assert_eq!(read("root/.ssh/known_hosts"), format!("* {host}\n"));
        assert_eq!(read("root/.ssh/authorized_keys"), format!("{user}\n"));
        assert!(read("etc/ssh/lab_sshd_config").starts_with("ListenAddress 10.0.0.11\n"));
        // 104 bytes: "ecdsa-sha2-nistp256", "nistp256" and a point of 65.
        let blob = user.strip_prefix("ecdsa-sha2-nistp256 ").unwrap();
        assert_eq!(blob.len(), 140, "{user}");
    }
}
