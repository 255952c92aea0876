//! promtool, for tests of alerts. It is taken out of Debian's package: installing that would start
//! a Prometheus on the machine.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::cache;
use crate::command::{Run, which};
use crate::paths::{Paths, make_dir};
use crate::report::Report;

const PACKAGE: &str = "prometheus";
const PROGRAM: &str = "usr/bin/promtool";

/// The program: the machine's own, or the one in the cache. Needs no root.
pub async fn ensure(paths: &Paths, report: &Report) -> Result<PathBuf> {
    if let Some(program) = which("promtool") {
        return Ok(program);
    }
    let dir = cache::once(paths.cache.join("promtool"), report, async |partial| {
        if which("apt-get").is_none() {
            bail!("the program promtool is missing: install Prometheus");
        }
        let step = report.long_step("download promtool".to_owned(), Duration::from_secs(10));
        make_dir(partial)?;
        let download = || {
            Run::new("apt-get", ["-q", "download", PACKAGE])
                // The package is no secret, and the folder is nobody else's to read.
                .arguments(["-o", "APT::Sandbox::User=root"])
                .dir(partial)
                .deadline(Duration::from_secs(5 * 60))
                .output()
        };
        // Where apt knows of no packages yet, it has to ask, which only root may.
        if download().await.is_err() {
            Run::new("apt-get", ["-q", "-o", "DPkg::Lock::Timeout=300", "update"])
                .deadline(Duration::from_secs(10 * 60))
                .output()
                .await?;
            download().await.with_context(|| {
                format!("failed to download {PACKAGE}; install promtool by hand and try again")
            })?;
        }
        let unpack = format!(
            "dpkg-deb --fsys-tarfile {PACKAGE}_*.deb | tar -x ./{PROGRAM} && rm {PACKAGE}_*.deb"
        );
        Run::new("sh", ["-ec", &unpack])
            .dir(partial)
            .output()
            .await?;
        step.done();
        Ok(())
    })
    .await?;
    Ok(dir.join(PROGRAM))
}
