//! `cobalt-ovs-agent`.

use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use cobalt_ovs_agent::{agent, config::Config};
use cobalt_runtime::{client, logging, shutdown_signal};

fn main() -> ExitCode {
    let config = Config::parse();
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
    // One thread: the agent waits for others nearly all of its life, and threads cost memory.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start")?;
    runtime.block_on(async {
        let cancel = shutdown_signal().context("failed to receive signals")?;
        let client = client().await?;
        tracing::info!(
            node = config.node,
            version = env!("CARGO_PKG_VERSION"),
            "started"
        );
        agent::run(config, client, cancel)
            .await
            .map_err(anyhow::Error::msg)
    })
}
