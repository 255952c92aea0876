//! `docs/weaknesses.md` explains every number that a test is named after, `w` and digits, and names only
//! tests that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::test::root;

/// The names of the functions in all Rust files below a folder.
fn functions(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if entry.file_type().unwrap().is_dir() {
            if name != "target" && !name.starts_with('.') {
                functions(&path, found);
            }
        } else if name.ends_with(".rs") {
            let text = fs::read_to_string(&path).unwrap();
            found.extend(text.lines().filter_map(function).map(str::to_owned));
        }
    }
}

fn function(line: &str) -> Option<&str> {
    let line = line.trim_start().trim_start_matches("pub ");
    let name = line.trim_start_matches("async ").strip_prefix("fn ")?;
    name.split(['(', '<']).next()
}

#[test]
fn every_number_in_a_tests_name_has_a_row_and_every_test_of_a_row_exists() {
    let root = root();
    let page = fs::read_to_string(root.join("docs/weaknesses.md")).unwrap();
    let mut functions_found = BTreeSet::new();
    functions(&root, &mut functions_found);

    let number = |cell: &str| cell.parse::<u32>().ok();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| W"));
    let rows: Vec<u32> = rows
        .filter_map(|row| number(row.split(' ').next()?))
        .collect();
    assert!(rows.is_sorted_by(|one, next| one < next), "{rows:?}");
    for name in &functions_found {
        for used in name.split('_').filter_map(|word| word.strip_prefix('w')) {
            let known = number(used).is_none_or(|used| rows.contains(&used));
            assert!(known, "{name}: docs/weaknesses.md has no row W{used}");
        }
    }

    let code = page.split('`').skip(1).step_by(2);
    for (_, name) in code.filter_map(|code| code.rsplit_once("::")) {
        assert!(functions_found.contains(name), "there is no test {name}");
    }
}
