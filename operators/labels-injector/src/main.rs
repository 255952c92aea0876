//! `cobalt-labels-injector`.

use std::process::ExitCode;

use clap::Parser;
use cobalt_labels_injector::{config::Config, injector};

fn main() -> ExitCode {
    let config = Config::parse();
    let args = config.app.clone();
    cobalt_controller::main(injector::NAME, args, |app| injector::build(app, &config))
}
