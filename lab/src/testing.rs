//! Labs for tests. Each ends with the process that uses it, however that ends.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::runtime::{conditions, wait::await_condition};
use kube::{Api, ResourceExt};

use crate::config::LabConfig;
use crate::handle::Lab;
use crate::paths::Paths;
use crate::report::{Event, Report, print};
use crate::{cluster, sweep};

/// A real API server that tests share. They keep apart by names and namespaces.
#[derive(Debug, Clone)]
pub struct ApiServer {
    /// Path of an admin kubeconfig.
    pub kubeconfig: PathBuf,
    /// Path of the directory with kubectl and helm.
    pub bin: PathBuf,
}

impl ApiServer {
    /// An admin client.
    pub async fn client(&self) -> Result<kube::Client> {
        cluster::client(&self.kubeconfig).await
    }
}

/// A port of loopback that nobody listens on, for a program that is started with it.
///
/// It is below those that the system gives to connections, so that none of them takes it meanwhile;
/// and each process of tests begins to look elsewhere.
pub fn free_port() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(40_503);
    loop {
        let next = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = 10_000 + u16::try_from(next % 20_000).unwrap_or(0);
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
            && let Ok(address) = listener.local_addr()
        {
            return address;
        }
    }
}

/// The API server of this test run; the first caller starts it (about 5 s).
///
/// Under cargo it is shared by all test programs of the run and ends with cargo.
pub async fn api_server() -> Result<ApiServer> {
    install_crypto();
    let paths = Paths::from_env()?;
    let owner = run_owner();
    let name = format!("test-{owner}");
    std::fs::create_dir_all(&paths.labs).context("failed to make the labs' directory")?;
    let _one_starts_it = {
        let lock = paths.labs.join(format!(".{name}.lock"));
        crate::paths::lock(lock, &Report::silent()).await?
    };
    let dir = paths.lab(&name);
    let lab = if dir.is_dir() && sweep::is_alive(&dir) {
        let lab = Lab::find(&paths, &name)?;
        lab.ready(&Report::silent()).await?;
        lab
    } else {
        let mut config = LabConfig::api_only(&name);
        config.owner = Some(owner);
        Lab::up(&paths, config, &program()?, &report()).await?
    };
    Ok(ApiServer {
        kubeconfig: lab.kubeconfig(),
        bin: lab.bin()?,
    })
}

/// promtool, for tests of alerts; downloaded when it is not there.
pub async fn promtool() -> Result<PathBuf> {
    crate::promtool::ensure(&Paths::from_env()?, &report()).await
}

/// Starts a lab that ends with this process.
pub async fn lab(mut config: LabConfig) -> Result<Lab> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    install_crypto();
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    config.name = format!("{}-{}-{number}", config.name, std::process::id());
    config.owner = Some(std::process::id());
    Lab::up(&Paths::from_env()?, config, &program()?, &report()).await
}

/// Installs definitions in an API server, and waits until they are served.
pub async fn install_definitions(
    client: &kube::Client,
    definitions: &[CustomResourceDefinition],
) -> Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in definitions {
        let name = definition.name_any();
        let apply = PatchParams::apply("cobalt-tests").force();
        // Two processes may create the same definition at once; the second try finds it.
        let mut tries = 0;
        while let Err(error) = api.patch(&name, &apply, &Patch::Apply(definition)).await {
            tries += 1;
            if tries == 5 {
                return Err(error).with_context(|| format!("failed to install {name}"));
            }
        }
        let established = await_condition(api.clone(), &name, conditions::is_crd_established());
        tokio::time::timeout(Duration::from_secs(60), established)
            .await
            .with_context(|| format!("{name} was not established within a minute"))??;
    }
    Ok(())
}

/// Runs a program inside a machine of a lab, however it ends.
pub async fn output_inside(lab: &Lab, machine: &str, arguments: &[&str]) -> Result<Output> {
    let words: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
    let command = lab.enter(machine, &words).await?;
    let Some((program, rest)) = command.split_first() else {
        bail!("no command for {machine}");
    };
    tokio::process::Command::new(program)
        .args(rest)
        .output()
        .await
        .with_context(|| format!("failed to enter {machine}"))
}

/// Runs a program inside a machine of a lab. The error has what it said on standard error.
pub async fn run_inside(lab: &Lab, machine: &str, arguments: &[&str]) -> Result<String> {
    let output = output_inside(lab, machine, arguments).await?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{machine}: {arguments:?}: {said}");
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The rows of a table of docs/threat-model.md, without its head: what is tried, and what comes of it.
///
/// The table stands below the comment `<!-- table: NAME -->`. Cells come without backticks around
/// them.
pub fn threat_model_table(name: &str) -> Result<Vec<Vec<String>>> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/threat-model.md");
    let page = std::fs::read_to_string(page).context("failed to read the threat model")?;
    let marker = format!("<!-- table: {name} -->\n");
    let (_, after) = page
        .split_once(&marker)
        .with_context(|| format!("the threat model has no table {name}"))?;
    let lines = after.lines().skip_while(|line| line.is_empty());
    let rows = lines.take_while(|line| line.starts_with('|')).skip(2);
    let cells = |line: &str| -> Vec<String> {
        let cells = line.trim_matches('|').split('|');
        cells
            .map(|cell| cell.trim().trim_matches('`').to_owned())
            .collect()
    };
    let rows: Vec<_> = rows.map(cells).collect();
    // An empty line in a table ends it, and nothing of the rest would be tried.
    ensure!(rows.len() > 10, "table {name} has {} rows only", rows.len());
    Ok(rows)
}

/// Only what takes minutes, so that a first run does not look as if it hung.
fn report() -> Report {
    Report::new(|event| {
        if matches!(
            event,
            Event::Started {
                expect: Some(_),
                ..
            } | Event::Note { .. }
        ) {
            print(&event);
        }
    })
}

/// The `cobalt` program: beside the test programs in cargo's target directory.
pub fn program() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("COBALT") {
        return Ok(path.into());
    }
    built("cobalt")
}

/// A program of the workspace that is not of the crate under test.
pub fn built(name: &str) -> Result<PathBuf> {
    let test = std::env::current_exe().context("failed to find this program")?;
    let program = test
        .ancestors()
        .skip(1)
        .take(3)
        .map(|dir| dir.join(name))
        .find(|path| path.is_file());
    program.with_context(|| {
        format!("the program `{name}` is not built: `make test` builds it, or `cargo build`")
    })
}

/// cargo, when it runs this test; else this process.
fn run_owner() -> u32 {
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    let name = std::fs::read_to_string(format!("/proc/{parent}/comm")).unwrap_or_default();
    match u32::try_from(parent) {
        Ok(parent) if name.trim().starts_with("cargo") => parent,
        _ => std::process::id(),
    }
}

/// TLS needs a provider; a second installation is refused and harmless.
fn install_crypto() {
    drop(rustls::crypto::ring::default_provider().install_default());
}
