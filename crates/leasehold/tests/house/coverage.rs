//! `interop/COVERAGE.md`: each of Redisson's tests has an answer there, and each test of ours that it names is there.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

const TABLE: &str = include_str!("../../../../interop/COVERAGE.md");

/// The path of a named test begins at the crate or at the root of the repository.
fn source(path: &str) -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let places = [here.join(path), here.join("../..").join(path)];
    places.into_iter().find(|place| place.is_file())
}

/// `tests/kinds/mutex.rs::a_test` becomes its path and its name.
fn named(code: &str) -> Option<(&str, &str)> {
    let (path, test) = code.split_once("::")?;
    path.strip_suffix(".rs").map(|_| (path, test))
}

#[test]
fn every_test_that_is_named_is_there() {
    let mut sources: BTreeMap<&str, String> = BTreeMap::new();
    let mut found = 0;
    let mut missing = Vec::new();
    for (path, test) in TABLE.split('`').skip(1).step_by(2).filter_map(named) {
        let text = sources.entry(path).or_insert_with(|| {
            source(path).map_or_else(String::new, |file| fs::read_to_string(file).unwrap())
        });
        if text.contains(&format!("fn {test}(")) {
            found += 1;
        } else {
            missing.push(format!("{path}::{test}"));
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(found > 0, "the table names no test");
}

/// How many rows of a section are covered, cannot apply, and are not covered.
type Counts = [usize; 3];

fn answer(row: &[&str]) -> usize {
    let ours = row.last().expect("a row has cells");
    if ours.starts_with("cannot apply") {
        return 1;
    }
    if ours.starts_with("**not covered**") {
        return 2;
    }
    let names_a_test = ours.split('`').any(|code| named(code).is_some());
    assert!(names_a_test, "no answer: {row:?}");
    0
}

#[test]
fn every_row_has_an_answer_and_the_counts_are_right() {
    let mut said: Vec<(&str, Vec<usize>)> = Vec::new();
    let mut sections: Vec<(&str, Counts)> = Vec::new();
    for line in TABLE.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            sections.push((title, Counts::default()));
        }
        let Some(cells) = line.strip_prefix("| ") else {
            continue;
        };
        let cells = cells.trim_end().trim_end_matches('|').split(" | ");
        let cells: Vec<&str> = cells.map(str::trim).collect();
        let is_head = ["| rows", "Redisson", "#"].contains(&cells[0]);
        match sections.last_mut() {
            _ if is_head => {}
            Some((_, counts)) => {
                assert_eq!(cells.len(), 3, "{line}");
                counts[answer(&cells)] += 1;
            }
            None => {
                let numbers = cells[1..]
                    .iter()
                    .map(|number| number.parse::<usize>().unwrap());
                said.push((cells[0], numbers.collect()));
            }
        }
    }
    let mut all = Counts::default();
    let mut counted: Vec<(&str, Vec<usize>)> = Vec::new();
    let with_sum = |counts: Counts| [vec![counts.iter().sum()], counts.to_vec()].concat();
    for (title, counts) in sections {
        for (all, count) in all.iter_mut().zip(counts) {
            *all += count;
        }
        counted.push((title, with_sum(counts)));
    }
    counted.push(("**all**", with_sum(all)));
    assert_eq!(said, counted);
}
