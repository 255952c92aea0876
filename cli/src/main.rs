//! The `cobalt` command.

// `print!` panics when nobody reads any more; `text::put` does not.
#![deny(clippy::print_stdout)]

// First: its macros are for all the others.
#[macro_use]
mod text;

mod completion;
mod drain;
mod onboard;
mod output;
mod ovs;
mod server;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// CobaltCore: virtual machines at data-centre scale.
#[derive(Debug, Parser)]
#[command(name = "cobalt", version, propagate_version = true)]
struct Cobalt {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// A real region on this machine.
    Lab(cobalt_lab::cli::LabArgs),
    /// Hosts on their way into service.
    Onboard(onboard::OnboardArgs),
    /// Empty hosts: move every instance away, and keep new ones out.
    Drain(drain::DrainArgs),
    /// Call a drain off, or put a drained host back into service.
    Undrain(drain::UndrainArgs),
    /// Look into Open vSwitch on a node: health, ports, flows, traces, packets.
    Ovs(ovs::OvsArgs),
    /// Print a script with which a shell completes commands and flags.
    Completion(completion::CompletionArgs),
}

/// kube logs every refused connection as an error, also while a server is still starting; what
/// matters of those comes back as the result of a call.
const DEFAULT_LOG: &str = "warn,kube_client=off";

#[tokio::main]
async fn main() -> ExitCode {
    let filter =
        EnvFilter::try_from_env("COBALT_LOG").unwrap_or_else(|_| EnvFilter::new(DEFAULT_LOG));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // It would tell standard error that standard error is closed.
        .log_internal_errors(false)
        .init();
    if rustls::crypto::ring::default_provider()
        .install_default()
        .is_err()
    {
        tracing::warn!("a TLS provider was installed already");
    }
    let done = match Cobalt::parse().command {
        Command::Lab(arguments) => cobalt_lab::cli::run(arguments).await,
        Command::Onboard(arguments) => onboard::run(arguments).await,
        Command::Drain(arguments) => drain::drain(arguments).await,
        Command::Undrain(arguments) => drain::undrain(arguments).await,
        Command::Ovs(arguments) => ovs::run(arguments).await,
        Command::Completion(arguments) => Ok(completion::run(&arguments, Cobalt::command())),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", server::explain(&error));
            ExitCode::FAILURE
        }
    }
}
