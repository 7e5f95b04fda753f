//! The house rules that a machine can check (ARCHITECTURE.md, Floors): doors lead down only, outside the engine no two files import each
//! other, no function grows beyond what the eye holds at once, and what has one home has no second.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// From the lowest to the highest. A file is on the floor that names it, or else the nearest directory above it.
const FLOORS: [(&str, &[&str]); 11] = [
    (
        "the words",
        &[
            "address",
            "at_least",
            "backoff",
            "user_callback",
            "clock",
            "cluster",
            "config",
            "connection",
            "credentials",
            "durability",
            "durations",
            "error",
            "events",
            "background",
            "kind",
            "stderr_warning",
            "name",
            "outage",
            "owner",
            "sentinel",
            "story",
            "tls",
            "world",
        ],
    ),
    ("the backends", &["backend"]),
    ("the engine's env", &["engine::env"]),
    ("the engine's hold", &["engine::hold"]),
    ("the engine's local", &["engine::local"]),
    ("the engine's claim", &["engine::claim"]),
    ("the engine's queue", &["engine::queue"]),
    (
        "the engine's fair and latch waiters",
        &["engine::fair", "engine::latch_waiters"],
    ),
    ("the engine's core and multi", &["engine"]),
    (
        "what users see",
        &[
            "attribute",
            "builder",
            "client",
            "docs",
            "examine",
            "find",
            "lib",
            "locks",
            "metrics",
            "settings",
            "sim",
            "status",
        ],
    ),
    ("for threads", &["blocking"]),
];

/// Where the names live that the crate's root hands on.
const ROOT: &[(&str, &str)] = &[
    ("Acknowledged", "durability"),
    ("Cause", "error"),
    ("ClusterNodes", "cluster"),
    ("Durability", "durability"),
    ("Unmet", "durability"),
    ("Client", "client"),
    ("ConnectionSettings", "connection"),
    ("Credentials", "credentials"),
    ("CredentialsProvider", "credentials"),
    ("Protocol", "connection"),
    ("ClientBuilder", "builder"),
    ("Error", "error"),
    ("ErrorKind", "error"),
    ("Event", "events"),
    ("Exclusive", "locks::guard"),
    ("Fair", "locks::fair_mutex"),
    ("Finding", "examine"),
    ("Level", "examine"),
    ("Fenced", "locks::guard"),
    ("Plain", "locks::guard"),
    ("Read", "locks::guard"),
    ("Spin", "locks::guard"),
    ("Write", "locks::guard"),
    ("FencedMutex", "locks::fenced_mutex"),
    ("FencedMutexGuard", "locks::guard"),
    ("FencedStore", "locks::fenced_store"),
    ("Election", "locks::election"),
    ("EventKind", "events"),
    ("EventListener", "events"),
    ("Find", "find"),
    ("FairMutex", "locks::fair_mutex"),
    ("FairMutexGuard", "locks::guard"),
    ("Guard", "locks::guard"),
    ("Handoff", "config"),
    ("Latch", "locks::latch"),
    ("LeasedSemaphore", "locks::leased_semaphore"),
    ("LostReason", "error"),
    ("MemoryServer", "backend::memory::server"),
    ("MultiGuard", "locks::multi_guard"),
    ("MultiLock", "locks::multi_lock"),
    ("Mutex", "locks::mutex"),
    ("MutexGuard", "locks::guard"),
    ("Outcome", "events"),
    ("Owner", "owner"),
    ("Part", "locks::part"),
    ("PermitGuard", "locks::guard"),
    ("PlainMutex", "locks::plain_mutex"),
    ("PlainMutexGuard", "locks::guard"),
    ("ReadGuard", "locks::guard"),
    ("RwLock", "locks::rw_lock"),
    ("Semaphore", "locks::semaphore"),
    ("Sentinel", "sentinel"),
    ("SemaphoreGuard", "locks::guard"),
    ("SpinMutex", "locks::spin_mutex"),
    ("SpinMutexGuard", "locks::guard"),
    ("Term", "locks::term"),
    ("WriteGuard", "locks::guard"),
    ("Released", "error"),
    ("Status", "status"),
    ("Tls", "tls"),
];

/// The simulation's part of each floor, behind a feature of its own.
const SIMULATED: &[&str] = &["sim", "world", "backend::simulated"];

/// As many lines as the eye holds at once, comments not counted. A file may have as many as its subject needs.
const FUNCTION_MOST: usize = 80;

/// Code that has one home, or this many on purpose: a text of the sources, how often it stands there, and what another one would be.
const HOMES: [(&str, usize, &str); 3] = [
    (
        " LockSteps for ",
        3,
        "one more backend: a router of servers, a majority and memory are all",
    ),
    (
        "struct Backoff",
        1,
        "another pause that grows: crate::backoff::Backoff is for all",
    ),
    (
        "fn is_ambiguous",
        1,
        "another rule for what a failure says of the server: it is crate::backend::Failure's",
    ),
];

/// Words that only this project knew, each with the field's.
const HOUSE_WORDS: [(&str, &str); 17] = [
    ("audience", "listeners"),
    ("callout", "user callback"),
    ("carrier", "transport"),
    ("debt", "pending release"),
    ("ears", "listeners"),
    ("finder", "discovery"),
    ("gate", "coordinator, or latch waiters"),
    ("greeting", "handshake"),
    ("ground", "generation"),
    ("home", "background runtime"),
    ("keeper", "heartbeat"),
    ("lane", "connection"),
    ("lineup", "fair queue"),
    ("looker", "inspector"),
    ("lookout", "poller"),
    ("loudly", "stderr warning"),
    ("seat", "leader record"),
];

/// A source file by the path of its module, without tests and comments.
struct Sources(BTreeMap<String, String>);

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn module_of(file: &Path) -> String {
    let path = file.strip_prefix(src()).unwrap().with_extension("");
    let parts: Vec<_> = path.iter().map(|part| part.to_str().unwrap()).collect();
    let parts = match parts.split_last() {
        Some((&"mod", parents)) => parents,
        _ => &parts,
    };
    parts.join("::")
}

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|ext| ext == "rs") && !path.ends_with("tests.rs") {
            found.push(path);
        }
    }
}

impl Sources {
    fn read() -> Sources {
        let mut found = Vec::new();
        files(&src(), &mut found);
        let read = |file: &PathBuf| {
            let text = fs::read_to_string(file).unwrap();
            (module_of(file), without_tests(&text))
        };
        Sources(found.iter().map(read).collect())
    }

    /// The modules that a file names in its `use` lines and paths: the longest prefix of each path that is a file.
    fn imports(&self, module: &str) -> BTreeSet<String> {
        let text = &self.0[module];
        let mut paths = Vec::new();
        for (at, _) in text.match_indices("crate::") {
            expand("", &text[at + "crate::".len()..], &mut paths);
        }
        for (at, _) in text.match_indices("super::") {
            // A file's `super` is the module that declares it; `super::super` does not occur.
            let parent = module.rsplit_once("::").map_or("", |(parent, _)| parent);
            expand(parent, &text[at + "super::".len()..], &mut paths);
        }
        let files = paths.iter().filter_map(|path| self.file_of(path));
        files.filter(|file| file != module).collect()
    }

    fn file_of(&self, path: &str) -> Option<String> {
        let first = path.split("::").next()?;
        if let Some((_, home)) = ROOT.iter().find(|(name, _)| *name == first) {
            return Some((*home).to_owned());
        }
        let mut path = path;
        loop {
            if self.0.contains_key(path) {
                return Some(path.to_owned());
            }
            path = path.rsplit_once("::")?.0;
        }
    }
}

fn without_tests(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    let code = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    code.collect::<Vec<_>>().join("\n")
}

/// The paths that `rest` of a path means behind `prefix`, braces included.
fn expand(prefix: &str, rest: &str, paths: &mut Vec<String>) {
    let join = |part: &str| match prefix {
        "" => part.to_owned(),
        _ => format!("{prefix}::{part}"),
    };
    if let Some(inside) = rest.strip_prefix('{') {
        let (mut depth, mut begin) = (0_usize, 0);
        for (at, c) in inside.char_indices() {
            match c {
                '{' => depth += 1,
                ',' if depth == 0 => {
                    expand(prefix, inside[begin..at].trim(), paths);
                    begin = at + 1;
                }
                '}' if depth == 0 => {
                    expand(prefix, inside[begin..at].trim(), paths);
                    return;
                }
                '}' => depth -= 1,
                _ => {}
            }
        }
        return;
    }
    let word = rest
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(rest.len());
    if word == 0 {
        return;
    }
    match rest[word..].strip_prefix("::") {
        Some(more) => expand(&join(&rest[..word]), more, paths),
        None => paths.push(join(&rest[..word])),
    }
}

fn floor(module: &str) -> usize {
    let mut path = module;
    loop {
        if let Some(floor) = FLOORS.iter().position(|(_, names)| names.contains(&path)) {
            return floor;
        }
        path = path
            .rsplit_once("::")
            .unwrap_or_else(|| {
                panic!("{module} is on no floor: tests/house/tidy.rs and ARCHITECTURE.md")
            })
            .0;
    }
}

#[test]
fn doors_lead_down_only() {
    let sources = Sources::read();
    let mut wrong = Vec::new();
    for module in sources.0.keys() {
        // The root names everything, and is imported through `ROOT` only.
        for import in sources.imports(module) {
            if module != "lib" && floor(&import) > floor(module) {
                let (from, to) = (FLOORS[floor(module)].0, FLOORS[floor(&import)].0);
                wrong.push(format!("{module} ({from}) imports {import} ({to})"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Modules that stand on what users can call: they would work in a crate of their own, but for a few words.
const ABOVE: &[&str] = &[
    "attribute",
    "blocking",
    "locks::election",
    "locks::leader",
    "locks::term",
    "metrics",
];

#[test]
fn what_stands_on_the_public_api_imports_no_engine_and_no_backend() {
    let sources = Sources::read();
    let is_in = |module: &str, of: &str| module == of || module.starts_with(&format!("{of}::"));
    let mut wrong = Vec::new();
    for module in sources.0.keys() {
        if ABOVE.iter().any(|above| is_in(module, above)) {
            let mut imports = sources.imports(module);
            // But for what users can call, too.
            let is_public = |import: &String| ROOT.iter().any(|(_, home)| home == import);
            imports.retain(|import| is_in(import, "engine") || is_in(import, "backend"));
            imports.retain(|import| !is_public(import));
            wrong.extend(
                imports
                    .into_iter()
                    .map(|import| format!("{module}: {import}")),
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The modules that a module reaches by its imports, and theirs.
fn reached(arrows: &BTreeMap<&str, BTreeSet<String>>, from: &str) -> BTreeSet<String> {
    let (mut found, mut open) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(module) = open.pop() {
        for import in arrows.get(&*module).into_iter().flatten() {
            if found.insert(import.clone()) {
                open.push(import.clone());
            }
        }
    }
    found
}

/// A module opens its own folder, by paths without a prefix; that is no import.
#[test]
fn no_loop_of_imports_is_larger_than_a_pair() {
    let sources = Sources::read();
    // The root only hands names on.
    let modules = sources.0.keys().filter(|module| *module != "lib");
    let arrows: BTreeMap<&str, _> = modules
        .map(|module| (&**module, sources.imports(module)))
        .collect();
    let reach: BTreeMap<&str, _> = arrows
        .keys()
        .map(|module| (*module, reached(&arrows, module)))
        .collect();
    let mut loops = BTreeSet::new();
    for (module, others) in &reach {
        let back = |other: &&String| reach.get(&***other).is_some_and(|of| of.contains(*module));
        let around: BTreeSet<&String> = others.iter().filter(back).collect();
        if around.len() > 2 {
            loops.insert(around.into_iter().cloned().collect::<Vec<_>>());
        }
    }
    assert!(loops.is_empty(), "{loops:#?}");
}

/// The name and the lines of each function that has a body of its own lines.
fn functions(text: &str) -> Vec<(&str, usize)> {
    let mut functions = Vec::new();
    // By indentation, since rustfmt has been here.
    let mut open: Vec<(&str, &str, usize)> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let code = line.trim_start();
        let indent = &line[..line.len() - code.len()];
        if let Some((_, rest)) = code.split_once("fn ")
            && code.split("fn ").next().is_some_and(is_of_a_function)
            && let Some(name) = rest.split(['(', '<']).next()
        {
            open.push((name, indent, number));
        }
        let Some(&(name, its, from)) = open.last() else {
            continue;
        };
        if its == indent && (code == "}" || code.ends_with(';') || code.ends_with("{}")) {
            open.pop();
            functions.push((name, number - from + 1));
        }
    }
    functions
}

fn is_of_a_function(before: &str) -> bool {
    let known = ["pub", "async", "const", "unsafe", "extern"];
    before
        .split_whitespace()
        .all(|word| known.contains(&word) || word.starts_with("pub("))
}

#[test]
fn no_function_is_too_long_to_be_read_in_one_go() {
    let mut found = Vec::new();
    files(&src(), &mut found);
    let mut long = Vec::new();
    let mut seen = 0;
    for file in found {
        let text = without_tests(&fs::read_to_string(&file).unwrap());
        for (name, lines) in functions(&text) {
            seen += 1;
            if lines > FUNCTION_MOST {
                long.push(format!("{}::{name} has {lines} lines", module_of(&file)));
            }
        }
    }
    assert!(
        long.is_empty(),
        "more than {FUNCTION_MOST} lines: {long:#?}"
    );
    assert!(seen > 2_000, "{seen} functions were found");
}

/// The words of a name such as `is_of_task` or `LeaseId`, in small letters.
fn words_of(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = '_';
    for c in name.chars() {
        let begins = c == '_' || c.is_ascii_uppercase() && !before.is_ascii_uppercase();
        if begins && !words.last().unwrap().is_empty() {
            words.push(String::new());
        }
        if c != '_' {
            words.last_mut().unwrap().push(c.to_ascii_lowercase());
        }
        before = c;
    }
    words
}

#[test]
fn no_name_has_a_word_that_only_this_project_knows() {
    let mut found = BTreeSet::new();
    for (module, text) in Sources::read().0 {
        let names = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for name in names.chain(module.split("::")) {
            for word in words_of(name) {
                let is_it = |(house, _): &&(&str, &str)| {
                    word.strip_suffix('s') == Some(house) || word == **house
                };
                if let Some((_, better)) = HOUSE_WORDS.iter().find(is_it) {
                    found.insert(format!("{name} in {module}: it is a {better}"));
                }
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn each_rule_has_one_home() {
    let all: String = Sources::read().0.into_values().collect();
    for (text, homes, meaning) in HOMES {
        assert_eq!(all.matches(text).count(), homes, "{text}: {meaning}");
    }
}

/// The type that a line declares, if it declares one.
fn declared(line: &str) -> Option<&str> {
    let line = line.strip_prefix("pub").map_or(line, |rest| {
        rest.trim_start_matches("(crate)")
            .trim_start_matches("(super)")
            .trim_start()
    });
    let kinds = ["struct ", "enum ", "trait ", "type "];
    let rest = kinds.iter().find_map(|kind| line.strip_prefix(kind))?;
    rest.split(|c: char| !c.is_alphanumeric()).next()
}

#[test]
fn no_two_types_share_a_name() {
    let mut places: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    // The same name twice in one file is one type, differently for the simulation.
    let of_hooks = |module: &str| {
        SIMULATED.iter().any(|of| module.starts_with(of)) || module.ends_with("::snapshot")
    };
    for (module, text) in Sources::read().0 {
        if !of_hooks(&module) {
            // The types that block are named as the async ones.
            let is_namesake = |name: &&str| {
                module.starts_with("blocking::") && ROOT.iter().any(|(of, _)| of == name)
            };
            for name in text
                .lines()
                .filter_map(declared)
                .filter(|name| !is_namesake(name))
            {
                places
                    .entry(name.to_owned())
                    .or_default()
                    .insert(module.clone());
            }
        }
    }
    places.retain(|_, modules| modules.len() > 1);
    assert!(places.is_empty(), "{places:#?}");
}

/// Words that hide who acts: say waiter, client, holder, caller, process instead.
const HIDING: &[&str] = &[
    "somebody",
    "nobody",
    "anybody",
    "everybody",
    "someone",
    "anyone",
    "everyone",
    "whoever",
    "whomever",
    "whom",
    "whatever",
    "he",
    "his",
    "him",
    "himself",
    "she",
    "hers",
];

fn comments(dir: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            comments(&path, found);
            continue;
        }
        let opens = match path.extension().and_then(|ext| ext.to_str()) {
            Some("rs") => "//",
            Some("lua") => "--",
            Some("md") => "",
            _ => continue,
        };
        let text = fs::read_to_string(&path).unwrap();
        for (number, line) in text.lines().enumerate() {
            let Some(said) = line.trim_start().strip_prefix(opens) else {
                continue;
            };
            let mut words = said.split(|c: char| !c.is_alphanumeric());
            if let Some(word) = words.find(|word| HIDING.contains(&word.to_lowercase().as_str())) {
                found.push(format!("{}:{}: {word}", path.display(), number + 1));
            }
        }
    }
}

#[test]
fn comments_say_who_acts() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    for dir in [
        "crates/leasehold/src",
        "crates/leasehold-cli/src",
        "crates/leasehold-macros/src",
        "crates/leasehold-testkit/src",
        "docs",
    ] {
        comments(&root.join(dir), &mut found);
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// The lines of the examples in a file's docs, without the fences.
fn examples(text: &str) -> String {
    let mut shown = String::new();
    let (mut inside, mut runs) = (false, false);
    for line in text.lines().map(str::trim) {
        if line.starts_with("/// ```") {
            inside = !inside;
            runs = inside && !line.starts_with("/// ```text"); // a picture is none
        } else if runs && (line.starts_with("///") || line.starts_with("#[doc")) {
            shown += line;
            shown += "\n";
        }
    }
    shown
}

/// The methods and types of a file that users see: name, and whether it has an example of its own.
fn public(text: &str) -> Vec<(String, bool)> {
    let (mut found, mut own, mut hidden) = (Vec::new(), false, false);
    for line in text.lines().map(str::trim) {
        if line.starts_with("///") || line.starts_with('#') {
            own |= line.starts_with("/// ```");
            hidden |= line.contains("doc(hidden)");
            continue;
        }
        let item = line.strip_prefix("pub ").map(|rest| {
            rest.trim_start_matches("const ")
                .trim_start_matches("async ")
        });
        let item = item.and_then(|item| item.strip_prefix("fn ").or(item.strip_prefix("struct ")));
        let name = item.and_then(|item| {
            item.split(|c: char| !c.is_alphanumeric() && c != '_')
                .next()
        });
        if let Some(name) = name.filter(|_| !hidden) {
            found.push((name.to_owned(), own));
        }
        if !line.starts_with(')') {
            (own, hidden) = (false, false);
        }
    }
    found
}

/// Each is called in an example of its own, or in another of its file; doc tests run them. (The enums that stand for kinds, and the names
/// of their guards, are said by the compiler, and not by users.)
#[test]
fn every_public_item_of_a_lock_is_shown_in_an_example() {
    let mut found = Vec::new();
    files(&src().join("locks"), &mut found);
    for file in [
        "builder",
        "client",
        "error",
        "events",
        "find",
        "kind",
        "metrics",
        "owner",
        "status",
        "tls",
        "backend/memory/server",
    ] {
        found.push(src().join(file).with_extension("rs"));
    }
    let elsewhere = [
        "Detached",
        "Invalid",
        "Holder",
        "QueuedClient",
        "recv",
        "EventListener",
    ];
    let (mut missing, mut seen) = (Vec::new(), 0);
    for file in found {
        let text = fs::read_to_string(&file).unwrap();
        let text = text
            .split("#[cfg(feature = \"sim\")]\nimpl ")
            .next()
            .unwrap();
        let shown = examples(text);
        for (name, own) in public(text) {
            seen += 1;
            let called = [
                format!(".{name}("),
                format!("::{name}("),
                format!("{name} {{"),
                format!("{name}::"),
            ];
            let is_shown = called.iter().any(|call| shown.contains(call));
            if !own && !is_shown && !elsewhere.contains(&&*name) {
                missing.push(format!("{}: {name}", module_of(&file)));
            }
        }
    }
    assert!(seen > 100, "{seen}");
    assert!(missing.is_empty(), "{missing:#?}");
}
