//! What is installed into a lab: images for its registry, Helm charts with their values, and the
//! Secret by which components find OpenStack.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Map, Value, json};

use crate::access::Access;
use crate::command::Run;
use crate::handle::Lab;
use crate::plan::REGION;
use crate::report::Report;

/// Where charts are installed that do not say otherwise.
pub const NAMESPACE: &str = "cobalt-system";

/// The Secret with OpenStack's variables, in [`NAMESPACE`].
pub const CREDENTIALS: &str = "openstack-credentials";

/// The chart of the one who takes hypervisors into service: before that they get no servers.
const OPERATOR: &str = "hypervisor-operator";

/// Flags of `cobalt lab up`.
#[derive(Debug, Args)]
pub struct Charts {
    /// Helm charts to install into the hypervisor cluster, in this order, each as a release of its
    /// own name, in the namespace cobalt-system or another: `charts/ovs-agent=ovn-system`.
    #[arg(long = "chart", value_name = "DIR[=NAMESPACE]", value_parser = chart)]
    charts: Vec<Chart>,
    /// A directory with values for charts: `NAME.yaml` is for the chart NAME.
    #[arg(long, value_name = "DIR")]
    values: Option<PathBuf>,
    /// A value of one chart, as helm's `--set` takes it: `node-agent:nodes={hv1,hv2}`.
    #[arg(long, value_name = "CHART:KEY=VALUE", value_parser = setting)]
    set: Vec<(String, String)>,
    /// A directory of OCI image layouts, as `make images` writes them, for the lab's registry.
    #[arg(long, value_name = "DIR")]
    images: Option<PathBuf>,
}

/// A chart, and where it goes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Chart {
    dir: PathBuf,
    namespace: String,
}

impl Charts {
    /// Checks them, so that mistakes are told before anything is started.
    pub fn validate(&self, kubernetes: bool) -> Result<()> {
        let anything = !self.charts.is_empty() || self.images.is_some();
        if anything && !kubernetes {
            bail!("--chart and --images need `kube` in --with");
        }
        for chart in &self.charts {
            let dir = &chart.dir;
            if !dir.join("Chart.yaml").is_file() {
                bail!(
                    "{} is not a Helm chart: it has no Chart.yaml",
                    dir.display()
                );
            }
        }
        for (chart, _) in &self.set {
            if !self.names(chart) {
                bail!("--set is for the chart {chart}, which no --chart names");
            }
        }
        if let Some(dir) = self.values.as_ref().filter(|dir| !dir.is_dir()) {
            bail!("there is no directory of values {}", dir.display());
        }
        self.layouts().map(drop)
    }

    /// Whether there is a chart to install.
    pub fn any(&self) -> bool {
        !self.charts.is_empty()
    }

    /// Whether one of them takes hypervisors into service.
    pub fn take_hypervisors_into_service(&self) -> bool {
        self.names(OPERATOR)
    }

    fn names(&self, chart: &str) -> bool {
        let mut names = self.charts.iter().filter_map(|chart| chart.dir.file_name());
        names.any(|name| name == chart)
    }

    /// Installs everything into a lab that is ready.
    pub async fn install(&self, lab: &Lab, report: &Report) -> Result<()> {
        for layout in self.layouts()? {
            lab.add_image(&layout)?;
        }
        for chart in &self.charts {
            self.install_chart(lab, chart, report).await?;
        }
        Ok(())
    }

    /// The image layouts; beside them are archives and other files.
    fn layouts(&self) -> Result<Vec<PathBuf>> {
        let Some(dir) = &self.images else {
            return Ok(Vec::new());
        };
        let hint = || format!("no images in {}: `make images` writes them", dir.display());
        let mut layouts = Vec::new();
        for entry in std::fs::read_dir(dir).with_context(hint)? {
            let path = entry.with_context(hint)?.path();
            if path.join("oci-layout").is_file() {
                layouts.push(path);
            }
        }
        layouts.sort();
        if layouts.is_empty() {
            bail!(hint());
        }
        Ok(layouts)
    }

    async fn install_chart(&self, lab: &Lab, chart: &Chart, report: &Report) -> Result<()> {
        let dir = std::fs::canonicalize(&chart.dir)
            .with_context(|| format!("there is no chart {}", chart.dir.display()))?;
        let name = dir.file_name().context("a chart without a name")?;
        let step = report.step(format!("chart {}", name.to_string_lossy()));
        let helm = lab.bin()?.join("helm");
        let mut file = name.to_owned();
        file.push(".yaml");
        let values = self.values.iter().map(|dir| dir.join(&file));
        let values = values.filter(|values| values.is_file());
        let settings = self.set.iter().filter(|(of, _)| name == of.as_str());
        Run::new(&helm.to_string_lossy(), ["upgrade", "--install", "--wait"])
            .arguments([name, dir.as_os_str()])
            .arguments(["--namespace", &chart.namespace, "--create-namespace"])
            .arguments(values.flat_map(|values| ["--values".into(), values.into_os_string()]))
            .arguments(settings.flat_map(|(_, setting)| ["--set", setting]))
            .env("KUBECONFIG", lab.cluster_kubeconfig(REGION))
            .deadline(Duration::from_secs(300))
            .output()
            .await?;
        step.done();
        Ok(())
    }
}

/// Makes the Secret with OpenStack's variables, and its namespace.
pub async fn publish(client: kube::Client, access: &Access) -> Result<()> {
    use k8s_openapi::api::core::v1::{Namespace, Secret};
    let apply = PatchParams::apply("cobalt-lab").force();
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE },
    });
    Api::<Namespace>::all(client.clone())
        .patch(NAMESPACE, &apply, &Patch::Apply(&namespace))
        .await
        .with_context(|| format!("failed to make the namespace {NAMESPACE}"))?;
    // What else is in the environment is for tests.
    let variables: Map<String, Value> = access
        .environment()
        .into_iter()
        .filter(|(name, _)| name.starts_with("OS_"))
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": CREDENTIALS, "namespace": NAMESPACE },
        "stringData": variables,
    });
    Api::<Secret>::namespaced(client, NAMESPACE)
        .patch(CREDENTIALS, &apply, &Patch::Apply(&secret))
        .await
        .with_context(|| format!("failed to make the Secret {CREDENTIALS}"))
        .map(drop)
}

/// `DIR` or `DIR=NAMESPACE`.
fn chart(text: &str) -> Result<Chart, String> {
    let (dir, namespace) = text.split_once('=').unwrap_or((text, NAMESPACE));
    if dir.is_empty() || namespace.is_empty() {
        return Err("write it like charts/ovs-agent=ovn-system".to_owned());
    }
    Ok(Chart {
        dir: dir.into(),
        namespace: namespace.to_owned(),
    })
}

/// `CHART:KEY=VALUE`.
fn setting(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((chart, setting)) if !chart.is_empty() && setting.contains('=') => {
            Ok((chart.to_owned(), setting.to_owned()))
        }
        _ => Err("write it like node-agent:log.level=debug".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        charts: Charts,
    }

    #[test]
    fn a_setting_names_its_chart() {
        let setting = |text| setting(text).ok();
        let wanted = ("node-agent".into(), "nodes={hv1,hv2}".into());
        assert_eq!(setting("node-agent:nodes={hv1,hv2}"), Some(wanted));
        for bad in ["nodes=x", ":a=b", "node-agent:a"] {
            assert_eq!(setting(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_chart_may_have_a_namespace_of_its_own() {
        let parsed = |text| {
            let chart = chart(text).ok()?;
            Some((chart.dir.display().to_string(), chart.namespace))
        };
        let wanted = |dir: &str, namespace: &str| Some((dir.to_owned(), namespace.to_owned()));
        assert_eq!(parsed("charts/a"), wanted("charts/a", NAMESPACE));
        assert_eq!(parsed("charts/a=b"), wanted("charts/a", "b"));
        for bad in ["", "=b", "charts/a="] {
            assert_eq!(parsed(bad), None, "{bad}");
        }
    }

    #[test]
    fn mistakes_are_told_before_anything_starts() {
        let temporary = tempfile::tempdir().unwrap();
        let chart = temporary.path().join("agent");
        std::fs::create_dir(&chart).unwrap();
        std::fs::write(chart.join("Chart.yaml"), "").unwrap();
        let chart = format!("--chart={}", chart.display());
        let empty = temporary.path().display();
        let check = |arguments: &[&str], kubernetes| {
            let all = std::iter::once("up").chain(arguments.iter().copied());
            Command::parse_from(all).charts.validate(kubernetes)
        };
        check(&[&chart, "--set=agent:a=b"], true).unwrap();
        for (arguments, kubernetes, wanted) in [
            (vec![chart.clone()], false, "need `kube`"),
            (vec![format!("--chart={empty}")], true, "not a Helm chart"),
            (
                vec![chart.clone(), "--set=other:a=b".into()],
                true,
                "chart other",
            ),
            (vec![chart, "--values=/nowhere".into()], true, "/nowhere"),
            (vec![format!("--images={empty}")], true, "no images in"),
        ] {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let error = check(&arguments, kubernetes).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
