//! What every command has in common: readers that go away, servers that are not there, completion.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::{cobalt_ok, cobalt_refused};

fn cobalt(kubeconfig: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cobalt"));
    command
        .args(arguments)
        .env("KUBECONFIG", kubeconfig)
        .stdin(Stdio::null());
    command
}

/// A pipe that nobody reads from.
fn closed_pipe() -> std::io::PipeWriter {
    let (_, writer) = std::io::pipe().unwrap();
    writer
}

/// Runs a command whose standard output nobody reads. Returns how it ended, and standard error.
pub fn without_a_reader(kubeconfig: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut command = cobalt(kubeconfig, arguments);
    let mut child = command
        .stdout(closed_pipe())
        .stderr(writer)
        .spawn()
        .unwrap();
    // It holds the other end of the pipe, too.
    drop(command);
    let mut err = String::new();
    reader.read_to_string(&mut err).unwrap();
    (child.wait().unwrap().code(), err)
}

/// A kubeconfig of a cluster where nobody listens.
fn nowhere() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        file.path(),
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}]\n\
         contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n",
    )
    .unwrap();
    file
}

/// A command of each kind that asks the API server.
const ASKING: [&[&str]; 7] = [
    &["onboard", "status"],
    &["onboard", "status", "hv1"],
    &["onboard", "retry", "hv1"],
    &["drain", "hv1"],
    &["drain", "hv1", "--plan"],
    &["undrain", "hv1"],
    &["ovs", "show", "hv1"],
];

#[test]
fn a_closed_pipe_is_no_reason_to_panic() {
    let kubeconfig = nowhere();
    for arguments in [&["completion", "bash"][..], &["--help"], &["--version"]] {
        let (code, err) = without_a_reader(kubeconfig.path(), arguments);
        assert_eq!((code, err.as_str()), (Some(0), ""), "{arguments:?}");
    }
    // What is said on standard error may be lost, too; the exit code stays.
    for arguments in ASKING {
        let ended = cobalt(kubeconfig.path(), arguments)
            .stdout(closed_pipe())
            .stderr(closed_pipe())
            .status()
            .unwrap();
        assert_eq!(ended.code(), Some(1), "{arguments:?}");
    }
}

#[test]
fn a_connection_error_names_the_address_and_what_to_do() {
    let kubeconfig = nowhere();
    for arguments in ASKING {
        let output = cobalt(kubeconfig.path(), arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        let from = format!("KUBECONFIG={}", kubeconfig.path().display());
        for word in [
            "http://127.0.0.1:9",
            &from,
            "Connection refused",
            "kubectl cluster-info",
        ] {
            assert_eq!(
                said.matches(word).count(),
                1,
                "{arguments:?}: {word}: {said}"
            );
        }
        assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    }
}

#[test]
fn shells_take_the_scripts_that_complete_commands() {
    let script = cobalt_ok(&["completion", "bash"]);
    // A real bash reads it and asks it for what begins with "on".
    let asked = format!(
        "{script}\nCOMP_WORDS=(cobalt on); COMP_CWORD=1; _cobalt cobalt on cobalt\n\
         printf '%s\\n' \"${{COMPREPLY[@]}}\""
    );
    let output = Command::new("bash").args(["-c", &asked]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said.trim(), "onboard", "{output:?}");
    for shell in ["zsh", "fish"] {
        let script = cobalt_ok(&["completion", shell]);
        assert!(script.contains("onboard") && script.contains("undrain"));
    }
    let refused = cobalt_refused(&["completion", "tcsh"]);
    assert!(refused.contains("bash, zsh, fish"), "{refused}");
}
