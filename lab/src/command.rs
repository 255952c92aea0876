//! Runs programs of the machine, each with a deadline and an error that shows what it said.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::process::Command;

/// A program to run to its end.
#[derive(Debug)]
pub struct Run {
    command: Command,
    shown: String,
    input: Option<Vec<u8>>,
    deadline: Duration,
}

impl Run {
    /// A program and its arguments; 60 s unless [`Run::deadline`] says otherwise.
    pub fn new<A: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = A>) -> Self {
        let mut command = Command::new(program);
        command.stdin(Stdio::null()).kill_on_drop(true);
        let shown = program.to_owned();
        Self {
            command,
            shown,
            input: None,
            deadline: Duration::from_secs(60),
        }
        .arguments(arguments)
    }

    /// Further arguments, of another type.
    pub fn arguments<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        for argument in arguments {
            self.shown.push(' ');
            self.shown.push_str(&argument.as_ref().to_string_lossy());
            self.command.arg(argument);
        }
        self
    }

    /// What the program reads from standard input.
    pub fn input(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.input = Some(input.into());
        self
    }

    /// How long it may take.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// An environment variable.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// The working directory.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.command.current_dir(dir.into());
        self
    }

    /// Runs it and returns what it printed.
    pub async fn output(mut self) -> Result<String> {
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        if self.input.is_some() {
            self.command.stdin(Stdio::piped());
        }
        let shown = self.shown;
        let mut child = self
            .command
            .spawn()
            .with_context(|| format!("failed to start `{shown}`"))?;
        let input = self.input.zip(child.stdin.take());
        let feed = async move {
            if let Some((input, mut stdin)) = input {
                // A program that ends early closes the pipe; its exit status tells the rest.
                drop(tokio::io::AsyncWriteExt::write_all(&mut stdin, &input).await);
            }
        };
        let both = async { tokio::join!(feed, child.wait_with_output()).1 };
        let deadline = patience(self.deadline);
        let output = tokio::time::timeout(deadline, both)
            .await
            .with_context(|| format!("`{shown}` did not end within {deadline:?}"))?
            .with_context(|| format!("failed to wait for `{shown}`"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!(
                "`{shown}` failed ({}): {}",
                output.status,
                last_lines(&said, 20)
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Runs a program for its effect.
pub async fn run<A: AsRef<OsStr>>(
    program: &str,
    arguments: impl IntoIterator<Item = A>,
) -> Result<()> {
    Run::new(program, arguments).output().await.map(drop)
}

/// A deadline, made longer by the factor `COBALT_LAB_PATIENCE`: for machines that are emulated
/// or have much else to do.
pub fn patience(deadline: Duration) -> Duration {
    let factor = std::env::var("COBALT_LAB_PATIENCE")
        .ok()
        .and_then(|text| text.parse().ok());
    deadline.saturating_mul(factor.unwrap_or(1).max(1))
}

/// The end of a text, where the reason of a failure usually is.
pub fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    let from = lines.len().saturating_sub(count);
    lines.get(from..).unwrap_or_default().join("\n")
}

/// The path of a program on `PATH` (and in the sbin directories, which a user's PATH may lack).
pub fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(program))
        .find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_failure_shows_the_command_and_what_it_said() {
        let error = run("sh", ["-c", "echo no such thing >&2; exit 3"])
            .await
            .unwrap_err();
        let text = format!("{error:#}");
        assert!(
            text.contains("no such thing") && text.contains("exit status: 3"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn a_program_that_hangs_ends_at_its_deadline() {
        let run = Run::new("sleep", ["1000"]).deadline(Duration::from_millis(50));
        let text = format!("{:#}", run.output().await.unwrap_err());
        assert!(text.contains("did not end within"), "{text}");
    }

    #[tokio::test]
    async fn input_reaches_the_program() {
        assert_eq!(
            Run::new("cat", [""; 0]).input("x").output().await.unwrap(),
            "x"
        );
    }
}
