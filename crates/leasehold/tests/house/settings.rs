//! The table of settings (`client_settings!` in settings.rs): each method of the builder has its row, each row is played by a test, and
//! each duration has its bounds.

use std::{collections::BTreeMap, fs, path::Path};

/// Methods of the builder without a row, and why.
const IN_A_PROGRAM_ALONE: [(&str, &str); 10] = [
    ("memory", "a server of this process"),
    ("quorum_memory", "servers of this process"),
    ("simulated", "servers of a simulation"),
    ("sentinel", "its URL says the same"),
    ("cluster", "its URL says the same"),
    ("credentials", "code"),
    ("observe", "code"),
    ("metrics", "a registry of this process"),
    ("connection", "values of the crate `redis`"),
    ("redis_info", "values of the crate `redis`"),
];

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The files of a module: `name.rs`, and each in `name/`.
fn module(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(name);
    let files = fs::read_dir(folder).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    let all = paths.map(|path| fs::read_to_string(path).unwrap());
    all.fold(read(&format!("src/{name}.rs")), |all, more| all + &more)
}

/// Names of settings with the form that each has in a file.
fn rows() -> BTreeMap<String, String> {
    let source = read("src/settings.rs");
    let (_, table) = source.split_once("\nclient_settings! {\n").unwrap();
    let (table, _) = table.split_once("\n}").unwrap();
    let lines = table.lines().map(str::trim);
    let rows = lines.filter_map(|line| line.strip_suffix(',')?.split_once(": "));
    rows.map(|(name, form)| (name.to_owned(), form.to_owned()))
        .collect()
}

#[test]
fn each_method_of_the_builder_is_a_setting_of_a_file() {
    let builder = module("builder");
    let methods = builder.split("pub fn ").skip(1).filter_map(|rest| {
        let (head, _) = rest.split_once('{')?;
        let name = head.split(['(', '<']).next()?;
        head.contains("mut self").then_some(name)
    });
    let methods: Vec<&str> = methods.collect();
    let rows = rows();
    for method in &methods {
        let apart = IN_A_PROGRAM_ALONE.iter().any(|(name, _)| name == method);
        assert_ne!(
            rows.contains_key(*method),
            apart,
            "`{method}` needs a row in settings.rs, or a reason here"
        );
    }
    for name in rows.keys().map(String::as_str) {
        assert!(methods.contains(&name), "`{name}` is no method");
    }
}

#[test]
fn each_setting_of_a_file_is_played_and_each_duration_has_bounds() {
    let played = read("tests/settings.rs");
    let bounds = module("config") + &read("src/durability.rs");
    for (name, form) in rows() {
        let (in_toml, in_json) = (format!("{name} = "), format!("\"{name}\": "));
        let is_played = |line: &str| line.trim().starts_with(&in_toml) || line.contains(&in_json);
        assert!(played.lines().any(is_played), "{name}: played by no test");
        if form == "Time" || form == "Retention" {
            assert!(
                bounds.contains(&format!("\"{name}\"")),
                "{name}: bounded nowhere"
            );
        }
    }
}
