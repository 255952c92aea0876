//! `cobalt-hypervisor-operator`.

use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use cobalt_hypervisor_operator::config::{Answer, Command, Config};
use cobalt_hypervisor_operator::{operator, release};
use cobalt_runtime::{client, logging, shutdown_signal};

fn main() -> ExitCode {
    let config = Config::parse();
    // A probe runs every few seconds on every node: it needs nothing.
    match &config.command {
        Some(Command::Hold {
            answer: Some(Answer::Yes),
        }) => return ExitCode::SUCCESS,
        Some(Command::Hold {
            answer: Some(Answer::No),
        }) => return ExitCode::FAILURE,
        _ => {}
    }
    logging::init(config.log.clone());
    match start(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(config: Config) -> anyhow::Result<()> {
    // A second provider is refused and harmless.
    drop(rustls::crypto::ring::default_provider().install_default());
    // One thread: the operator waits for others nearly all of its life, and threads cost memory.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start")?;
    runtime.block_on(async {
        let cancel = shutdown_signal().context("failed to receive signals")?;
        if matches!(config.command, Some(Command::Hold { .. })) {
            cancel.cancelled().await;
            return Ok(());
        }
        let client = client().await?;
        if matches!(config.command, Some(Command::Release)) {
            return release::run(client, &config.label_selector).await;
        }
        tracing::info!(version = env!("CARGO_PKG_VERSION"), "started");
        Box::pin(operator::run(config, client, cancel)).await
    })
}
