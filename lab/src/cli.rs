//! `cobalt lab`: the lab's commands. Tests and people use them; they are stable.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::cluster::{ClusterConfig, Role};
use crate::config::LabConfig;
use crate::control::{Fault, State, Status};
use crate::handle::Lab;
use crate::node::Power;
use crate::node::stage::{self, Stage};
use crate::paths::{Paths, remove_tree};
use crate::report::{Report, human};
use crate::{setup, supervisor, sweep};

const UP_EXAMPLES: &str = "\
Examples:
  cobalt lab up --nodes 3                  three nodes, ready in seconds once all is built
  cobalt lab up --name api --nodes 0       only the control plane
  cobalt lab up --clusters hypervisor,control-plane --nodes 1
  eval \"$(cobalt lab env)\" && kubectl get nodes";

/// A real region on this machine: real Kubernetes, real nodes, real faults.
#[derive(Debug, Parser)]
pub struct LabArgs {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    /// Start a lab. The first time builds Kubernetes (about 10 minutes on two cores).
    #[command(after_help = UP_EXAMPLES)]
    Up(Up),
    /// Take a lab down; nothing of it is left.
    Down {
        #[command(flatten)]
        lab: Name,
        /// Every lab.
        #[arg(long, conflicts_with = "name")]
        all: bool,
    },
    /// Show labs and what runs in them.
    Status {
        /// Only this lab.
        #[arg(long)]
        name: Option<String>,
        /// The format.
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Print the environment of a lab for `eval`.
    Env(Name),
    /// Run a program inside a node.
    #[command(after_help = "Example:\n  cobalt lab exec n1 -- systemctl status kubelet")]
    Exec {
        #[command(flatten)]
        lab: Name,
        /// The node.
        node: String,
        /// The program and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Print the log of a process or the console of a node; without one, list them.
    Logs {
        #[command(flatten)]
        lab: Name,
        /// A process (`hypervisor/etcd`), a node (`n1`) or `supervisor`.
        component: Option<String>,
        /// Keep printing what is added.
        #[arg(short, long)]
        follow: bool,
    },
    /// Break something, or mend it.
    #[command(after_help = "\
Targets are nodes (n1), units of nodes (n1/kubelet) and processes (hypervisor/etcd).
A killed process stays dead until `heal`; a unit is restarted by its node's systemd.

Examples:
  cobalt lab fault cut n2            pull the network cable of n2
  cobalt lab fault stop n1/kubelet   the kubelet hangs
  cobalt lab fault heal n2           undo every fault of n2")]
    Fault {
        #[command(flatten)]
        lab: Name,
        /// What to do.
        action: Fault,
        /// To what.
        target: String,
    },
    /// Switch a node off or on, reboot it, or pull the plug.
    Power {
        #[command(flatten)]
        lab: Name,
        /// What to do.
        action: Power,
        /// The node.
        node: String,
    },
    /// Put OCI image layouts into a lab's registry.
    Load {
        #[command(flatten)]
        lab: Name,
        /// Directories of image layouts, as `make images` writes them.
        #[arg(required = true)]
        layouts: Vec<PathBuf>,
    },
    /// Remove what dead labs left; running labs are left alone.
    Clean {
        /// Also remove what is built and cached.
        #[arg(long)]
        cache: bool,
    },
    /// Build and download everything that labs need, and start none.
    Prepare {
        /// Only what labs without nodes need; works without root.
        #[arg(long)]
        api_only: bool,
    },
    #[command(hide = true)]
    Supervise { dir: PathBuf },
    #[command(hide = true)]
    NodeStage { stage: Stage, spec: PathBuf },
}

#[derive(Debug, Args)]
struct Name {
    /// The lab.
    #[arg(long, default_value = DEFAULT_NAME, env = "COBALT_LAB")]
    name: String,
}

const DEFAULT_NAME: &str = "lab";

#[derive(Debug, Args)]
struct Up {
    #[command(flatten)]
    lab: Name,
    /// Real nodes in each cluster.
    #[arg(long, default_value_t = 3)]
    nodes: u8,
    /// What the lab shall have.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "kube")]
    with: Vec<Component>,
    /// The clusters.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "hypervisor")]
    clusters: Vec<Role>,
    /// Node objects whose kubelets the lab plays, in the first cluster.
    #[arg(long, default_value_t = 0)]
    played_nodes: u32,
    /// Let the API servers write audit logs.
    #[arg(long)]
    audit: bool,
    /// Only etcd and the API server: no controller-manager, no scheduler, no nodes.
    #[arg(long, conflicts_with = "nodes")]
    api_only: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Component {
    /// Kubernetes.
    Kube,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Json,
}

/// Runs a command.
pub async fn run(args: LabArgs) -> Result<ExitCode> {
    let paths = Paths::from_env()?;
    match args.command {
        LabCommand::Up(arguments) => up(&paths, arguments).await?,
        LabCommand::Down { lab, all } => down(&paths, &lab.name, all).await?,
        LabCommand::Status { name, output } => return status(&paths, name, output).await,
        LabCommand::Env(lab) => env(&paths, &lab.name).await?,
        LabCommand::Exec { lab, node, command } => {
            let command = Lab::find(&paths, &lab.name)?.enter(&node, &command).await?;
            return replace_with(&command);
        }
        LabCommand::Logs {
            lab,
            component,
            follow,
        } => {
            return logs(&paths, &lab.name, component.as_deref(), follow).await;
        }
        LabCommand::Fault {
            lab,
            action,
            target,
        } => {
            Lab::find(&paths, &lab.name)?.fault(action, &target).await?;
        }
        LabCommand::Power { lab, action, node } => {
            Lab::find(&paths, &lab.name)?
                .power(&node, action, &Report::stderr())
                .await?;
        }
        LabCommand::Load { lab, layouts } => {
            let lab = Lab::find(&paths, &lab.name)?;
            for layout in layouts {
                lab.add_image(&layout)?;
            }
        }
        LabCommand::Clean { cache } => clean(&paths, cache).await?,
        LabCommand::Prepare { api_only } => {
            setup::prepare(&paths, !api_only, &Report::stderr()).await?;
        }
        LabCommand::Supervise { dir } => supervisor::run(&dir).await?,
        LabCommand::NodeStage { stage, spec } => stage::run(stage, &spec)?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn up(paths: &Paths, arguments: Up) -> Result<()> {
    let nodes = if arguments.api_only {
        0
    } else {
        arguments.nodes
    };
    let mut config = LabConfig {
        name: arguments.lab.name,
        clusters: arguments
            .clusters
            .into_iter()
            .map(|role| ClusterConfig {
                role,
                nodes,
                played_nodes: 0,
                controllers: !arguments.api_only,
                audit: arguments.audit,
            })
            .collect(),
        owner: None,
    };
    if let Some(first) = config.clusters.first_mut() {
        first.played_nodes = arguments.played_nodes;
    }
    if arguments.with.is_empty() {
        bail!("--with needs at least one component; `kube` is the only one yet");
    }
    config.validate()?;
    let began = Instant::now();
    let report = Report::stderr();
    let name = config.name.clone();
    let exe = std::env::current_exe().context("failed to find this program")?;
    if paths.lab(&name).is_dir() && sweep::is_alive(&paths.lab(&name)) {
        bail!(
            "the lab {name} runs already: `cobalt lab status` shows it, `cobalt lab down --name \
             {name}` ends it, and --name gives a second one another name"
        );
    }
    tokio::select! {
        result = Lab::up(paths, config, &exe, &report) => { result?; }
        interrupted = tokio::signal::ctrl_c() => {
            interrupted.context("failed to wait for signals")?;
            eprintln!("interrupted: taking the lab down");
            if let Ok(lab) = Lab::find(paths, &name) {
                lab.down().await?;
            }
            bail!("interrupted");
        }
    }
    let lab = Lab::find(paths, &name)?;
    eprintln!("lab {name} is ready after {}\n", human(began.elapsed()));
    print_table(&[lab.status().await?])?;
    let option = if name == DEFAULT_NAME {
        String::new()
    } else {
        format!(" --name {name}")
    };
    eprintln!(
        "\nNext:\n  eval \"$(cobalt lab env{option})\" && kubectl get nodes\n  \
         cobalt lab exec{option} n1 -- systemctl status kubelet\n  \
         cobalt lab power{option} loss n2        pull a plug and watch\n  \
         cobalt lab logs{option}                 what there is to read\n  \
         cobalt lab down{option}"
    );
    Ok(())
}

async fn down(paths: &Paths, name: &str, all: bool) -> Result<()> {
    if all {
        for lab in Lab::all(paths) {
            lab.down().await?;
        }
        return Ok(());
    }
    // A lab that is not there is as down as can be.
    match Lab::find(paths, name) {
        Ok(lab) => lab.down().await,
        Err(_) => {
            eprintln!("there is no lab named {name}");
            Ok(())
        }
    }
}

async fn status(paths: &Paths, name: Option<String>, output: Format) -> Result<ExitCode> {
    let labs = match &name {
        Some(name) => vec![Lab::find(paths, name)?],
        None => Lab::all(paths),
    };
    let mut all = Vec::new();
    for lab in labs {
        // One that ends at this very moment is not worth an error.
        all.extend(lab.status().await.ok());
    }
    if output == Format::Json {
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else if all.is_empty() {
        eprintln!("no lab runs; `cobalt lab up` starts one");
    } else {
        print_table(&all)?;
    }
    let good = all
        .iter()
        .all(|lab| matches!(lab.state, State::Ready | State::Starting));
    Ok(if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn print_table(labs: &[Status]) -> Result<()> {
    let mut rows = vec![["LAB", "WHAT", "STATE", "WHERE"].map(ToOwned::to_owned)];
    for lab in labs {
        let mut row = |what: &str, state: &str, place: &str| {
            rows.push([&lab.name, what, state, place].map(ToOwned::to_owned));
        };
        row("lab", lab.state.name(), &lab.dir.to_string_lossy());
        for cluster in &lab.clusters {
            row(cluster.role.name(), "cluster", &cluster.server);
            for process in &cluster.processes {
                let state = process
                    .pid
                    .map_or_else(|| "dead".to_owned(), |pid| format!("pid {pid}"));
                row(&process.name, &state, &process.log.to_string_lossy());
            }
        }
        for node in &lab.nodes {
            let mut state = if node.observed.on { "on" } else { "off" }.to_owned();
            for (set, word) in [
                (node.observed.cut, ",cut"),
                (node.observed.frozen, ",stopped"),
            ] {
                if set {
                    state.push_str(word);
                }
            }
            let what = format!("{} {}", node.name, node.address);
            row(&what, &state, &node.log.to_string_lossy());
        }
        if let Some(error) = &lab.error {
            row("error", "", error);
        }
    }
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(String::len).max().unwrap_or_default()
    };
    let (first, second, third) = (width(0), width(1), width(2));
    let mut out = std::io::stdout().lock();
    for [lab, what, state, place] in &rows {
        writeln!(
            out,
            "{lab:<first$}  {what:<second$}  {state:<third$}  {place}"
        )?;
    }
    Ok(())
}

async fn env(paths: &Paths, name: &str) -> Result<()> {
    let lab = Lab::find(paths, name)?;
    let status = lab.status().await?;
    if status.state != State::Ready {
        bail!("the lab {name} is {}, not ready", status.state.name());
    }
    println!(
        "export KUBECONFIG={}",
        quote(&status.kubeconfig.to_string_lossy())
    );
    println!("export COBALT_LAB={}", quote(&status.name));
    println!(
        "export PATH={}:\"$PATH\"",
        quote(&status.bin.to_string_lossy())
    );
    Ok(())
}

fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

async fn logs(
    paths: &Paths,
    name: &str,
    component: Option<&str>,
    follow: bool,
) -> Result<ExitCode> {
    let lab = Lab::find(paths, name)?;
    let logs = log_files(&lab)?;
    let Some(component) = component else {
        for (component, path) in logs {
            println!("{component:<32} {}", path.display());
        }
        return Ok(ExitCode::SUCCESS);
    };
    let names: Vec<&str> = logs.iter().map(|(name, _)| name.as_str()).collect();
    let (_, path) = logs
        .iter()
        .find(|(name, _)| name == component)
        .with_context(|| {
            format!(
                "there is no log of {component}; there are: {}",
                names.join(", ")
            )
        })?;
    let mut command = vec!["tail".to_owned(), "-n".into(), "+1".into()];
    if follow {
        command.push("-F".into());
    }
    command.push(path.to_string_lossy().into_owned());
    replace_with(&command)
}

/// Read from the directory, so that the logs of a failed lab can be read, too.
fn log_files(lab: &Lab) -> Result<Vec<(String, PathBuf)>> {
    let mut logs = Vec::new();
    for entry in std::fs::read_dir(lab.dir().join("logs")).context("the lab has no logs")? {
        let path = entry.context("failed to list the logs")?.path();
        let stem = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        // hypervisor-etcd.log is the log of hypervisor/etcd.
        let name = Role::ALL
            .iter()
            .find_map(|role| {
                let component = stem.strip_prefix(role.name())?.strip_prefix('-')?;
                Some(format!("{}/{component}", role.name()))
            })
            .unwrap_or(stem);
        logs.push((name, path));
    }
    for entry in std::fs::read_dir(lab.dir().join("nodes"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        logs.push((name, entry.path().join("console.log")));
    }
    logs.sort();
    Ok(logs)
}

async fn clean(paths: &Paths, cache: bool) -> Result<()> {
    let swept = {
        let _registering = sweep::registry_lock(paths).await?;
        sweep::dead_labs(paths).await?
    };
    for thing in &swept.removed {
        eprintln!("removed {thing}");
    }
    if swept.removed.is_empty() {
        eprintln!("nothing was left");
    }
    if cache {
        let running: Vec<String> = Lab::all(paths)
            .iter()
            .filter_map(|lab| {
                lab.dir()
                    .file_name()
                    .map(|n| n.to_string_lossy().into_owned())
            })
            .collect();
        if !running.is_empty() {
            bail!(
                "these labs use the cache: {}; `cobalt lab down --all` first",
                running.join(", ")
            );
        }
        remove_tree(&paths.cache)?;
        eprintln!("removed {}", paths.cache.display());
    }
    Ok(())
}

/// Becomes another program, so that signals, terminal and exit status are its own.
fn replace_with(command: &[String]) -> Result<ExitCode> {
    let (program, arguments) = command.split_first().context("an empty command")?;
    Err(std::process::Command::new(program).args(arguments).exec())
        .with_context(|| format!("failed to run {program}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        LabArgs::command().debug_assert();
    }

    #[test]
    fn paths_with_quotes_survive_a_shell() {
        assert_eq!(quote("/it's"), "'/it'\\''s'");
    }
}
