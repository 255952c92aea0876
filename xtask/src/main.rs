//! What developers and CI run beside `cargo`: `cargo xtask --help`.

mod deps;
mod fuzz;
mod r#gen;
mod images;
mod sbom;
mod test;
#[cfg(test)]
mod weaknesses;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Tasks of this repository")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Check who depends on whom, and that versions and lints come from the workspace
    Deps,
    /// Write the generated files
    Gen {
        /// Write nothing; fail if a file is stale
        #[arg(long)]
        check: bool,
    },
    /// Build the static binaries and write one image for each
    Images(images::Arguments),
    /// Build the fuzz targets, and run each for a while
    Fuzz(fuzz::Arguments),
    /// Run every test, and name at the end what failed
    Test(test::Arguments),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().task {
        Task::Deps => deps::run(),
        Task::Gen { check } => r#gen::run(check),
        Task::Images(arguments) => images::run(&arguments),
        Task::Fuzz(arguments) => fuzz::run(&arguments),
        Task::Test(arguments) => test::run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
