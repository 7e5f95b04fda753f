//! The tables of `leasehold::blocking`: each public async verb has its row there, under the same type.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// A type and its verb.
type Verbs = BTreeSet<(String, String)>;

/// Not in the blocking API, and where instead, or why. `*` is each verb of a type.
const ELSEWHERE: &[(&str, &str, &str)] = &[
    ("ClientBuilder", "connect", "Client::connect_with"),
    ("Owner", "scope", "blocking::scope"),
    ("Client", "heard", "hidden, for tests of this library"),
    (
        "Client",
        "fail_over",
        "hidden, for the drill of the command",
    ),
    (
        "Client",
        "scope",
        "of #[locked]; a thread sets the global client",
    ),
    ("Election", "*", "elections are async"),
    ("Term", "*", "elections are async"),
    ("LeaderWatch", "*", "elections are async"),
];

fn sources(dir: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !["attribute", "backend", "blocking", "engine"].contains(&name) {
            sources(&path, found);
        } else if path.extension().is_some_and(|ext| ext == "rs")
            && !["attribute.rs", "sim.rs"].contains(&name)
        {
            found.push(fs::read_to_string(&path).unwrap());
        }
    }
}

fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    &text[..end.unwrap_or(text.len())]
}

/// `impl<K> Guard<K> {` is of `Guard`, `impl PermitGuard {` too.
fn implemented(line: &str) -> Option<&str> {
    let of = line.strip_prefix("impl")?;
    let of = match of.strip_prefix('<') {
        Some(generic) => generic.split_once('>')?.1,
        None => of,
    };
    let of = of.trim_start();
    match word(of) {
        "" if of.starts_with("$kind") => Some("$kind"),
        guard if guard.ends_with("Guard") && guard != "MultiGuard" => Some("Guard"),
        kind => Some(kind),
    }
}

/// The verbs that the API gives as a future, by `async fn` or by its type.
fn verbs() -> Verbs {
    let mut texts = Vec::new();
    sources(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut texts,
    );
    // A macro's verbs are those of each type that it is called for.
    let mut of_macros: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut found = Verbs::new();
    for text in &texts {
        let (mut of, mut in_macro) = (String::new(), None);
        let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
        for (at, line) in lines.iter().enumerate() {
            if let Some(name) = line.strip_prefix("macro_rules! ") {
                in_macro = Some(word(name).to_owned());
            }
            if let Some(kind) = implemented(line) {
                kind.clone_into(&mut of);
            }
            let Some(item) = line.strip_prefix("pub ") else {
                continue;
            };
            let head = lines[at..].iter().take(8);
            let head = head.scan(false, |over, line| {
                let is_over = std::mem::replace(over, line.ends_with('{'));
                (!is_over).then_some(*line)
            });
            let head = head.collect::<Vec<_>>().join(" ");
            let is_verb = item.starts_with("async fn ") || head.contains("Future<");
            let name = item.trim_start_matches("async ").strip_prefix("fn ");
            let Some(name) = name.filter(|_| is_verb).map(word) else {
                continue;
            };
            if of == "$kind" {
                let verbs = of_macros
                    .entry(in_macro.clone().expect("a macro"))
                    .or_default();
                verbs.push(name.to_owned());
            } else {
                found.insert((of.clone(), name.to_owned()));
            }
        }
    }
    for text in &texts {
        for (name, verbs) in &of_macros {
            for (at, call) in text.match_indices(&format!("{name}!(")) {
                let kind = word(text[at + call.len()..].trim_start());
                for verb in verbs {
                    found.insert((kind.to_owned(), verb.clone()));
                }
            }
        }
    }
    found
}

/// The name of a row.
fn row(line: &str) -> Option<&str> {
    let kinds = ["verb ", "moves ", "changes ", "pub fn "];
    kinds
        .iter()
        .find_map(|kind| line.strip_prefix(kind))
        .map(word)
}

/// The rows of the tables, and the verbs that are written by hand beside them.
fn rows() -> Verbs {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/blocking");
    let mut found = Verbs::new();
    for file in ["client.rs", "guards.rs", "locks.rs"] {
        let text = fs::read_to_string(dir.join(file)).unwrap();
        let (mut of, mut group) = (String::new(), Vec::new());
        for line in text.lines() {
            if line.starts_with("macro_rules! ") {
                group.clear();
                of.clear();
            }
            let line = line.trim_start();
            let table = line.strip_suffix(" {").or(line.strip_suffix(" {}"));
            if let Some(kind) = table.filter(|name| word(name) == *name && *name != "blocking") {
                kind.clone_into(&mut of);
            } else if let Some(kind) = implemented(line).filter(|kind| !kind.contains('$')) {
                kind.clone_into(&mut of);
            }
            if let Some(name) = row(line) {
                if of.is_empty() {
                    group.push(name.to_owned());
                }
                found.insert((of.clone(), name.to_owned()));
            }
            // `lease_rows!(Mutex FencedMutex)`, `guard_rows!(Guard)`, and the table of `run_rows!`.
            let call = line.split_once("_rows!(").map(|(_, kinds)| kinds);
            let kinds = call.unwrap_or_else(|| match line.strip_suffix(';') {
                Some(of_run) if group.iter().any(|name| name == "run_for") => word(of_run),
                _ => "",
            });
            for kind in kinds.split(|c: char| !c.is_alphanumeric()) {
                for verb in &group {
                    found.insert((kind.to_owned(), verb.clone()));
                }
            }
        }
    }
    found
}

#[test]
fn each_async_verb_has_its_row_in_the_blocking_api() {
    let (verbs, rows) = (verbs(), rows());
    assert!(verbs.len() > 80, "{}: {verbs:#?}", verbs.len());
    let is_elsewhere = |verb: &(String, String)| {
        let mut there = ELSEWHERE.iter();
        there.any(|(kind, name, _)| *kind == verb.0 && (*name == "*" || *name == verb.1))
    };
    let missing: Vec<_> = verbs
        .difference(&rows)
        .filter(|verb| !is_elsewhere(verb))
        .collect();
    assert!(
        missing.is_empty(),
        "in src/blocking/{{locks,guards,client}}.rs: {missing:#?}"
    );
}
