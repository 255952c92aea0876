//! `cargo xtask test`: runs every test and names at the end what failed.
//!
//! Cargo's closing lines name the programs that failed and not the tests; with thousands of lines in
//! between, nobody finds them. All that cargo and the tests print goes through unchanged and is read
//! on the way.

mod report;

use std::ffi::OsString;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use anyhow::{Context, Result, bail};

use report::Report;

/// How many cases each property gets by default when the cases are random: twenty times the usual.
const RANDOM_CASES: u32 = 5000;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Only unit tests and property tests, with random cases and many of them
    #[arg(long)]
    random: bool,
    /// With --random: the cases per property
    #[arg(long, requires = "random", default_value_t = RANDOM_CASES)]
    cases: u32,
    /// With --random: the seed of an earlier run, to see its cases again
    #[arg(long, requires = "random")]
    seed: Option<u64>,
}

/// Runs the tests. All of them, whatever fails.
pub fn run(arguments: &Arguments) -> Result<()> {
    let mut report = Report::default();
    if arguments.random {
        let seed = arguments
            .seed
            .unwrap_or_else(|| RandomState::new().hash_one(std::process::id()));
        let again = format!(
            "the same cases again: cargo xtask test --random --seed {seed} --cases {}",
            arguments.cases
        );
        println!("random cases; {again}");
        for mut command in random() {
            command
                .env("PROPTEST_RNG_SEED", seed.to_string())
                .env("PROPTEST_CASES", arguments.cases.to_string())
                // The default is enough for the default number of cases.
                .env(
                    "PROPTEST_MAX_GLOBAL_REJECTS",
                    arguments.cases.saturating_mul(4).to_string(),
                );
            run_one(command, &mut report)?;
        }
        println!("\n{report}\n{again}");
    } else {
        check("xtask deps", crate::deps::run(), &mut report);
        check("xtask gen --check", crate::r#gen::run(true), &mut report);
        for command in all()? {
            run_one(command, &mut report)?;
        }
        println!("\n{report}");
    }
    if report.failures().is_empty() {
        Ok(())
    } else {
        bail!("not all tests passed; their names are above")
    }
}

/// Every test program and every doc test.
fn all() -> Result<[Command; 2]> {
    let runner = root().join("xtask/run-test");
    let runner = runner
        .to_str()
        .context("the path of the checkout is not UTF-8")?;
    let runner = serde_json::to_string(runner)?;
    let mut programs = cargo_test(&["--lib", "--bins", "--tests"]);
    programs.args([
        "--config",
        &format!("target.\"cfg(all())\".runner = [{runner}]"),
    ]);
    Ok([programs, cargo_test(&["--doc"])])
}

/// Whatever has property tests and needs no lab.
fn random() -> [Command; 2] {
    let mut decoders = cargo_test(&["--test", "openstack"]);
    decoders.args(["--", "decoders"]);
    [cargo_test(&["--lib", "--bins"]), decoders]
}

/// Always of the whole workspace: with other packages the features of dependencies differ, and nearly
/// everything is compiled once more.
fn cargo_test(targets: &[&str]) -> Command {
    let mut command = Command::new(cargo());
    command
        .current_dir(root())
        .args(["test", "--locked", "--workspace", "--no-fail-fast"])
        .args(targets);
    command
}

/// The program that runs this, if cargo does.
pub fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// The checkout.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

fn check(name: &str, done: Result<()>, report: &mut Report) {
    if let Err(error) = done {
        eprintln!("error: {name}: {error:#}");
        report.failed(format!("{name}: {error:#}"));
    }
}

fn run_one(command: Command, report: &mut Report) -> Result<()> {
    let shown = shown(&command);
    println!("{shown}");
    let status = pass_through(command, &mut std::io::stdout(), |line| report.read(line))?;
    report.step_ended(&shown, status);
    Ok(())
}

fn shown(command: &Command) -> String {
    let mut words = vec!["cargo".to_owned()];
    words.extend(
        command
            .get_args()
            .map(|word| word.to_string_lossy().into_owned()),
    );
    words.join(" ")
}

/// Runs a command, writes what it prints to `out` and hands over each line.
///
/// Standard output and error share a pipe, so that their lines stay in order. A process that a test
/// left behind may keep that pipe open for ever; so the end of the output is not the end of the pipe
/// but a mark that is written when the command has ended.
fn pass_through(
    mut command: Command,
    out: &mut impl Write,
    mut each: impl FnMut(&str),
) -> Result<ExitStatus> {
    let (reader, writer) = std::io::pipe().context("failed to make a pipe")?;
    let mark = format!("{:016x}", RandomState::new().hash_one("the end"));
    command
        .stdout(writer.try_clone().context("failed to share a pipe")?)
        .stderr(writer.try_clone().context("failed to share a pipe")?);
    let mut child = command
        .spawn()
        .with_context(|| format!("failed to run {}", shown(&command)))?;
    // It holds the writing end, too.
    drop(command);
    let waiting = std::thread::spawn({
        let (mut writer, mark) = (writer, mark.clone());
        move || {
            let status = child.wait();
            // Without a reader there is nobody to tell.
            writeln!(writer, "{mark}").ok();
            status
        }
    });
    let mut reader = BufReader::new(reader);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        if reader.read_until(b'\n', &mut bytes)? == 0 {
            break;
        }
        let line = String::from_utf8_lossy(&bytes);
        if let Some(rest) = line.trim_end().strip_suffix(&mark) {
            out.write_all(rest.as_bytes())?;
            each(rest);
            break;
        }
        each(line.trim_end_matches('\n'));
        out.write_all(&bytes)?;
        out.flush()?;
    }
    match waiting.join() {
        Ok(status) => status.context("failed to wait for cargo"),
        Err(_) => bail!("failed to wait for cargo"),
    }
}

#[cfg(test)]
mod tests;
