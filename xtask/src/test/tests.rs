use std::fs;

use proptest::prelude::any;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, TestRunner, contextualize_config};

use super::*;

/// A package with a test of each sort, and a process that outlives the tests with their output open.
fn package(dir: &Path) {
    let dir_name = dir.display();
    let manifest = "[package]\nname = \"scratch\"\nedition = \"2024\"\n[workspace]\n";
    let library = "//! ```\n//! assert!(false);\n//! ```\n\
        #[cfg(test)]\nmod tests {\n    #[test]\n    fn fine() {}\n    #[test]\n    \
        fn bad() {\n        println!(\"failures:\\n    not a test\");\n        panic!()\n    }\n    \
        #[test]\n    #[should_panic]\n    fn calm() {}\n}\n";
    let crash = "#[test]\nfn crashes() { std::process::abort() }\n";
    let fine = format!(
        "#[test]\nfn leaves_a_process() {{\n    let wait = \"while [ -d {dir_name} ]; do sleep 0.1; done\";\n    \
         std::process::Command::new(\"sh\").args([\"-c\", wait]).spawn().unwrap();\n}}\n\
         #[test]\n#[ignore]\nfn later() {{}}\n"
    );
    fs::create_dir_all(dir.join("src")).unwrap();
    fs::create_dir_all(dir.join("tests")).unwrap();
    fs::write(dir.join("Cargo.toml"), manifest).unwrap();
    fs::write(dir.join("src/lib.rs"), library).unwrap();
    fs::write(dir.join("tests/crash.rs"), crash).unwrap();
    fs::write(dir.join("tests/fine.rs"), fine).unwrap();
}

fn cargo_in(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(cargo());
    command
        .current_dir(dir)
        .args(["test", "--offline", "--no-fail-fast"])
        .args(arguments)
        .env("CARGO_TARGET_DIR", dir.join("target"))
        .env_remove("RUST_TEST_THREADS");
    command
}

#[test]
fn every_test_that_failed_is_named_and_so_is_a_program_that_crashed() {
    let dir = tempfile::tempdir().unwrap();
    package(dir.path());
    let mut report = Report::default();
    let mut printed = Vec::new();
    for arguments in [["--lib", "--tests"].as_slice(), &["--doc"]] {
        let command = cargo_in(dir.path(), arguments);
        let status = pass_through(command, &mut printed, |line| report.read(line));
        report.step_ended("cargo test", status.unwrap());
    }
    let printed = String::from_utf8(printed).unwrap();
    assert_eq!(
        report.failures(),
        [
            "scratch (unittests src/lib.rs): tests::bad",
            "scratch (unittests src/lib.rs): tests::calm",
            "crash (tests/crash.rs): ended before its last test (signal: 6, SIGABRT: process abort signal)",
            "scratch (doc tests): src/lib.rs - (line 1)",
        ],
        "{printed}"
    );
    let summary = report.to_string();
    assert!(summary.contains("FAILED  scratch (unittests src/lib.rs): tests::bad\n"));
    assert!(
        summary.ends_with("2 passed, 4 failed, 1 ignored, in 4 programs"),
        "{summary}"
    );
    // Cargo's own last words are there as well.
    assert!(printed.contains("error: 2 targets failed:"), "{printed}");
}

#[test]
fn a_command_that_fails_without_naming_a_test_is_named_itself() {
    let dir = tempfile::tempdir().unwrap();
    package(dir.path());
    fs::write(dir.path().join("tests/fine.rs"), "this does not compile").unwrap();
    let mut report = Report::default();
    let command = cargo_in(dir.path(), &["--tests"]);
    let status = pass_through(command, &mut Vec::new(), |line| report.read(line));
    report.step_ended("cargo test --tests", status.unwrap());
    assert_eq!(
        report.failures(),
        ["cargo test --tests: exit status: 101, and no test was named"]
    );
}

#[test]
fn nothing_failed_where_everything_passed() {
    let mut report = Report::default();
    for line in [
        "     Running unittests src/lib.rs (target/debug/deps/some_crate-0123456789abcdef)",
        "test tests::prints ... test of_another ... FAILED",
        "test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.00s",
        "   Doc-tests some_crate",
        "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
    ] {
        report.read(line);
    }
    report.step_ended("cargo test", ExitStatus::default());
    assert_eq!(report.failures(), [""; 0]);
    assert_eq!(
        report.to_string(),
        "13 passed, 0 failed, 3 ignored, in 2 programs"
    );
}

#[test]
fn suites_are_listed_by_their_time_and_those_under_a_second_are_left_out() {
    let mut report = Report::default();
    for (name, seconds) in [("quick", "0.99"), ("short", "1.20"), ("long", "312.49")] {
        report.read(&format!(
            "     Running tests/{name}.rs (target/{name}-0123)"
        ));
        report.read(&format!(
            "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; \
             finished in {seconds}s"
        ));
    }
    assert_eq!(
        report.to_string(),
        "    312 s  long (tests/long.rs)\n      1 s  short (tests/short.rs)\n\
         3 passed, 0 failed, 0 ignored, in 3 programs"
    );
}

#[test]
fn property_tests_get_the_same_cases_in_every_run() {
    let cases = || {
        // What `proptest!` makes of a test's own configuration.
        let config = contextualize_config(Config::with_cases(1));
        let mut runner = TestRunner::new(config);
        let mut one = || any::<u64>().new_tree(&mut runner).unwrap().current();
        [one(), one(), one(), one()]
    };
    assert_eq!(
        cases(),
        cases(),
        "PROPTEST_RNG_SEED is not set: cargo sets it from .cargo/config.toml"
    );
}
