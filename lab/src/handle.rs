//! A lab as tests and commands see it: start one, find one, ask it for things.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::cluster::Role;
use crate::command::patience;
use crate::config::{LabConfig, Order, Record, read_json, write_json};
use crate::control::{Answer, Fault, Request, State, Status, call};
use crate::node::{Power, enter, new_uuid, pid_one};
use crate::paths::{Paths, remove_tree};
use crate::process::{MARK, log_end, open_log};
use crate::report::Report;
use crate::setup::{self, Prepared, Python};
use crate::{cluster, supervisor, sweep};

/// A lab that has been started, by its directory.
#[derive(Debug, Clone)]
pub struct Lab {
    dir: PathBuf,
}

impl Lab {
    /// Prepares the machine, starts a lab and waits until it is ready. `exe` is the `cobalt`
    /// program, which becomes the supervisor.
    pub async fn up(paths: &Paths, config: LabConfig, exe: &Path, report: &Report) -> Result<Self> {
        config.validate()?;
        let prepared = setup::prepare(paths, &config, report).await?;
        if config.has_machines() {
            setup::check_inotify(&config)?;
        }
        let lab = Self::launch(paths, config, prepared, exe).await?;
        if let Err(error) = lab.ready(report).await {
            // It takes down what it had started; until then its name is taken.
            lab.ended().await?;
            return Err(error);
        }
        Ok(lab)
    }

    /// Starts the supervisor and returns as soon as it listens.
    pub async fn launch(
        paths: &Paths,
        config: LabConfig,
        prepared: Prepared,
        exe: &Path,
    ) -> Result<Self> {
        config.validate()?;
        let registering = sweep::registry_lock(paths).await?;
        sweep::dead_labs(paths).await?;
        let dir = paths.lab(&config.name);
        // The directory is the reservation of the name.
        if let Err(error) = std::fs::create_dir(&dir) {
            if error.kind() == std::io::ErrorKind::AlreadyExists {
                bail!(
                    "a lab named {0} runs already: `cobalt lab status` shows it, `cobalt lab down \
                     --name {0}` ends it, and --name gives a second one another name",
                    config.name
                );
            }
            return Err(error).with_context(|| format!("failed to make {}", dir.display()));
        }
        let lock = std::fs::File::create(dir.join("lock")).context("failed to make a lock")?;
        lock.try_lock()
            .context("failed to take the lock of a new lab")?;
        drop(registering);
        match Self::launch_in(&dir, lock, config, prepared, exe).await {
            Ok(()) => Ok(Self { dir }),
            Err(error) => {
                remove_tree(&dir)?;
                Err(error)
            }
        }
    }

    async fn launch_in(
        dir: &Path,
        lock: std::fs::File,
        config: LabConfig,
        prepared: Prepared,
        exe: &Path,
    ) -> Result<()> {
        let logs = dir.join("logs");
        std::fs::create_dir(&logs).with_context(|| format!("failed to make {}", logs.display()))?;
        let id = new_uuid()?.chars().take(4).collect::<String>();
        let record = Record {
            id: id.clone(),
            name: config.name.clone(),
            block: None,
        };
        record.write(dir)?;
        for layout in &prepared.images {
            supervisor::add_image(dir, layout)?;
        }
        if let Some(python) = &prepared.python {
            write_client(dir, python)?;
        }
        let order = Order {
            config,
            starter: std::process::id(),
            prepared,
        };
        write_json(&dir.join("order.json"), &order)?;
        let log = logs.join("supervisor.log");
        let mut child = Command::new("setsid")
            .arg(exe)
            .args(["lab", "supervise"])
            .arg(dir)
            .env(MARK, &id)
            // The lock goes with the process; see `sweep::is_alive`.
            .stdin(lock)
            .stdout(Stdio::piped())
            .stderr(open_log(&log)?)
            .spawn()
            .context("failed to start the supervisor")?;
        let stdout = child
            .stdout
            .take()
            .context("the supervisor has no output")?;
        let mut lines = BufReader::new(stdout).lines();
        let first = tokio::time::timeout(patience(Duration::from_secs(30)), lines.next_line());
        match first.await {
            Ok(Ok(Some(line))) if line == "listening" => Ok(()),
            _ => bail!("the supervisor did not start:\n{}", log_end(&log)),
        }
    }

    /// A lab by its name, running or not.
    pub fn find(paths: &Paths, name: &str) -> Result<Self> {
        let dir = paths.lab(name);
        if !dir.is_dir() {
            bail!("there is no lab named {name}; `cobalt lab up --name {name}` starts one");
        }
        Ok(Self { dir })
    }

    /// All labs, by name.
    pub fn all(paths: &Paths) -> Vec<Self> {
        let mut dirs: Vec<PathBuf> = std::fs::read_dir(&paths.labs)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.join("lab.json").is_file())
            .collect();
        dirs.sort();
        dirs.into_iter().map(|dir| Self { dir }).collect()
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A kubeconfig with a context per cluster.
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    /// The kubeconfig of one cluster.
    pub fn cluster_kubeconfig(&self, role: Role) -> PathBuf {
        self.dir.join(role.name()).join("admin.conf")
    }

    /// An admin client of one cluster.
    pub async fn client(&self, role: Role) -> Result<kube::Client> {
        cluster::client(&self.cluster_kubeconfig(role)).await
    }

    /// The directory of the Kubernetes programs.
    pub fn bin(&self) -> Result<PathBuf> {
        self.prepared()?
            .kubernetes
            .context("this lab has no Kubernetes")
    }

    /// What it is made of.
    pub fn prepared(&self) -> Result<Prepared> {
        let order: Order = read_json(&self.dir.join("order.json"))?;
        Ok(order.prepared)
    }

    /// Waits until it is ready.
    pub async fn ready(&self, report: &Report) -> Result<()> {
        call(&self.dir, &Request::Ready, report).await.map(drop)
    }

    /// What runs. A lab whose supervisor is gone has a status, too.
    pub async fn status(&self) -> Result<Status> {
        if sweep::is_alive(&self.dir) {
            return match call(&self.dir, &Request::Status, &Report::silent()).await? {
                Answer::Status(status) => Ok(*status),
                _ => bail!("the supervisor gave no status"),
            };
        }
        let record = Record::read(&self.dir)?;
        let (state, error) = match std::fs::read_to_string(self.dir.join("error")) {
            Ok(error) => (State::Failed, error),
            Err(_) => (
                State::Dead,
                "its supervisor is gone; `cobalt lab clean` removes what is left".to_owned(),
            ),
        };
        Ok(Status {
            name: record.name,
            id: record.id,
            state,
            error: Some(error),
            pid: None,
            dir: self.dir.clone(),
            kubeconfig: self.kubeconfig(),
            bin: self.bin().ok(),
            addresses: record.block.map(crate::net::Block::range),
            access: None,
            clusters: Vec::new(),
            processes: Vec::new(),
            nodes: Vec::new(),
        })
    }

    /// Changes a node's power and, where that can be expected, waits until it is Ready.
    pub async fn power(&self, node: &str, action: Power, report: &Report) -> Result<()> {
        let request = Request::Power {
            node: node.to_owned(),
            action,
            wait: true,
        };
        call(&self.dir, &request, report).await.map(drop)
    }

    /// Breaks something, or mends it.
    pub async fn fault(&self, action: Fault, target: &str) -> Result<()> {
        let request = Request::Fault {
            action,
            target: target.to_owned(),
        };
        call(&self.dir, &request, &Report::silent()).await.map(drop)
    }

    /// The command that runs a program inside a node.
    pub async fn enter(&self, node: &str, arguments: &[String]) -> Result<Vec<String>> {
        let status = self.status().await?;
        let names: Vec<&str> = status.nodes.iter().map(|node| node.name.as_str()).collect();
        let found = status
            .nodes
            .iter()
            .find(|candidate| candidate.name == node)
            .with_context(|| {
                format!(
                    "there is no node {node}; this lab has: {}",
                    names.join(", ")
                )
            })?;
        Ok(enter(pid_one(node, &found.observed)?, arguments))
    }

    /// Puts an OCI image layout into the lab's registry.
    pub fn add_image(&self, layout: &Path) -> Result<()> {
        supervisor::add_image(&self.dir, layout)
    }

    /// Waits until its supervisor has ended.
    async fn ended(&self) -> Result<()> {
        // A lab that is gone has no lock any more.
        let Ok(lock) = std::fs::File::open(self.dir.join("lock")) else {
            return Ok(());
        };
        let gone = tokio::task::spawn_blocking(move || lock.lock());
        tokio::time::timeout(patience(Duration::from_secs(60)), gone)
            .await
            .context("the supervisor does not end; `cobalt lab clean` after killing it")??
            .context("failed to wait for the supervisor")
    }

    /// Takes it down and waits until nothing is left.
    pub async fn down(&self) -> Result<()> {
        if sweep::is_alive(&self.dir) {
            // A supervisor that goes down on its own at this moment is just as well.
            drop(call(&self.dir, &Request::Down, &Report::silent()).await);
            self.ended().await?;
        }
        // Only after a supervisor that died: one that ends in order has removed all of it.
        if let Ok(record) = Record::read(&self.dir) {
            sweep::lab(&record).await?;
        }
        remove_tree(&self.dir)
    }
}

/// The `openstack` command of a lab: the client of its packages.
fn write_client(dir: &Path, python: &Python) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let bin = dir.join("bin");
    std::fs::create_dir_all(&bin).with_context(|| format!("failed to make {}", bin.display()))?;
    let program = bin.join("openstack");
    let script = format!(
        "#!/bin/sh\nPYTHONPATH='{}' PYTHONWARNINGS=ignore exec '{}' -m openstackclient.shell \"$@\"\n",
        python.packages.display(),
        python.program.display()
    );
    std::fs::write(&program, script)
        .and_then(|()| std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)))
        .with_context(|| format!("failed to write {}", program.display()))
}
