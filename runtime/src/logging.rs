//! Logs on standard error: lines for people or JSON, with levels per module.

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// How a line of the log looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The flags of a binary's log.
#[derive(Debug, Clone, Args)]
pub struct LogArgs {
    /// What is logged: a level, or levels per module such as `info,kube=warn`
    #[arg(long, env = "LOG_LEVEL", default_value = "info", value_name = "FILTER")]
    pub log_level: EnvFilter,
    /// How a line looks
    #[arg(long, env = "LOG_FORMAT", value_enum, default_value = "text")]
    pub log_format: Format,
}

/// Starts the log. A second start in one process is ignored.
pub fn init(args: LogArgs) {
    let base = tracing_subscriber::fmt()
        .with_env_filter(args.log_level)
        .with_writer(std::io::stderr);
    let started = match args.log_format {
        Format::Text => base.with_ansi(false).try_init(),
        Format::Json => base.json().flatten_event(true).try_init(),
    };
    drop(started);
}
