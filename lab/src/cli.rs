//! `cobalt lab`: the lab's commands. Tests and people use them; they are stable.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::access::Access;
use crate::charts::Charts;
use crate::cluster::{ClusterConfig, Role};
use crate::command::{Run, patience};
use crate::config::{LabConfig, OpenStackConfig};
use crate::control::{Fault, NodeStatus, State, Status};
use crate::handle::Lab;
use crate::light::LightConfig;
use crate::node::Power;
use crate::node::stage::{self, Stage};
use crate::openstack::{self, ZONE};
use crate::paths::{Paths, remove_tree};
use crate::plan::{Flavour, Kind, OPENSTACK, REGION};
use crate::report::{Report, human};
use crate::{promtool, setup, supervisor, sweep};

const UP_EXAMPLES: &str = "\
Examples:
  cobalt lab up --nodes 3                  three nodes, ready in seconds once all is built
  cobalt lab up --name api --nodes 0       only the control plane
  cobalt lab up --clusters hypervisor,control-plane --nodes 1
  cobalt lab up --with hypervisors --flavours bookworm,trixie --nodes 2
  cobalt lab up --with kube,hypervisors,ovn,openstack,bmc --servers 3    a whole region
  cobalt lab up --with openstack-light --light-hosts 50
  eval \"$(cobalt lab env)\" && kubectl get nodes";

/// A real region on this machine: real Kubernetes, hypervisors, networks, OpenStack, faults.
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
    /// Run a program inside a machine.
    #[command(
        after_help = "Examples:\n  cobalt lab exec n1 -- systemctl status kubelet\n  \
        cobalt lab exec hv1 -- virsh list\n  \
        cobalt lab exec openstack -- journalctl -u nova-scheduler"
    )]
    Exec {
        #[command(flatten)]
        lab: Name,
        /// The machine.
        node: String,
        /// The program and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Print the log of a process or the console of a node; without one, list them.
    Logs {
        #[command(flatten)]
        lab: Name,
        /// A process (`hypervisor/etcd`), a machine (`n1`), a unit of one (`hv1/libvirtd`) or
        /// `supervisor`.
        component: Option<String>,
        /// Keep printing what is added.
        #[arg(short, long)]
        follow: bool,
    },
    /// Break something, or mend it.
    #[command(after_help = "\
Targets are machines (n1, hv1, ovn2, openstack, tor), their units (n1/kubelet), their cables
(hv1/eno1) and processes (hypervisor/etcd). A killed process stays dead until `heal`; a unit is
restarted by its machine's systemd.

Examples:
  cobalt lab fault cut hv2                pull the network cables of hv2
  cobalt lab fault cut hv1/eno1           one member of its bond
  cobalt lab fault stop n1/kubelet        the kubelet hangs
  cobalt lab fault kill openstack/rabbitmq-server
  cobalt lab fault heal hv2               undo every fault of hv2")]
    Fault {
        #[command(flatten)]
        lab: Name,
        /// What to do.
        action: Fault,
        /// To what.
        target: String,
    },
    /// Switch a machine off or on, reboot it, or pull the plug.
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
        /// Only what labs without machines need; works without root.
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
    /// The hypervisors' software, in order; those beyond the list are `bookworm`, with OpenStack
    /// `trixie`.
    #[arg(long, value_enum, value_delimiter = ',')]
    flavours: Vec<Flavour>,
    /// Servers that OpenStack boots before the lab is ready; with charts, after those.
    #[arg(long, default_value_t = 0)]
    servers: u8,
    /// MiB per second for live migrations; a few make them slow enough to watch and abort.
    #[arg(long, default_value_t = 0)]
    migration_bandwidth: u32,
    /// Hosts of the light OpenStack.
    #[arg(long, default_value_t = 3)]
    light_hosts: u16,
    #[command(flatten)]
    charts: Charts,
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
    /// Nodes with libvirt, QEMU, Open vSwitch and ovn-controller.
    Hypervisors,
    /// OVN's databases (three members), northd, and a switch for the hypervisors' bonds.
    Ovn,
    /// Keystone, Placement, Glance, Neutron, Nova, RabbitMQ, MariaDB; nova-compute on hypervisors.
    Openstack,
    /// Real Keystone, Placement and Nova with fake hypervisors, in two processes.
    OpenstackLight,
    /// A Redfish BMC for each node.
    Bmc,
}

impl Up {
    fn config(&self) -> Result<LabConfig> {
        let has = |component| self.with.contains(&component);
        let (kubernetes, hypervisors) = (has(Component::Kube), has(Component::Hypervisors));
        if hypervisors && !self.clusters.contains(&REGION) {
            bail!(
                "hypervisors are nodes of the {0} cluster: add {0} to --clusters",
                REGION.name()
            );
        }
        if !hypervisors && !self.flavours.is_empty() {
            bail!("--flavours are for hypervisors: add `hypervisors` to --with");
        }
        if !has(Component::Openstack) && (self.servers > 0 || self.migration_bandwidth > 0) {
            bail!("--servers and --migration-bandwidth need `openstack` in --with");
        }
        self.charts.validate(kubernetes)?;
        let mut config = LabConfig::empty(&self.lab.name);
        for &role in &self.clusters {
            let hypervisors = hypervisors && role == REGION;
            if kubernetes || hypervisors {
                config.clusters.push(ClusterConfig {
                    nodes: if self.api_only { 0 } else { self.nodes },
                    kubernetes,
                    hypervisors: hypervisors.then(|| self.flavours.clone()),
                    controllers: !self.api_only,
                    audit: self.audit,
                    ..ClusterConfig::new(role)
                });
            }
        }
        if let Some(first) = config.clusters.first_mut() {
            first.played_nodes = self.played_nodes;
        }
        // Neutron keeps its networks in OVN.
        config.ovn = has(Component::Ovn) || has(Component::Openstack);
        config.openstack = has(Component::Openstack).then_some(OpenStackConfig {
            servers: self.servers,
            migration_bandwidth: self.migration_bandwidth,
        });
        config.light = has(Component::OpenstackLight).then(|| LightConfig::hosts(self.light_hosts));
        config.bmc = has(Component::Bmc);
        config.validate()?;
        Ok(config)
    }
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
            let config = if api_only {
                LabConfig::api_only("prepare")
            } else {
                LabConfig::everything()
            };
            let report = Report::stderr();
            setup::prepare(&paths, &config, &report).await?;
            promtool::ensure(&paths, &report).await?;
        }
        LabCommand::Supervise { dir } => supervisor::run(&dir).await?,
        LabCommand::NodeStage { stage, spec } => stage::run(stage, &spec)?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn up(paths: &Paths, arguments: Up) -> Result<()> {
    let mut config = arguments.config()?;
    // Charts may change which hypervisors take servers.
    let servers = match config.openstack.as_mut().filter(|_| arguments.charts.any()) {
        Some(openstack) => std::mem::take(&mut openstack.servers),
        None => 0,
    };
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
    let starting = async {
        let lab = Lab::up(paths, config, &exe, &report).await?;
        arguments.charts.install(&lab, &report).await?;
        if servers > 0 {
            boot(&lab, &arguments, servers, &report).await?;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        result = starting => { result?; }
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
    let status = lab.status().await?;
    print_table(std::slice::from_ref(&status))?;
    eprint!("\nNext:\n{}", next_steps(&status));
    Ok(())
}

/// Boots servers in a lab with charts.
async fn boot(lab: &Lab, arguments: &Up, servers: u8, report: &Report) -> Result<()> {
    let deadline = patience(Duration::from_secs(600));
    if arguments.charts.take_hypervisors_into_service() {
        let hosts = usize::from(arguments.nodes);
        let step = report.long_step(
            format!("openstack: until {hosts} hypervisors are enabled in {ZONE}"),
            Duration::from_secs(60),
        );
        let command = openstack::in_service_command(hosts, deadline);
        run_in(lab, &command, deadline).await.context(
            "`kubectl get hypervisors` and the log of hypervisor-operator say what it waits for",
        )?;
        step.done();
    }
    let step = report.step(format!("openstack: {servers} servers"));
    let command = openstack::boot_command(servers, deadline);
    run_in(lab, &command, deadline).await?;
    step.done();
    Ok(())
}

/// Runs a program in the machine of OpenStack's control plane, which keeps to a deadline by itself.
async fn run_in(lab: &Lab, command: &[String], deadline: Duration) -> Result<()> {
    let command = lab.enter(OPENSTACK, command).await?;
    let (program, arguments) = command.split_first().context("an empty command")?;
    Run::new(program, arguments)
        .deadline(deadline + Duration::from_secs(60))
        .output()
        .await
        .map(drop)
}

/// What to try, for what the lab has.
fn next_steps(status: &Status) -> String {
    let option = if status.name == DEFAULT_NAME {
        String::new()
    } else {
        format!(" --name {}", status.name)
    };
    let of = |kind| status.nodes.iter().find(|node| node.kind == kind);
    let (node, hypervisor) = (of(Kind::Node), of(Kind::Hypervisor));
    let mut lines = Vec::new();
    if !status.clusters.is_empty() || status.access.is_some() {
        lines.push(format!("eval \"$(cobalt lab env{option})\""));
    }
    if !status.clusters.is_empty() {
        lines.push("kubectl get nodes".into());
    }
    if status.access.is_some() {
        lines.push("openstack compute service list".into());
        lines.push("openstack server list --long".into());
    }
    for name in hypervisor.iter().map(|node| &node.name) {
        lines.push(format!("cobalt lab exec{option} {name} -- virsh list"));
        lines.push(format!("cobalt lab exec{option} {name} -- ovs-vsctl show"));
    }
    for name in node.iter().map(|node| &node.name) {
        lines.push(format!(
            "cobalt lab exec{option} {name} -- systemctl status kubelet"
        ));
    }
    for name in hypervisor.or(node).iter().map(|node| &node.name) {
        lines.push(format!(
            "cobalt lab power{option} loss {name}      pull a plug and watch"
        ));
    }
    if of(Kind::Openstack).is_some() {
        lines.push(format!("cobalt lab logs{option} openstack/nova-scheduler"));
    }
    lines.push(format!(
        "cobalt lab logs{option}                 what there is to read"
    ));
    lines.push(format!(
        "cobalt lab down{option}                 nothing is left"
    ));
    lines.iter().map(|line| format!("  {line}\n")).collect()
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
        say(&serde_json::to_string_pretty(&all)?)?;
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
        }
        let processes = lab.clusters.iter().flat_map(|cluster| &cluster.processes);
        for process in processes.chain(&lab.processes) {
            let state = process
                .pid
                .map_or_else(|| "dead".to_owned(), |pid| format!("pid {pid}"));
            row(&process.name, &state, &process.log.to_string_lossy());
        }
        for node in &lab.nodes {
            let what = format!("{} {}", node.name, node.address);
            row(&what, &node_state(node), &node.log.to_string_lossy());
            if let Some(url) = &node.bmc {
                row(&format!("{} BMC", node.name), "", url);
            }
        }
        if let Some(access) = &lab.access {
            row("openstack", "", &access.auth_url);
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

fn node_state(node: &NodeStatus) -> String {
    let mut state = match (node.observed.on, node.observed.booted) {
        (false, _) => "off",
        (true, false) => "booting",
        (true, true) => "on",
    }
    .to_owned();
    for (set, word) in [
        (node.observed.cut, ",cut"),
        (node.observed.frozen, ",stopped"),
    ] {
        if set {
            state.push_str(word);
        }
    }
    for cable in &node.observed.cut_cables {
        state.push_str(&format!(",{cable} cut"));
    }
    state
}

async fn env(paths: &Paths, name: &str) -> Result<()> {
    let lab = Lab::find(paths, name)?;
    let status = lab.status().await?;
    if status.state != State::Ready {
        bail!("the lab {name} is {}, not ready", status.state.name());
    }
    let path = |path: &Path| quote(&path.to_string_lossy());
    if !status.clusters.is_empty() {
        say(&format!("export KUBECONFIG={}", path(&status.kubeconfig)))?;
    }
    say(&format!("export COBALT_LAB={}", quote(&status.name)))?;
    for (name, value) in status.access.iter().flat_map(Access::environment) {
        say(&format!("export {name}={}", quote(&value)))?;
    }
    let own = status.dir.join("bin");
    let programs = [own.is_dir().then_some(own), status.bin];
    for dir in programs.into_iter().flatten() {
        say(&format!("export PATH={}:\"$PATH\"", path(&dir)))?;
    }
    Ok(())
}

/// A line on standard output; a reader that has gone away is no reason to panic.
fn say(line: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{line}").context("failed to print")
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
            say(&format!("{component:<32} {}", path.display()))?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    if let Some((machine, unit)) = component.split_once('/')
        && logs.iter().any(|(name, _)| name == machine)
    {
        let mut journal = ["journalctl", "--no-pager", "-u", unit]
            .map(ToOwned::to_owned)
            .to_vec();
        journal.extend(follow.then(|| "-f".to_owned()));
        return replace_with(&lab.enter(machine, &journal).await?);
    }
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
