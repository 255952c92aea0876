//! `cobalt completion`: scripts that let a shell complete commands and flags.

use std::process::ExitCode;

use clap::{Args, Command, ValueEnum};
use clap_complete::{Shell as Script, generate};

use crate::text::put;

const HELP: &str = "\
Examples:
  source <(cobalt completion bash)                                   this shell
  cobalt completion bash > /etc/bash_completion.d/cobalt             every bash of this machine
  cobalt completion zsh > \"${fpath[1]}/_cobalt\"
  cobalt completion fish > ~/.config/fish/completions/cobalt.fish";

/// Flags of `cobalt completion`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct CompletionArgs {
    /// The shell that the script is for
    shell: Shell,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Prints the script for the whole of `command`.
pub fn run(arguments: &CompletionArgs, command: Command) -> ExitCode {
    put(&String::from_utf8_lossy(&script(arguments.shell, command)));
    ExitCode::SUCCESS
}

fn script(shell: Shell, mut command: Command) -> Vec<u8> {
    let shell = match shell {
        Shell::Bash => Script::Bash,
        Shell::Zsh => Script::Zsh,
        Shell::Fish => Script::Fish,
    };
    let name = command.get_name().to_owned();
    let mut out = Vec::new();
    generate(shell, &mut command, name, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_shell_knows_every_command() {
        for shell in Shell::value_variants() {
            let command = crate::Cobalt::command();
            let names: Vec<String> = command
                .get_subcommands()
                .map(|one| one.get_name().to_owned())
                .collect();
            let script = String::from_utf8(script(*shell, command)).unwrap();
            for name in names {
                assert!(script.contains(&name), "{shell:?}: {name}");
            }
        }
    }
}
