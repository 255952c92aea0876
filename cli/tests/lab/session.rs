//! Commands that run, on a terminal or not, and how they end.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use cobalt_lab::process::signal_pid;
use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

const PATIENCE: Duration = Duration::from_secs(60);

/// Everything that is waited for, with what it was.
pub fn soon<T>(what: &str, waiting: impl Future<Output = T>) -> impl Future<Output = T> {
    let waiting = Box::pin(waiting);
    async move {
        match tokio::time::timeout(PATIENCE, waiting).await {
            Ok(done) => done,
            Err(_) => panic!("waited in vain: {what}"),
        }
    }
}

/// A program as somebody whose kubeconfig this is.
pub fn command(kubeconfig: &Path, program: &str) -> Command {
    let mut command = Command::new(program);
    command
        .env("KUBECONFIG", kubeconfig)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ended {
    /// It ended with this code, and said these words.
    #[track_caller]
    pub fn expect(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for word in words {
            let said = self.out.contains(word) || self.err.contains(word);
            assert!(said, "{word:?} is not in {self:?}");
        }
    }
}

/// A command that runs.
pub struct Session {
    pub child: Child,
    input: ChildStdin,
    output: ChildStdout,
    said: String,
    /// Up to here it has been looked at.
    looked: usize,
}

impl Session {
    /// Starts `cobalt`.
    pub fn start(kubeconfig: &Path, arguments: &[&str]) -> Self {
        let mut command = command(kubeconfig, env!("CARGO_BIN_EXE_cobalt"));
        Self::new(command.args(arguments).spawn().unwrap())
    }

    /// Starts it on a terminal of this size.
    pub fn start_on_terminal(
        kubeconfig: &Path,
        columns: u16,
        rows: u16,
        arguments: &[&str],
    ) -> Self {
        let cobalt = env!("CARGO_BIN_EXE_cobalt");
        let script = format!(
            "stty cols {columns} rows {rows}; exec {cobalt} {}",
            arguments.join(" ")
        );
        let mut command = command(kubeconfig, "script");
        command
            .args(["--quiet", "--return", "--command", &script, "/dev/null"])
            .env("TERM", "xterm")
            .env("SHELL", "/bin/sh");
        Self::new(command.spawn().unwrap())
    }

    fn new(mut child: Child) -> Self {
        Self {
            input: child.stdin.take().unwrap(),
            output: child.stdout.take().unwrap(),
            child,
            said: String::new(),
            looked: 0,
        }
    }

    /// Waits until it says this, after what was waited for before.
    pub async fn says(&mut self, text: &str) {
        let found = tokio::time::timeout(PATIENCE, self.reads(text)).await;
        assert!(
            found == Ok(true),
            "it never said {text:?}, but: {:?}",
            self.said
        );
    }

    /// Whether it says this before it ends.
    async fn reads(&mut self, text: &str) -> bool {
        loop {
            if let Some(at) = self.said[self.looked..].find(text) {
                self.looked += at + text.len();
                return true;
            }
            let mut chunk = [0; 4096];
            let read = self.output.read(&mut chunk).await.unwrap();
            if read == 0 {
                return false;
            }
            self.said.push_str(&String::from_utf8_lossy(&chunk[..read]));
        }
    }

    pub async fn types(&mut self, text: &str) {
        self.input.write_all(text.as_bytes()).await.unwrap();
        self.input.flush().await.unwrap();
    }

    pub fn signal(&self, signal: Signal) {
        signal_pid(self.child.id().unwrap(), signal).unwrap();
    }

    pub async fn end(mut self) -> Ended {
        let mut rest = Vec::new();
        let read = self.output.read_to_end(&mut rest);
        soon("it ends", read).await.unwrap();
        self.said.push_str(&String::from_utf8_lossy(&rest));
        let done = self.child.wait_with_output();
        let done = soon("it ends", done).await.unwrap();
        Ended {
            code: done.status.code(),
            out: self.said,
            err: String::from_utf8_lossy(&done.stderr).into_owned(),
        }
    }
}
