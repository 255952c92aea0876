//! What the lab's Python programs share: the packages that they import, and how they tell that
//! they are ready.
//!
//! The packages are a plain directory for `sys.path`, installed from `requirements.txt` once per
//! version of Python. It needs no virtual environment, so it also serves inside nodes, which have
//! a Python of their own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::fs::{CWD, Mode};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};

use crate::cache;
use crate::command::{Run, patience, which};
use crate::paths::{Paths, write_atomic};
use crate::process::{Process, log_end};
use crate::report::Report;

const REQUIREMENTS: &str = include_str!("../openstack/requirements.txt");

/// The installer, itself from PyPI.
const UV: &str = "0.13.7";

/// Packages that PyPI has as source only; both are plain Python.
const SOURCE_ONLY: [&str; 2] = ["ovs", "simplegeneric"];

/// Says in the directory of the packages that their bytecode is complete.
const COMPILED: &str = ".compiled";

/// The directory of the packages for a version of Python such as `3.11`; made when it is not
/// there.
pub async fn ensure(paths: &Paths, version: &str, report: &Report) -> Result<PathBuf> {
    cache::once(location(paths, version), report, async |partial| {
        let (python, own_version) = machine_version().await?;
        let uv = installer(paths, &python, report).await?;
        let step = report.long_step(
            format!("install the packages for Python {version}"),
            Duration::from_secs(30),
        );
        install(&uv, &python, version, partial).await?;
        let program = if own_version == version {
            Some(python)
        } else {
            interpreter(version).await
        };
        if let Some(program) = program {
            compile(partial, partial, &[&program.to_string_lossy()]).await?;
        }
        step.done();
        Ok(())
    })
    .await
}

/// Whether the packages are there already.
pub fn is_ready(paths: &Paths, version: &str) -> bool {
    location(paths, version).is_dir()
}

/// The machine's Python and its version (`3.11`).
pub async fn machine_version() -> Result<(PathBuf, String)> {
    let python = which("python3").context("python3 is missing: install the package python3")?;
    let (python, version) = ask(&python).await?;
    let minor = version
        .strip_prefix("3.")
        .and_then(|text| text.parse().ok());
    if minor.is_none_or(|minor: u32| minor < 11) {
        bail!(
            "{} is Python {version}, and OpenStack needs 3.11 or newer",
            python.display()
        );
    }
    Ok((python, version))
}

/// Compiles the packages with the Python of a tree, for machines whose Python this machine does
/// not have: without bytecode each of their programs starts some seconds later.
pub async fn compile_in(tree: &Path, dir: &Path) -> Result<()> {
    let seen = Path::new("/mnt");
    // The mounts are this shell's own and end with it.
    let script = "mount --bind \"$1\" \"$0/mnt\" && mount --rbind /dev \"$0/dev\" && \
                  mount -t proc proc \"$0/proc\" && tree=$0 && shift && \
                  exec chroot \"$tree\" python3 \"$@\"";
    let (tree, packages) = (tree.to_string_lossy(), dir.to_string_lossy());
    let python = [
        "unshare",
        "--mount",
        "--propagation=private",
        "sh",
        "-c",
        script,
        &tree,
        &packages,
    ];
    compile(dir, seen, &python).await
}

/// Compiles the packages for a Python that sees them at `seen`; `python` is how it is run. Once
/// is enough: a second call does nothing.
async fn compile(dir: &Path, seen: &Path, python: &[&str]) -> Result<()> {
    let mark = dir.join(COMPILED);
    if mark.is_file() {
        return Ok(());
    }
    let (program, arguments) = python.split_first().context("no Python to compile with")?;
    // The packages never change, so nothing needs to compare them with their source again.
    // Broken files among them are templates and test data.
    Run::new(program, arguments)
        .arguments([
            "-s",
            "-E",
            "-m",
            "compileall",
            "-qq",
            "-j",
            "0",
            "-x",
            "/(tests?|templates)/",
            "--invalidation-mode",
            "unchecked-hash",
        ])
        .arguments([seen])
        .deadline(patience(Duration::from_secs(300)))
        .output()
        .await
        .context("failed to compile the Python packages")?;
    write_atomic(&mark, b"")
}

/// Keyed by all that makes it.
fn location(paths: &Paths, version: &str) -> PathBuf {
    let key = cache::key([UV, REQUIREMENTS]);
    paths.cache.join(format!("python-{version}-{key}"))
}

/// The program uv; installed into the cache when it is not there.
async fn installer(paths: &Paths, python: &Path, report: &Report) -> Result<PathBuf> {
    let dir = paths.cache.join("tools").join(format!("uv-{UV}"));
    let dir = cache::once(dir, report, async |partial| {
        let python = python.to_string_lossy();
        if Run::new(&python, ["-m", "pip", "--version"])
            .output()
            .await
            .is_err()
        {
            bail!("{python} has no pip: install the package python3-pip");
        }
        let step = report.step(format!("install uv {UV}"));
        Run::new(&python, ["-m", "pip", "install", "--quiet", "--target"])
            .arguments([partial])
            .arguments([format!("uv=={UV}")])
            .env("PIP_DISABLE_PIP_VERSION_CHECK", "1")
            .deadline(patience(Duration::from_secs(300)))
            .output()
            .await
            .with_context(|| format!("failed to install uv {UV} from PyPI"))?;
        step.done();
        Ok(())
    })
    .await?;
    Ok(dir.join("bin/uv"))
}

async fn install(uv: &Path, python: &Path, version: &str, target: &Path) -> Result<()> {
    let mut lock = tempfile::Builder::new()
        .suffix(".txt")
        .tempfile()
        .context("failed to make a temporary file")?;
    std::io::Write::write_all(&mut lock, REQUIREMENTS.as_bytes())
        .context("failed to write the list of packages")?;
    let list = lock.path();
    let mut run = Run::new(&uv.to_string_lossy(), ["pip", "install", "--quiet"])
        .arguments(["--no-config", "--no-deps", "--only-binary", ":all:"])
        .arguments(["--python-version", version, "--python"])
        .arguments([python, "--build-constraints".as_ref(), list])
        .arguments(["--requirements".as_ref(), list, "--target".as_ref(), target]);
    for package in SOURCE_ONLY {
        run = run.arguments(["--no-binary", package]);
    }
    run.deadline(patience(Duration::from_secs(600)))
        .output()
        .await
        .with_context(|| format!("failed to install the packages for Python {version}"))
        .map(drop)
}

/// A Python of exactly this version, if the machine has one that runs.
async fn interpreter(version: &str) -> Option<PathBuf> {
    let candidate = which(&format!("python{version}"))?;
    let (program, found) = ask(&candidate).await.ok()?;
    (found == version).then_some(program)
}

/// The real program behind a launcher, and its version.
async fn ask(python: &Path) -> Result<(PathBuf, String)> {
    let script = "import sys; print('%d.%d' % sys.version_info[:2], sys.executable)";
    let text = Run::new(&python.to_string_lossy(), ["-s", "-E", "-c", script])
        .output()
        .await?;
    let (version, program) = text
        .trim()
        .split_once(' ')
        .with_context(|| format!("{} does not tell its version", python.display()))?;
    Ok((program.into(), version.to_owned()))
}

/// How processes tell that they are ready: each writes a line into a named pipe. Unlike a socket
/// it has no limit on the length of its path, and unlike a file it can be waited for.
#[derive(Debug)]
pub struct Readiness {
    lines: Lines<BufReader<pipe::Receiver>>,
}

impl Readiness {
    /// Makes the pipe; processes that are started later find it.
    pub fn new(path: &Path) -> Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("failed to remove {}", path.display()));
            }
            _ => {}
        }
        rustix::fs::mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR)
            .with_context(|| format!("failed to make {}", path.display()))?;
        // Also for writing, or the pipe would end with its first writer.
        let pipe = pipe::OpenOptions::new()
            .read_write(true)
            .open_receiver(path)
            .with_context(|| format!("failed to open {}", path.display()))?;
        Ok(Self {
            lines: BufReader::new(pipe).lines(),
        })
    }

    /// Waits until every one of the processes has told that it is ready. Fails with the end of
    /// its log as soon as one of them has ended.
    pub async fn wait(&mut self, processes: &mut [Process], deadline: Duration) -> Result<()> {
        let mut child_ended =
            signal(SignalKind::child()).context("failed to watch for ended processes")?;
        let deadline_passed = tokio::time::sleep(deadline);
        tokio::pin!(deadline_passed);
        let mut missing = processes.len();
        while missing > 0 {
            // After the signal is watched and before it is waited for, or an end could be missed.
            for process in &mut *processes {
                process.must_run()?;
            }
            tokio::select! {
                line = self.lines.next_line() => {
                    line.context("failed to wait for a process")?;
                    missing -= 1;
                }
                _ = child_ended.recv() => {}
                () = &mut deadline_passed => {
                    let logs: Vec<String> = processes
                        .iter()
                        .map(|process| {
                            format!("{}:\n{}", process.recipe.name, log_end(&process.recipe.log))
                        })
                        .collect();
                    bail!("not ready within {deadline:?}: {}", logs.join("\n"));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Recipe;

    fn process(dir: &Path, script: &str) -> Process {
        Recipe {
            name: "test/script".into(),
            command: ["sh", "-c", script].map(Into::into).to_vec(),
            log: dir.join("log"),
            lab: "none".into(),
        }
        .start()
        .unwrap()
    }

    #[test]
    fn every_requirement_is_pinned() {
        for line in REQUIREMENTS.lines() {
            assert!(line.contains("=="), "{line}");
        }
    }

    #[tokio::test]
    async fn readiness_comes_when_all_have_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ready");
        let mut ready = Readiness::new(&path).unwrap();
        let tell = format!("echo ready > {}; exec sleep 60", path.display());
        let mut both = [process(dir.path(), &tell), process(dir.path(), &tell)];
        ready
            .wait(&mut both, Duration::from_secs(30))
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn a_process_that_ends_is_told_with_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let mut ready = Readiness::new(&dir.path().join("ready")).unwrap();
        let mut both = [
            process(dir.path(), "exec sleep 60"),
            process(dir.path(), "echo no such module; exit 1"),
        ];
        let error = ready.wait(&mut both, Duration::from_secs(30)).await;
        let text = format!("{:#}", error.unwrap_err());
        assert!(text.contains("no such module"), "{text}");
    }

    #[tokio::test]
    async fn silence_ends_at_the_deadline() {
        let dir = tempfile::tempdir().unwrap();
        let mut ready = Readiness::new(&dir.path().join("ready")).unwrap();
        let mut one = [process(dir.path(), "exec sleep 60")];
        let error = ready.wait(&mut one, Duration::from_millis(50)).await;
        let text = format!("{:#}", error.unwrap_err());
        assert!(text.contains("not ready within"), "{text}");
    }
}
