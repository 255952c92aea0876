//! Which tests failed, read from what cargo and the test programs print.

use std::collections::BTreeSet;
use std::fmt;
use std::process::ExitStatus;

/// What has been read so far.
#[derive(Debug, Default)]
pub struct Report {
    passed: u64,
    ignored: u64,
    programs: u64,
    failures: Vec<String>,
    /// How long each program ran, by its own account.
    suites: Vec<(String, f64)>,
    /// How many failures there were when the current command began.
    before: usize,
    program: Option<Program>,
}

/// The test program that runs now, or the doc tests of a crate.
#[derive(Debug, Default)]
struct Program {
    name: String,
    /// From the lines of the single tests: all there is of a program that did not come to its end.
    failed: BTreeSet<String>,
    /// From the list that ends the output of a program.
    list: Vec<String>,
    in_list: bool,
    ended: bool,
    /// Cargo says that it failed. What it prints alone proves nothing: a test may print anything.
    has_failed: bool,
    /// What cargo says about the end of the process.
    why: Option<String>,
}

impl Report {
    /// Reads a line.
    pub fn read(&mut self, line: &str) {
        if let Some(name) = program(line) {
            self.program_ended();
            self.programs += 1;
            self.program = Some(Program {
                name,
                ..Program::default()
            });
            return;
        }
        let Some(program) = &mut self.program else {
            return;
        };
        if line.starts_with("error: ") && line.contains("test failed, to rerun pass") {
            program.has_failed = true;
        } else if let Some(end) = line
            .trim()
            .strip_prefix("process didn't exit successfully: ")
        {
            program.why = end
                .rsplit_once('(')
                .map(|(_, why)| why.trim_end_matches(')').to_owned());
        } else if let Some(counts) = line.strip_prefix("test result: ") {
            program.ended = true;
            self.passed += count(counts, "passed");
            self.ignored += count(counts, "ignored");
            self.suites
                .extend(seconds(counts).map(|seconds| (program.name.clone(), seconds)));
        } else if line == "failures:" {
            program.list.clear();
            program.in_list = true;
        } else if program.in_list
            && let Some(name) = line.strip_prefix("    ")
        {
            program.list.push(name.to_owned());
        } else if !line.is_empty() {
            program.in_list = false;
            let test = line.strip_prefix("test ");
            if let Some(test) = test.and_then(|test| test.strip_suffix(" ... FAILED")) {
                program.failed.insert(test.to_owned());
            }
        }
    }

    /// The command that printed all of it has ended.
    pub fn step_ended(&mut self, command: &str, status: ExitStatus) {
        self.program_ended();
        if !status.success() && self.failures.len() == self.before {
            self.failures
                .push(format!("{command}: {status}, and no test was named"));
        }
        self.before = self.failures.len();
    }

    /// Something failed that is not a test.
    pub fn failed(&mut self, what: String) {
        self.failures.push(what);
        self.before = self.failures.len();
    }

    /// What failed, one per entry.
    pub fn failures(&self) -> &[String] {
        &self.failures
    }

    fn program_ended(&mut self) {
        let Some(program) = self.program.take().filter(|program| program.has_failed) else {
            return;
        };
        let name = program.name;
        let named = |test: String| format!("{name}: {test}");
        if program.ended && !program.list.is_empty() {
            self.failures.extend(program.list.into_iter().map(named));
            return;
        }
        self.failures.extend(program.failed.into_iter().map(named));
        let why = program.why.unwrap_or_else(|| "see its output".to_owned());
        self.failures.push(if program.ended {
            format!("{name}: failed after its last test ({why})")
        } else {
            format!("{name}: ended before its last test ({why})")
        });
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut suites: Vec<_> = self.suites.iter().filter(|suite| suite.1 >= 1.0).collect();
        suites.sort_by(|a, b| b.1.total_cmp(&a.1));
        for (name, seconds) in suites {
            writeln!(f, "{seconds:7.0} s  {name}")?;
        }
        for failure in &self.failures {
            writeln!(f, "FAILED  {failure}")?;
        }
        write!(
            f,
            "{} passed, {} failed, {} ignored, in {} programs",
            self.passed,
            self.failures.len(),
            self.ignored,
            self.programs
        )
    }
}

/// The program that cargo says it starts: `     Running tests/a.rs (target/debug/deps/a-0123)`.
fn program(line: &str) -> Option<String> {
    if let Some(name) = line.strip_prefix("   Doc-tests ") {
        return Some(format!("{name} (doc tests)"));
    }
    let (source, path) = line.strip_prefix("     Running ")?.rsplit_once(" (")?;
    let file = path.strip_suffix(')')?.rsplit('/').next()?;
    let name = file.rsplit_once('-').map_or(file, |(name, _)| name);
    Some(format!("{name} ({source})"))
}

/// How long a program ran: `ok. 3 passed; ...; finished in 0.25s`.
fn seconds(counts: &str) -> Option<f64> {
    let (_, seconds) = counts.rsplit_once("finished in ")?;
    seconds.trim_end_matches('s').parse().ok()
}

/// The number before a word: `FAILED. 3 passed; 1 failed; ...`.
fn count(counts: &str, word: &str) -> u64 {
    let parts = counts.split([';', '.']).map(str::trim);
    let mut numbers = parts.filter_map(|part| part.strip_suffix(word));
    numbers
        .find_map(|number| number.trim().parse().ok())
        .unwrap_or(0)
}
